"""What one device computes in the default form, from its own tables and what its neighbourhood told it.

    future    E[V_l,t+1 | state after spending]
    raw       Q_l = c_l + future, with what is out of l's sight averaged
    share     E_{others ∼ π}[Q_l] as device i sees it: all that i needs of Q_l, and all that l tells it
    improved  π_i, a logit or best response to the sum of all shares
    value     V_l = E_{all ∼ π}[Q_l]

Only `improved` needs what others computed, and `share` and `value` only policies of devices in l's sight.
"""

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

from heliomesh.common.memory_limit import entries
from heliomesh.grid.after_spending import spread_actions
from heliomesh.grid.contraction import expectation
from heliomesh.model.factor import Factor, Scope, Variable, action, energy, total
from heliomesh.model.problem import Problem
from heliomesh.planners.decentralized.neighbourhood import Neighbourhood
from heliomesh.planners.decentralized.shares import Pair, ShareBatch, law_out_of_sight, stored
from heliomesh.slot.ties import tied


@dataclass(frozen=True)
class DeviceStep:
    """The steps of the device whose neighbourhood ``area`` is."""

    problem: Problem
    area: Neighbourhood

    def future(self, value: Factor, slot: int) -> Factor:
        """E[V_l(next) | after spending] with one action axis per actor."""
        problem, area = self.problem, self.area
        table = expectation(value.table, [problem.kernel(variable, slot) for variable in area.states])
        return Factor((*area.states, *map(action, area.actors)), spread_actions(problem, table, area.actors))

    def raw(self, future: Factor | None, policy: Factor, known: Factor | None = None) -> Factor:
        """Q_l = c_l + future; ``policy`` is the own one, ``known`` the table of an earlier round of the slot."""
        hidden = self._out_of_sight
        if hidden:
            own_law = self.seen_by(policy, ()).table  # of the own action
            laws = [
                Factor((v,), own_law if v.kind == "action" else law_out_of_sight(self.problem, v)) for v in hidden
            ]
            cost = self.area.cost(laws)
        elif known is not None:
            return known  # nothing depends on the current policies
        else:
            cost = self._cost_in_sight
        return cost if future is None else cost + future

    def share(self, raw: Factor, policies: Mapping[int, Factor], mover: int, scope: Scope) -> Factor:
        """E_{others ∼ π}[Q_l] over the mover's action and what its policy's ``scope`` has of the rest."""
        others = [v.owner for v in raw.scope if v.kind == "action" and v.owner != mover]
        scopes = {other: policies[other].scope for other in others}
        told = frozenset(scope)
        pair = Pair(self.area.device, mover, told.union(self.area.states), told, raw.scope, scopes)
        batch, flat = self._batch(pair), [stored(policies[other]) for other in pair.others]
        law = torch.cat(flat) if flat else raw.table.new_empty(0)
        share = batch.run([raw.table], law)
        return Factor(pair.scope, share.view(self.problem.sizes(pair.scope)))

    def _batch(self, pair: Pair) -> ShareBatch:
        """The pair's share, prepared; the policies of its others lie one after another."""
        key = (pair.mover, pair.told, pair.raw_scope, tuple(pair.policy_scopes.items()))
        if key not in self._batches:
            sizes = [entries(self.problem.sizes(pair.policy_scopes[other])) for other in pair.others]
            offsets = dict(zip(pair.others, accumulate([0, *sizes]), strict=False))
            self._batches[key] = ShareBatch(self.problem, [pair], offsets)
        return self._batches[key]

    @cached_property
    def _out_of_sight(self) -> list[Variable]:
        return self.area.hidden(self.area.cost_scope)

    @cached_property
    def _cost_in_sight(self) -> Factor:
        """c_l where nothing is out of sight."""
        return self.area.cost(())

    @cached_property
    def _batches(self) -> dict[Hashable, ShareBatch]:
        return {}

    def improved(self, shares: Collection[Factor], gamma: float) -> Factor:
        """Logit (γ finite) or best (γ = ∞) response of the device to what all shares tell."""
        problem, own = self.problem, action(self.area.device)
        expected = total(shares)
        states = tuple(dict.fromkeys([*(v for v in expected.scope if v != own), energy(self.area.device)]))
        order = (own, *states)
        table = expected.aligned(order).expand(problem.sizes(order)).reshape(1, len(problem.actions), -1)
        new = response(table, infeasible(problem, self.area.device, order).unsqueeze(0), gamma)
        return Factor((*states, own), new.view(problem.sizes(order)).movedim(0, -1))

    def value(self, raw: Factor, policies: Mapping[int, Factor]) -> Factor:
        """V_l: the expectation of Q_l under the policies of all actors."""
        share = self.share(raw, policies, self.area.device, self.area.states)
        return self.value_of(share, policies[self.area.device])

    def value_of(self, share: Factor, policy: Factor) -> Factor:
        """V_l from its own share for itself, over all that it sees, and its own policy."""
        area = self.area
        mean = share.average(self.seen_by(policy, area.states), over=[action(area.device)])
        table = mean.aligned(area.states).expand(self.problem.sizes(area.states))
        return Factor(area.states, table)

    def seen_by(self, factor: Factor, states: Collection[Variable]) -> Factor:
        """Average out all state variables that are not among ``states``."""
        hidden = [v for v in factor.scope if v.kind != "action" and v not in states]
        laws = (Factor((variable,), law_out_of_sight(self.problem, variable)) for variable in hidden)
        return factor.average(*laws, over=hidden) if hidden else factor


def blend(old: Factor, new: Factor, rate: float) -> Factor:
    """(1 − d) π + d π' with d = ``rate``."""
    if rate == 1:
        return new
    scope = new.scope
    return Factor(scope, (1 - rate) * old.aligned(scope) + rate * new.table)


def average_change(first: Factor, second: Factor) -> float:
    """Mean total-variation distance of two policies over their states."""
    difference = first.table - second.aligned(first.scope)  # a policy's scope only grows
    return float(difference.abs().sum(-1).mean()) / 2


def action_table(problem: Problem, scope: Scope, policy: Factor, chosen: bool) -> Tensor:
    """Best actions by the states of ``scope``; where nothing was ``chosen`` (R = 0), the probabilities."""
    full = (*scope, policy.scope[-1])
    prob = policy.aligned(full).expand(problem.sizes(full))
    return prob.argmax(-1) if chosen else prob


def response(expected: Tensor, blocked: Tensor, gamma: float) -> Tensor:
    """Policies of least expected cost or, where γ is finite, ∝ exp(−γ E[Q]); (device, action, state) each.

    Of equally good actions the first is taken; ``blocked`` ones never are.
    """
    if gamma < torch.inf:
        score = (-gamma * expected).masked_fill_(blocked, -torch.inf)
        weight = (score - score.amax(1, keepdim=True)).exp_()  # torch.softmax wakes threads for the smallest table
        return weight / weight.sum(1, keepdim=True)
    least = tied(expected.masked_fill(blocked, torch.inf), 1)  # an argmax along an outer axis is ten times as slow
    return (least & (least.cumsum(1) == 1)).to(expected.dtype)


def infeasible(problem: Problem, device: int, order: Scope) -> Tensor:
    """What the device's energy does not pay for, by its action and the states of ``order``; (action, state)."""
    blocked = Factor((energy(device), action(device)), ~problem.feasible[device]).aligned(order)
    return blocked.expand(problem.sizes(order)).reshape(len(problem.actions), -1)
