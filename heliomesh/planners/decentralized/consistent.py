"""Algorithm 1 with policy-consistent values: still local, still only messages within the neighbourhood.

Per slot, backwards:

    Q_l = c_l + E[V_l,t+1]                          over what device l sees of its own cost
    repeat R times, in turns of devices that share no cost:
        π_i ← (1 − d) π_i + d · softmax(−γ_r Σ_l E_{others ∼ π}[Q_l])   l: devices in sight whose cost p_i enters,
                                                                      each counted once; γ_r rises
    π_i ← argmin of the same sum, in turns until nobody changes
    V_l = E_{all ∼ π}[Q_l]                          the value of what is really going to be done

Turns matter where taking turns on the air pays: equal devices that decide at once can only all send or all be silent.

What a device cannot see it averages out: channels by their stationary law, batteries as if every energy were equally
likely, actions of devices out of its sight as if they behaved, on average, like itself.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from heliomesh.common.memory_limit import entries
from heliomesh.model.factor import Factor, Scope, action, energy
from heliomesh.model.policy import Track
from heliomesh.model.problem import Problem
from heliomesh.model.symmetry import Role
from heliomesh.model.threads import fitting_threads
from heliomesh.planners.decentralized.device_step import (
    DeviceStep,
    action_table,
    average_change,
    infeasible,
    response,
)
from heliomesh.planners.decentralized.literal import uniform_policy
from heliomesh.planners.decentralized.neighbourhood import Areas
from heliomesh.planners.decentralized.shares import Pair, Reader, action_first, share_batches, stored

Tables = Mapping[int, Factor]  # one per representative
DAMPING = 0.5  # d, weight of the new policy in a soft round
_MOST_BEST_RESPONSES = 4  # rounds of pure best responses after the soft ones


class Consistent:
    """One run of the default form; devices of one role share their tables."""

    def __init__(
        self, problem: Problem, areas: Areas, roles: Sequence[Role], colour: Sequence[int], gammas: Sequence[float]
    ) -> None:
        self.problem, self.areas, self.roles = problem, areas, roles
        self.gammas = gammas
        self.representatives = sorted({role.representative for role in roles})
        self.turns = [[i for i in self.representatives if colour[i] == turn] for turn in sorted(set(colour))]
        self.steps = [DeviceStep(problem, area) for area in areas]
        self.scopes = {i: policy_scope(areas, i) for i in self.representatives}
        # R = 0: no exchange, the first policy stays; simultaneous best responses only chase each other
        self.best_responses = num_best_responses(len(gammas), len(self.turns))
        self.residual = 0.0
        # prepared for the scopes of all tables: these grow in the first rounds of a slot, and then stay as they are
        self._turns: dict[Hashable, Turn] = {}
        self._own_shares: dict[Hashable, Shares] = {}

    def run(self, track: Track) -> tuple[list[Scope], list[dict[int, Tensor]], float]:
        """Scopes by device, action tables [slot][representative] (state...), and the last rounds' largest change."""
        problem, values = self.problem, dict[int, Factor]()
        found: list[dict[int, Tensor]] = [{} for _ in range(problem.slots)]
        unrolled = problem.unrolled_slots
        with fitting_threads(problem), torch.inference_mode():  # many small operations
            for number in track(range(unrolled - 1, -1, -1), "decentralized", unrolled):
                slot = number % problem.slots
                futures = {i: self.steps[i].future(values[i], slot) for i in self.representatives if values}
                policies, raw = self._rounds(futures)
                values, chosen = self._values(raw, policies), bool(self.gammas)
                found[slot] = {i: action_table(problem, self.scopes[i], policies[i], chosen) for i in policies}
        scopes = [tuple(map(role.rename, self.scopes[role.representative])) for role in self.roles]
        return scopes, found, self.residual

    def _rounds(self, futures: Tables) -> tuple[dict[int, Factor], dict[int, Factor]]:
        """Policies of one slot after all rounds, and the raw Q tables they ended with."""
        policies = {i: uniform_policy(self.problem, i) for i in self.representatives}
        raw = self._raw_tables(futures, policies, {})
        for gamma in self.gammas:
            policies = self._round(policies, raw, gamma, DAMPING)
            raw = self._raw_tables(futures, policies, raw)
        change = 0.0
        for _ in range(self.best_responses):
            before, policies = policies, self._round(policies, raw, torch.inf, 1.0)
            change = max(average_change(policies[i], before[i]) for i in self.representatives)
            raw = self._raw_tables(futures, policies, raw)
            if change == 0:
                break
        self.residual = max(self.residual, change)
        return policies, raw

    def _round(self, policies: dict[int, Factor], raw: Tables, gamma: float, rate: float) -> dict[int, Factor]:
        """Every device improves its policy once, turn by turn; the new policies."""
        for number, movers in enumerate(self.turns):
            key = (number, *_scopes(raw), *_scopes(policies))
            if key not in self._turns:
                self._turns[key] = Turn(self, movers, raw, policies)
            policies = {**policies, **self._turns[key].improved(raw, policies, gamma, rate)}
        return policies

    def _values(self, raw: Tables, policies: Tables) -> dict[int, Factor]:
        """V_l of every representative under the policies of all."""
        key = (*_scopes(raw), *_scopes(policies))
        if key not in self._own_shares:  # every one's share for itself, over all that it sees
            own = [self.pair(i, i, self.areas[i].states, raw, policies) for i in policies]
            self._own_shares[key] = Shares(self, own, policies)
        shares, values = self._own_shares[key], {}
        for pairs, found in shares.run(raw, shares.in_line(policies)):
            for pair, row in zip(pairs, found, strict=True):
                share = Factor(pair.scope, row.view(self.problem.sizes(pair.scope)))
                values[pair.source] = self.steps[pair.source].value_of(share, policies[pair.source])
        return {i: values[i] for i in self.representatives}

    def pair(self, source: int, mover: int, told: Scope, raw: Tables, policies: Tables) -> Pair:
        """The tables that meet in a source's share for a mover that is ``told`` about these states."""
        told_set, raw_scope = frozenset(told), self.scope_of(source, raw)
        actors = [v.owner for v in raw_scope if v.kind == "action" and v.owner != mover]
        known = told_set.union(self.areas[source].states)
        return Pair(source, mover, known, told_set, raw_scope, {a: self.scope_of(a, policies) for a in actors})

    def scope_of(self, device: int, tables: Tables) -> Scope:
        """Scope of a device's table, which is that of its representative renamed."""
        role = self.roles[device]
        return tuple(map(role.rename, tables[role.representative].scope))

    def _raw_tables(self, futures: Tables, policies: Tables, known: Tables) -> dict[int, Factor]:
        return {i: self.steps[i].raw(futures.get(i), policies[i], known.get(i)) for i in self.representatives}


