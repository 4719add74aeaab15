"""The ascent of the prices: sparing gradients are the gradients, and memory decides how much is watched."""

from itertools import pairwise

import pytest
import torch

import heliomesh as hm
from heliomesh.bounds import cells, dual
from heliomesh.bounds.cells import priced_cells
from heliomesh.model.endless import cycle_of
from heliomesh.model.policy import untracked
from heliomesh.slot.coordination import Coordination

MODES = {
    "receiver": {"network.topology": "complete", "slots": 11},
    "link": {"network.topology": "star", "channel.state": "link", "slots": 6},
    "duplex": {"network.topology": "complete", "network.devices": 4, "link.half_duplex": True, "slots": 7},
}


@pytest.fixture(autouse=True)
def single_receivers(monkeypatch):
    """Only prices of single receivers see channels."""
    monkeypatch.setattr(cells, "_MERGED_RECEIVERS", 0)


def priced(changes, scenario="tiny"):
    problem = hm.build(hm.Scenario.load(scenario).override(changes))
    coordination = Coordination(problem)
    return problem, coordination, priced_cells(problem, coordination)


def duals(problem, groups, watchers):
    return [dual.Dual(problem, groups, watchers, sparing) for sparing in (False, True)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seeing", [False, True])
def test_sparing_gradients_are_the_gradients(mode, seeing):
    problem, _, groups = priced(MODES[mode])
    watchers = dual._watched(problem, groups, 6.0) if seeing else dual._unwatched(problem)
    found = []
    for one in duals(problem, groups, watchers):
        generator = torch.Generator().manual_seed(0)
        levels = problem.channel.levels if seeing else 1
        shapes = [(len(one.weight), levels, *g.actors.shape, len(problem.actions)) for g in groups]
        prices = [torch.rand(s, dtype=problem.dtype, generator=generator).requires_grad_() for s in shapes]
        value = one.value(prices, 0.05)
        value.backward()
        with torch.no_grad():
            hard = one.value(prices, 0.0)
        found.append([value.detach(), hard, *(price.grad for price in prices)])
    assert all(price.abs().max() > 0 for price in found[0][2:])
    for full, spared in zip(*found, strict=True):
        torch.testing.assert_close(spared, full, rtol=1e-12, atol=1e-12)


def test_little_memory_changes_the_time_of_an_ascent_only(monkeypatch):
    problem = hm.build(hm.Scenario.load("tiny").override(MODES["link"]))
    ample = dual.raise_bound(problem, dual.Effort(20, 10), untracked)
    made = dual.Dual
    monkeypatch.setattr(dual, "Dual", lambda *arguments: made(*arguments[:3], True))
    assert dual.raise_bound(problem, dual.Effort(20, 10), untracked) == pytest.approx(ample, rel=1e-6)


def test_values_around_a_cycle_settle_while_prices_rise(monkeypatch):
    monkeypatch.undo()
    cycle = cycle_of(hm.build(hm.Scenario.load("ring10")).wide)
    bound = dual.raise_bound(cycle, dual.Effort(60), untracked) / cycle.slots
    assert bound > 5.41  # 5.37 where each step begins with nothing


@pytest.mark.parametrize("seeing", [False, True])
def test_gradients_by_hand_are_differences(seeing):
    problem, _, groups = priced(MODES["receiver"])
    watchers = dual._watched(problem, groups, 6.0) if seeing else dual._unwatched(problem)
    one, generator = dual.Dual(problem, groups, watchers), torch.Generator().manual_seed(0)
    levels = problem.channel.levels if seeing else 1
    shapes = [(len(one.weight), levels, *g.actors.shape, len(problem.actions)) for g in groups]
    prices = [torch.rand(s, dtype=problem.dtype, generator=generator).requires_grad_() for s in shapes]
    gradients = torch.autograd.grad(one.value(prices, 0.05), prices)
    moves = [torch.randn(s, dtype=problem.dtype, generator=generator) for s in shapes]
    with torch.no_grad():
        up, down = (
            one.value([p + sign * 1e-5 * move for p, move in zip(prices, moves, strict=True)], 0.05)
            for sign in (1, -1)
        )
    slope = sum(float((g * move).sum()) for g, move in zip(gradients, moves, strict=True))
    assert slope == pytest.approx(float(up - down) / 2e-5, rel=1e-5)


def test_less_is_watched_and_then_nothing_as_the_memory_shrinks():
    problem, _, groups = priced(MODES["receiver"])
    gib, watched = 1.0, []
    while not watched or watched[-1]:
        found = dual._watched(problem, groups, gib)
        watched.append(0 if found is None else max(len(one.axes) for one in found))
        if found is not None:
            assert dual.ascent_bytes(problem, groups, found, sparing=True) <= gib * 2**30
        gib /= 1.5
    assert watched[0] == 4
    assert all(before >= after for before, after in pairwise(watched))
    assert len(set(watched)) > 2


def test_forty_devices_over_a_thousand_slots_fit_their_limit():
    """All slots' tensors at once would be gibibytes; see also the peak measured in tests/faults/test_memory.py."""
    changes = {"network.devices": 40, "slots": 1008}
    problem, _, groups = priced(changes, "geometric30")
    watchers = dual._watched(problem, groups, 1.0)
    assert watchers is not None
    assert dual.ascent_bytes(problem, groups, watchers, sparing=True) <= 2**30
