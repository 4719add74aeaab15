"""What the fuzzer found once, kept as small as possible."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file, save_file

import heliomesh as hm
import heliomesh.cli
from heliomesh.common.durable import Sealed, file_sha256
from heliomesh.simulation.trace import Trace
from tests.fuzz.command import run_command
from tests.fuzz.run_folders import SETTINGS, prepare_originals, write_sealed


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    problem = hm.build(hm.Scenario.load("tiny").override({"slots": 2}))
    file = tmp_path_factory.mktemp("trace") / "trace.npz"
    hm.simulate(problem, hm.plan(problem, "uncoordinated", bound=False), 1).save(file)
    return file


@pytest.mark.parametrize(
    ("name", "array", "words"),
    [
        ("scheduled", np.zeros((1, 2, 5, 1), bool), "scheduled of shape (episode, slot, device)"),
        ("scheduled", np.zeros((0, 2, 5), bool), "scheduled of shape (episode, slot, device)"),
        ("delivered", np.array(True), "delivered of booleans and shape (1, 2, 10)"),
        ("power_watt", np.zeros(()), "power_watt of floating-point numbers and shape (1, 2, 5)"),
        ("power_watt", np.zeros((1, 2, 5), complex), "actual type complex128"),
        ("battery_joule", np.zeros((1, 2, 5)), "shape (1, 3, 5)"),
        ("edge_sender", np.full(10, 5), "devices 0 to 4 in edge_sender"),
        ("edge_sender", np.full(10, -(2**63)), "in edge_sender"),
        ("edge_receiver", np.array(3), "edge_receiver of shape (edge,)"),
        ("edge_receiver", np.zeros(10), "edge_receiver of whole numbers"),
        (
            "harvested_joule",
            np.full((1, 2, 5), 1e308),
            "finite numbers in harvested_joule, actual: NaN or beyond 1e+100",
        ),
        ("harvested_joule", np.full((1, 2, 5), np.nan), "finite numbers in harvested_joule"),
    ],
)
def test_traces_whose_arrays_do_not_fit(
    trace_file: Path, tmp_path: Path, name: str, array: np.ndarray[Any, Any], words: str
) -> None:
    with np.load(trace_file) as stored:
        np.savez(tmp_path / "spoiled.npz", **dict(stored) | {name: array})
    with pytest.raises(hm.TraceError) as refused:
        Trace.load(tmp_path / "spoiled.npz")
    assert words in str(refused.value)


@pytest.mark.parametrize("label", [1e308, -1e308, 1e6, 2**40])
def test_labels_that_no_model_could_tell_apart(label: float) -> None:
    inputs, labels = np.zeros((2, 4, 4)), np.array([0.0, label])
    with pytest.raises(
        hm.DatasetError, match=r"train_labels: expected labels below 1000000, actual value .* at index 1"
    ):
        hm.dataset_from_arrays("own", inputs, labels, inputs, np.zeros(2))


@pytest.mark.parametrize(
    "overrides",
    [
        ["harvest.source=solar", "energy.slot_second=1e12"],  # a slot longer than the daily window
        ["harvest.source=solar", "harvest.law=time-of-day", "energy.slot_second=1e12"],
        ["energy.powers_watt=[0.0]"],
    ],
)
def test_valid_though_strange(overrides: list[str]) -> None:
    given = [part for text in overrides for part in ("--set", text)]
    assert (
        run_command(["simulate", "tiny", "battery_threshold", "--episodes", "1", "--json", *given]).kind == "success"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["scenario", "validate", "tiny", "--set", "harvest.joule=[0, 1e308, 2]"], "at most 1e+100 J, actual"),
        (
            ["scenario", "validate", "tiny", "--set", "energy.capacity_joule=1e308"],
            "at most 1e+100, actual value 1e+308",
        ),
        (["scenario", "validate", "tiny", "--set", "harvest.scale=1e150"], "at most 1e+100 J, actual value 2e+150"),
        (
            ["scenario", "validate", "ring10", "--set", "channel.doppler_slot=1.7e308"],
            "(every row must stay a distribution), actual value 1.7e+308",
        ),
        (["scenario", "validate", "grid25", "--set", "energy.cpu_hz=1e300"], "at most 1e+100 J, actual value inf"),
        (
            ["scenario", "validate", "geometric30", "--set", "network.mean_degree=1e-320"],
            "greater than or equal to 0.000000001, actual value 1e-320",
        ),
        (
            ["scenario", "validate", "tiny", "--set", "energy.capacity_joule=5e-324"],
            "energy.capacity_joule: expected at least 1e-100, actual value 4.94066e-324",
        ),
        (
            ["run", "tiny", "uncoordinated", "--out", "refused", "--set", "channel.gain=1e308"],
            "channel.gain: expected gains and powers that give at most 1e+30 W, actual value",
        ),
        (["plan", "tiny", "receiver", "--set", "channel.gains=[0.3, 1e308]"], "give at most 1e+30 W, actual value"),
        (
            ["plan", "tiny", "receiver", "--set", "energy.powers_watt=[0, 1e308]"],
            "at most 1e+30 W, actual value 1.5e+308",
        ),
        (
            ["plan", "tiny", "receiver", "--set", "network.devices=1", "--set", "energy.powers_watt=[0, 1e308]"],
            "energy.powers_watt: expected spending of at most 1e+100 J, actual value 1e+308",
        ),
        (
            [
                "plan",
                "tiny",
                "prices",
                "--set",
                "link.path_loss=log-distance",
                "--set",
                "link.loss_at_km_db=-1000",
                "--set",
                "link.loss_per_decade_db=1000",
                "--set",
                "network.link_metre=1",
            ],
            "give at most 1e+30 W, actual value inf",
        ),
        (
            ["plan", "tiny", "prices", "--set", "energy.control_bit_per_second=5e-324"],
            "energy.control_bit_per_second: expected a number greater than or equal to 0.000000001",
        ),
        (["plan", "tiny", "decentralized", "-o", "rounds=9223372036854775807"], "less than or equal to 100000"),
        (["plan", "tiny", "skiptrain", "-o", "train_rounds=9223372036854775807"], "less than or equal to 100000"),
        (["plan", "tiny", "prices", "-o", "restarts=9223372036854775807"], "less than or equal to 100000"),
    ],
)
def test_refused(arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ending = run_command(arguments)
    assert ending.kind == "refused"
    assert words in ending.text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["plan", "simulate", "compare", "run"])
def test_numbers_that_are_none_are_never_written(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever the door lets through: a cost that is NaN ends in a sentence, without a trace or a finished plan."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("heliomesh.physics.link.waterfall_error", lambda signal, *_: signal * np.nan)
    out = {"simulate": ["--out", "trace.npz"], "run": ["--out", "run"]}.get(command, [])
    planner = "centralized" if command == "plan" else "uncoordinated"
    ending = run_command([command, "tiny", planner, *out, "--set", "slots=2"])
    assert ending.kind == "refused", ending.text
    assert "expected a finite number, actual value nan" in ending.text or "expected finite numbers" in ending.text
    assert not list(tmp_path.rglob("*.npz"))


def test_too_little_memory_is_said_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")

    monkeypatch.setattr(heliomesh.cli, "app", fail)
    with pytest.raises(SystemExit) as left:
        heliomesh.cli.main()
    assert left.value.code == 2
    assert capsys.readouterr().err == "error: memory: expected enough for this work, actual: an allocation failed\n"


def test_a_sealed_file_must_hold_what_its_kind_holds(tmp_path: Path) -> None:
    kind, file = Sealed("a list of things", 1, (("things", list),)), tmp_path / "things.json"
    kind.write(file, {"things": [1]})
    assert kind.read(file, hm.TrainingError) == {"things": [1]}
    for content, words in (({}, "actual: nothing"), ({"things": 5}, "actual: 5")):
        kind.write(file, content)
        with pytest.raises(hm.TrainingError, match=f"with things .list., {words}"):
            kind.read(file, hm.TrainingError)


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """A finished run, a stopped one and stored results, to be spoiled."""
    prepare_originals(tmp_path)
    return tmp_path


def change(file: Path, changes: dict[str, Any]) -> None:
    """Change a sealed file and seal it anew."""
    write_sealed(file, json.loads(file.read_text(encoding="utf-8")) | changes)


def resume(folder: Path) -> str:
    ending = run_command(["run", "tiny", "uncoordinated", "--out", str(folder), *SETTINGS, "--evaluate-every", "1"])
    assert ending.kind == "refused", ending.text
    return ending.text


def test_sealed_files_of_a_run_that_lack_something(folders: Path) -> None:
    newest = max((folders / "stopped" / "checkpoints").glob("*.json"))
    tensors, whole = newest.with_suffix(".safetensors"), json.loads(newest.read_text(encoding="utf-8"))
    arrays = load_file(tensors)
    for name, array in (
        ("losses", np.zeros((1, 7))),
        ("accuracy 0", np.zeros((9, 3))),
        ("weights", np.zeros((3, 5))),
    ):
        save_file(arrays | {name: array}, tensors)
        change(newest, {"tensors_sha256": file_sha256(tensors)})
        assert f"checkpoint: expected {name} of shape" in resume(folders / "stopped")
    save_file(arrays, tensors)
    change(newest, {"tensors_sha256": file_sha256(tensors), "facts": whole["facts"] | {"second": "long"}})
    assert "expected a fact second, actual value 'long'" in resume(folders / "stopped")
    manifest = folders / "finished" / "manifest.json"
    provenance = json.loads(manifest.read_text(encoding="utf-8"))["provenance"]
    del provenance["strategy"]
    change(manifest, {"provenance": provenance})
    assert "the run's strategy is missing" in resume(folders / "finished")


def test_sums_of_a_result_that_are_none(folders: Path) -> None:
    """The seal is right; what the file says of its neighbours is not."""
    for sums in ({"trace.npz": 5}, {"../trace.npz": "x"}, {"trace.npz": None}):
        change(folders / "finished" / "trace.json", {"sha256": sums})
        assert "trace.npz: expected" in resume(folders / "finished")


def _facts(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda line: line["facts"].update(changes)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_facts(cost="a"), "expected cost of 3 seeds in numbers, actual value ['a', 'a', 'a']"),
        (_facts(cost=1e308), "expected cost of 3 seeds in numbers"),
        (_facts(cost=0.5, delivery="half"), "expected delivery of 3 seeds in numbers"),
        (lambda line: line["runs"][0].update(key=5), "expected the key of each identity, actual 5"),
        (lambda line: line["identity"].update(planner="myopic"), "expected the key of each identity, actual '"),
        (lambda line: line.pop("facts"), "expected lines of runs, actual: 'facts'"),
        (lambda line: line.update(identity=True), "expected lines of runs"),
    ],
)
def test_stored_results_without_numbers(folders: Path, spoil: Callable[[dict[str, Any]], object], words: str) -> None:
    pack = folders / "store" / "quick" / "packs" / "hops.json"
    content = json.loads(pack.read_text(encoding="utf-8"))
    for run in content["lines"][0]["runs"]:
        run["facts"].pop("cost", None)  # each run has its own: let the line speak for all
    spoil(content["lines"][0])
    write_sealed(pack, content)
    assert words in print_figure(folders / "store")


def print_figure(store: Path) -> str:
    ending = run_command(["reproduce", "hops", "--quick", "--only-print", "--quiet", "--out", str(store)])
    assert ending.kind == "refused", ending.text
    return ending.text


def test_curves_without_numbers(folders: Path) -> None:
    pack = folders / "store" / "quick" / "packs" / "hops.json"
    table = pack.with_suffix(".parquet")
    whole = pd.read_parquet(table)
    for curves in (whole.assign(accuracy_mean="text"), whole.drop(columns="slot"), whole.iloc[2:]):
        curves.to_parquet(table, index=False)
        change(pack, {"sha256": file_sha256(table)})
        assert "hops.parquet: expected numbers of run" in print_figure(folders / "store")
