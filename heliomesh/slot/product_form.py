"""Exact expectations when every device acts independently: any degree, no joint table.

With independent actions the success of a packet factorises over the other senders that its receiver hears:

    E[1 − q_ij | p_j] = Σ_h P(h) e^{−φσ²/(p_j g_ij h)} Π_{j'≠j} E[e^{−φ p_j' g_ij' / (p_j g_ij)}]

so a receiver of degree d costs d² terms instead of |P|^d. A *wedge* is a pair of edges (e, f) into one receiver: f
disturbs e. All tensors have a leading slot axis, and channels are in their stationary law. Laws of actions
begin at any slot; its number decides which weights costs have.

What the actions of some devices cost follows from the receivers that hear them: `MoverCosts` looks at no others.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from heliomesh.model.problem import Problem

SMALLEST = 1e-290  # keeps logarithms finite where interference makes success impossible


@dataclass(frozen=True)
class Links:
    """All edges into some receivers, and the wedges among them."""

    problem: Problem
    edges: Tensor  # (edge,) their numbers in the network, rising

    @cached_property
    def receiver(self) -> Tensor:
        """Receiver of every edge; (edge,)."""
        return torch.from_numpy(self.problem.topology.edge_receiver).to(self.problem.device)[self.edges]

    @cached_property
    def sender(self) -> Tensor:
        """Sender of every edge; (edge,)."""
        return torch.from_numpy(self.problem.topology.edge_sender).to(self.problem.device)[self.edges]

    @cached_property
    def wedges(self) -> tuple[Tensor, Tensor]:
        """Disturbed edge and disturbing edge of every wedge, as places in `edges`; (wedge,) each."""
        place = self.problem.device
        heard = torch.bincount(self.receiver, minlength=self.problem.num_devices)
        start, degree = torch.cumsum(heard, 0) - heard, heard[self.receiver]
        disturbed = torch.repeat_interleave(torch.arange(len(degree), device=place), degree)
        first = torch.cumsum(degree, 0) - degree
        offset = torch.arange(len(disturbed), device=place) - first[disturbed]
        disturbing = start[self.receiver[disturbed]] + offset
        distinct = disturbed != disturbing
        return disturbed[distinct], disturbing[distinct]

    @cached_property
    def survival(self) -> Tensor:
        """E_h'[e^{−φ p_a' g_f h' / (p_a g_e h)}] per wedge; (wedge, own action a, level h, other's action a').

        One level per receiver cancels (length 1); with a level per link it is averaged over the disturbing link's.
        """
        problem = self.problem
        disturbed, disturbing = self.wedges
        power = problem.actions.power_watt
        gain = problem.link.path_gain[self.edges]
        ratio = (gain[disturbing] / gain[disturbed]).reshape(-1, 1, 1, 1)
        own = torch.where(power > 0, power, 1.0).reshape(1, -1, 1, 1)  # silent: success is set to zero anyway
        strength = problem.link.waterfall * ratio * power.reshape(1, 1, 1, -1) / own
        if problem.scenario.channel.state == "receiver":
            return torch.exp(-strength).to(problem.dtype)
        level = problem.channel.gain
        fading = level.reshape(1, 1, 1, -1) / level.clamp_min(SMALLEST).reshape(1, 1, -1, 1)
        survived = torch.exp(-strength.unsqueeze(-1) * fading.unsqueeze(-2))  # (wedge, a, h, a', h')
        return (survived @ problem.channel.stationary).to(problem.dtype)

    @cached_property
    def alone(self) -> Tensor:
        """P(h) e^{−φσ²/(p_a g h)}, zero where nothing is sent; (edge, action, channel level)."""
        problem = self.problem
        signal = (
            problem.link.path_gain[self.edges].reshape(-1, 1, 1)
            * problem.actions.power_watt.reshape(1, -1, 1)
            * problem.channel.gain
        )
        noise = problem.link.noise_watt[self.receiver].reshape(-1, 1, 1)
        sent = signal > 0
        success = torch.where(sent, torch.exp(-problem.link.waterfall * noise / torch.where(sent, signal, 1.0)), 0.0)
        return (success * problem.channel.stationary).to(problem.dtype)

    def crowd(self, law: Tensor) -> tuple[Tensor, Tensor]:
        """Log survival of each edge against each disturber and against all; laws (slot, device, action).

        Shapes (slot, wedge, action, level) and (slot, edge, action, level).
        """
        disturbed, disturbing = self.wedges
        other = law[:, self.sender[disturbing]]  # (slot, wedge, action')
        each = torch.einsum("wahb,twb->twah", self.survival, other).clamp_min(SMALLEST).log()
        everyone = each.new_zeros(len(law), len(self.edges), *each.shape[2:])
        return each, everyone.index_add_(1, disturbed, each)

    def hears(self, law: Tensor) -> Tensor:
        """Probability that an edge's receiver can hear; (slot, edge)."""
        if not self.problem.link.half_duplex:
            return law.new_ones(len(law), len(self.edges))
        return law[..., self.problem.actions.power_watt == 0].sum(-1)[:, self.receiver]

    @cached_property
    def weight(self) -> Tensor:
        """a_ij; (edge,)."""
        own = torch.from_numpy(self.problem.topology.edge_weight).to(self.problem.device, self.problem.dtype)
        return own[self.edges]


