"""The experiments of the catalog, and what `heliomesh reproduce --only-print` says of a store."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import heliomesh as hm
from heliomesh.cli import app
from heliomesh.common.mistakes import MistakeError
from heliomesh.jobs.job import IDEAL
from heliomesh.jobs.store import Store
from heliomesh.learning.evaluation import COLUMNS
from heliomesh.learning.settings import TrainSettings
from heliomesh.model.workload import compute_joule
from heliomesh.planning import find_planner
from heliomesh.studies.experiments import experiments
from heliomesh.studies.reproduce import figures
from heliomesh.tasks.footprint import sample_flop

EXPERIMENTS = [one.name for one in experiments(None)]
DEVICES = {"learning": {10, 25, 30}, "on_air": {30}}  # of the experiments that leave the paper's ten devices


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_has_distinct_valid_lines(name, quick):
    (asked,) = experiments([name])
    assert asked.title
    lines = asked.lines(quick)
    jobs = [line.jobs(TrainSettings())[0] for line in lines]
    assert {line.figure for line in lines} == {name}
    assert len({job.key() for job in jobs}) == len(lines)
    assert len({line.name for line in lines}) == len(lines)
    assert all((line.place is None) == (asked.place is None) for line in lines)
    assert min(line.num_seeds for line in lines) >= (3 if quick else 5)
    own = [job for job, line in zip(jobs, lines, strict=True) if line.scheme == lines[0].scheme]
    for scenario in {job.key("plan"): job.scenario for job in own}.values():
        assert hm.build(scenario).num_devices in DEVICES.get(name, {10})
    for line in lines:
        if line.scheme.planner != IDEAL:
            find_planner(line.scheme.planner).checked_options(line.scheme.options)


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_papers_system_averages_by_its_own_rules_whatever_the_default(name, quick):
    lines = experiments([name])[0].lines(quick)
    rules = {line.scenario.learning.aggregation for line in lines if line.scenario.energy.actions == "coupled"}
    # by every rule, or beside plans that have another
    crossed = {"aggregation": {"renormalized"}, "learning": {"reassigned"}, "parts": {"reassigned"}}
    assert rules <= {"model", "update"} | crossed.get(name, set())


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_quick_versions_are_smaller(name):
    (asked,) = experiments([name])
    quick, full = asked.lines(True), asked.lines(False)
    assert len(quick) <= len(full)
    assert max(line.scenario.slots for line in quick) < min(line.scenario.slots for line in full)
    assert {line.scenario.learning.dataset for line in quick} <= {"digits", "synthetic"}  # nothing to download


def test_the_jobs_of_a_line_are_paired_by_seed():
    line = experiments(["hops"])[0].lines(True)[0]
    jobs = line.jobs(TrainSettings())
    assert [(job.seed, job.episode, job.training_seed) for job in jobs] == [(0, 0, 0), (0, 1, 1), (0, 2, 2)]


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
    assert isinstance(result.exception, MistakeError)
    assert str(result.exception) == f"--out: expected a folder, actual: {note} is a file"


def test_only_print_of_some_results(tmp_path):
    store, lines = Store(tmp_path / "quick"), experiments(["hops"])[0].lines(True)
    store.packs.write("hops", [_stored(job) for job in lines[0].jobs(TrainSettings())])
    result = CliRunner().invoke(
        app, ["reproduce", "hops", "rounds", "--quick", "--only-print", "--out", str(tmp_path)]
    )
    assert result.exit_code == 0, result.output
    assert f"{len(lines) - 1} of {len(lines)} lines are not there yet." in result.output
    assert "| 50.00 ± 0.00 | 50.00 ± 0.00 | 62.50 ± 0.00 | 1.000 ± 0.000 | 50.0 | 25.0 | 0 | 3 |" in result.output
    assert "holds no results of rounds yet: `heliomesh reproduce rounds --quick --out" in result.output
    assert result.output.count("| not run yet |") == len(lines) - 1
    assert "not run yet: proposal" in (tmp_path / "quick" / "hops.svg").read_text(encoding="utf-8")


def test_a_page_of_what_is_gone_is_made_anew(tmp_path):
    lines = experiments(["hops"])[0].lines(True)
    store = Store(tmp_path / "quick")
    store.packs.write("hops", [_stored(job) for job in lines[0].jobs(TrainSettings())])
    command = ["reproduce", "hops", "--quick", "--only-print", "--out", str(tmp_path)]
    assert CliRunner().invoke(app, command).exit_code == 0
    for place in (tmp_path / "quick" / "packs").iterdir():
        place.unlink()
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "quick" / "hops.md").read_text(encoding="utf-8").count("| not run yet |") == len(lines)
    assert not (tmp_path / "quick" / "hops.svg").exists()


def test_accuracy_per_joule_on_radio(tmp_path):
    """Half of 60 slots of 30 devices train at 0.72 J, which is 648 J; what else is spent went on air."""
    lines = {line.scheme.label: line for line in _on_air(quick=True)}
    runs = [
        _stored(job, spent_joule)
        for label, spent_joule in (("float32", 700.0), ("int8", 674.0))
        for job in lines[label].jobs(TrainSettings())
    ]
    Store(tmp_path / "quick").packs.write("on_air", runs)
    command = ["reproduce", "on_air", "--quick", "--only-print", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "| geometric30, Dir(0.8) | float32 | 52.0 ± 0.0 | 0.962 ± 0.000 | 1.00 ± 0.00 times |" in result.output
    assert "| geometric30, Dir(0.8) | int8 | 26.0 ± 0.0 | 1.923 ± 0.000 | 2.00 ± 0.00 times |" in result.output


@pytest.mark.parametrize("name", ["accuracy_cifar10", "learning_cifar10"])
def test_training_is_charged_by_the_work_of_the_model_and_the_batch(name):
    """What a board of 294 GFLOP/s and 10 W takes for K batches; published runs were charged the CNN's."""
    (asked,) = experiments([name])
    for line in asked.lines(quick=False):
        learning = line.scenario.learning
        second = learning.local_steps * learning.batch * sample_flop(learning) / 2.94e11
        assert compute_joule(line.scenario) == pytest.approx([10 * second] * 10)
        assert compute_joule(line.scenario.override({"learning.batch": 32})) == pytest.approx([5 * second] * 10)
        assert line.num_seeds == 10
    assert asked.earlier is not None
    assert {joule for line in asked.earlier.lines(quick=False) for joule in compute_joule(line.scenario)} == {0.72}


