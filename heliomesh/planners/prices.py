"""Energy prices: any degree, any size.

Zero-hop best response: every device plans alone, against the laws of its neighbours' actions. Batteries then stay
independent, so the network's expected cost is known exactly, and since all devices share it, best responses taken in
turn can only lower it. The values v_j(t, b) that a device ends with price its energy. With ``coordinate = true`` each
slot is decided jointly, by neighbour messages, at those prices:

    p = argmin  Σ_i f_i(h_i, p_{N_i}) + Σ_j (idle_j(p_j) + E[v_j(t+1, b_j')])

Alone (``coordinate = false``) devices look only at their own battery and send no control messages at all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor

from heliomesh.bounds.minorant import plan_grid
from heliomesh.common.memory_limit import DEFAULT_LIMIT_GIB
from heliomesh.grid.after_spending import EnergyAfterAction, Floats, Ints, NumpyEnergyLookup, is_few
from heliomesh.grid.best_response import descend, starting_laws
from heliomesh.grid.joint_choice import JointChoice, RoundsOptions
from heliomesh.grid.single_device import action_laws
from heliomesh.model.endless import TURN_SLOTS, endless_plan, one_cycle
from heliomesh.model.planner_context import PlannerContext
from heliomesh.model.policy import Ahead, Observation, OwnStatePolicy, Plan, untracked
from heliomesh.model.problem import Problem
from heliomesh.scenario.section import Levels
from heliomesh.slot.coordination import Coordination
from heliomesh.slot.enumerated_cost import cost_form
from heliomesh.slot.ties import first_least, first_least_of


class Options(RoundsOptions):
    """Options of the price planner."""

    coordinate: bool = Field(True, description="decide each slot with neighbours; false: no online messages")
    restarts: Annotated[int, Field(ge=0, le=100_000)] = Field(1, description="further starts from random action laws")
    levels: Levels | None = Field(
        None, description="points of its battery grid; default: up to 41, which divide the energies of actions best"
    )
    interpolate: bool = Field(
        True, description="read values between grid points; false: spending is rounded up, as exports do"
    )
    memory_gib: float = Field(DEFAULT_LIMIT_GIB, gt=0, description="refuse to start above this estimate [GiB]")


@dataclass(frozen=True)
class Alone(OwnStatePolicy):
    """Every device looks its own energy up."""

    problem: Problem
    actions: Tensor  # (slot, device, energy)
    prices: Tensor  # (slot, device, action): expected cost of what the action touches
    futures: Tensor  # (slot, device, energy)

    def action(self, slot: int, seen: Observation) -> Tensor:
        """The least of price and future."""
        few = self.action_ahead(slot, seen)
        if few is not None:
            return few
        return self.least(slot, EnergyAfterAction(self.problem, seen))

    def ahead(self, slots: Sequence[int], channel_level: Tensor, weather: Tensor) -> Ahead | None:
        """Decisions by NumPy, for few devices."""
        if not is_few(self.problem, weather.shape[1]):
            return None
        lookup, futures = NumpyEnergyLookup(self.problem), self.futures.numpy()
        entries = lookup.first_entries(weather)

        def decide(number: int, battery_joule: Floats) -> Ints:
            values = lookup.values(futures[slots[number]], entries[number], lookup.place(battery_joule))
            return self.least_few(slots[number], lookup.affordable(battery_joule), values)

        return decide

    def least(self, slot: int, left: EnergyAfterAction) -> Tensor:
        """The least of price and future; (batch, device)."""
        value = left.values(self.futures[slot]) + self.prices[slot]
        return first_least(value.masked_fill(~left.affordable, torch.inf))

    def least_few(self, slot: int, affordable: npt.NDArray[np.bool_], values: Floats | float) -> Ints:
        """The same by NumPy, from the values of the energy left; (batch, device, action)."""
        return first_least_of(np.where(affordable, self.prices[slot].numpy() + values, np.inf), -1)


@dataclass(frozen=True)
class Coordinated(JointChoice):
    """Joint decisions at energy prices; rounds start from the devices' own choices."""

    problem: Problem
    coordination: Coordination
    alone: Alone
    rounds: int
    messages: int

    @property
    def first_bytes(self) -> int:
        """Its state, and its price per action."""
        return 1 + 4 * len(self.problem.actions)

    @property
    def own_values(self) -> Tensor:
        """Values of the energy left."""
        return self.alone.futures

    def first_choice(self, slot: int, left: EnergyAfterAction) -> Tensor:
        """What devices choose alone."""
        return self.alone.least(slot, left)

    def first_choice_few(self, slot: int, affordable: npt.NDArray[np.bool_], values: Floats | float) -> Ints:
        """The same by NumPy."""
        return self.alone.least_few(slot, affordable, values)


def plan(context: PlannerContext[Options]) -> Plan:
    """Best responses from several starts, or from an earlier plan; the best of them, alone or coordinated."""
    return endless_plan(context, _plan, TURN_SLOTS) if context.options.endless else _plan(context)


def _plan(context: PlannerContext[Options]) -> Plan:
    options = context.options
    problem = plan_grid(context.problem, options.levels, options.interpolate, _MOST_LEVELS)
    starts = _first_laws(context, problem) if context.previous is None else [_laws_of(problem, context.previous)]
    coordination = Coordination(problem)
    if options.coordinate:
        coordination.check_fits(options.memory_gib)
    respond = partial(descend, problem, cost_form(problem), sweeps=options.sweeps, track=untracked, description="")
    results = list(context.track(context.parallel_map(respond, starts), "prices, starts", len(starts)))
    costs = torch.tensor([result.cost for result in results], dtype=torch.float64)
    best = results[int(first_least(costs))]
    alone = Alone(problem, best.actions, best.prices, best.futures)
    if not options.coordinate:
        cost = best.cost if problem.devices_are_independent else None
        return Plan("prices alone", alone, expected_cost=cost, converged=best.converged, rounds=best.sweeps)
    messages = coordination.message_rounds(options.messages)
    policy = Coordinated(problem, coordination, alone, options.rounds, messages)
    overhead = policy.overhead(problem.slots * problem.num_energy)
    return Plan("prices", policy, converged=best.converged, rounds=best.sweeps, overhead=overhead)


_MOST_LEVELS = 41


def _first_laws(context: PlannerContext[Options], problem: Problem) -> list[Tensor]:
    """Even action laws or turns, and random ones for every restart; (slot, device, action) each."""
    starts = [starting_laws(problem)]
    shape = starts[0].shape
    size = shape[:2] if problem.endless else shape[1]  # around a cycle slots that begin alike stay alike
    for _ in range(context.options.restarts):
        drawn = torch.from_numpy(context.rng.dirichlet(np.ones(shape[-1]), size=size)).to(starts[0])
        starts.append(drawn.expand(shape).contiguous())
    return starts


def _laws_of(problem: Problem, previous: Plan) -> Tensor:
    """Laws of the actions of an earlier plan for the same devices; (slot, device, action)."""
    policy = one_cycle(previous.policy)
    alone = policy.alone if isinstance(policy, Coordinated) else policy
    if not isinstance(alone, Alone):
        raise TypeError(f"previous: expected a plan of the planner 'prices', actual value {previous.planner!r}")
    return action_laws(problem, alone.actions)


STARTS_WARM = True  # it uses the context's previous plan
# how `compare` shows this planner
VARIANTS: tuple[dict[str, bool], ...] = ({}, {"coordinate": False})
