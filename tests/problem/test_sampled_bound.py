"""The bound along known channel paths lies below the optimum, in the exact mean over all paths and in samples."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.problem import dual, minorant, sampled_bound
from heliomesh.problem.path_dual import PathDual
from heliomesh.problem.path_penalty import penalties, watched
from heliomesh.problem.paths import along, drawn_paths
from heliomesh.problem.policy import untracked
from heliomesh.problem.problem import Problem, interpolated
from tests.planners.test_certificate import PROBLEMS, UNIT, drawn, lattice_optimum, leaky, tree_optimum, weighted

_MOST_PATHS_LOG = 8  # base 2: paths of two levels that are enumerated


def few_paths(scenario: hm.Scenario) -> hm.Scenario:
    """The same network over so few slots that all channel paths can be listed."""
    sites = max(hm.build(scenario).channel.num_sites, 1)
    slots = min(scenario.slots, max(_MOST_PATHS_LOG // sites, 1))
    phases = scenario.cost.phases
    if phases is None or slots == scenario.slots:
        return scenario.override({"slots": slots})
    kept, left = [], slots
    for length, train, deliver in phases:
        if left:
            kept.append([min(length, left), train, deliver])
            left -= min(length, left)
    return scenario.override({"slots": slots, "cost.phases": kept})


def every_path(problem: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    """All paths (path, slot, site) with their probabilities (path,)."""
    slots, sites, channel = problem.slots, problem.channel.num_sites, problem.channel
    listed = itertools.product(range(channel.levels), repeat=slots * sites)
    level = torch.tensor(list(listed), dtype=torch.long).reshape(channel.levels ** (slots * sites), slots, sites)
    prob = channel.stationary[level[:, 0]].prod(-1)
    for slot in range(1, slots):
        prob = prob * channel.kernel[level[:, slot - 1], level[:, slot]].prod(-1)
    return level, prob


def mean_bound(problem: Problem, start: torch.Tensor | None = None, penalised: bool = True) -> float:
    """E_H B(H) per slot, exactly; ``start``: uniform numbers (start, device) of replays, equally likely."""
    level, prob = every_path(problem)
    assert float(prob.sum()) == pytest.approx(1)
    start = torch.zeros(1, problem.num_devices) if start is None else start
    training = drawn_paths(problem, range(4), seed=0, purpose=1)
    levels = dual.rough_levels(training.problem)
    practice = PathDual(training, levels)
    seen = watched(practice, practice.ascend(15, untracked, ""))
    told = along(problem, level.repeat(len(start), 1, 1), start.repeat_interleave(len(level), 0))
    penalty = penalties(interpolated(problem, levels), seen, told.level) if penalised else None
    bound = PathDual(told, levels, penalty)
    found = bound.certified(bound.ascend(25, untracked, ""))
    return float((found * prob.repeat(len(start))).sum()) / (problem.slots * len(start))


# link channels come at every third number; the others are a check that nothing depends on them
@pytest.mark.parametrize(
    "batch", [*range(1), *(pytest.param(batch, marks=pytest.mark.slow) for batch in range(1, 42))]
)
def test_the_mean_over_all_paths_lies_below_the_optimum(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(batch, PROBLEMS, 42):
        rng = np.random.default_rng(number)
        monkeypatch.setattr(minorant, "_LEVELS", int(rng.integers(4, 14)))
        monkeypatch.setattr(dual, "_ROUGH_LEVELS", 5)
        scenario = few_paths(weighted(number) if number % 4 == 3 else drawn(number))
        assert mean_bound(hm.build(scenario)) <= lattice_optimum(scenario, deaf=False) + 1e-9, number


def test_the_mean_lies_below_the_optimum_of_leaking_batteries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minorant, "_LEVELS", 9)
    monkeypatch.setattr(dual, "_ROUGH_LEVELS", 4)
    for number in range(0, 210, 70):
        scenario = few_paths(leaky(number))
        assert mean_bound(hm.build(scenario)) <= tree_optimum(scenario, deaf=False) + 1e-9, number


def test_it_is_tight() -> None:
    links = (few_paths(drawn(number)) for number in range(1, 90, 3))
    two = [scenario for scenario in links if scenario.network.devices == 2 and scenario.slots > 2][:4]
    gaps = [1 - mean_bound(hm.build(scenario)) / lattice_optimum(scenario, deaf=False) for scenario in two]
    assert len(gaps) == 4
    assert np.mean(gaps) < 0.03


def test_penalties_make_paths_alike() -> None:
    problem = hm.build(hm.Scenario.load("tiny").override({"slots": 20, "channel.state": "link"}))
    penalised = hm.sampled_bound(problem, paths=16)
    paths = drawn_paths(problem, range(16), seed=0)
    plain = PathDual(paths, dual.rough_levels(paths.problem))
    bounds = plain.certified(plain.ascend(40, untracked, "")) / problem.slots
    assert np.std(penalised.per_path) < 0.7 * float(bounds.std())


def replayed(number: int) -> tuple[hm.Scenario, hm.Scenario]:
    """A network under a replayed series with random starts, and one whose devices see where they are in it."""
    scenario = few_paths(drawn(number)).override({"energy.charge_efficiency": None})
    series = (np.random.default_rng([number, 19]).integers(0, 8, 3) * UNIT).tolist()
    harvest: dict[str, Any] = {"sky": "common" if number % 2 else "independent"}
    plain = scenario.as_dict() | {"harvest": harvest | {"source": "trace", "joule": series}}
    cycle = np.roll(np.eye(3), 1, axis=1).tolist()
    law = {"source": "markov", "joule": [[value] for value in series], "prob": [[1.0]] * 3, "kernel": cycle}
    return hm.Scenario.parse(plain), hm.Scenario.parse(plain | {"harvest": harvest | law})


@pytest.mark.parametrize("number", range(0, 60, 15))
def test_replays_from_a_random_start_have_a_bound(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who sees the position knows more than devices do, and a path tells no more than that and the channels."""
    monkeypatch.setattr(minorant, "_LEVELS", 9)
    monkeypatch.setattr(dual, "_ROUGH_LEVELS", 5)
    scenario, seeing = replayed(number)
    problem = hm.build(scenario)
    assert hm.lower_bound(problem) is None
    third = (torch.arange(3) + 0.5) / 3
    repeat = 1 if scenario.harvest.sky == "common" else problem.num_devices
    start = torch.cartesian_prod(*[third] * repeat).reshape(-1, repeat).expand(-1, problem.num_devices)
    assert mean_bound(problem, start.to(torch.float64)) <= lattice_optimum(seeing, deaf=False) + 1e-9