class Shares:
    """Shares of some pairs, prepared for the scopes of given tables."""

    def __init__(self, run: Consistent, pairs: Sequence[Pair], policies: Tables) -> None:
        self._representatives = tuple(policies)
        self.policy_offsets: dict[int, int] = {}  # where each representative's policy begins in the line of all
        first = 0
        for device, policy in policies.items():
            self.policy_offsets[device] = first
            first += entries(run.problem.sizes(policy.scope))
        of_role = [role.representative for role in run.roles]
        by_device = {device: self.policy_offsets[own] for device, own in enumerate(of_role)}
        batches = share_batches(run.problem, pairs, by_device)
        self._batches = [(batch, [of_role[pair.source] for pair in batch.pairs]) for batch in batches]

    def offsets(self) -> dict[tuple[int, int], int]:
        """Where each pair's share begins once all are put one after another, by source and mover."""
        found, first = {}, 0
        for batch, _ in self._batches:
            for pair in batch.pairs:
                found[pair.source, pair.mover] = first
                first += batch.row_entries
        return found

    def run(self, raw: Tables, flat: Tensor) -> list[tuple[Sequence[Pair], Tensor]]:
        """Shares (pair, mover's action, told states) of each batch of pairs; ``flat`` are all policies in line."""
        return [(batch.pairs, batch.run([raw[i].table for i in sources], flat)) for batch, sources in self._batches]

    def in_line(self, policies: Tables) -> Tensor:
        """Policies of all representatives, one after another."""
        return torch.cat([stored(policies[i]) for i in self._representatives])


