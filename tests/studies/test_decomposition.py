"""Shapley values against their definition by orders, and against games whose answer is known."""

from itertools import combinations, permutations

import numpy as np
import pytest

import heliomesh as hm
from heliomesh.studies.decomposition import shapley_values

NAMES = ("actions", "agreement", "plan", "rule")
SUBSETS = [frozenset(one) for size in range(5) for one in combinations(NAMES, size)]


def test_they_are_means_over_all_orders() -> None:
    rng = np.random.default_rng(1)
    score = {subset: rng.normal(size=3) for subset in SUBSETS}
    by_order = {name: [] for name in NAMES}
    for order in permutations(NAMES):
        made = frozenset[str]()
        for name in order:
            by_order[name].append(score[made | {name}] - score[made])
            made |= {name}
    for name, found in shapley_values(score).items():
        assert found == pytest.approx(np.mean(by_order[name], axis=0), abs=1e-12)


def test_changes_that_do_not_meet_are_worth_what_they_bring_alone() -> None:
    worth = dict(zip(NAMES, (1.0, 2.0, -4.0, 0.0), strict=True))
    score = {subset: np.array([sum(worth[name] for name in subset)]) for subset in SUBSETS}
    assert {name: float(found[0]) for name, found in shapley_values(score).items()} == pytest.approx(worth)


def test_what_two_bring_only_together_is_shared() -> None:
    score = {subset: np.array([6.0 * ({"plan", "rule"} <= subset)]) for subset in SUBSETS}
    found = {name: float(one[0]) for name, one in shapley_values(score).items()}
    assert found == pytest.approx({"actions": 0.0, "agreement": 0.0, "plan": 3.0, "rule": 3.0})


def test_a_missing_set_is_one_sentence() -> None:
    score = {subset: np.zeros(1) for subset in SUBSETS if subset != {"plan", "rule"}}
    sentence = r"decomposition: expected scores of all 16 sets of actions, .*plan with rule"
    with pytest.raises(hm.ScenarioError, match=sentence):
        shapley_values(score)
