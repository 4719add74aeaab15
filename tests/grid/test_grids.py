"""A problem on other battery grids, and what actions leave there, against a plain loop."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import heliomesh as hm
from heliomesh.grid.after_spending import EnergyAfterAction
from heliomesh.model.policy import Observation
from heliomesh.model.problem import interpolated, with_levels

GRIDS: dict[str, Callable[[hm.Problem], hm.Problem]] = {
    "rounded": lambda problem: with_levels(problem, 6),
    "aligned": lambda problem: problem,
    "interpolated": lambda problem: interpolated(problem, 6),
    "a single point": lambda problem: interpolated(problem, 1),
}
MARKOV: dict[str, Any] = {
    "source": "markov",
    "joule": [[0.0, 0.5], [0.4, 1.3]],
    "prob": [[0.5, 0.5], [0.3, 0.7]],
    "kernel": [[0.9, 0.1], [0.4, 0.6]],
}


def of(**changes: object) -> hm.Problem:
    scenario = hm.Scenario.load("ring10").as_dict() | {"harvest": MARKOV}
    return hm.build(hm.Scenario.parse(scenario).override({"network.devices": 4, **changes}))


def seen_by(problem: hm.Problem, rng: np.random.Generator) -> Observation:
    """Any batteries, full and empty ones among them."""
    battery = rng.uniform(0, 1, (5, problem.num_devices))
    battery[0], battery[1] = 0.0, 1.0
    return Observation(
        channel_level=torch.zeros(5, problem.channel.num_sites, dtype=torch.long),
        battery_joule=torch.from_numpy(battery) * problem.battery.capacity_joule,
        weather=torch.from_numpy(rng.integers(0, 2, (5, problem.num_devices))),
        uniform=torch.zeros(5, problem.num_devices),
    )


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("capacity", [4.0, 3.3])
def test_left_equals_a_plain_loop(grid: str, capacity: float) -> None:
    problem = GRIDS[grid](of(**{"energy.capacity_joule": capacity}))
    rng = np.random.default_rng(0)
    future = torch.from_numpy(rng.normal(size=(problem.num_devices, problem.num_energy)))
    seen = seen_by(problem, rng)
    left = EnergyAfterAction(problem, seen)
    values = left.values(future)
    rounds = problem.battery.rounding == "up"
    for episode in range(5):
        for device in range(problem.num_devices):
            weather, stored = int(seen.weather[episode, device]), float(seen.battery_joule[episode, device])
            for action in range(len(problem.actions)):
                spent = float(problem.actions.spent_joule[device, action])
                row = future[device, weather * problem.battery.levels :][: problem.battery.levels]
                paid, expected = (plain_up if rounds else plain_mean)(problem, device, stored, spent, row)
                assert bool(left.affordable[episode, device, action]) == paid
                if paid:
                    assert float(values[episode, device, action]) == pytest.approx(expected, abs=1e-9)


def plain_up(problem: hm.Problem, device: int, stored: float, spent: float, row: Tensor) -> tuple[bool, float]:
    """The level below, less whole steps."""
    step, top = float(problem.battery.step_joule[device]), problem.battery.levels - 1
    level, steps_up = min(int(stored / step + 1e-9), top), int(np.ceil(spent / step - 1e-9))
    return steps_up <= level, float(row[max(level - steps_up, 0)])


def plain_mean(problem: hm.Problem, device: int, stored: float, spent: float, row: Tensor) -> tuple[bool, float]:
    """The value at what is left, on the line between its two points."""
    step = float(problem.battery.step_joule[device])
    points = step * np.arange(problem.battery.levels)
    return spent <= stored + 1e-9 * step, float(np.interp(stored - spent, points, row.numpy()))


def test_levels_that_are_named_are_followed() -> None:
    named, free = of(**{"energy.battery_levels": 5}), of()
    for problem in (named, free):
        assert with_levels(problem, None) is problem
        assert with_levels(problem, 6).battery.levels == 6


def test_another_grid_comes_with_its_steps() -> None:
    problem = of()
    fine, between = with_levels(problem, 41), interpolated(problem, 5)
    rounded = fine.actions.steps_up[0] * fine.battery.step_joule[0]
    np.testing.assert_allclose(rounded, fine.actions.spent_joule[0], atol=0.1)  # a step
    assert not fine.actions.overshoot.any()
    assert between.actions.steps_up[0].tolist() == [0, 1, 2]
    np.testing.assert_allclose(between.actions.overshoot[0], [0, 0.08, 0.08], atol=1e-12)
    assert between.num_energy == 2 * 5
    assert problem.actions.spent_joule is fine.actions.spent_joule


@pytest.mark.parametrize(
    ("changes", "exact"),
    [
        ({"energy.capacity_joule": 3.0}, False),  # it starts on nine points, 0.375 J apart
        ({"energy.capacity_joule": 3.0, "energy.battery_levels": 4}, True),
        ({"energy.capacity_joule": 3.25}, False),  # spending and harvest fit steps of 0.5 J, a full battery does not
        ({"energy.capacity_joule": 4.0, "energy.initial": "uniform"}, False),
        ({"energy.capacity_joule": 4.0, "energy.compute_joule": 0.9}, False),
        ({"energy.capacity_joule": 4.0, "energy.battery_levels": 9}, True),
    ],
)
def test_a_grid_is_exact_where_batteries_never_leave_it(changes: dict[str, Any], exact: bool) -> None:
    data = hm.Scenario.load("tiny").as_dict()
    del data["energy"]["battery_levels"]
    problem = hm.build(hm.Scenario.parse(data).override(changes))
    assert problem.grid_is_exact == exact
