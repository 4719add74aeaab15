"""Exact expectations when every device acts independently: any degree, no joint table.

With independent actions the success of a packet factorises over the other senders that its receiver hears:

    E[1 − q_ij | p_j] = Σ_h P(h) e^{−φσ²/(p_j g_ij h)} Π_{j'≠j} E[e^{−φ p_j' g_ij' / (p_j g_ij)}]

so a receiver of degree d costs d² terms instead of |P|^d. A *wedge* is a pair of edges (e, f) into one receiver: f
disturbs e. All tensors have a leading slot axis, and channels are in their stationary law. Laws of actions
begin at any slot; its number decides which weights costs have.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from heliomesh.problem.problem import Problem

_SMALLEST = 1e-290  # keeps logarithms finite where interference makes success impossible


@dataclass(frozen=True)
class ProductForm:
    """The network's one-slot cost as a function of the devices' independent action laws."""

    problem: Problem

    @cached_property
    def _edges(self) -> tuple[Tensor, Tensor, Tensor]:
        """Receiver, sender and mixing weight of every edge."""
        topology, device = self.problem.topology, self.problem.device
        return (
            torch.from_numpy(topology.edge_receiver).to(device),
            torch.from_numpy(topology.edge_sender).to(device),
            torch.from_numpy(topology.edge_weight).to(device, self.problem.dtype),
        )

    @cached_property
    def _wedges(self) -> tuple[Tensor, Tensor]:
        """Disturbed edge and disturbing edge of every wedge; (wedge,) each."""
        start = torch.from_numpy(self.problem.topology.edge_start).to(self.problem.device)
        receiver = self._edges[0]
        degree = (start[1:] - start[:-1])[receiver]
        disturbed = torch.repeat_interleave(torch.arange(len(receiver), device=receiver.device), degree)
        first = torch.cumsum(degree, 0) - degree
        offset = torch.arange(len(disturbed), device=receiver.device) - first[disturbed]
        disturbing = start[:-1][receiver[disturbed]] + offset
        distinct = disturbed != disturbing
        return disturbed[distinct], disturbing[distinct]

    @cached_property
    def _survival(self) -> Tensor:
        """E_h'[e^{−φ p_a' g_f h' / (p_a g_e h)}] per wedge; (wedge, own action a, level h, other's action a').

        One level per receiver cancels (length 1); with a level per link it is averaged over the disturbing link's.
        """
        problem = self.problem
        disturbed, disturbing = self._wedges
        power = problem.actions.power_watt
        gain = problem.link.path_gain
        ratio = (gain[disturbing] / gain[disturbed]).reshape(-1, 1, 1, 1)
        own = torch.where(power > 0, power, 1.0).reshape(1, -1, 1, 1)  # silent: success is set to zero anyway
        strength = problem.link.waterfall * ratio * power.reshape(1, 1, 1, -1) / own
        if problem.scenario.channel.state == "receiver":
            return torch.exp(-strength).to(problem.dtype)
        level = problem.channel.gain
        fading = level.reshape(1, 1, 1, -1) / level.clamp_min(_SMALLEST).reshape(1, 1, -1, 1)
        survived = torch.exp(-strength.unsqueeze(-1) * fading.unsqueeze(-2))  # (wedge, a, h, a', h')
        return (survived @ problem.channel.stationary).to(problem.dtype)

    @cached_property
    def _alone(self) -> Tensor:
        """P(h) e^{−φσ²/(p_a g h)}, zero where nothing is sent; (edge, action, channel level)."""
        problem = self.problem
        receiver = self._edges[0]
        signal = (
            problem.link.path_gain.reshape(-1, 1, 1)
            * problem.actions.power_watt.reshape(1, -1, 1)
            * problem.channel.gain
        )
        noise = problem.link.noise_watt[receiver].reshape(-1, 1, 1)
        sent = signal > 0
        success = torch.where(sent, torch.exp(-problem.link.waterfall * noise / torch.where(sent, signal, 1.0)), 0.0)
        return (success * problem.channel.stationary).to(problem.dtype)

    def _crowd(self, law: Tensor) -> tuple[Tensor, Tensor]:
        """Log survival of each edge against each disturber and against all; laws (slot, device, action).

        Shapes (slot, wedge, action, level) and (slot, edge, action, level).
        """
        disturbed, disturbing = self._wedges
        other = law[:, self._edges[1][disturbing]]  # (slot, wedge, action')
        each = torch.einsum("wahb,twb->twah", self._survival, other).clamp_min(_SMALLEST).log()
        everyone = each.new_zeros(len(law), len(self._edges[0]), *each.shape[2:])
        return each, everyone.index_add_(1, disturbed, each)

    def _listening(self, law: Tensor) -> Tensor:
        """Probability that a receiver can hear; (slot, device)."""
        if not self.problem.link.half_duplex:
            return torch.ones_like(law[..., 0])
        return law[..., self.problem.actions.power_watt == 0].sum(-1)

    def _weights(self, first_slot: int, slots: int) -> tuple[Tensor, Tensor]:
        """v_t a_ij of every edge (slot, edge), and what actions cost that do not train (slot, device, action)."""
        weights, place = self.problem.weights, self.problem.device
        phase = torch.from_numpy(weights.phase_of_slot[first_slot : first_slot + slots]).to(place)
        deliver = torch.tensor([one.deliver for one in weights.phases], dtype=self.problem.dtype, device=place)
        return torch.outer(deliver[phase], self._edges[2]), self.problem.idle_costs[phase]

    def cost(self, law: Tensor, first_slot: int = 0) -> Tensor:
        """Expected one-slot cost of the network; (slot,)."""
        receiver, sender, _ = self._edges
        weight, idle_cost = self._weights(first_slot, len(law))
        _, everyone = self._crowd(law)
        success = (self._alone * everyone.exp()).sum(-1)  # (slot, edge, action)
        arrived = (law[:, sender] * success).sum(-1) * self._listening(law)[:, receiver]
        lost = (weight * (1 - arrived)).sum(-1)
        return lost + (law * idle_cost).sum((-1, -2))

    def action_cost(self, law: Tensor, first_slot: int = 0) -> Tensor:
        """Expected cost of everything a device's action touches, per own action; (slot, device, action).

        Differences between actions are differences of the network's expected cost.
        """
        problem = self.problem
        receiver, sender, _ = self._edges
        weight, cost = self._weights(first_slot, len(law))
        disturbed, disturbing = self._wedges
        each, everyone = self._crowd(law)
        hears = self._listening(law)[:, receiver]  # (slot, edge)
        success = (self._alone * everyone.exp()).sum(-1)  # (slot, edge, action)
        # its own packets
        cost.index_add_(1, sender, weight.unsqueeze(-1) * (1 - success * hears.unsqueeze(-1)))
        # the packets it disturbs: survival of all the rest times its own, averaged over the disturbed sender's action
        others = (everyone[:, disturbed] - each).exp() * self._alone[disturbed]
        given = torch.einsum("twah,wahb,twa->twb", others, self._survival, law[:, sender[disturbed]])
        given = given * hears[:, disturbed].unsqueeze(-1)
        cost.index_add_(1, sender[disturbing], weight[:, disturbed].unsqueeze(-1) * (1 - given))
        if problem.link.half_duplex:  # the packets it misses while it sends
            arrived = (law[:, sender] * success).sum(-1)
            silent = (problem.actions.power_watt == 0).to(problem.dtype)
            missed = weight.unsqueeze(-1) * (1 - arrived.unsqueeze(-1) * silent)
            cost.index_add_(1, receiver, missed)
        return cost
