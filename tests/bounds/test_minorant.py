"""Numbers on a grid bound a continuous battery's values from below, point by point, whatever storage loses."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import heliomesh as hm
from heliomesh.bounds.minorant import DeviceClass, device_classes

PER_CELL = 12  # batteries looked at between two points


def class_of(number: int) -> DeviceClass:
    """One device with energies that no grid divides; every third neither leaks nor drains."""
    rng, day = np.random.default_rng(number), 86400.0
    changes = {
        "network.devices": 1,
        "network.topology": "edges",
        "network.edges": [],
        "energy.slot_second": day,
        "energy.capacity_joule": float(rng.uniform(2, 4)),
        "energy.compute_joule": float(rng.uniform(0.1, 1)),
        "energy.powers_watt": [0.0, float(rng.uniform(0.2, 2))],
        "energy.charge_efficiency": float(rng.uniform(0.3, 1)),
        "energy.leak_per_day": float(rng.choice([0.0, rng.uniform(0, 0.9)])) * (number % 3 > 0),
        "energy.sleep_watt": float(rng.choice([0.0, rng.uniform(0, 2)])) / day * (number % 3 > 0),
        "harvest.joule": rng.uniform(0, 2, 3).tolist(),
    }
    problem = hm.build(hm.Scenario.load("tiny").override(changes))
    (alike,) = device_classes(problem, int(rng.integers(2, 9)))
    return alike


def between(alike: DeviceClass, numbers: np.ndarray, battery: np.ndarray) -> np.ndarray:
    """Interpolation of numbers at the grid's points; above the topmost it stays as it is."""
    return np.interp(battery, np.arange(alike.battery.levels) * float(alike.battery.step_joule), numbers)


def batteries(alike: DeviceClass) -> np.ndarray:
    points = PER_CELL * (alike.battery.levels - 1) + 1
    return np.linspace(0, float(alike.battery.capacity_joule), points)


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_filling_bounds_what_follows(number: int, falling: bool) -> None:
    alike, rng = class_of(number), np.random.default_rng([number, 1])
    value = rng.uniform(0, 5, alike.battery.levels)
    value = np.sort(value)[::-1].copy() if falling else value
    losses, law, battery = alike.battery.losses, alike.law, batteries(alike)
    kept = float(losses.retention) * np.maximum(battery - float(losses.drain_joule), 0)
    stored = float(losses.charge_efficiency) * law.joule[0, 0].numpy() * float(law.scale)
    true = sum(p * between(alike, value, kept + u) for p, u in zip(law.prob[0, 0].tolist(), stored, strict=True))
    found = between(alike, alike.filled(torch.from_numpy(value).unsqueeze(0), 0)[0].numpy(), battery)
    assert (found <= true + 1e-7).all()
    if falling:  # no more is taken off than the sharpest bend could ask for
        assert (
            found[::PER_CELL] >= true[::PER_CELL] - 0.25 * np.abs(np.diff(value, 2, append=value[-1])).max()
        ).all()


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 10**6))
def test_spending_bounds_what_is_left(number: int) -> None:
    alike, rng = class_of(number), np.random.default_rng([number, 2])
    value = rng.uniform(0, 5, alike.battery.levels)
    spent, needed = float(alike.spent_joule[0, 1]), float(alike.needed_joule[0, 1])
    battery = batteries(alike)
    battery = battery[battery >= needed]
    found = between(alike, alike.after(torch.from_numpy(value).unsqueeze(0), 1)[0].numpy(), battery)
    assert (found <= between(alike, value, battery - spent) + 1e-7).all()


def test_a_drain_closes_actions_to_batteries_below_what_they_need() -> None:
    """Points of cells that lie wholly below spending and drain are not paid for."""
    alike = next(alike for alike in map(class_of, range(100)) if float(alike.battery.losses.drain_joule) > 1)
    closed = alike.after(torch.zeros(1, alike.battery.levels, dtype=torch.float64), 1)[0]
    point = torch.arange(alike.battery.levels) * alike.battery.step_joule
    below = point + alike.battery.step_joule <= alike.needed_joule[0, 1]
    assert bool((closed[below] > 1).all())
    assert float(alike.needed_joule[0, 1] - alike.spent_joule[0, 1]) == pytest.approx(
        float(alike.battery.losses.drain_joule)
    )
