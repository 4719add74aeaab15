"""`heliomesh store`, finished steps, and one process at a time in a folder."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import heliomesh as hm
from heliomesh.cli import app
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
