"""Shares of many pairs of devices in a few operations: pairs whose tables have the same structure form one batch.

A source l tells a mover i its share, E_{others ∼ π}[Q_l] over what i sees. With small tables the time goes into
calls, not into numbers, so that all pairs of equal structure are computed at once:

    seen    π_j[a_j, kept]      ← Σ over what neither l nor i sees of law · π_j     one gather, product and sum
    share   Q_l[a_i, U]         ← Σ over a_j of Q_l[a_j, ..., a_i, U] · π_j         for each other actor j in turn
    told    share[a_i, told]    ← Σ over what i does not see of law · share

U are all state variables of the pair, first those that are hidden from the mover, then those it is told. Products and
sums of one pair do not depend on its batch, so a device that computes its shares alone finds the same bits.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from heliomesh.common.memory_limit import entries
from heliomesh.model.factor import Factor, Scope, Variable, action
from heliomesh.model.problem import Problem

BATCHED_ENTRIES = 1 << 15  # tables up to this size are copied into batches; calls on larger ones are long anyway
KEPT_ENTRIES = 1 << 21  # tables up to this size are kept in the order of their axes that a share needs
_FEW_ACTIONS = 8  # up to here a sum over actions is written out, which is twice as fast


@dataclass(frozen=True)
class Pair:
    """A source, a mover, and the scopes of all tables that meet in the share."""

    source: int
    mover: int
    known: frozenset[Variable]  # state variables that the source or the mover's policy sees
    told: frozenset[Variable]  # state variables of the mover's policy
    raw_scope: Scope
    policy_scopes: Mapping[int, Scope]  # of all actors but the mover; the own action is the last

    @cached_property
    def others(self) -> tuple[int, ...]:
        """The other actors, the source first."""
        actors = [v.owner for v in self.raw_scope if v.kind == "action" and v.owner != self.mover]
        return tuple(sorted(actors, key=lambda actor: (actor != self.source, actor)))

    def hidden(self, actor: int) -> Scope:
        """What an actor's policy depends on and neither source nor mover knows."""
        return tuple(v for v in self.policy_scopes[actor][:-1] if v not in self.known)

    @cached_property
    def states(self) -> Scope:
        """U: all state variables that meet, those out of the mover's sight first."""
        own = [v for v in self.raw_scope if v.kind != "action"]
        brought = [v for other in self.others for v in self.policy_scopes[other][:-1] if v in self.known]
        return tuple(sorted(dict.fromkeys([*own, *brought]), key=self._look))

    def _look(self, variable: Variable) -> tuple[bool, str, int, int]:
        """A variable by its part in the pair; its number decides among equals only."""
        owners = [self.mover, self.source, *self.others]
        known = variable.kind == "energy" and variable.owner in owners
        part = owners.index(variable.owner) if known else len(owners)
        return variable in self.told, variable.kind, part, variable.owner

    @cached_property
    def untold(self) -> Scope:
        """Variables of U that are averaged out last."""
        return tuple(v for v in self.states if v not in self.told)

    @cached_property
    def scope(self) -> Scope:
        """Axes of the share: the mover's action, then what the mover sees."""
        return (action(self.mover), *(v for v in self.states if v in self.told))

    @cached_property
    def raw_axes(self) -> Scope:
        """Axes of Q_l while others are averaged out."""
        return (*map(action, self.others), action(self.mover), *self.states)

    @cached_property
    def met_states(self) -> tuple[tuple[bool, ...], ...]:
        """Which variables of U the raw table and each policy depend on."""
        scopes = [self.raw_scope, *(self.policy_scopes[other] for other in self.others)]
        return tuple(tuple(v in scope for v in self.states) for scope in scopes)

    def structure(self, problem: Problem) -> Hashable:
        """Pairs of one structure fit into one batch."""
        hidden = tuple(problem.sizes(self.hidden(other)) for other in self.others)
        return problem.sizes(self.states), len(self.untold), self.met_states, hidden