class Turn:
    """All movers of one turn improve their policies at once, prepared for the scopes of given tables.

    `DeviceStep.share` and `DeviceStep.improved` compute the same device by device, with the same bits.
    """

    def __init__(self, run: Consistent, movers: Sequence[int], raw: Tables, policies: Tables) -> None:
        pairs = {
            mover: [
                run.pair(source, mover, run.scopes[mover], raw, policies)
                for source in run.areas[mover].members
                if action(mover) in run.scope_of(source, raw)
            ]
            for mover in movers
        }
        self._shares = Shares(run, [pair for row in pairs.values() for pair in row], policies)
        groups: defaultdict[Hashable, dict[int, Sequence[Pair]]] = defaultdict(dict)  # of one shape
        for mover, row in pairs.items():
            groups[run.problem.sizes(response_scope(mover, row)), len(row)][mover] = row
        self._responses = [_Response(run.problem, group, self._shares, policies) for group in groups.values()]

    def improved(self, raw: Tables, policies: Tables, gamma: float, rate: float) -> Tables:
        """New policies of all movers, by γ and the new policy's weight."""
        flat = self._shares.in_line(policies)
        told = torch.cat([share.reshape(-1) for _, share in self._shares.run(raw, flat)])
        found = (response.run(told, flat, gamma, rate) for response in self._responses)
        return {mover: policy for policies in found for mover, policy in policies.items()}


class _Response:
    """Movers whose responses have one shape."""

    def __init__(
        self, problem: Problem, pairs: Mapping[int, Sequence[Pair]], stored_shares: Shares, policies: Tables
    ) -> None:
        begins, places = stored_shares.offsets(), stored_shares.policy_offsets
        self._scopes = {mover: response_scope(mover, row) for mover, row in pairs.items()}
        orders = {mover: action_first(scope) for mover, scope in self._scopes.items()}
        self._shape = problem.sizes(next(iter(orders.values())))  # action, states...
        # (mover · action · state,) out of all shares, by source, and out of all policies
        told = [[(begins[pair.source, m], pair.scope, orders[m]) for pair in row] for m, row in pairs.items()]
        self._shares = [Reader(problem, list(tables)) for tables in zip(*told, strict=True)]
        before = [(places[m], action_first(policies[m].scope), order) for m, order in orders.items()]
        self._before = Reader(problem, before)
        self._infeasible = torch.stack([infeasible(problem, m, order) for m, order in orders.items()])

    def run(self, told: Tensor, flat: Tensor, gamma: float, rate: float) -> dict[int, Factor]:
        """Logit (γ finite) or best (γ = ∞) responses, blended into the old policies."""
        expected = self._shares[0](told)
        for share in self._shares[1:]:  # in the order in which a device alone adds them
            expected = expected + share(told)
        new = response(expected.view(self._infeasible.shape), self._infeasible, gamma)
        if rate != 1:
            new = (1 - rate) * self._before(flat).view(new.shape) + rate * new
        tables = new.view(-1, *self._shape).movedim(1, -1)
        return {m: Factor(scope, table) for (m, scope), table in zip(self._scopes.items(), tables, strict=True)}


def response_scope(mover: int, pairs: Sequence[Pair]) -> Scope:
    """States of all shares in order, the own energy, and the own action last."""
    own = action(mover)
    states = [v for pair in pairs for v in pair.scope if v != own]
    return (*dict.fromkeys([*states, energy(mover)]), own)


def _scopes(tables: Mapping[int, Factor]) -> Iterator[Scope]:
    return (table.scope for table in tables.values())


def policy_scope(areas: Areas, device: int) -> Scope:
    """State variables of a device's policy: what it sees of all costs that its action enters."""
    area, own = areas[device], action(device)
    sources = [source for source in area.members if own in areas[source].cost_scope]
    seen = [v for source in sources for v in areas[source].states if v in area.visible]
    return tuple(dict.fromkeys([*seen, energy(device)]))


def share_scope(areas: Areas, scopes: Sequence[Scope], source: int, mover: int) -> Scope:
    """State variables that a source's share for a mover can depend on."""
    actors = (actor for actor in areas[source].actors if actor != mover)
    met = {*areas[source].states, *(variable for actor in actors for variable in scopes[actor])}
    return tuple(variable for variable in scopes[mover] if variable in met)


def num_best_responses(rounds: int, turns: int) -> int:
    """Most rounds of pure best responses after the soft ones."""
    return min(rounds, _MOST_BEST_RESPONSES if turns > 1 else 1)
