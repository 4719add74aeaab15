"""Exact expectations when every device acts independently: any degree, no joint table.

With independent actions the success of a packet factorises over the other senders that its receiver hears:

    E[1 − q_ij | p_j] = Σ_h P(h) e^{−φσ²/(p_j g_ij h)} Π_{j'≠j} E[e^{−φ p_j' g_ij' / (p_j g_ij)}]

so a receiver of degree d costs d² terms instead of |P|^d. A *wedge* is a pair of edges (e, f) into one receiver: f
disturbs e. Laws and costs have a leading slot axis, and channels are in their stationary law.

Logarithms of survival are kept between calls, and renewed only for devices whose laws have changed, which in a
descent are the movers of the last turn. There slots are the last axis, so that rows of edges and wedges are
contiguous. Silent actions send nothing, so packets have *powers*: the actions that send. Where all links into a
receiver share one channel level it cancels from survival, and P(h) e^{−φσ²/(p g h)} is summed over it once.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from heliomesh.model.problem import Problem
from heliomesh.slot.colour_rounds import place_among
from heliomesh.slot.packet_market import EdgeTensors

_SMALLEST = 1e-290  # keeps logarithms finite where interference makes success impossible
_KEPT_BYTES = {"cpu": 1 << 32, "cuda": 1 << 35}  # of logarithms that are kept between calls


@dataclass(frozen=True)
class Links(EdgeTensors):
    """All edges, and the wedges among them."""

    @cached_property
    def wedges(self) -> tuple[Tensor, Tensor]:
        """Disturbed edge and disturbing edge of every wedge; (wedge,) each."""
        start = torch.from_numpy(self.problem.topology.edge_start).to(self.problem.device)
        edge, degree = torch.arange(len(self.receiver), device=start.device), start.diff()[self.receiver]
        disturbed = torch.repeat_interleave(edge, degree)
        first = torch.cumsum(degree, 0) - degree
        offset = torch.arange(len(disturbed), device=start.device) - first[disturbed]
        disturbing = start[self.receiver[disturbed]] + offset
        distinct = disturbed != disturbing
        return disturbed[distinct], disturbing[distinct]

    @property
    def disturbed(self) -> Tensor:
        """Edge that is disturbed, of every wedge; (wedge,)."""
        return self.wedges[0]

    @cached_property
    def disturber(self) -> Tensor:
        """Device that disturbs, of every wedge; (wedge,)."""
        return self.sender[self.wedges[1]]

    @cached_property
    def sending(self) -> Tensor:
        """Actions that send; (power,)."""
        return (self.problem.actions.power_watt > 0).nonzero().squeeze(1)

    @cached_property
    def survival(self) -> Tensor:
        """E_h'[e^{−φ p_a' g_f h' / (p_a g_e h)}] per wedge; (wedge, own power × level h, other's action a').

        One level per receiver cancels (length 1); with a level per link it is averaged over the disturbing link's.
        """
        problem, (disturbed, disturbing) = self.problem, self.wedges
        power, gain = problem.actions.power_watt, problem.link.path_gain
        ratio = (gain[disturbing] / gain[disturbed]).reshape(-1, 1, 1, 1)
        own = power[self.sending].reshape(1, -1, 1, 1)
        strength = problem.link.waterfall * ratio * power.reshape(1, 1, 1, -1) / own
        if problem.scenario.channel.state == "receiver":
            return torch.exp(-strength).to(problem.dtype).flatten(1, 2)
        level = problem.channel.gain
        fading = level.reshape(1, 1, 1, -1) / level.clamp_min(_SMALLEST).reshape(1, 1, -1, 1)
        survived = torch.exp(-strength.unsqueeze(-1) * fading.unsqueeze(-2))  # (wedge, a, h, a', h')
        return (survived @ problem.channel.stationary).to(problem.dtype).flatten(1, 2)

    @cached_property
    def alone(self) -> Tensor:
        """P(h) e^{−φσ²/(p_a g h)} of packets; (edge, power, level, 1), one level where all links share it."""
        problem = self.problem
        power, gain = problem.actions.power_watt[self.sending], problem.link.path_gain
        signal = gain.reshape(-1, 1, 1) * power.reshape(1, -1, 1) * problem.channel.gain
        noise = problem.link.noise_watt[self.receiver].reshape(-1, 1, 1)
        sent = signal > 0
        success = torch.where(sent, torch.exp(-problem.link.waterfall * noise / torch.where(sent, signal, 1.0)), 0.0)
        alone = (success * problem.channel.stationary).to(problem.dtype)
        shared = problem.scenario.channel.state == "receiver"
        return (alone.sum(2, keepdim=True) if shared else alone).unsqueeze(-1)

    @cached_property
    def weight(self) -> Tensor:
        """a_ij; (edge, 1, 1)."""
        return self.edge_weight.to(self.problem.dtype).reshape(-1, 1, 1)

    def log_survival(self, rows: Tensor, which: Tensor | None = None) -> Tensor:
        """Logarithms of mean survivals of some wedges, or all; (wedge, power, level, slot).

        Laws of the disturbers (device, action, slot).
        """
        survival = self.survival if which is None else self.survival.index_select(0, which)
        disturber = self.disturber if which is None else self.disturber[which]
        least = max(_SMALLEST, torch.finfo(rows.dtype).tiny)
        found = torch.bmm(survival, rows.index_select(0, disturber)).clamp_min_(least).log_()
        return found.view(len(found), *self.alone.shape[1:3], rows.shape[2])


@dataclass(frozen=True)
class CachedSurvival:
    """Laws of all devices in some slots, and what follows from them for packets."""

    links: Links
    law: Tensor  # (device, action, slot)
    each: Tensor  # (wedge, power, level, slot) log survival of an edge against one disturber
    everyone: Tensor  # (edge, power, level, slot) the same against all

    def renew(self, rows: Tensor) -> None:
        """Bring all up to date, in place, with other laws (device, action, slot)."""
        links, disturbed = self.links, self.links.disturbed
        moved = (rows != self.law).flatten(1).any(1)  # (device,)
        self.law.copy_(rows)
        which = moved[links.disturber].nonzero().squeeze(1)
        self.each.index_copy_(0, which, links.log_survival(rows, which))
        near = torch.zeros_like(moved)
        near[links.receiver[moved[links.sender]]] = True
        concerned = near[links.receiver]
        wedge = concerned[disturbed].nonzero().squeeze(1)
        self.everyone.index_fill_(0, concerned.nonzero().squeeze(1), 0.0)
        self.everyone.index_add_(0, disturbed[wedge], self.each.index_select(0, wedge))

    def success(self, which: Tensor) -> Tensor:
        """E[1 − q] given each power, of some edges; (edge, power, slot)."""
        alone = self.links.alone.index_select(0, which)
        return self.everyone.index_select(0, which).exp_().mul_(alone).sum(2)

    def sends(self, which: Tensor) -> Tensor:
        """Laws of the powers of some edges' senders; (edge, power, slot)."""
        return self.law.index_select(0, self.links.sender[which]).index_select(1, self.links.sending)

    def arrived(self, which: Tensor) -> Tensor:
        """Probability that packets of some edges arrive where their receivers hear; (edge, 1, slot)."""
        return self.sends(which).mul_(self.success(which)).sum(1, keepdim=True)

    def hears(self, which: Tensor) -> Tensor | float:
        """Probability that an edge's receiver can hear; (edge, 1, slot) or 1."""
        if not self.links.problem.link.half_duplex:
            return 1.0
        silent = self.law[:, self.links.problem.actions.power_watt == 0].sum(1, keepdim=True)
        return silent.index_select(0, self.links.receiver[which])


