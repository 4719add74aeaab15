"""Battery thresholds: act when enough is stored, with one threshold per power level.

A device takes its largest action a whose threshold θ_a its battery level reaches, and idles below all of them; θ does
not change over time. Devices look at nothing but their own battery, so the network's expected cost under any
thresholds is known exactly (`slot/independent_cost.py`), and so is the best choice of one device against the others:

    cost_j(θ) = Σ_t Σ_a P(device j does a in slot t under θ) · (expected cost of all that action a of j touches)

First all devices share the best common thresholds; then devices change theirs in turn, colour by colour, until nobody
gains. Every change lowers the exact expected cost. All non-decreasing thresholds on the planning grid are candidates.
"""

from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import comb
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from heliomesh.common.memory_limit import check_fits
from heliomesh.grid.best_response import by_slots
from heliomesh.grid.single_device import action_laws
from heliomesh.model.planner_context import GridOptions, PlannerContext
from heliomesh.model.policy import Observation, OwnStatePolicy, Plan
from heliomesh.model.problem import Problem, with_levels
from heliomesh.scenario.errors import refuse
from heliomesh.scenario.section import Fraction, Rounds
from heliomesh.slot.colour_rounds import by_colour
from heliomesh.slot.enumerated_cost import CostForm, cost_form
from heliomesh.slot.ties import first_least

_ENOUGH = 1e-9  # relative improvement of a sweep below which the search stops


class Options(GridOptions):
    """Options of the search."""

    thresholds: Annotated[tuple[Fraction, ...], Field(strict=False, min_length=1)] | None = Field(
        None,
        description="shares of the capacity, one per action but idle, rounded up to the planning grid; "
        "default: the best",
    )
    shared: bool = Field(False, description="all devices keep the best common thresholds; false: they may differ")
    sweeps: Rounds = Field(20, description="most sweeps over the devices")


@dataclass(frozen=True)
class Thresholds(OwnStatePolicy):
    """Every device looks its battery level up."""

    problem: Problem
    actions: Tensor  # (device, energy) the same in every weather
    stationary = True

    def action(self, slot: int, seen: Observation) -> Tensor:
        """Tabulated action."""
        device = torch.arange(self.problem.num_devices, device=self.problem.device)
        return self.actions[device, seen.energy_state(self.problem)].long()


def plan(context: PlannerContext[Options]) -> Plan:
    """Thresholds as given, or the best that the search finds."""
    options = context.options
    problem = with_levels(context.problem, options.levels)
    form, given = cost_form(problem), options.thresholds
    if given is None:
        remedy = "lower energy.battery_levels or the power levels, or give thresholds"
        check_fits("laws of all thresholds", estimate_bytes(problem), options.memory_gib, remedy)
    levels = _candidates(problem) if given is None else [_given_levels(problem, given)]
    candidates = torch.stack([threshold_actions(problem, level) for level in levels])
    tried = context.track(candidates, "thresholds", len(candidates))
    laws = torch.stack([action_laws(problem, actions.expand(problem.slots, -1, -1)) for actions in tried])
    common = first_least(torch.tensor([_cost(problem, form, law) for law in laws], dtype=torch.float64))
    choice = common.expand(problem.num_devices).to(problem.device)
    cost, sweeps, converged = _cost(problem, form, laws[common]), 0, True
    if given is None and not options.shared:
        choice, cost, sweeps, converged = _descend(problem, form, laws, choice, options.sweeps)
    device = torch.arange(problem.num_devices, device=problem.device)
    policy = Thresholds(problem, candidates[choice, device])
    known = cost if problem.devices_are_independent else None
    return Plan("battery_threshold", policy, expected_cost=known, converged=converged, rounds=sweeps)


def threshold_actions(problem: Problem, level: Tensor) -> Tensor:
    """Actions under thresholds in grid levels, raised to what the action costs; (action − 1,) → (device, energy)."""
    battery = torch.arange(problem.num_energy, device=problem.device) % problem.battery.levels
    needed = torch.maximum(level, problem.actions.needed_steps_up[:, 1:])  # (device, action − 1)
    reached = battery.reshape(1, -1, 1) >= needed.unsqueeze(1)  # (device, energy, action − 1)
    order = torch.arange(1, reached.shape[-1] + 1, device=problem.device)
    highest = torch.nn.functional.pad(reached * order, (1, 0)).amax(-1)  # idle, which is 0, is always in reach
    return highest.to(problem.actions.index_type)


def estimate_bytes(problem: Problem) -> float:
    """Laws of all candidates, twice while they are stacked."""
    width = torch.empty((), dtype=problem.dtype).element_size()
    candidates = comb(problem.battery.levels + len(problem.actions) - 1, len(problem.actions) - 1)
    return 2.0 * width * candidates * problem.slots * problem.num_devices * len(problem.actions)


def _candidates(problem: Problem) -> list[Tensor]:
    """All non-decreasing thresholds 0 … levels, where `levels` means never; each (action − 1,)."""
    levels = range(problem.battery.levels + 1)
    count = len(problem.actions) - 1
    return [torch.tensor(c, device=problem.device) for c in combinations_with_replacement(levels, count)]


def _given_levels(problem: Problem, shares: tuple[float, ...]) -> Tensor:
    """Shares of the capacity in grid levels, rounded up; (action − 1,)."""
    count, given = len(problem.actions) - 1, f"number of values {len(shares)}"
    expected = f"{count} values, one per action but idle"
    refuse(len(shares) != count, "battery_threshold option.thresholds", expected, given)
    steps = torch.tensor(shares, dtype=torch.float64, device=problem.device) * (problem.battery.levels - 1)
    return torch.ceil(steps - 1e-9).long()  # a billionth absorbs rounding of products such as 0.1 · 30


def _cost(problem: Problem, form: CostForm, laws: Tensor) -> float:
    """Exact expected cost per slot."""
    return float(by_slots(form.cost, laws, problem).mean())


def _descend(
    problem: Problem, form: CostForm, laws: Tensor, choice: Tensor, sweeps: int
) -> tuple[Tensor, float, int, bool]:
    """Best thresholds in turn, colour by colour; laws (candidate, slot, device, action), choice (device,).

    Returns the choice, its exact cost, the sweeps taken and whether the last of them gained nothing.
    """
    device = torch.arange(problem.num_devices, device=problem.device)
    cost, choice = _cost(problem, form, laws[choice, :, device].transpose(0, 1)), choice.clone()
    turns = [(devices, form.of(devices)) for devices in by_colour(problem.colour, problem.device)]
    for sweep in range(1, sweeps + 1):
        for devices, costs in turns:
            now = laws[choice, :, device].transpose(0, 1)  # (slot, device, action)
            score = torch.zeros(len(laws), len(devices), dtype=laws.dtype, device=laws.device)
            for slot, price in enumerate(by_slots(costs.action_cost, now, problem)):
                score += (laws[:, slot, devices] * price).sum(-1)
            gained = score.gather(0, choice[devices].unsqueeze(0)).squeeze(0) - score.amin(0)
            choice[devices] = torch.where(gained > _ENOUGH * problem.slots, first_least(score, 0), choice[devices])
        after = _cost(problem, form, laws[choice, :, device].transpose(0, 1))
        converged, cost = cost - after <= _ENOUGH * abs(after), after
        if converged:
            return choice, cost, sweep, True
    return choice, cost, sweeps, False
