"""Exact expectations when every device acts independently, for any error rate: joint actions are listed.

A table of error rates does not factorise over senders as the waterfall does (`independent_cost.py`). The mean weight
that receiver i misses, E_h[f_i(h, p)], is then a table over the joint actions p that it hears, and

    E[f_i] = Σ_p E_h[f_i(h, p)] Π_j P(p_j)

Channels are in their stationary law. A receiver that hears d devices costs |P|^d terms.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from heliomesh.common.memory_limit import DEFAULT_LIMIT_GIB, check_fits
from heliomesh.model.problem import Problem
from heliomesh.slot.colour_rounds import place_among
from heliomesh.slot.coordination import Coordination, Group
from heliomesh.slot.independent_cost import IndependentCost

_BATCH_ENTRIES = 1 << 22  # entries of channel states and joint actions handled at a time


def cost_form(problem: Problem) -> "CostForm":
    """A product over senders for the waterfall, or listed joint actions for a table; raises TooLargeError."""
    if problem.link.table is None:
        return IndependentCost(problem)
    form = EnumeratedCost(problem)
    groups, count = form.coordination.groups, float(len(problem.actions))
    largest = sum(len(group.receivers) * count**group.heard for group in groups)
    remedy = "lower the degree or the power levels, or use link.error = 'waterfall'"
    check_fits("joint actions heard by receivers", 4 * 8 * largest, DEFAULT_LIMIT_GIB, remedy)
    return form


@dataclass(frozen=True)
class EnumeratedCost:
    """The same for any error rate."""

    problem: Problem

    @cached_property
    def coordination(self) -> Coordination:
        """Receivers by how many devices they hear."""
        return Coordination(self.problem)

    @cached_property
    def _missed(self) -> dict[int, Tensor]:
        """E_h[f_i] per group offset; (receiver, action of each device heard …)."""
        return {group.offset: self._mean_missed(group) for group in self.coordination.groups}

    def _mean_missed(self, group: Group) -> Tensor:
        receivers, joint = len(group.receivers), len(self.problem.actions) ** group.heard
        mean = torch.zeros(receivers, joint, dtype=self.problem.dtype, device=self.problem.device)
        at_once = max(1, _BATCH_ENTRIES // (receivers * joint))
        levels, prob = (torch.split(one, at_once) for one in self.coordination.channel_states(group))
        for some, weight in zip(levels, prob, strict=True):
            mean += torch.tensordot(weight, self.coordination.missed_at(group, some), dims=1)
        return mean.reshape(receivers, *[len(self.problem.actions)] * group.heard)

    def expected(self, group: Group, law: Tensor, given: int | None = None, among: Tensor | None = None) -> Tensor:
        """E[f_i], or per action of the device heard in place ``given``; (slot, receiver, 1 or action).

        ``among``: places of some receivers in the group, all by default.
        """
        table, actors, places = self._missed[group.offset], group.actors, list(range(group.heard))
        if among is not None:
            table, actors = table[among], actors[among]
        if given is not None:
            table = table.movedim(1 + given, 1)
            places.remove(given)
        left = table.reshape(1, len(actors), -1)
        for place in reversed(places):
            heard = law[:, actors[:, place]].unsqueeze(-1)  # (slot, receiver, action, 1)
            left = (left.reshape(*left.shape[:2], -1, law.shape[-1]) @ heard).squeeze(-1)
        return left.expand(len(law), -1, -1)

    def cost(self, law: Tensor, first_slot: int = 0) -> Tensor:
        """Expected one-slot cost of the network; (slot,)."""
        by_group = (self.expected(group, law).sum((1, 2)) for group in self.coordination.groups)
        return sum(by_group, law.new_zeros(len(law))) + (law * self.problem.idle_cost).sum((-1, -2))

    def of(self, movers: Tensor) -> "EnumeratedMoverCosts":
        """Costs of the actions of some devices."""
        return EnumeratedMoverCosts(self, movers)


@dataclass(frozen=True)
class EnumeratedMoverCosts:
    """What the actions of some devices cost, from the receivers that hear them."""

    form: EnumeratedCost
    movers: Tensor  # (mover,) device numbers

    @cached_property
    def _heard(self) -> list[tuple[Group, int, Tensor, Tensor]]:
        """Per group and place heard: the receivers that hear a mover there, and the movers' places; (receiver,)."""
        place = place_among(self.movers, self.form.problem.num_devices)
        found = []
        for group in self.form.coordination.groups:
            for axis in range(group.heard):
                mover = place[group.actors[:, axis]]
                among = (mover >= 0).nonzero().squeeze(1)
                if len(among):
                    found.append((group, axis, among, mover[among]))
        return found

    def action_cost(self, law: Tensor, first_slot: int = 0) -> Tensor:
        """Expected cost of everything a mover's action touches, per own action; (slot, mover, action)."""
        cost = self.form.problem.idle_cost[self.movers].repeat(len(law), 1, 1)
        for group, axis, among, mover in self._heard:
            cost.index_add_(1, mover, self.form.expected(group, law, axis, among))
        return cost


# Both have a `cost` of laws (slot, device, action), and `of` some devices an `action_cost`. The laws' first slot says
# which piece of the horizon they are: what follows from it may be kept between calls.
CostForm = IndependentCost | EnumeratedCost
