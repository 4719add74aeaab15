"""The exact optimum by backward induction over the joint state.

    V_t(s) = min over feasible p of  c_t(h, p) + W_t(h, b − e(p)),   W_t = E[V_{t+1} | state after spending]

Independent parts of the network (a bipartite network under full duplex has two) are solved one by one. Only the
post-decision table W, the value V and the best action per state exist; Q(s, p) is never stored, and the minimum over
joint actions is taken one device at a time.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from heliomesh.common.memory_limit import at_most_a_float, check_fits, entries
from heliomesh.grid.exact import backward_induction, code_type, decode, expected_first, induction_bytes, part_terms
from heliomesh.model.factor import Variable, energy
from heliomesh.model.overhead import Talk, central_overhead, central_talk
from heliomesh.model.planner_context import GridOptions, PlannerContext
from heliomesh.model.policy import Observation, PartPolicy, Plan, Track
from heliomesh.model.problem import COARSE, Part, Problem, interpolated, with_levels
from heliomesh.model.symmetry import same_part


class Options(GridOptions):
    """Options of the exact planner."""


@dataclass(frozen=True)
class PartTable:
    """Best joint actions of one part: (slot, state), coded in base |P| with the first device most significant."""

    states: tuple[Variable, ...]
    devices: tuple[int, ...]
    best: Tensor


@dataclass(frozen=True)
class JointTable(PartPolicy):
    """Best joint action of every part for every slot and joint state."""

    problem: Problem
    tables: tuple[PartTable, ...]

    @property
    def talk(self) -> Talk:
        """Reports and commands."""
        return central_talk(self.problem)

    def action(self, slot: int, seen: Observation) -> Tensor:
        """Look the joint state of every part up."""
        batch = len(seen.battery_joule)
        chosen = torch.zeros(batch, self.problem.num_devices, dtype=torch.long, device=self.problem.device)
        for table in self.tables:
            assignment = seen.assignment(self.problem, table.states)
            state = torch.zeros(batch, dtype=torch.long, device=self.problem.device)
            for variable in table.states:
                state = state * self.problem.size(variable) + assignment[variable]
            joint = table.best[slot][state].long()
            chosen[:, list(table.devices)] = decode(joint, len(table.devices), len(self.problem.actions))
        return chosen


def plan(context: PlannerContext[Options]) -> Plan:
    """Solve every part exactly; parts that are renamed copies of a solved one share its table."""
    asked = problem = _on_own_grid(context.problem, context.options.levels)
    limit_gib = context.options.memory_gib
    if estimate_bytes(problem.wide) <= limit_gib * 2**30:
        problem = problem.wide  # float32 may round the optimum upward, and then it is no bound
    check_fits("centralized optimum", estimate_bytes(problem), limit_gib, _REMEDY)
    tables: list[PartTable] = []
    costs: list[float] = []
    for number, part in enumerate(problem.parts, 1):
        for twin, known in enumerate(tables):
            rename = same_part(problem, problem.parts[twin], part)
            if rename is not None:
                states = tuple(map(rename, known.states))
                devices = tuple(rename(energy(j)).owner for j in known.devices)
                tables.append(PartTable(states, devices, known.best))
                costs.append(costs[twin])
                break
        else:
            description = f"centralized, part {number} of {len(problem.parts)}"
            value, best = _solve_part(problem, part, context.track, description)
            tables.append(PartTable(part.states, part.devices, best))
            costs.append(expected_first(problem, part.states, value))
    cost = sum(costs) / problem.slots
    policy = JointTable(asked, tuple(tables))
    certain = problem.dtype == torch.float64 and problem.grid_is_exact and problem.law_is_simulated
    bound = cost if certain else None  # elsewhere the simulator's batteries leave the grid, and may do better
    return Plan("centralized", policy, bound, cost, rounds=1, overhead=central_overhead(problem))


def _on_own_grid(problem: Problem, levels: int | None) -> Problem:
    """The problem on the grid that is asked for, else interpolated where the default one rounds too much up."""
    named = levels is not None or problem.scenario.energy.battery_levels is not None
    if named or problem.rounding_excess() <= COARSE:
        return with_levels(problem, levels)
    return interpolated(problem, problem.battery.levels)


_REMEDY = (
    "lower energy.battery_levels, channel.levels, slots or network.devices, or raise memory_gib, "
    "or use another planner"
)


def estimate_bytes(problem: Problem) -> float:
    """Peak memory: the search through the largest part, and the stored actions of all parts."""
    stored = 0.0
    for part in problem.parts:
        states = at_most_a_float(entries(problem.sizes(part.states)))
        stored += states * problem.slots * code_type(problem, part).itemsize
    return stored + max(induction_bytes(problem, part) for part in problem.parts)


def _solve_part(problem: Problem, part: Part, track: Track, description: str) -> tuple[Tensor, Tensor]:
    """Optimal total cost from every first state (site axes, energy axes) and best actions (slot, state)."""
    shape = (problem.slots, entries(problem.sizes(part.states)))
    best = torch.empty(shape, dtype=code_type(problem, part), device=problem.device)
    for step in track(backward_induction(problem, part, part_terms(part)), description, problem.slots):
        best[step.slot] = step.code.flatten()
        value = step.value
    return value, best
