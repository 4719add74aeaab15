"""The exact optimum by backward induction over the joint state.

    V_t(s) = min over feasible p of  c(h, p) + W_t(h, b − e(p)),   W_t = E[V_{t+1} | state after spending]

Independent parts of the network (a bipartite network under full duplex has two) are solved one by one. Only the
post-decision table W, the value V and the best action per state exist; Q(s, p) is never stored.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from heliomesh.problem.contraction import expectation
from heliomesh.problem.cost import part_factors
from heliomesh.problem.factor import Variable, action, site, total
from heliomesh.problem.overhead import central_overhead
from heliomesh.problem.policy import (
    ActionPolicy,
    Observation,
    ParallelMap,
    Plan,
    Track,
    untracked,
)
from heliomesh.problem.problem import Part, Problem
from heliomesh.problem.size import DEFAULT_LIMIT_GIB, check_fits, entries
from heliomesh.scenario import Section

_BLOCK_ENTRIES = 1 << 16  # states per block: the block's value, candidate and action tables stay in the cache


class Options(Section):
    """Options of the exact planner."""

    memory_gib: float = Field(DEFAULT_LIMIT_GIB, gt=0, description="refuse to start above this estimate [GiB]")


@dataclass(frozen=True)
class JointTable(ActionPolicy):
    """Best joint action of every part for every slot and joint state."""

    problem: Problem
    tables: tuple[Tensor, ...]  # per part: (slot, state) joint action index

    def action(self, slot: int, seen: Observation) -> Tensor:
        """Look the joint state of every part up."""
        batch = len(seen.battery_joule)
        chosen = torch.zeros(batch, self.problem.num_devices, dtype=torch.long, device=self.problem.device)
        count = len(self.problem.actions)
        for part, table in zip(self.problem.parts, self.tables, strict=True):
            assignment = seen.assignment(self.problem, part.states)
            state = torch.zeros(batch, dtype=torch.long, device=self.problem.device)
            for variable in part.states:
                state = state * self.problem.size(variable) + assignment[variable]
            joint = table[slot][state].long()
            for device in reversed(part.devices):
                chosen[:, device] = joint % count
                joint = joint // count
        return chosen

    def visible(self, device: int) -> frozenset[Variable]:
        """The whole state of its part of the network."""
        part = next(part for part in self.problem.parts if device in part.devices)
        return frozenset(part.states)


def plan(
    problem: Problem,
    options: Options,
    rng: np.random.Generator,
    parallel_map: ParallelMap = map,
    track: Track = untracked,
) -> Plan:
    """Solve every part exactly."""
    check_fits("centralized optimum", estimate_bytes(problem), options.memory_gib, _REMEDY)
    tables, cost = [], 0.0
    for number, part in enumerate(problem.parts, 1):
        value, table = solve_part(problem, part, track, f"centralized, part {number} of {len(problem.parts)}")
        for variable in part.states:
            value = torch.tensordot(problem.initial_law(variable), value, dims=([0], [0]))
        cost += float(value) / problem.slots
        tables.append(table)
    return Plan(
        "centralized", JointTable(problem, tuple(tables)), cost, cost, rounds=1, overhead=central_overhead(problem)
    )


_REMEDY = (
    "lower energy.battery_levels, channel.levels, slots or network.devices, or raise memory_gib, "
    "or use another planner"
)


def estimate_bytes(problem: Problem) -> float:
    """Peak memory: three value tables of the largest part, and the stored actions of all parts."""
    states = [entries(problem.sizes(part.states)) for part in problem.parts]
    width = torch.empty((), dtype=problem.dtype).element_size()
    stored = sum(
        float(count) * problem.slots * _action_type(problem, part).itemsize
        for count, part in zip(states, problem.parts, strict=True)
    )
    return stored + 4.0 * width * max(states)


def _action_type(problem: Problem, part: Part) -> torch.dtype:
    joint = entries([len(problem.actions)] * len(part.devices))
    return torch.uint8 if joint <= 256 else torch.int16 if joint <= 2**15 else torch.int32


def solve_part(problem: Problem, part: Part, track: Track, description: str) -> tuple[Tensor, Tensor]:
    """Optimal total cost from every first state (site axes, energy axes) and best actions (slot, state)."""
    shape = problem.sizes(part.states)
    channel_states = entries(shape[: len(part.sites)])
    scope = (*map(site, part.sites), *map(action, part.devices))
    cost = total(part_factors(problem, part.devices, part.receivers)).aligned(scope)
    cost = cost.expand(problem.sizes(scope)).reshape(channel_states, -1)  # (channel state, joint action)
    best_action = torch.empty(
        problem.slots, entries(shape), dtype=_action_type(problem, part), device=problem.device
    )
    value = torch.zeros(shape, dtype=problem.dtype, device=problem.device)
    for slot in track(range(problem.slots - 1, -1, -1), description, problem.slots):
        future = value if slot == problem.slots - 1 else expectation(
            value, [problem.kernel(variable, slot) for variable in part.states]
        )
        value = torch.empty_like(future)
        rows = (channel_states, -1)
        _minimise(problem, part, cost, future.reshape(rows), value.view(rows), best_action[slot].view(rows))
    return value, best_action


def _minimise(
    problem: Problem, part: Part, cost: Tensor, future: Tensor, value: Tensor, best_action: Tensor
) -> None:
    """Fill value and best action (channel state, energy states) from the post-decision table ``future``.

    A joint action that spends q shifts the battery axes by q: feasible states read ``future`` at b − q.
    """
    weathers, levels = problem.harvest.law.num_weather, problem.battery.levels
    axes = (weathers, levels) * len(part.devices)
    moves = []
    for joint, choice in enumerate(product(range(len(problem.actions)), repeat=len(part.devices))):
        quanta = [int(problem.actions.quanta[j, a]) for j, a in zip(part.devices, choice, strict=True)]
        if max(quanta) < levels:
            after = [piece for q in quanta for piece in (slice(None), slice(0, levels - q))]
            before = [piece for q in quanta for piece in (slice(None), slice(q, levels))]
            moves.append((joint, (slice(None), *after), (slice(None), *before)))
    rows = max(1, _BLOCK_ENTRIES // future.shape[1])
    column = (-1,) + (1,) * len(axes)
    for start in range(0, len(future), rows):
        block = slice(start, start + rows)
        source = future[block].reshape(-1, *axes)
        target = value[block].view(-1, *axes)
        arg = best_action[block].view(-1, *axes)
        # the first joint action is "all idle", feasible everywhere
        torch.add(source, cost[block, 0].reshape(column), out=target)
        arg.zero_()
        for joint, after, before in moves[1:]:
            candidate = source[after] + cost[block, joint].reshape(column)
            known = target[before]
            arg[before].masked_fill_(candidate < known, joint)
            torch.minimum(candidate, known, out=known)
