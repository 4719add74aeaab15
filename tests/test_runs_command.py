"""`heliomesh runs`, the journal, and one process at a time in a folder."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import heliomesh as hm
from heliomesh.cli import app
from heliomesh.durable import alone_in
from heliomesh.engine import local
from heliomesh.engine.arm import Arm, Scheme
from heliomesh.engine.store import Store
from heliomesh.learning.journal import finished_steps


def heliomesh(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "some" / "run"
    result = heliomesh("run", "tiny", "uncoordinated", "--out", folder, "--quiet")
    assert result.exit_code == 0, result.output
    return folder


def test_lists_shows_and_verifies(run_folder: Path) -> None:
    root = run_folder.parent.parent
    assert "uncoordinated" in heliomesh("runs", "list", root).stdout
    assert '"slots": "12 of 12"' in heliomesh("runs", "list", root, "--json").stdout
    assert "accuracy_mean" in heliomesh("runs", "show", run_folder).stdout
    verified = heliomesh("runs", "verify", root)
    assert verified.exit_code == 0
    assert "1 of 1 runs are whole" in verified.stdout


@pytest.mark.parametrize("name", ["metrics.parquet", "weights.safetensors", "trace.npz", "manifest.json"])
def test_a_flipped_bit_is_found_and_named(run_folder: Path, name: str) -> None:
    content = bytearray((run_folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (run_folder / name).write_bytes(content)
    verified = heliomesh("runs", "verify", run_folder)
    assert verified.exit_code == 2
    assert "wrong." in verified.stdout
    assert "0 of 1 runs are whole" in verified.stdout


def test_clean_removes_only_what_no_longer_serves(run_folder: Path) -> None:
    (run_folder / ".metrics.parquet.part").write_bytes(b"half")
    (run_folder / "checkpoints").mkdir()
    (run_folder / "checkpoints" / "5.json").write_text("{}", encoding="utf-8")
    before = {path for path in run_folder.rglob("*") if path.is_file()}
    assert "would remove" in heliomesh("runs", "clean", run_folder).stdout
    assert {path for path in run_folder.rglob("*") if path.is_file()} == before
    heliomesh("runs", "clean", run_folder, "--yes")
    gone = before - {path for path in run_folder.rglob("*") if path.is_file()}
    assert {path.name for path in gone} == {".metrics.parquet.part", "5.json"}
    assert heliomesh("runs", "verify", run_folder).exit_code == 0


def test_a_missing_folder_is_one_sentence(tmp_path: Path) -> None:
    result = heliomesh("runs", "list", tmp_path / "nowhere")
    assert "expected a folder, actual: nothing there" in str(result.exception)


def test_stores_of_results_are_listed_and_verified(tmp_path: Path) -> None:
    store, arm = Store(tmp_path), Arm("figure", Scheme("greedy", "uncoordinated"), hm.Scenario.load("tiny"), 2)
    local.prepare_all([arm], store)
    local.train_all([arm], store, local.Hardware(strategy="loop"))
    sizing = ["size", "tiny", "--target-loss", 1, "--planner", "uncoordinated", "--capacity", "3", "--panel", "1"]
    assert heliomesh(*sizing, "--episodes", 8, "--store", tmp_path / "sizes").exit_code == 0
    assert '"seed": "2 seeds"' in heliomesh("runs", "list", tmp_path, "--json").stdout
    assert "3 of 3 stored files are whole" in heliomesh("runs", "verify", tmp_path).stdout
    places = sorted(path for path in tmp_path.rglob("*.*") if path.is_file())
    assert len(places) == 5
    for place in places:
        before = place.read_bytes()
        place.write_bytes(before[: len(before) // 2])
        verified = heliomesh("runs", "verify", tmp_path)
        assert verified.exit_code == 2, place
        assert "2 of 3 stored files are whole" in verified.stdout
        place.write_bytes(before)
    assert heliomesh("runs", "verify", tmp_path).exit_code == 0


def test_a_run_keeps_a_journal_and_skips_what_is_done(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(finished_steps(run_folder)) == ["plan", "simulate", "train"]
    assert '"steps finished": "plan, simulate, train"' in heliomesh("runs", "show", run_folder, "--json").stdout

    def refuse(*arguments: object, **settings: object) -> None:
        raise AssertionError("this step was done")

    monkeypatch.setattr("heliomesh.commands.train.make_plan", refuse)
    monkeypatch.setattr("heliomesh.commands.train.simulate", refuse)
    again = heliomesh("run", "tiny", "uncoordinated", "--out", run_folder, "--quiet")
    assert again.exit_code == 0, again.exception
    shutil.copy(run_folder / "scenario.toml", run_folder / "trace.npz")
    changed = heliomesh("run", "tiny", "uncoordinated", "--out", run_folder, "--quiet")
    assert "trace.npz: expected sha256" in str(changed.exception)
    assert "of step simulate" in str(changed.exception)


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "tiny", "uncoordinated", "--out"],
        ["export", "tiny", "uncoordinated", "--out"],
        ["reproduce", "hops", "--out"],
        ["size", "tiny", "--target-loss", "0.9", "--store"],
    ],
)
def test_a_folder_in_use_is_refused(tmp_path: Path, arguments: list[str]) -> None:
    with alone_in(tmp_path):
        result = heliomesh(*arguments, tmp_path)
    assert isinstance(result.exception, hm.TrainingError)
    assert "expected a folder that no other process uses" in str(result.exception)
