"""`heliomesh run --trace` and `heliomesh run`, as users call them."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import heliomesh as hm

SMALL = ["--set", "slots=6", "--set", "learning.local_steps=2"]
TRAIN = [*SMALL, "--strategy", "loop"]  # which one is quickest may change from run to run


@pytest.fixture
def trace(call, tmp_path):
    """Two episodes of `tiny` under the uncoordinated planner."""
    path = tmp_path / "trace.npz"
    assert call("simulate", "tiny", "uncoordinated", "--episodes", 2, "--out", path, *SMALL)[0] == 0
    return path


def test_train_saves_what_the_library_computes(call, tmp_path, trace):
    out = tmp_path / "run"
    code, printed, told = call(
        "run",
        "tiny",
        "--trace",
        trace,
        "--out",
        out,
        "--episode",
        1,
        "--seed",
        5,
        "--evaluate-every",
        3,
        "--json",
        *TRAIN,
    )
    assert (code, told) == (0, "")
    scenario = hm.Scenario.load("tiny").override({"slots": 6, "learning.local_steps": 2})
    expected = hm.train(scenario, hm.Trace.load(trace), 1, seed=5, evaluate_every=3, strategy="loop")
    np.testing.assert_array_equal(hm.Run.load(out).accuracy, expected.accuracy)
    facts = json.loads(printed)
    assert facts["accuracy_mean"] == expected.final["accuracy_mean"]
    assert (facts["planner"], facts["seed"], facts["slot"]) == ("uncoordinated", 5, 6)


def test_progress_in_plain_lines_without_a_terminal(call, tmp_path, trace):
    code, printed, told = call(
        "run", "tiny", "--trace", trace, "--out", tmp_path / "a", "--evaluate-every", 3, *TRAIN
    )
    assert code == 0
    assert "accuracy_mean" in printed
    assert [line.split(":")[0] for line in told.splitlines()] == ["slot 3 of 6", "slot 6 of 6"]
    assert call("run", "tiny", "--trace", trace, "--out", tmp_path / "b", "--quiet", *TRAIN)[2] == ""


def test_a_trace_again_is_the_same_run_and_another_run_is_refused(call, tmp_path, trace):
    words = ("run", "tiny", "--trace", trace, "--out", tmp_path / "a", "--json", *TRAIN)
    code, printed, _ = call(*words)
    assert code == 0
    assert call(*words) == (
        0,
        printed,
        f"note: {tmp_path / 'a'}: this run was finished before; nothing was trained\n",
    )
    code, printed, told = call(*words, "--seed", 7)
    assert (code, printed) == (2, "")
    assert "expected 0 (as in the folder), actual 7; another run needs an empty folder" in told


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_training_under_a_trace_that_is_stopped_goes_on(call, tmp_path, trace, monkeypatch, number):
    words = ("run", "tiny", "--trace", trace, "--out", tmp_path / "a", "--quiet", *TRAIN)

    def press(items, description, total):
        for item in items:
            if item == 3:
                os.kill(os.getpid(), number)
            yield item

    with monkeypatch.context() as patch:
        patch.setattr("heliomesh.commands.progress.track_unless", lambda quiet: press)
        code, printed, told = call(*words)
    assert (code, printed, told) == (128 + number, "", "stopped after slot 4 of 6; the same command goes on\n")
    assert call(*words)[0] == 0
    assert hm.Run.load(tmp_path / "a").final["slot"] == 6


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--episode", 2], "episode: expected 0 to 1"),
        (["--set", "network.devices=7"], "trace: network.devices: expected 5 as it was simulated with, actual 7"),
        (["--set", "learning.dataset=numbers"], "learning.dataset: expected one of"),
        (["--set", "learning.aggregation=update"], "learning.aggregation: expected a mixing matrix"),
        (["--set", "learning.learning_rate=1e30"], ": expected finite losses, actual"),
        (["--device", "gpu"], "--device: expected cpu"),
    ],
)
def test_mistakes_are_one_sentence(call, tmp_path, trace, arguments, words):
    code, printed, told = call(
        "run", "tiny", "--trace", trace, "--out", tmp_path / "run", "--quiet", *TRAIN, *arguments
    )
    assert (code, printed) == (2, "")
    assert words in told
    assert told.startswith("error: ")
    assert told.count("\n") == 1


def test_a_trace_that_is_none(call, tmp_path):
    code, _, told = call("run", "tiny", "--trace", tmp_path / "absent.npz", "--out", tmp_path / "run")
    assert code == 2
    assert "absent.npz: expected a complete trace file" in told


def test_run_from_plan_to_files(call, tmp_path):
    out = tmp_path / "deep" / "run"
    arguments = ["run", "tiny", "receiver", "--out", out, "--seed", 3, "--json", *TRAIN]
    code, printed, told = call(*arguments)
    assert (code, told) == (0, "")
    names = ["manifest.json", "metrics.parquet", "plan.json", "plan.safetensors", "scenario.toml"]
    names += ["trace.json", "trace.npz", "weights.safetensors"]
    assert sorted(path.name for path in out.iterdir()) == names
    scenario = hm.Scenario.load(out / "scenario.toml")
    problem = hm.build(scenario)
    trace = hm.simulate(problem, hm.plan(problem, "receiver"), 1, seed=3)
    assert (
        json.loads(printed)["accuracy_mean"]
        == hm.train(scenario, trace, seed=3, strategy="loop").final["accuracy_mean"]
    )
    assert json.loads((out / "plan.json").read_text(encoding="utf-8"))["facts"]["planner"] == "receiver"

    code, again, told = call(*arguments)  # a finished folder
    assert (code, again) == (0, printed)
    assert "this run was finished before" in told

    code, _, told = call("run", "tiny", "myopic", "--out", out, "--seed", 3, *TRAIN)
    assert code == 2
    assert "planner: expected 'receiver' (as in the folder), actual 'myopic'" in told


def test_run_names_the_value_that_differs_from_the_folder(call, tmp_path):
    arguments = ["run", "tiny", "uncoordinated", "--out", tmp_path, "--quiet", *TRAIN]
    assert call(*arguments)[0] == 0
    code, printed, told = call(*arguments, "--set", "slots=4")
    assert (code, printed) == (2, "")
    assert told == (
        f"error: {tmp_path}: scenario.slots: expected 6 (as in the folder), actual 4; "
        "another run needs an empty folder\n"
    )
    assert (
        "scenario.energy.powers_watt.1: expected 1.0 (as in the folder), actual 0.5"
        in (call(*arguments, "--set", "energy.powers_watt=[0.0, 0.5, 2.0]")[2])
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_and_the_same_command_again(call, tmp_path, monkeypatch, number):
    arguments = ["run", "tiny", "uncoordinated", "--json", "--evaluate-every", 2, *TRAIN]
    whole = json.loads(call(*arguments, "--out", tmp_path / "whole")[1])

    def press(items, description, total):
        for item in items:
            if item == 3:
                os.kill(os.getpid(), number)
            yield item

    before = signal.getsignal(number)
    with monkeypatch.context() as patch:
        patch.setattr("heliomesh.commands.progress.track_unless", lambda quiet: press)
        code, printed, told = call(*arguments, "--out", tmp_path / "stopped")
    assert (code, printed, told) == (128 + number, "", "stopped after slot 4 of 6; the same command goes on\n")
    assert signal.getsignal(number) is before
    resumed = json.loads(call(*arguments, "--out", tmp_path / "stopped")[1])
    kept = [name for name in whole if name not in ("folder", "duration_second")]
    assert {name: resumed[name] for name in kept} == {name: whole[name] for name in kept}


def test_the_ledger_of_a_run_that_is_stopped_and_goes_on(call, tmp_path, monkeypatch):
    arguments = ["run", "tiny", "uncoordinated", "--out", tmp_path / "run", "--ledger", "--json", *TRAIN]

    def press(items, description, total):
        for item in items:
            if (tmp_path / "run" / "manifest.json").exists() and description == "train" and item == 3:
                os.kill(os.getpid(), signal.SIGINT)  # the run itself is trained
            yield item

    with monkeypatch.context() as patch:
        patch.setattr("heliomesh.commands.progress.untracked", press)
        code, printed, told = call(*arguments)
    assert (code, printed, told) == (130, "", "stopped after slot 4 of 6; the same command goes on\n")
    assert hm.Run.load(tmp_path / "run").final["slot"] == 6
    code, printed, told = call(*arguments)
    assert (code, told) == (0, "")
    facts = json.loads(printed)
    ledger = facts["ledger"]
    parts = [ledger[name][0] for name in ("steps not trained", "disagreement", "optimiser")]
    assert sum(parts) == pytest.approx(ledger["gap to the ideal"][0], abs=1e-9)
    gap = 100 * (ledger["accuracy of the ideal"][0] - facts["accuracy_mean"])
    assert ledger["gap to the ideal"][0] == pytest.approx(gap, abs=1e-9)
    code, again, told = call(*arguments)
    assert (code, again) == (0, printed)
    assert "this run was finished before; nothing was trained" in told
    table = call(*arguments[: -len(TRAIN) - 1], *TRAIN)[1]
    assert "accuracy lost against the lossless ideal" in table


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_before_the_training_leaves_no_folder(call, tmp_path, monkeypatch, number):
    def press(*arguments, **options):
        os.kill(os.getpid(), number)
        time.sleep(5)

    monkeypatch.setattr("heliomesh.jobs.steps.make_plan", press)
    code, printed, _ = call("run", "tiny", "uncoordinated", "--out", tmp_path / "run", *TRAIN)
    assert (code, printed) == (128 + number, "")
    assert list(tmp_path.iterdir()) == []


def test_nohup_is_respected(call, tmp_path, monkeypatch):
    def hang_up(items, description, total):
        for item in items:
            os.kill(os.getpid(), signal.SIGHUP)
            yield item

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        monkeypatch.setattr("heliomesh.commands.progress.track_unless", lambda quiet: hang_up)
        assert call("run", "tiny", "uncoordinated", "--out", tmp_path / "run", "--quiet", *TRAIN)[0] == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_tensorboard_is_an_extra(call, tmp_path, trace, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    code, _, told = call(
        "run", "tiny", "--trace", trace, "--out", tmp_path / "run", "--tensorboard", tmp_path / "tb", *TRAIN
    )
    assert code == 2
    assert "tensorboard is not installed. Run `pip install heliomesh[tensorboard]`." in told


@pytest.fixture
def written(monkeypatch):
    """What TensorBoard was given: folder, name, value and slot."""
    found = []

    class Writer:
        def __init__(self, folder):
            self.folder = Path(folder)

        def add_scalar(self, name, value, slot):
            found.append((self.folder, name, value, slot))

        def flush(self):
            pass

    module = type(sys)("torch.utils.tensorboard")
    module.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    return found


def test_tensorboard_gets_every_row_in_an_unused_folder(tmp_path, written):
    from heliomesh.learning.tracking import tensorboard

    row = {"slot": 10.0, "accuracy_mean": 0.5, "train_loss": float("nan")}
    tensorboard(tmp_path)(1, row)
    assert written == [(tmp_path / "001", "accuracy_mean", 0.5, 10)]
    (tmp_path / "004").mkdir()
    (tmp_path / "notes.txt").touch()
    later = tensorboard(tmp_path)
    later(0, row), later(1, row)
    assert [place.name for place, *_ in written[1:]] == ["005", "006"]


def test_tensorboard_keeps_runs_apart_and_knows_them_again(call, tmp_path, trace, written):
    for out, seed in {"first": 1, "second": 2, "again": 1}.items():
        words = (
            "run",
            "tiny",
            "--trace",
            trace,
            "--out",
            tmp_path / out,
            "--tensorboard",
            tmp_path / "tb",
            "--seed",
            seed,
        )
        assert call(*words, *TRAIN)[0] == 0
    first, second, again = (place for place, name, *_ in written if name == "accuracy_mean")
    assert first == again != second
    assert first.parent == second.parent == tmp_path / "tb"
    assert first.name.startswith("uncoordinated-seed1-")


def test_real_tensorboard_files_are_apart(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from heliomesh.learning.tracking import tensorboard

    for accuracy in (0.25, 0.5):
        observe = tensorboard(tmp_path)
        observe(0, {"slot": 10.0, "accuracy_mean": accuracy})
    found = {}
    for folder in sorted(tmp_path.iterdir()):
        events = EventAccumulator(str(folder))
        events.Reload()
        found[folder.name] = [(event.step, event.value) for event in events.Scalars("accuracy_mean")]
    assert found == {"000": [(10, 0.25)], "001": [(10, 0.5)]}


def test_a_line_for_every_evaluation(call, tmp_path, trace):
    code, _, told = call("run", "tiny", "--trace", trace, "--out", tmp_path / "run", "--evaluate-every", 2, *TRAIN)
    assert code == 0
    assert [line.split(":")[0] for line in told.splitlines()] == [f"slot {slot} of 6" for slot in (2, 4, 6)]


@pytest.mark.parametrize("words", [["scenario", "validate", "tiny"], ["run", "tiny", "receiver", "--out", "late"]])
def test_an_unknown_dataset_is_told_before_any_work(words, call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, told = call(*words, "--set", "learning.dataset=digts")
    assert code == 2
    assert "did you mean 'digits'?" in told
    assert list(tmp_path.iterdir()) == []


MISTAKES = [
    (["--set", "learning.model=resnet"], "learning.model"),
    (["--set", "learning.dataset=own", "--set", "learning.path=/absent"], "/absent"),
    (["--set", "learning.partition=indices", "--set", "learning.indices=[[0], [1]]"], "learning.indices"),
    (["--set", "learning.aggregation=update"], "learning.aggregation"),
    (["--strategy", "lop"], "learning.strategy"),
    (["--precision", "fp8"], "--precision"),
    (["--device", "gpu"], "--device"),
    (["--memory-gib", 0.0001], "training"),
    (["-o", "rounds=x"], "rounds"),
]


@pytest.mark.parametrize(("mistake", "field"), MISTAKES)
def test_a_mistake_does_not_claim_the_folder(call, tmp_path, monkeypatch, mistake, field):
    monkeypatch.setattr("heliomesh.jobs.steps.make_plan", pytest.fail)  # it is told before any work
    code, _, told = call("run", "tiny", "receiver", "--out", tmp_path / "deep" / "run", "--quiet", *TRAIN, *mistake)
    assert (code, told.count("\n")) == (2, 1)
    assert field in told
    assert list(tmp_path.iterdir()) == []


def test_a_mistake_found_in_training_does_not_claim_the_folder(call, tmp_path):
    arguments = ["run", "tiny", "uncoordinated", "--out", tmp_path, "--quiet", *TRAIN]
    code, _, told = call(*arguments, "--set", "learning.learning_rate=1e30")
    assert code == 2
    assert "expected finite losses" in told
    assert list(tmp_path.iterdir()) == []
    assert call(*arguments)[0] == 0


def test_a_mistake_leaves_a_plan_that_was_there(call, tmp_path, monkeypatch):
    arguments = ["run", "tiny", "uncoordinated", "--out", tmp_path, "--quiet", *TRAIN]

    def press(items, description, total):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("heliomesh.commands.progress.track_unless", lambda quiet: press)
        assert call(*arguments)[0] == 130
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert "trace.npz" in before
    assert call(*arguments, "--device", "gpu")[0] == 2
    assert call(*arguments, "--set", "learning.model=resnet")[0] == 2
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_mistake_of_train_makes_no_folder(call, tmp_path, trace):
    words = ["run", "tiny", "--trace", trace, "--out", tmp_path / "deep" / "run", "--quiet", *TRAIN]
    assert call(*words, "--set", "learning.model=resnet")[0] == 2
    assert not (tmp_path / "deep").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["compare", "tiny", "uncoordinated", "--train", 1, "--runs", "R", "--set", "learning.model=resnet"],
        ["size", "tiny", "--target-accuracy", 0.5, "--store", "R", "--set", "learning.model=resnet"],
        ["size", "tiny", "--target-loss", 0.5, "--store", "R", "--planner", "none"],
        ["reproduce", "battery", "--quick", "--out", "R", "--strategy", "lop"],
        ["reproduce", "battery", "--quick", "--out", "R", "--precision", "fp8"],
        ["device", "fleet", "tiny", "--planner", "uncoordinated", "--out", "R", "--set", "learning.model=resnet"],
        ["device", "fleet", "tiny", "--planner", "uncoordinated", "--out", "R", "--strategy", "lop"],
    ],
)
def test_no_other_command_claims_a_folder_by_a_mistake(call, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("heliomesh.jobs.steps.make_plan", pytest.fail)
    monkeypatch.setattr("heliomesh.commands.options.start_ray", pytest.fail)
    monkeypatch.setattr("heliomesh.jobs.store.planned", pytest.fail)
    monkeypatch.setattr("heliomesh.jobs.store.Store.traces", pytest.fail)
    code, _, told = call(*words, "--quiet")
    assert (code, told.count("\n")) == (2, 1)
    assert list(tmp_path.iterdir()) == []