@dataclass(frozen=True)
class IndependentCost:
    """The network's one-slot cost as a function of the devices' independent action laws."""

    problem: Problem

    @cached_property
    def links(self) -> Links:
        """All edges."""
        return Links(self.problem)

    @cached_property
    def _kept(self) -> dict[int, CachedSurvival]:
        """The last survivals by their first slot."""
        return {}

    def survival(self, law: Tensor, first_slot: int) -> CachedSurvival:
        """What laws (slot, device, action) lead to; only what has changed since the last call is computed anew."""
        rows, links = law.permute(1, 2, 0).clone(memory_format=torch.contiguous_format), self.links
        known = self._kept.get(first_slot)
        if known is not None and known.law.shape == rows.shape:
            known.renew(rows)
            return known
        each = links.log_survival(rows)
        everyone = each.new_zeros(len(links.sender), *each.shape[1:]).index_add_(0, links.disturbed, each)
        found = CachedSurvival(links, rows, each, everyone)
        if (each.nbytes + everyone.nbytes) * self.problem.slots / len(law) <= _KEPT_BYTES[law.device.type]:
            self._kept[first_slot] = found
        return found

    def cost(self, law: Tensor, first_slot: int = 0) -> Tensor:
        """Expected one-slot cost of the network; (slot,)."""
        now = self.survival(law, first_slot)
        every = torch.arange(len(self.links.sender), device=law.device)
        lost = ((1 - now.arrived(every) * now.hears(every)) * self.links.weight).sum((0, 1))
        return lost + (law * self.problem.idle_cost).sum((-1, -2))

    def of(self, movers: Tensor) -> "MoverCosts":
        """Costs of the actions of some devices."""
        return MoverCosts(self, movers)