class ShareBatch:
    """Pairs of one structure; policies lie one after another in a flat tensor, each at a known offset."""

    def __init__(self, problem: Problem, pairs: Sequence[Pair], offsets: Mapping[int, int]) -> None:
        self.pairs = pairs
        self._problem = problem
        first, count = pairs[0], len(problem.actions)
        self._sizes = problem.sizes(first.states)
        # Q_l depends on all of U, unless a policy brings a variable that only the mover knows: then U stays unfolded
        self._folded = all(first.met_states[0])
        self._gathers = [self._gather(position, offsets) for position in range(len(first.others))]
        self._hidden = [entries(problem.sizes(first.hidden(other))) for other in first.others]
        self._views = [self._shapes(position) for position in range(len(first.others))]
        told = entries(problem.sizes(first.scope[1:]))
        self._last_view = (len(pairs), count, entries(problem.sizes(first.untold)), told)
        self.row_entries = count * told
        scopes = [[pair.hidden(pair.others[k]) for pair in pairs] for k in range(len(first.others))]
        scopes.append([pair.untold for pair in pairs])
        # law of what is averaged out of each policy, and last of what the mover does not see; (pair, H, 1) each
        self._laws = [torch.stack([self._law(scope) for scope in row]) for row in scopes]
        self._raw: tuple[Sequence[Tensor], Tensor] | None = None

    def _gather(self, position: int, offsets: Mapping[int, int]) -> "Reader":
        """Reads each pair's policy by what is hidden, action and kept states."""
        tables = []
        for pair in self.pairs:
            other = pair.others[position]
            scope, hidden = pair.policy_scopes[other], pair.hidden(other)
            order = (*hidden, action(other), *(v for v in pair.states if v in scope))
            tables.append((offsets[other], action_first(scope), order))
        return Reader(self._problem, tables)

    def run(self, raw: Sequence[Tensor], policies: Tensor) -> Tensor:
        """Shares of all pairs, (pair, mover's action, told states)."""
        table = self._stacked(raw)
        for position, gather in enumerate(self._gathers):
            seen = gather(policies)
            if self._hidden[position] > 1:
                seen = (seen.view(len(self.pairs), self._hidden[position], -1) * self._laws[position]).sum(1)
            gathered, spread, aligned = self._views[position]
            law = seen.view(gathered).expand(spread).reshape(aligned)
            table = _averaged(table, law) if self._folded else _contracted(table, law)
        table = table.reshape(self._last_view)
        return (table * self._laws[-1].unsqueeze(1)).sum(2) if self._last_view[2] > 1 else table.squeeze(2)

    def _shapes(self, position: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Of a policy as gathered, as spread over U, and as the raw table has its axes; all begin (pair, action)."""
        first = (len(self.pairs), len(self._problem.actions))
        met = self.pairs[0].met_states[1 + position]
        kept = [size if depends else 1 for size, depends in zip(self._sizes, met, strict=True)]
        spread = self._sizes if self._folded else tuple(kept)
        still_open = (1,) * (len(self._gathers) - position)  # actions that are averaged out later, and the mover's
        return (*first, *kept), (*first, *spread), (*first, *still_open, *((-1,) if self._folded else spread))

    def _law(self, scope: Scope) -> Tensor:
        """Joint law of independent variables, (H, 1)."""
        law = torch.ones(1, dtype=self._problem.dtype, device=self._problem.device)
        for variable in scope:
            law = torch.outer(law, law_out_of_sight(self._problem, variable)).flatten()
        return law.unsqueeze(1)

    def _stacked(self, raw: Sequence[Tensor]) -> Tensor:
        """Raw tables, with U folded into one axis where all of it is there; kept for a slot's rounds unless large."""
        if self._raw is not None and all(a is b for a, b in zip(self._raw[0], raw, strict=True)):
            return self._raw[1]
        each = [Factor(p.raw_scope, table).aligned(p.raw_axes) for p, table in zip(self.pairs, raw, strict=True)]
        table = torch.stack(each) if len(each) > 1 else each[0].unsqueeze(0)  # a pair alone is not copied
        if self._folded:
            table = table.reshape(*table.shape[: -len(self._sizes)], -1)
        self._raw = (raw, table) if raw[0].numel() <= KEPT_ENTRIES else None
        return table


def law_out_of_sight(problem: Problem, variable: Variable) -> Tensor:
    """Law of a state variable out of sight: stationary channels, and any energy as likely as any other."""
    if variable.kind == "site":
        return problem.channel.stationary.to(problem.dtype)
    return torch.full((problem.num_energy,), 1 / problem.num_energy, dtype=problem.dtype, device=problem.device)


def _averaged(table: Tensor, law: Tensor) -> Tensor:
    """Σ over the second axis of table · law, added in the order of the axis."""
    if table.shape[1] > _FEW_ACTIONS:
        return (table * law).sum(1)
    first, *rest = (part * weight for part, weight in zip(table.unbind(1), law.unbind(1), strict=True))
    for product in rest:
        first += product
    return first


def _contracted(table: Tensor, law: Tensor) -> Tensor:
    """The same as a product of matrices, where table and law depend on different states."""
    axes = list(range(table.ndim))
    kept = [axis for axis in axes if law.shape[axis] > 1 or axis < 2]
    squeezed = law.reshape([law.shape[axis] for axis in kept])
    used = [axis for axis in axes if table.shape[axis] > 1 or axis < 2]
    slim = table.reshape([table.shape[axis] for axis in used])
    left = [axis for axis in axes if axis != 1 and (axis in used or axis in kept)]
    mean = torch.einsum(slim, used, squeezed, kept, left)
    sizes = [max(table.shape[axis], law.shape[axis]) for axis in axes if axis != 1]
    return mean.reshape(sizes)


def action_first(scope: Scope) -> Scope:
    """A policy's scope with its action, the last, as the first axis: so policies are stored."""
    return (scope[-1], *scope[:-1])


def stored(policy: Factor) -> Tensor:
    """A policy's entries in line, action by action."""
    return policy.table.movedim(-1, 0).reshape(-1)


class Reader:
    """Reads tables that lie in line, each at its offset and with its scope, in the order wanted.

    Axes that a table lacks are repeated. Small tables are read by a list of positions. Large ones are read by views,
    since such a list would be as large as they are.
    """

    def __init__(self, problem: Problem, tables: Sequence[tuple[int, Scope, Scope]]) -> None:
        self._problem, self._tables = problem, tables
        self._positions: Tensor | None = None
        if sum(entries(problem.sizes(order)) for _, _, order in tables) <= len(tables) * BATCHED_ENTRIES:
            numbers = [first + self._read(scope, order) for first, scope, order in tables]
            self._positions = torch.cat(numbers).to(problem.device)

    def __call__(self, line: Tensor) -> Tensor:
        """All entries, in line."""
        if self._positions is not None:
            return line.index_select(0, self._positions)
        return torch.cat([self._read(scope, order, line[first:]) for first, scope, order in self._tables])

    def _read(self, scope: Scope, order: Scope, line: Tensor | None = None) -> Tensor:
        sizes = self._problem.sizes(scope)
        number = entries(sizes)
        table = (torch.arange(number) if line is None else line[:number]).reshape(sizes)
        return Factor(scope, table).aligned(order).expand(self._problem.sizes(order)).reshape(-1)


def share_batches(problem: Problem, pairs: Iterable[Pair], offsets: Mapping[int, int]) -> list[ShareBatch]:
    """Pairs in batches: those of one structure together, those with large tables alone."""
    groups: defaultdict[Hashable, list[Pair]] = defaultdict(list)
    for pair in pairs:
        large = entries(problem.sizes(pair.raw_scope)) > BATCHED_ENTRIES
        groups[(pair.source, pair.mover) if large else pair.structure(problem)].append(pair)
    return [ShareBatch(problem, group, offsets) for group in groups.values()]
