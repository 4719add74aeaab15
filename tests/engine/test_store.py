"""Results by what decides them: keys, complete or absent files, and damage that is named."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import heliomesh as hm
from heliomesh import catalog
from heliomesh.cli import app
from heliomesh.commands.reproduce import EXPERIMENT_CATALOG
from heliomesh.durable import Sealed
from heliomesh.engine.arm import LOSSLESS, Arm, Prepared, Scheme, prepare
from heliomesh.engine.store import Store
from heliomesh.learning.run import TrainingError

TINY = hm.Scenario.load("tiny")
ARM = Arm("figure", Scheme("greedy", "uncoordinated"), TINY, 2, "i.i.d.", 3.0)
CURVES = pd.DataFrame({"seed": [0, 0, 1, 1], "slot": [6, 12, 6, 12], "accuracy_mean": [0.1, 0.2, 0.3, 0.4]})
EXPERIMENTS = catalog.names(EXPERIMENT_CATALOG)


# keys


@pytest.mark.parametrize(
    "other",
    [
        replace(ARM, scheme=Scheme("greedy", "receiver")),
        replace(ARM, scheme=Scheme("greedy", "prices")),
        replace(ARM, scheme=Scheme("greedy", "prices", {"coordinate": False})),
        replace(ARM, scheme=LOSSLESS),
        replace(ARM, num_seeds=3),
        replace(ARM, scenario=TINY.override({"slots": 11})),
        replace(ARM, scenario=TINY.override({"energy.capacity_joule": 6.0, "energy.battery_levels": 7})),
        replace(ARM, scenario=TINY.override({"learning.batch": 16})),
    ],
)
def test_what_decides_trace_and_result_is_in_both_keys(other):
    assert other.key != ARM.key
    assert other.trace_key != ARM.trace_key


@pytest.mark.parametrize(
    "changes",
    [
        {"learning.partition": "dirichlet"},
        {"learning.dataset": "synthetic"},
        {"learning.learning_rate": 0.1},
        {"learning.aggregation": "renormalized"},
    ],
)
def test_what_learning_alone_decides_leaves_the_trace(changes):
    other = replace(ARM, scenario=TINY.override(changes))
    assert other.key != ARM.key
    assert other.trace_key == ARM.trace_key


def test_names_of_things_decide_nothing():
    renamed = Arm("another", Scheme("label", "uncoordinated"), TINY.override({"name": "x"}), 2, "panel", 7.0)
    assert (renamed.key, renamed.trace_key) == (ARM.key, ARM.trace_key)
    options = [{"form": "literal", "hops": 2}, {"hops": 2, "form": "literal"}]
    assert len({replace(ARM, scheme=Scheme("a", "decentralized", one)).key for one in options}) == 1


def test_files_are_named_readably_and_safely():
    assert ARM.name == f"i.i.d.-greedy-3-{ARM.key[:8]}"
    odd = replace(ARM, setting="../Dir(0.8)", scheme=Scheme("a/b c", "receiver"))
    assert odd.name == f".._Dir_0.8_-a_b_c-3-{odd.key[:8]}"


# files


def test_a_result_comes_back_as_it_was(tmp_path):
    store = Store(tmp_path / "new")
    assert not store.has(ARM)
    store.put(ARM, CURVES, {"cost": [1.0, 2.0]})
    assert store.has(ARM)
    found = store.get(ARM)
    pd.testing.assert_frame_equal(found.curves, CURVES)
    assert found.manifest["cost"] == [1.0, 2.0]
    assert not store.has(replace(ARM, num_seeds=3))
    assert len(list((tmp_path / "new").rglob("*.*"))) == 2  # nothing temporary is left


def test_curves_without_a_manifest_are_no_result(tmp_path):
    store = Store(tmp_path)
    store.put(ARM, CURVES, {})
    next(tmp_path.rglob("*.json")).unlink()
    assert not store.has(ARM)


@pytest.mark.parametrize(
    ("suffix", "damage", "words"),
    [
        ("json", lambda path: path.write_text("", encoding="utf-8"), "expected the manifest of a result"),
        ("json", lambda path: path.write_text("[]", encoding="utf-8"), "expected the manifest of a result"),
        ("json", lambda path: path.write_text("{}", encoding="utf-8"), "expected the manifest of a result"),
        ("json", lambda path: path.write_bytes(b"\xff\xfe"), "expected the manifest of a result"),
        ("parquet", lambda path: path.write_bytes(path.read_bytes()[:-9]), "expected key and sha256"),
        ("parquet", lambda path: path.unlink(), "expected a stored file, actual: No such file"),
    ],
)
def test_damage_is_named(tmp_path, suffix, damage, words):
    store = Store(tmp_path)
    store.put(ARM, CURVES, {})
    damage(next(tmp_path.rglob(f"*.{suffix}")))
    with pytest.raises(hm.TrainingError, match=ARM.name) as caught:
        store.get(ARM)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_result_of_something_else_is_refused(tmp_path):
    store = Store(tmp_path)
    store.put(ARM, CURVES, {})
    place, kind = next(tmp_path.rglob("*.json")), Sealed("the manifest of a result", 2)
    kind.write(place, kind.read(place, ValueError) | {"key": "0" * 64})
    with pytest.raises(hm.TrainingError, match="expected key and sha256"):
        store.get(ARM)


def test_traces_come_back_and_are_shared_by_partitions(tmp_path):
    store = Store(tmp_path)
    prepared = prepare(ARM)
    store.put_trace(ARM, prepared)
    other = replace(ARM, figure="other", scenario=TINY.override({"learning.partition": "dirichlet"}))
    assert store.has_trace(other)
    found = store.get_trace(other)
    np.testing.assert_array_equal(found.trace.delivered, prepared.trace.delivered)
    assert found.facts == prepared.facts


def test_a_trace_without_its_facts_is_none(tmp_path):
    store = Store(tmp_path)
    store.put_trace(ARM, Prepared(prepare(ARM).trace, {}))
    next((tmp_path / "traces").glob("*.json")).unlink()
    assert not store.has_trace(ARM)


# experiments of the catalog


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_has_distinct_valid_arms(name, quick):
    module = catalog.find(EXPERIMENT_CATALOG, name)
    assert module.TITLE
    arms = module.arms(quick)
    assert {arm.figure for arm in arms} == {module.NAME} == {name}
    assert len({arm.key for arm in arms}) == len(arms)
    assert len({arm.name for arm in arms}) == len(arms)
    assert all((arm.place is None) == (module.PLACE is None) for arm in arms)
    assert min(arm.num_seeds for arm in arms) >= (3 if quick else 5)
    for scenario in {arm.trace_key: arm.scenario for arm in arms if arm.scheme == arms[0].scheme}.values():
        assert hm.build(scenario).num_devices == 10
    for arm in arms:
        if arm.scheme != LOSSLESS:
            planner = catalog.find("heliomesh.planners", arm.scheme.planner)
            planner.Options.model_validate(dict(arm.scheme.options))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_quick_versions_are_smaller(name):
    module = catalog.find(EXPERIMENT_CATALOG, name)
    quick, full = module.arms(True), module.arms(False)
    assert len(quick) <= len(full)
    assert max(arm.scenario.slots for arm in quick) < min(arm.scenario.slots for arm in full)
    assert {arm.scenario.learning.dataset for arm in quick} <= {"digits", "synthetic"}  # nothing to download


def test_only_print_of_nothing(tmp_path):
    folder = tmp_path / "new"
    result = CliRunner().invoke(app, ["reproduce", "--quick", "--only-print", "--out", str(folder)])
    assert result.exit_code == 0, result.output
    command = f"heliomesh reproduce {' '.join(EXPERIMENTS)} --quick --out {folder}"
    assert (
        result.output
        == f"{folder / 'quick'} holds no results of {', '.join(EXPERIMENTS)} yet: `{command}` makes them.\n"
    )
    assert not folder.exists()


def test_a_file_holds_no_results(tmp_path):
    note = tmp_path / "note.txt"
    note.write_text("sea", encoding="utf-8")
    result = CliRunner().invoke(app, ["reproduce", "hops", "--only-print", "--out", str(note)])
    assert isinstance(result.exception, TrainingError)
    assert str(result.exception) == f"--out: expected a folder, actual: {note} is a file"


def test_only_print_of_some_results(tmp_path):
    store, arms = Store(tmp_path / "quick"), catalog.find(EXPERIMENT_CATALOG, "hops").arms(True)
    curves = pd.DataFrame({"seed": range(arms[0].num_seeds), "slot": arms[0].scenario.slots})
    facts = {"cost": [1.0] * arms[0].num_seeds, "participation": 0.5, "delivery": 0.25}
    store.put(arms[0], curves.assign(accuracy_mean=0.5, average_accuracy=0.625), facts)
    result = CliRunner().invoke(
        app, ["reproduce", "hops", "rounds", "--quick", "--only-print", "--out", str(tmp_path)]
    )
    assert result.exit_code == 0, result.output
    assert f"{len(arms) - 1} of {len(arms)} lines are not there yet." in result.output
    assert "| 50.00 ± 0.00 | 50.00 ± 0.00 | 62.50 ± 0.00 | 1.000 ± 0.000 | 50.0 | 25.0 | 3 |" in result.output
    assert "holds no results of rounds yet: `heliomesh reproduce rounds --quick --out" in result.output