@dataclass(frozen=True)
class MoverCosts:
    """What the actions of some devices cost, from the links into the receivers that hear them."""

    problem: Problem
    movers: Tensor  # (mover,) device numbers

    @cached_property
    def place(self) -> Tensor:
        """Place of every device among the movers, −1 for the others; (device,)."""
        place = torch.full((self.problem.num_devices,), -1, device=self.movers.device)
        place[self.movers] = torch.arange(len(self.movers), device=self.movers.device)
        return place

    @cached_property
    def links(self) -> Links:
        """Edges into all receivers that hear a mover, or that are one under half duplex."""
        topology = self.problem.topology
        receiver, sender = (
            torch.from_numpy(ends).to(self.movers.device) for ends in (topology.edge_receiver, topology.edge_sender)
        )
        touched = torch.zeros(self.problem.num_devices, dtype=torch.bool, device=self.movers.device)
        touched[receiver[self.place[sender] >= 0]] = True
        if self.problem.link.half_duplex:
            touched[self.movers] = True
        return Links(self.problem, touched[receiver].nonzero().squeeze(1))

    @cached_property
    def _sent(self) -> tuple[Tensor, Tensor]:
        """Edges from movers, and their movers' places; (edge,) each."""
        place = self.place[self.links.sender]
        which = (place >= 0).nonzero().squeeze(1)
        return which, place[which]

    @cached_property
    def _disturbed(self) -> tuple[Tensor, Tensor, Tensor]:
        """Wedges that movers disturb, their disturbed edges, and their movers' places; (wedge,) each."""
        disturbed, disturbing = self.links.wedges
        place = self.place[self.links.sender[disturbing]]
        which = (place >= 0).nonzero().squeeze(1)
        return which, disturbed[which], place[which]

    @cached_property
    def _survival(self) -> Tensor:
        """`Links.survival` of the wedges that movers disturb."""
        return self.links.survival[self._disturbed[0]]

    def action_cost(self, law: Tensor, first_slot: int = 0) -> Tensor:
        """Expected cost of everything a mover's action touches, per own action; (slot, mover, action).

        Laws (slot, device, action). Differences between actions are differences of the network's expected cost.
        """
        problem, links = self.problem, self.links
        cost = problem.idle_cost[self.movers].repeat(len(law), 1, 1)
        weight, hears = links.weight.unsqueeze(-1), links.hears(law)
        each, everyone = links.crowd(law)
        success = (links.alone * everyone.exp()).sum(-1)  # (slot, edge, action)
        # its own packets
        sent, mover = self._sent
        cost.index_add_(1, mover, weight[sent] * (1 - success[:, sent] * hears[:, sent, None]))
        # the packets it disturbs: survival of all the rest times its own, averaged over the disturbed sender's action
        wedge, edge, mover = self._disturbed
        others = (everyone[:, edge] - each[:, wedge]).exp() * links.alone[edge]
        given = torch.einsum("twah,wahb,twa->twb", others, self._survival, law[:, links.sender[edge]])
        cost.index_add_(1, mover, weight[edge] * (1 - given * hears[:, edge, None]))
        if problem.link.half_duplex:  # the packets it misses while it sends
            missing = (self.place[links.receiver] >= 0).nonzero().squeeze(1)
            arrived = (law[:, links.sender[missing]] * success[:, missing]).sum(-1)
            silent = (problem.actions.power_watt == 0).to(problem.dtype)
            missed = weight[missing] * (1 - arrived.unsqueeze(-1) * silent)
            cost.index_add_(1, self.place[links.receiver[missing]], missed)
        return cost


@dataclass(frozen=True)
class ProductForm:
    """The network's one-slot cost as a function of the devices' independent action laws."""

    problem: Problem

    @cached_property
    def _links(self) -> Links:
        return Links(self.problem, torch.arange(len(self.problem.topology.edge_sender), device=self.problem.device))

    def cost(self, law: Tensor, first_slot: int = 0) -> Tensor:
        """Expected one-slot cost of the network; (slot,)."""
        links = self._links
        _, everyone = links.crowd(law)
        success = (links.alone * everyone.exp()).sum(-1)  # (slot, edge, action)
        arrived = (law[:, links.sender] * success).sum(-1) * links.hears(law)
        lost = (links.weight * (1 - arrived)).sum(-1)
        return lost + (law * self.problem.idle_cost).sum((-1, -2))

    def of(self, movers: Tensor) -> MoverCosts:
        """Costs of the actions of some devices."""
        return MoverCosts(self.problem, movers)
