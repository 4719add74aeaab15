"""Shapley values against their definition by orders, and against games whose answer is known."""

from dataclasses import replace
from itertools import combinations, permutations

import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.learning.evaluation import COLUMNS
from heliomesh.pages.tables import figure_text
from heliomesh.studies.decomposition import changes_of, label_of, shapley_values
from heliomesh.studies.line import Line
from heliomesh.studies.reproduce import Figure
from heliomesh.studies.results import Result

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
    sentence = r"decomposition: expected scores of all 16 sets of actions, .* actual none of plan \+ rule"
    with pytest.raises(hm.ScenarioError, match=sentence):
        shapley_values(score)


def test_a_label_names_its_changes() -> None:
    assert [changes_of(label_of(subset)) for subset in SUBSETS] == SUBSETS
    assert label_of(frozenset()) == "none of them"


def test_a_figure_shares_what_its_lines_bring_and_prints_it() -> None:
    """Lines worth 50 % and a point by change, over three seeds: each change is worth one point in every setting."""
    scenario = hm.Scenario.load("tiny")
    names = [label_of(subset) for subset in SUBSETS]
    lines = [Line("factorial", hm.Scheme(name, "news"), scenario, 3, "ring10, i.i.d.") for name in names]
    results = []
    for line in lines:
        share = 0.5 + 0.01 * len(changes_of(line.scheme.label))
        numbers = dict.fromkeys(COLUMNS, 0.0) | {"accuracy_mean": share, "average_accuracy": share}
        metrics = {name: np.array([value]) for name, value in numbers.items()}
        facts = {"cost": 1.0, "participation": 0.5, "delivery": 0.5}
        none = np.empty((1, 0))
        runs = [
            hm.Run(metrics, none, none, torch.empty(0, 0), facts | {"identity": {"training seed": seed}})
            for seed in range(3)
        ]
        results.append(Result(line, tuple(runs)))
    figure = Figure("factorial", "Parts", None, "none of them", tuple(results), shared=True)
    for worth in figure.shares["ring10, i.i.d."].values():
        assert worth == pytest.approx(np.ones(3))
    row = next(one for one in figure_text(figure).splitlines() if one.startswith("| ring10, i.i.d. | +1.00"))
    assert row.count("+1.00 ± 0.00") == 4
    assert "+4.00 ± 0.00" in row
    lost = replace(figure, results=tuple(results[1:]), absent=(lines[0],))
    assert lost.shares == {}
