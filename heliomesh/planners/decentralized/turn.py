"""One turn of a round in one process: all movers of the turn improve their policies at once.

What is computed is what `DeviceStep.share` and `DeviceStep.improved` compute device by device, with the same bits.
A turn is prepared for given scopes of all tables. Scopes grow in the first rounds of a slot and stay the same from
then on, so that a few prepared turns serve the whole horizon.
"""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heliomesh.common.memory_limit import entries
from heliomesh.model.factor import Factor, action, energy
from heliomesh.model.problem import Problem
from heliomesh.model.symmetry import Role
from heliomesh.planners.decentralized.response import infeasible, response
from heliomesh.planners.decentralized.shares import (
    Pair,
    Reader,
    Reference,
    Scope,
    ShareBatch,
    Stacks,
    action_first,
    grouped,
    stored,
)

Tables = Mapping[int, Factor]  # one per representative


@dataclass(frozen=True)
class Network:
    """What all turns have in common."""

    problem: Problem
    roles: Sequence[Role]
    own_states: Sequence[Scope]  # (device,) what each device's value depends on
    policy_states: Mapping[int, Scope]  # per representative, all that its policy may depend on
    members: Sequence[Sequence[int]]  # (device,) devices in sight of each

    def scope_of(self, device: int, tables: Tables) -> Scope:
        """Scope of a device's table, which is that of its representative renamed."""
        role = self.roles[device]
        return tuple(map(role.rename, tables[role.representative].scope))

    def pair(self, source: int, mover: int, told: Scope, raw: Tables, policies: Tables) -> Pair:
        """The tables that meet in a source's share for a mover that is ``told`` about these states."""
        told_set, raw_scope = frozenset(told), self.scope_of(source, raw)
        actors = [v.owner for v in raw_scope if v.kind == "action" and v.owner != mover]
        known = told_set.union(self.own_states[source])
        return Pair(source, mover, known, told_set, raw_scope, {a: self.scope_of(a, policies) for a in actors})


class Shares:
    """Shares of some pairs, prepared for the scopes of given tables."""

    def __init__(self, network: Network, pairs: Sequence[Pair], policies: Tables, stacks: Stacks) -> None:
        self._representatives = tuple(policies)
        self.policy_offsets = _offsets(network.problem, policies)
        by_device = {d: self.policy_offsets[role.representative] for d, role in enumerate(network.roles)}
        self._batches = [
            ShareBatch(network.problem, group, by_device, stacks) for group in grouped(network.problem, pairs)
        ]
        self._sources = [
            [network.roles[pair.source].representative for pair in batch.pairs] for batch in self._batches
        ]

    def offsets(self) -> dict[tuple[int, int], int]:
        """Where each pair's share begins once all are put one after another, by source and mover."""
        found, first = {}, 0
        for batch in self._batches:
            for pair in batch.pairs:
                found[pair.source, pair.mover] = first
                first += batch.row_entries
        return found

    def run(self, raw: Tables, flat: Tensor, reference: Reference, slot: int) -> list[tuple[Sequence[Pair], Tensor]]:
        """Shares (pair, mover's action, told states) of each batch of pairs; ``flat`` are all policies in line."""
        return [
            (batch.pairs, batch.run([raw[i].table for i in sources], flat, reference, slot))
            for batch, sources in zip(self._batches, self._sources, strict=True)
        ]

    def in_line(self, policies: Tables) -> Tensor:
        """Policies of all representatives, one after another."""
        return torch.cat([stored(policies[i]) for i in self._representatives])


class Turn:
    """Movers of one turn, prepared for the scopes of given tables."""

    def __init__(
        self, network: Network, movers: Sequence[int], raw: Tables, policies: Tables, stacks: Stacks
    ) -> None:
        self._network = network
        pairs = {mover: self._pairs(mover, raw, policies) for mover in movers}
        self._shares = Shares(network, [pair for row in pairs.values() for pair in row], policies, stacks)
        groups: defaultdict[Hashable, dict[int, Sequence[Pair]]] = defaultdict(dict)  # of one shape
        for mover, row in pairs.items():
            groups[network.problem.sizes(response_scope(mover, row)), len(row)][mover] = row
        self._responses = [_Response(network.problem, group, self._shares, policies) for group in groups.values()]

    def _pairs(self, mover: int, raw: Tables, policies: Tables) -> list[Pair]:
        own, network = action(mover), self._network
        sources = [s for s in network.members[mover] if own in network.scope_of(s, raw)]
        return [network.pair(source, mover, network.policy_states[mover], raw, policies) for source in sources]

    def improved(
        self, raw: Tables, policies: Tables, laws: tuple[Reference, int], step: tuple[float, float]
    ) -> Tables:
        """New policies of all movers; ``laws``: reference and slot, ``step``: γ and the new policy's weight."""
        flat = self._shares.in_line(policies)
        told = torch.cat([share.reshape(-1) for _, share in self._shares.run(raw, flat, *laws)])
        return {mover: new for response in self._responses for mover, new in response.run(told, flat, *step).items()}


class _Response:
    """Movers whose responses have one shape."""

    def __init__(
        self, problem: Problem, pairs: Mapping[int, Sequence[Pair]], stored_shares: Shares, policies: Tables
    ) -> None:
        begins = stored_shares.offsets()
        self._scopes = {mover: response_scope(mover, row) for mover, row in pairs.items()}
        orders = {mover: action_first(scope) for mover, scope in self._scopes.items()}
        self._shape = problem.sizes(next(iter(orders.values())))  # action, states...
        sources = range(len(next(iter(pairs.values()))))
        # (mover · action · state,) out of all shares, by source, and out of all policies
        self._shares = [
            Reader(
                problem,
                [(begins[row[k].source, mover], row[k].scope, orders[mover]) for mover, row in pairs.items()],
            )
            for k in sources
        ]
        self._before = Reader(
            problem,
            [
                (stored_shares.policy_offsets[m], action_first(policies[m].scope), order)
                for m, order in orders.items()
            ],
        )
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


def _offsets(problem: Problem, policies: Tables) -> dict[int, int]:
    """Where each representative's policy begins once all are put one after another."""
    found, first = {}, 0
    for device, policy in policies.items():
        found[device] = first
        first += entries(problem.sizes(policy.scope))
    return found


def response_scope(mover: int, pairs: Sequence[Pair]) -> Scope:
    """States of all shares in order, the own energy, and the own action last."""
    own = action(mover)
    states = [v for pair in pairs for v in pair.scope if v != own]
    return (*dict.fromkeys([*states, energy(mover)]), own)