def test_clouds_that_plans_do_not_know_of_count() -> None:
    changes = {"harvest.cloudy": [[0, 4, 0.0]], "slots": 4, "energy.initial": 0.0}
    clear = hm.build(hm.Scenario.load("tiny").override({"slots": 4, "energy.initial": 0.0}))
    dark = hm.build(hm.Scenario.load("tiny").override(changes))
    bounds = [hm.sampled_bound(problem, paths=2).mean for problem in (clear, dark)]
    assert 0.98 * dark.num_devices < bounds[1] <= 1.001 * dark.num_devices  # nobody ever does anything
    assert bounds[0] < 0.95 * bounds[1]


@pytest.mark.parametrize("changes", [{}, {"channel.state": "link"}, {"link.half_duplex": True}])
def test_the_sample_lies_below_the_optimum_and_near_it(changes: dict[str, Any]) -> None:
    problem = hm.build(hm.Scenario.load("tiny").override({"slots": 12, "network.devices": 4} | changes))
    optimum = hm.plan(problem, "centralized").expected_cost
    assert optimum is not None
    found = hm.sampled_bound(problem, paths=12)
    assert found.lower <= optimum
    assert found.lower >= 0.92 * optimum
    assert found == hm.sampled_bound(problem, paths=12)


def test_batches_do_not_change_it(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = hm.build(hm.Scenario.load("tiny").override({"slots": 6, "channel.state": "link"}))
    whole = hm.sampled_bound(problem, paths=3)
    monkeypatch.setattr(sampled_bound, "_BATCH_ENTRIES", {"cpu": 1})
    assert hm.sampled_bound(problem, paths=3).per_path == pytest.approx(whole.per_path)


def test_one_path_is_refused() -> None:
    with pytest.raises(hm.ScenarioError, match="paths: expected at least 2, actual value 1"):
        hm.sampled_bound(hm.build(hm.Scenario.load("tiny")), paths=1)
