"""`heliomesh store`, finished steps, and one process at a time in a folder."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import heliomesh as hm
from heliomesh.cli import app
from heliomesh.common.durable import BusyFolderError, alone_in
from heliomesh.jobs.job import Job
from heliomesh.jobs.store import Store


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
    assert "uncoordinated" in heliomesh("store", "list", root).stdout
    assert '"slots": "12 of 12"' in heliomesh("store", "list", root, "--json").stdout
    assert "accuracy_mean" in heliomesh("store", "show", run_folder).stdout
    verified = heliomesh("store", "verify", root)
    assert verified.exit_code == 0
    assert "1 of 1 runs are whole" in verified.stdout


@pytest.mark.parametrize(
    "name",
    [
        "metrics.parquet",
        "weights.safetensors",
        "trace.npz",
        "trace.json",
        "plan.safetensors",
        "plan.json",
        "manifest.json",
    ],
)
def test_a_flipped_bit_is_found_and_named(run_folder: Path, name: str) -> None:
    content = bytearray((run_folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (run_folder / name).write_bytes(content)
    verified = heliomesh("store", "verify", run_folder)
    assert verified.exit_code == 2
    assert "wrong." in verified.stdout
    assert "0 of 1 runs are whole" in verified.stdout


def test_clean_removes_only_what_no_longer_serves(run_folder: Path) -> None:
    (run_folder / ".metrics.parquet.part").write_bytes(b"half")
    (run_folder / "checkpoints").mkdir()
    (run_folder / "checkpoints" / "5.json").write_text("{}", encoding="utf-8")
    before = {path for path in run_folder.rglob("*") if path.is_file()}
    assert "would remove" in heliomesh("store", "clean", run_folder).stdout
    assert {path for path in run_folder.rglob("*") if path.is_file()} == before
    heliomesh("store", "clean", run_folder, "--yes")
    gone = before - {path for path in run_folder.rglob("*") if path.is_file()}
    assert {path.name for path in gone} == {".metrics.parquet.part", "5.json"}
    assert heliomesh("store", "verify", run_folder).exit_code == 0


def test_a_missing_folder_is_one_sentence(tmp_path: Path) -> None:
    result = heliomesh("store", "list", tmp_path / "nowhere")
    assert "expected a folder, actual: nothing there" in str(result.exception)


def _filled_store(folder: Path) -> tuple[Store, list[Job]]:
    """A store with a pack of two runs, a run that is not packed, and costs."""
    store = Store(folder)
    scenario = hm.Scenario.load("tiny").override({"slots": 4, "learning.local_steps": 1})
    jobs = [Job(scenario, "uncoordinated", episode=seed, training_seed=seed) for seed in range(3)]
    store.runs(jobs)
    store.pack("figure", jobs[:2])
    store.means(jobs[:1])
    return store, jobs


def test_stores_of_results_are_listed_and_verified(tmp_path: Path) -> None:
    _filled_store(tmp_path)
    listed = json.loads(heliomesh("store", "list", tmp_path, "--json").stdout)
    assert [row["seed"] for row in listed] == ["2 runs", 2]
    stored = 1 + 3 + 1 + 1  # plan, traces, cost, pack
    verified = heliomesh("store", "verify", tmp_path).stdout
    assert f"1 of 1 runs are whole\n{stored} of {stored} stored results are whole" in verified
    places = [path for path in sorted(tmp_path.rglob("*")) if path.is_file() and path.name != "scenario.toml"]
    assert len(places) == 2 + 3 * 2 + 1 + 2 + 3  # plan, traces, cost, pack, run
    for place in places:
        before = place.read_bytes()
        place.write_bytes(before[: len(before) // 2])
        verified = heliomesh("store", "verify", tmp_path)
        assert verified.exit_code == 2, place
        wrong = "0 of 1 runs" if "runs" in place.parts else f"{stored - 1} of {stored} stored results"
        assert f"{wrong} are whole" in verified.stdout, place
        place.write_bytes(before)
    assert heliomesh("store", "verify", tmp_path).exit_code == 0


def test_clean_removes_the_traces_of_packed_runs(tmp_path: Path) -> None:
    store, jobs = _filled_store(tmp_path)
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert "would remove" in heliomesh("store", "clean", tmp_path).stdout
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == before
    assert heliomesh("store", "clean", tmp_path, "--yes").exit_code == 0
    assert [store.has(job, "trace") for job in jobs] == [False, False, True]
    assert all(
        path.is_file() or any(path.iterdir()) for path in (tmp_path / "traces").rglob("*")
    )  # no empty folder is left
    assert heliomesh("store", "verify", tmp_path).exit_code == 0
    assert all(Store(tmp_path).has(job) for job in jobs)


def test_a_run_tells_its_steps_and_skips_what_is_done(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert '"steps finished": "plan, simulate, train"' in heliomesh("store", "show", run_folder, "--json").stdout

    def refuse(*arguments: object, **settings: object) -> None:
        raise AssertionError("this step was done")

    monkeypatch.setattr("heliomesh.jobs.steps.make_plan", refuse)
    monkeypatch.setattr("heliomesh.jobs.steps.simulate", refuse)
    again = heliomesh("run", "tiny", "uncoordinated", "--out", run_folder, "--quiet")
    assert again.exit_code == 0, again.exception
    shutil.copy(run_folder / "scenario.toml", run_folder / "trace.npz")
    changed = heliomesh("run", "tiny", "uncoordinated", "--out", run_folder, "--quiet")
    assert isinstance(changed.exception, hm.TrainingError)
    assert "trace.npz: expected sha256" in str(changed.exception)


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
    assert isinstance(result.exception, BusyFolderError)
    assert "another process is using this folder" in str(result.exception)
