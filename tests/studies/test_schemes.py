"""Schemes side by side: own options, action sets, rules and agreement phases, paired by seed."""

import numpy as np
import pytest

import heliomesh as hm
from heliomesh.jobs.store import Store
from heliomesh.simulation.diagnostics import interval
from heliomesh.studies.compare import Comparison

TINY = {"slots": 8, "learning.dataset": "synthetic", "learning.model": "mlp", "energy.initial": "uniform"}
TEXTS = ["uncoordinated", "uncoordinated+rule=model", "turns:last_slots=2+actions=separate", "uncoordinated+agree=2"]


@pytest.fixture(scope="module")
def compared() -> Comparison:
    problem = hm.build(hm.Scenario.load("tiny").override(TINY))
    return hm.compare(problem, TEXTS, 20, train=3, certify=True, evaluate_every=1)


def test_rows_are_named_as_they_were_asked(compared: Comparison) -> None:
    assert [row.planner for row in compared.rows] == TEXTS
    assert not compared.absences()


def test_the_rule_changes_the_models_and_not_the_world(compared: Comparison) -> None:
    plain, rule, *_ = compared.rows
    assert plain.cost is not None
    assert np.array_equal(plain.cost, rule.cost)
    assert [run.final["spent_joule"] for run in plain.runs] == [run.final["spent_joule"] for run in rule.runs]
    assert [run.final["accuracy_mean"] for run in plain.runs] != [run.final["accuracy_mean"] for run in rule.runs]


def test_only_the_scenarios_action_set_has_a_gap_to_the_bound(compared: Comparison) -> None:
    assert [row.gap is not None for row in compared.rows] == [True, True, False, False]


def test_weather_is_common_across_action_sets(compared: Comparison) -> None:
    harvested = [[run.final["harvested_joule"] for run in row.runs] for row in compared.rows]
    assert harvested == [harvested[0]] * len(TEXTS)


def test_the_agreement_phase_only_sends(compared: Comparison) -> None:
    *_, agreeing = compared.rows
    for run in agreeing.runs:
        assert np.isnan(run.metrics["train_loss"][-2:]).all()


def test_differences_are_paired_and_targets_reached_once(compared: Comparison) -> None:
    found = compared.table(target=0.3).set_index("planner")
    finals = {row.planner: np.array([run.final["accuracy_mean"] for run in row.runs]) for row in compared.rows}
    for planner, accuracy in finals.items():
        paired = interval(accuracy - finals[TEXTS[0]])
        assert found.loc[planner, "accuracy_difference"] == pytest.approx(paired.mean)
        assert found.loc[planner, "accuracy_difference_half_width"] == pytest.approx(paired.half_width)
    assert found.loc[TEXTS[0], "spent_joule_difference"] == 0.0
    for row in compared.rows:
        slots, joules = [], []
        for run in row.runs:
            first = next((n for n, share in enumerate(run.metrics["accuracy_mean"]) if share >= 0.3), None)
            slots.append(np.nan if first is None else run.metrics["slot"][first])
            joules.append(np.nan if first is None else run.metrics["spent_joule"][first])
        assert found.loc[row.planner, "slots_to_target"] == pytest.approx(np.mean(slots), nan_ok=True)
        assert found.loc[row.planner, "joule_to_target"] == pytest.approx(np.mean(joules), nan_ok=True)


def test_the_row_that_others_are_compared_with_may_be_named(compared: Comparison) -> None:
    found = compared.table(against=TEXTS[3]).set_index("planner")
    assert found.loc[TEXTS[3], "accuracy_difference"] == 0.0
    with pytest.raises(hm.ScenarioError, match=r"against: expected one of uncoordinated, .*, actual value 'best'"):
        compared.table(against="best")


def test_curves_are_tidy(compared: Comparison) -> None:
    curves = compared.curves()
    assert len(curves) == sum(len(run.metrics["slot"]) for row in compared.rows for run in row.runs)
    assert list(curves.columns[:3]) == ["planner", "seed", "slot"]
    run = compared.rows[2].runs[1]
    own = curves[(curves["planner"] == TEXTS[2]) & (curves["seed"] == 1)]
    assert np.array_equal(own["accuracy_mean"].to_numpy(), run.metrics["accuracy_mean"])


def test_a_store_keeps_them_and_folders_have_plain_names(tmp_path) -> None:
    problem = hm.build(hm.Scenario.load("tiny").override(TINY))
    first, again = (hm.compare(problem, TEXTS[2:], 4, train=1, store=Store(tmp_path / "s")) for _ in range(2))
    assert first.table().drop(columns="seconds").equals(again.table().drop(columns="seconds"))
    folders = again.save_runs(tmp_path / "runs")
    assert [path.name for path in folders] == [
        "turns-power_watt-last_slots=2+actions=separate-0".replace("power_watt-", ""),
        "uncoordinated+agree=2-0",
    ]


def test_every_seed_is_trained_under_the_plan_for_its_own_data(tmp_path) -> None:
    """Devices that bid know their labels, and each seed splits the data anew."""
    problem = hm.build(hm.Scenario.load("tiny").override({**TINY, "learning.dataset": "digits"}))
    found = hm.compare(problem, ["bids"], 2, train=2, store=tmp_path)
    (row,) = found.rows
    alone = Store(tmp_path / "alone")
    for job in row.jobs:
        assert np.array_equal(Store(tmp_path).trace(job).power_watt, alone.trace(job).power_watt)
    assert len({job.key("plan") for job in row.jobs}) == 2


def test_variants_of_a_planner_have_rows_of_their_own() -> None:
    problem = hm.build(hm.Scenario.load("tiny").override(TINY))
    rows = hm.compare(problem, ["prices+agree=3"], 2).rows
    assert len({row.planner for row in rows}) == len(rows) == 2
    (row,) = hm.compare(problem, [hm.Scheme("alone", "prices")], 2).rows  # what was spelled out is compared as it is
    assert (row.planner, row.scheme.options) == ("alone", {})


def test_other_worlds_are_no_reference_and_have_no_gap() -> None:
    problem = hm.build(hm.Scenario.load("tiny").override(TINY))
    richer = ["uncoordinated", "uncoordinated+learning.local_steps=1", "uncoordinated+energy.capacity_joule=40.0"]
    for certify in (True, False):
        found = hm.compare(problem, richer, 4, certify=certify)
        assert [row.gap is not None for row in found.rows] == [True, False, False]
    assert found.reference == "the best planner (uncoordinated)"
