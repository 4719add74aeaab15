"""What `product_form.py` computes, for large networks: logarithms of survival are kept between calls.

A call computes anew only those of devices whose laws have changed since the last one, which in a descent are the
movers of the last turn. Slots are the last axis, so that rows of edges and wedges are contiguous; laws and costs come
and go with slots first. Silent actions send nothing, so packets have *powers*: the actions that send. Where all links
into a receiver share one channel level it cancels from survival, and P(h) e^{−φσ²/(p g h)} is summed over it once.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from heliomesh.model.problem import Problem
from heliomesh.slot.product_form import SMALLEST, Links

_KEPT_BYTES = {"cpu": 1 << 32, "cuda": 1 << 35}  # of logarithms that are kept between calls


@dataclass(frozen=True)
class Packets:
    """Packets of all edges, by their powers."""

    problem: Problem

    @cached_property
    def links(self) -> Links:
        """All edges."""
        return Links(self.problem, self.every)

    @cached_property
    def every(self) -> Tensor:
        """Numbers of all edges; (edge,)."""
        return torch.arange(self.problem.topology.num_edges, device=self.problem.device)

    @cached_property
    def sender(self) -> Tensor:
        """Sender of every edge; (edge,)."""
        return self.links.sender

    @cached_property
    def receiver(self) -> Tensor:
        """Receiver of every edge; (edge,)."""
        return self.links.receiver

    @cached_property
    def disturbed(self) -> Tensor:
        """Edge that is disturbed, of every wedge; (wedge,)."""
        return self.links.wedges[0]

    @cached_property
    def disturber(self) -> Tensor:
        """Device that disturbs, of every wedge; (wedge,)."""
        return self.sender[self.links.wedges[1]]

    @cached_property
    def sending(self) -> Tensor:
        """Actions that send; (power,)."""
        return (self.problem.actions.power_watt > 0).nonzero().squeeze(1)

    @cached_property
    def survival(self) -> Tensor:
        """`Links.survival`; (wedge, power × level, other's action)."""
        return self.links.survival[:, self.sending].flatten(1, 2)

    @cached_property
    def alone(self) -> Tensor:
        """`Links.alone`; (edge, power, level, 1), one level where all links share it."""
        alone = self.links.alone[:, self.sending]
        shared = self.problem.scenario.channel.state == "receiver"
        return (alone.sum(2, keepdim=True) if shared else alone).unsqueeze(-1)

    @cached_property
    def edge_weight(self) -> Tensor:
        """a_ij of every edge; (edge, 1, 1)."""
        weight = torch.from_numpy(self.problem.topology.edge_weight).to(self.problem.device, self.problem.dtype)
        return weight.reshape(-1, 1, 1)

    def log_survival(self, rows: Tensor, which: Tensor | None = None) -> Tensor:
        """Logarithms of mean survivals of some wedges, or all; (wedge, power, level, slot).

        Laws of the disturbers (device, action, slot).
        """
        survival = self.survival if which is None else self.survival.index_select(0, which)
        disturber = self.disturber if which is None else self.disturber[which]
        least = max(SMALLEST, torch.finfo(rows.dtype).tiny)
        found = torch.bmm(survival, rows.index_select(0, disturber)).clamp_min_(least).log_()
        return found.view(len(found), *self.alone.shape[1:3], rows.shape[2])

    def success(self, everyone: Tensor, which: Tensor) -> Tensor:
        """E[1 − q] given each power, of some edges, from all their log survivals; (edge, power, slot)."""
        alone = self.alone.index_select(0, which)
        return everyone.index_select(0, which).exp_().mul_(alone).sum(2)

    def hears(self, rows: Tensor, which: Tensor) -> Tensor | float:
        """Probability that an edge's receiver can hear, from laws (device, action, slot); (edge, 1, slot) or 1."""
        if not self.problem.link.half_duplex:
            return 1.0
        silent = rows[:, self.problem.actions.power_watt == 0].sum(1, keepdim=True)
        return silent.index_select(0, self.receiver[which])


@dataclass(frozen=True)
class Standing:
    """Laws of all devices in some slots, and what follows from them for packets."""

    law: Tensor  # (device, action, slot)
    each: Tensor  # (wedge, power, level, slot) log survival of an edge against one disturber
    everyone: Tensor  # (edge, power, level, slot) the same against all


@dataclass(frozen=True)
class KeptForm:
    """The network's one-slot cost as a function of the devices' independent action laws."""

    problem: Problem

    @cached_property
    def packets(self) -> Packets:
        """Packets of all edges."""
        return Packets(self.problem)

    @cached_property
    def _kept(self) -> dict[int, Standing]:
        """The last standings by their first slot."""
        return {}

    def standing(self, law: Tensor, first_slot: int) -> Standing:
        """What laws (slot, device, action) lead to; only what has changed since the last call is computed anew."""
        rows, packets = law.permute(1, 2, 0).clone(memory_format=torch.contiguous_format), self.packets
        known = self._kept.get(first_slot)
        if known is None or known.law.shape != rows.shape:
            each = packets.log_survival(rows)
            everyone = each.new_zeros(len(packets.every), *each.shape[1:]).index_add_(0, packets.disturbed, each)
            found = Standing(rows, each, everyone)
            if (each.nbytes + everyone.nbytes) * self.problem.slots / len(law) <= _KEPT_BYTES[law.device.type]:
                self._kept[first_slot] = found
            return found
        moved = (rows != known.law).flatten(1).any(1)  # (device,)
        self._renew(known, rows, moved)
        return known

    def _renew(self, known: Standing, rows: Tensor, moved: Tensor) -> None:
        """Bring a standing up to date, in place, after devices (device,) bool have changed their laws."""
        packets, disturbed = self.packets, self.packets.disturbed
        known.law.copy_(rows)
        which = moved[packets.disturber].nonzero().squeeze(1)
        known.each.index_copy_(0, which, packets.log_survival(rows, which))
        near = torch.zeros_like(moved)
        near[packets.receiver[moved[packets.sender]]] = True
        edge, wedge = (near[packets.receiver[ends]].nonzero().squeeze(1) for ends in (packets.every, disturbed))
        known.everyone.index_fill_(0, edge, 0.0)
        known.everyone.index_add_(0, disturbed[wedge], known.each.index_select(0, wedge))

    def cost(self, law: Tensor, first_slot: int = 0) -> Tensor:
        """Expected one-slot cost of the network; (slot,)."""
        packets, standing = self.packets, self.standing(law, first_slot)
        rows, every = standing.law, packets.every
        sent = rows[:, packets.sending].index_select(0, packets.sender)
        arrived = sent.mul_(packets.success(standing.everyone, every)).sum(1, keepdim=True)
        lost = ((1 - arrived * packets.hears(rows, every)) * packets.edge_weight).sum((0, 1))
        return lost + (law * self.problem.idle_cost).sum((-1, -2))

    def of(self, movers: Tensor) -> "MoverCosts":
        """Costs of the actions of some devices."""
        return MoverCosts(self, movers)


@dataclass(frozen=True)
class MoverCosts:
    """What the actions of some devices cost, from the packets that they send, disturb or miss."""

    form: KeptForm
    movers: Tensor  # (mover,) device numbers

    @cached_property
    def _place(self) -> Tensor:
        """Place of every device among the movers, −1 for the others; (device,)."""
        place = torch.full((self.form.problem.num_devices,), -1, device=self.movers.device)
        place[self.movers] = torch.arange(len(self.movers), device=self.movers.device)
        return place

    def _concerned(self, device: Tensor) -> tuple[Tensor, Tensor]:
        """Which of some devices are movers, and their places among these."""
        place = self._place[device]
        which = (place >= 0).nonzero().squeeze(1)
        return which, place[which]

    @cached_property
    def _sent(self) -> tuple[Tensor, Tensor]:
        """Edges from movers, and their movers' places; (edge,) each."""
        return self._concerned(self.form.packets.sender)

    @cached_property
    def _missing(self) -> tuple[Tensor, Tensor]:
        """Edges into movers, and their movers' places; (edge,) each."""
        return self._concerned(self.form.packets.receiver)

    @cached_property
    def _disturbed(self) -> tuple[Tensor, Tensor, Tensor]:
        """Wedges that movers disturb, their disturbed edges, and their movers' places; (wedge,) each."""
        which, mover = self._concerned(self.form.packets.disturber)
        return which, self.form.packets.disturbed[which], mover

    @cached_property
    def _survival(self) -> Tensor:
        """`Links.survival` of the wedges that movers disturb; (wedge, mover's action, power × level)."""
        return self.form.packets.survival[self._disturbed[0]].transpose(1, 2).contiguous()

    def action_cost(self, law: Tensor, first_slot: int = 0) -> Tensor:
        """Expected cost of everything a mover's action touches, per own action; (slot, mover, action).

        Laws (slot, device, action). Differences between actions are differences of the network's expected cost.
        """
        problem, standing = self.form.problem, self.form.standing(law, first_slot)
        lost = law.new_zeros(len(self.movers), len(problem.actions), len(law))
        sent, mover = self._sent
        lost.index_add_(0, mover, self._weighed(self._own_arrival(standing), sent))
        _, edge, mover = self._disturbed
        lost.index_add_(0, mover, self._weighed(self._disturbed_arrival(standing), edge))
        if problem.link.half_duplex:
            missing, mover = self._missing
            lost.index_add_(0, mover, self._weighed(self._heard_arrival(standing), missing))
        return problem.idle_cost[self.movers] + lost.permute(2, 0, 1)

    def _weighed(self, arrival: Tensor, edge: Tensor) -> Tensor:
        """a_ij (1 − arrival) of some edges; the arrivals are used up."""
        return arrival.neg_().add_(1).mul_(self.form.packets.edge_weight.index_select(0, edge))

    def _own_arrival(self, standing: Standing) -> Tensor:
        """Arrival of movers' own packets per own action; (edge, action, slot)."""
        packets, (sent, _) = self.form.packets, self._sent
        arrival = packets.success(standing.everyone, sent).mul_(packets.hears(standing.law, sent))
        whole = arrival.new_zeros(len(sent), standing.law.shape[1], arrival.shape[2])
        return whole.index_copy_(1, packets.sending, arrival)

    def _disturbed_arrival(self, standing: Standing) -> Tensor:
        """Arrival of the packets that movers disturb per own action: survival of all the rest times their own.

        It is a mean over the disturbed sender's action; (wedge, action, slot).
        """
        packets, (wedge, edge, _) = self.form.packets, self._disturbed
        others = standing.everyone.index_select(0, edge).sub_(standing.each.index_select(0, wedge)).exp_()
        sends = standing.law.index_select(0, packets.sender[edge]).index_select(1, packets.sending)
        others.mul_(packets.alone.index_select(0, edge)).mul_(sends.unsqueeze(2))
        return torch.bmm(self._survival, others.flatten(1, 2)).mul_(packets.hears(standing.law, edge))

    def _heard_arrival(self, standing: Standing) -> Tensor:
        """Arrival of the packets into movers per own action: none while they send; (edge, action, slot)."""
        problem, packets, (missing, _) = self.form.problem, self.form.packets, self._missing
        sends = standing.law.index_select(0, packets.sender[missing]).index_select(1, packets.sending)
        arrived = sends.mul_(packets.success(standing.everyone, missing)).sum(1, keepdim=True)
        return arrived * (problem.actions.power_watt == 0).to(problem.dtype).reshape(1, -1, 1)