def test_earlier_results_stand_in_until_all_lines_are_there(tmp_path):
    (battery,), store = experiments(["battery"]), Store(tmp_path)
    now, before = battery.lines(True)[:2], battery.lines(True)[2:4]
    earlier = replace(battery, title="Charged otherwise", rows=lambda quick: before)
    asked = replace(battery, rows=lambda quick: now, earlier=earlier)

    def shown(added):
        for line in added:
            store.packs.write(line.name, [_stored(job) for job in line.jobs(TrainSettings())])
        return figures([asked], Store(tmp_path), False, TrainSettings())[0]

    assert (shown([]).title, len(shown([]).absent)) == (battery.title, 2)
    assert (shown(before).title, shown([]).absent) == ("Charged otherwise", ())
    assert [result.line.scheme for result in shown(now[:1]).results] == [line.scheme for line in before]
    assert (shown(now[1:]).title, shown([]).absent) == (battery.title, ())


def test_transmission_takes_its_share_of_two_seconds():
    second = {line.scheme.label: line.scenario.energy.transmit_second for line in _on_air(quick=False)}
    assert second["float32"] == second["int8, in 2 s"] == 2.0
    assert second["float16"] == 1.0
    assert second["int8"] == pytest.approx(2 * (8 + 32 / 256) / 32, rel=1e-4)
    assert second["top-k"] == pytest.approx(2 * (0.1 * 32 + 1) / 32, rel=1e-4)


def test_compression_alone_meets_the_traces_of_float32():
    traces = {line.scheme.label: line.jobs(TrainSettings())[0].key("trace") for line in _on_air(quick=True)}
    assert traces["int8, in 2 s"] == traces["top-k, in 2 s"] == traces["float32"] != traces["int8"]


def _on_air(quick):
    return experiments(["on_air"])[0].lines(quick)


def _stored(job, spent_joule=0.0):
    """A run with known numbers, as if it had been trained."""
    columns = dict.fromkeys(COLUMNS, 0.0) | {"spent_joule": spent_joule}
    columns |= {"slot": job.scenario.slots, "accuracy_mean": 0.5, "average_accuracy": 0.625}
    metrics = {name: np.array([value], dtype=np.float64) for name, value in columns.items()}
    facts = {"cost": 1.0, "participation": 0.5, "delivery": 0.25, "seed": job.training_seed}
    nothing = np.empty((1, 0))
    return hm.Run(
        metrics, nothing, nothing, torch.empty(0, 0), {"key": job.key(), "identity": job.identity(), **facts}
    )
