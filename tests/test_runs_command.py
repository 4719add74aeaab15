"""`heliomesh runs`, and one process at a time in a run's folder."""

import multiprocessing
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import heliomesh as hm
from heliomesh.cli import app
from heliomesh.durable import alone_in


def heliomesh(*arguments: str | Path) -> Result:
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
    (run_folder / "checkpoints" / "5.json").write_text("{}")
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


def hold(folder: Path, held: "multiprocessing.synchronize.Event", done: "multiprocessing.synchronize.Event") -> None:
    with alone_in(folder):
        held.set()
        done.wait(60)


def test_two_processes_do_not_train_in_one_folder(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    held, done = context.Event(), context.Event()
    other = context.Process(target=hold, args=(tmp_path, held, done))
    other.start()
    try:
        assert held.wait(60)
        problem = hm.build(hm.Scenario.load("tiny"))
        trace = hm.simulate(problem, hm.plan(problem, "uncoordinated", bound=False), 1)
        with pytest.raises(hm.TrainingError, match="one is training there"):
            hm.train(problem.scenario, trace, folder=tmp_path)
    finally:
        done.set()
        other.join(60)
    hm.train(problem.scenario, trace, folder=tmp_path)  # the lock ended with the process
