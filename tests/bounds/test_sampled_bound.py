"""The bound along known channel paths lies below the optimum, in the exact mean over all paths and in samples."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.bounds import dual, minorant, path_dual, sampled_bound
from heliomesh.bounds.path_dual import PathDual
from heliomesh.bounds.path_penalty import foresight_gains, learned
from heliomesh.bounds.paths import Paths, Sky, along, drawn_paths
from heliomesh.model.policy import untracked
from heliomesh.model.problem import Problem
from heliomesh.physics.harvesting import HarvestReplay
from heliomesh.slot.coordination import Coordination
from tests.planners.test_certificate import PROBLEMS, UNIT, drawn, lattice_optimum, leaky, separate, tree_optimum

_MOST_PATHS_LOG = 8  # base 2: paths of two levels that are enumerated


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small networks need less."""
    monkeypatch.setattr(sampled_bound, "_TRAINING_SLOTS", 80)


def few_paths(scenario: hm.Scenario) -> hm.Scenario:
    """The same network over so few slots that all channel paths can be listed."""
    problem = hm.build(scenario)
    skies = {"independent": 0, "mixed": 1, "common": 2}[problem.harvest.law.sky] * max(
        problem.harvest.law.num_weather, 2
    )
    doubled = max(problem.channel.num_sites + skies // 2, 1)  # paths double so often every slot
    slots = min(scenario.slots, max(_MOST_PATHS_LOG // doubled, 1))
    return scenario.override({"slots": slots})


def every_path(problem: Problem) -> tuple[Paths, torch.Tensor]:
    """All paths of channels, of a shared sky and of replays' starts, with their probabilities (path,)."""
    slots, channel, law = problem.slots, problem.channel, problem.harvest.law
    channels = chains(channel.stationary, channel.kernel, slots, channel.num_sites)
    shared = law.sky != "independent" and not isinstance(problem.harvest, HarvestReplay)
    skies = chains(law.stationary, law.kernel, slots, 1) if shared else [((0,) * slots, 1.0)]
    atoms = itertools.product(range(law.prob.shape[-1] if shared and law.sky == "common" else 1), repeat=slots)
    starts = [(0.0,) * problem.num_devices]
    if isinstance(problem.harvest, HarvestReplay):
        third = [(k + 0.5) / 3 for k in range(3)]
        starts = list(itertools.product(third, repeat=problem.num_devices))
        if law.sky == "common":
            starts = [(one,) * problem.num_devices for one in third]
    rows, prob = [], []
    for (level, chance), (weather, odds), atom, start in itertools.product(channels, skies, list(atoms), starts):
        drawn_prob = 1.0
        if shared and law.sky == "common":
            drawn_prob = math.prod(float(law.prob[0, w, k]) for w, k in zip(weather, atom, strict=True))
        rows.append((level, weather, atom, start))
        prob.append(chance * odds * drawn_prob / len(starts))
    level, weather, atom = (torch.tensor([row[k] for row in rows], dtype=torch.long) for k in range(3))
    start = torch.tensor([row[3] for row in rows], dtype=torch.float64)
    level = level.reshape(len(rows), slots, channel.num_sites)
    return along(problem, level, start, Sky(weather, atom)), torch.tensor(prob, dtype=torch.float64)


def chains(first: torch.Tensor, kernel: torch.Tensor, slots: int, copies: int) -> list[tuple[tuple[int, ...], float]]:
    """All paths of independent copies of a chain, slot by slot, with their probabilities."""
    found = [((), 1.0)]
    for slot in np.repeat(np.arange(slots), copies).tolist():
        laws = [first if slot == 0 else kernel[path[-copies]] for path, _ in found]
        found = [
            ((*path, state), chance * float(law[state]))
            for (path, chance), law in zip(found, laws, strict=True)
            for state in range(len(first))
        ]
    return found


def mean_bound(problem: Problem) -> float:
    """E_H B(H) per slot, exactly."""
    told, prob = every_path(problem)
    assert float(prob.sum()) == pytest.approx(1)
    training = drawn_paths(problem, range(4), seed=0, purpose=1)
    levels = dual.rough_levels(training.problem)
    practice = PathDual(training, levels)
    seen = learned(practice, practice.ascend(15, untracked, ""))
    penalty, rest = foresight_gains(problem, seen, told, levels)
    assert float((rest * prob).sum()) == pytest.approx(0, abs=1e-9)
    bound = PathDual(told, levels, penalty)
    found = bound.certified(bound.ascend(25, untracked, "")) - rest
    return float((found * prob).sum()) / problem.slots


# a batch has one kind of channel and of sky: links and a shared weather in the tenth
@pytest.mark.parametrize(
    "batch", [10, *(pytest.param(batch, marks=pytest.mark.slow) for batch in range(42) if batch != 10)]
)
def test_the_mean_over_all_paths_lies_below_the_optimum(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(batch, PROBLEMS, 42):
        rng = np.random.default_rng(number)
        monkeypatch.setattr(minorant, "_LEVELS", int(rng.integers(4, 14)))
        monkeypatch.setattr(dual, "_ROUGH_LEVELS", 5)
        scenario = few_paths(separate(number) if number % 4 == 3 else drawn(number))
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
    penalised = hm.sampled_bound(problem, steps=40, paths=16)
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
    assert mean_bound(problem) <= lattice_optimum(seeing, deaf=False) + 1e-9


def test_clouds_that_plans_do_not_know_of_count() -> None:
    changes = {"harvest.cloudy": [[0, 4, 0.0]], "slots": 4, "energy.initial": 0.0}
    clear = hm.build(hm.Scenario.load("tiny").override({"slots": 4, "energy.initial": 0.0}))
    dark = hm.build(hm.Scenario.load("tiny").override(changes))
    bounds = [hm.sampled_bound(problem, steps=40, paths=2).mean for problem in (clear, dark)]
    assert 0.98 * dark.num_devices < bounds[1] <= 1.001 * dark.num_devices  # nobody ever does anything
    assert bounds[0] < 0.95 * bounds[1]


@pytest.mark.parametrize("changes", [{}, {"channel.state": "link"}, {"link.half_duplex": True}])
def test_the_sample_lies_below_the_optimum_and_near_it(changes: dict[str, Any]) -> None:
    problem = hm.build(hm.Scenario.load("tiny").override({"slots": 12, "network.devices": 4} | changes))
    optimum = hm.plan(problem, "centralized").expected_cost
    assert optimum is not None
    found = hm.sampled_bound(problem, steps=40, paths=12)
    assert found.lower <= optimum
    assert found.lower >= 0.92 * optimum
    assert found == hm.sampled_bound(problem, steps=40, paths=12)


def test_batches_and_pieces_do_not_change_it(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = hm.build(hm.Scenario.load("tiny").override({"slots": 6, "channel.state": "link"}))
    whole = hm.sampled_bound(problem, steps=40, paths=3)
    monkeypatch.setattr(sampled_bound, "KEPT_ENTRIES", {"cpu": Coordination(problem.wide).entries * problem.slots})
    monkeypatch.setattr(path_dual, "KEPT_ENTRIES", {"cpu": 0})
    monkeypatch.setattr(path_dual, "_PIECE_ENTRIES", {"cpu": 100})
    assert hm.sampled_bound(problem, steps=40, paths=3).per_path == pytest.approx(whole.per_path)


def test_large_networks_do_without_penalties_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = hm.build(hm.Scenario.load("tiny").override({"slots": 12, "network.devices": 4}))
    optimum = hm.plan(problem, "centralized").expected_cost
    assert optimum is not None
    monkeypatch.setattr(sampled_bound, "KEPT_ENTRIES", {"cpu": 0})
    found = hm.sampled_bound(problem, steps=40, paths=12)
    assert 0.9 * optimum <= found.mean
    assert found.lower <= optimum


def test_one_path_is_refused() -> None:
    with pytest.raises(hm.ScenarioError, match="paths: expected at least 2, actual value 1"):
        hm.sampled_bound(hm.build(hm.Scenario.load("tiny")), paths=1)