@dataclass(frozen=True)
class MoverCosts:
    """What the actions of some devices cost, from the packets that they send, disturb or miss."""

    form: IndependentCost
    movers: Tensor  # (mover,) device numbers

    def _concerned(self, device: Tensor) -> tuple[Tensor, Tensor]:
        """Which of some devices are movers, and their places among these."""
        place = place_among(self.movers, self.form.links.problem.num_devices)[device]
        which = (place >= 0).nonzero().squeeze(1)
        return which, place[which]

    @cached_property
    def _sent(self) -> tuple[Tensor, Tensor]:
        """Edges from movers, and their movers' places; (edge,) each."""
        return self._concerned(self.form.links.sender)

    @cached_property
    def _missing(self) -> tuple[Tensor, Tensor]:
        """Edges into movers, and their movers' places; (edge,) each."""
        return self._concerned(self.form.links.receiver)

    @cached_property
    def _disturbed(self) -> tuple[Tensor, Tensor, Tensor]:
        """Wedges that movers disturb, their disturbed edges, and their movers' places; (wedge,) each."""
        which, mover = self._concerned(self.form.links.disturber)
        return which, self.form.links.disturbed[which], mover

    @cached_property
    def _survival(self) -> Tensor:
        """`Links.survival` of the wedges that movers disturb; (wedge, mover's action, power × level)."""
        return self.form.links.survival[self._disturbed[0]].transpose(1, 2).contiguous()

    def action_cost(self, law: Tensor, first_slot: int = 0) -> Tensor:
        """Expected cost of everything a mover's action touches, per own action; (slot, mover, action).

        Laws (slot, device, action). Differences between actions are differences of the network's expected cost.
        """
        problem, now = self.form.links.problem, self.form.survival(law, first_slot)
        lost = law.new_zeros(len(self.movers), len(problem.actions), len(law))
        sent, mover = self._sent
        lost.index_add_(0, mover, self._weighed(self._own_arrival(now), sent))
        _, edge, mover = self._disturbed
        lost.index_add_(0, mover, self._weighed(self._disturbed_arrival(now), edge))
        if problem.link.half_duplex:  # while they send, nothing arrives
            missing, mover = self._missing
            silent = (problem.actions.power_watt == 0).to(problem.dtype).reshape(1, -1, 1)
            lost.index_add_(0, mover, self._weighed(now.arrived(missing) * silent, missing))
        return problem.idle_cost[self.movers] + lost.permute(2, 0, 1)

    def _weighed(self, arrival: Tensor, edge: Tensor) -> Tensor:
        """a_ij (1 − arrival) of some edges; the arrivals are used up."""
        return arrival.neg_().add_(1).mul_(self.form.links.weight[edge])

    def _own_arrival(self, now: CachedSurvival) -> Tensor:
        """Arrival of movers' own packets per own action; (edge, action, slot)."""
        sent, _ = self._sent
        arrival = now.success(sent).mul_(now.hears(sent))
        whole = arrival.new_zeros(len(sent), now.law.shape[1], arrival.shape[2])
        return whole.index_copy_(1, self.form.links.sending, arrival)

    def _disturbed_arrival(self, now: CachedSurvival) -> Tensor:
        """Arrival of the packets that movers disturb per own action: survival of all the rest times their own.

        It is a mean over the disturbed sender's action; (wedge, action, slot).
        """
        wedge, edge, _ = self._disturbed
        others = now.everyone.index_select(0, edge).sub_(now.each.index_select(0, wedge)).exp_()
        others.mul_(self.form.links.alone.index_select(0, edge)).mul_(now.sends(edge).unsqueeze(2))
        return torch.bmm(self._survival, others.flatten(1, 2)).mul_(now.hears(edge))
