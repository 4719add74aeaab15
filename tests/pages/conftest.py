"""Run folders as `heliomesh run` leaves them, made once."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import heliomesh as hm
from heliomesh.cli import app
from heliomesh.studies.compare import Comparison

_SMALL = ("--set", "slots=12", "--set", "learning.local_steps=2", "--strategy", "loop", "--evaluate-every", "4")


def make_run(out: Path, planner: str = "uncoordinated", seed: int = 0, *more: str, scenario: str = "tiny") -> Path:
    """Train a small run into a folder."""
    arguments = ["run", scenario, planner, "--out", str(out), "--seed", str(seed), "--json", *_SMALL, *more]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return out


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Headless Chromium."""
    from tests.pages.chromium import started  # here, since selenium need not be installed

    yield from started(tmp_path_factory.mktemp("profile"))


@pytest.fixture(scope="session")
def finished_runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two seeds of one planner and one of another; do not change them."""
    base = tmp_path_factory.mktemp("runs")
    return [
        make_run(base / "receiver-0", "receiver", 0),
        make_run(base / "receiver-1", "receiver", 1),
        make_run(base / "uncoordinated-0", "uncoordinated", 0),
    ]


@pytest.fixture(scope="session")
def separate_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which devices train, send, do both, or idle; do not change it."""
    changes = (
        "--set",
        "energy.actions=separate",
        "--set",
        "energy.compute_joule=1.5",
        "--set",
        "energy.powers_watt=[0, 1]",
    )
    return make_run(tmp_path_factory.mktemp("separate") / "run", "uncoordinated", 0, *changes)


@pytest.fixture(scope="session")
def lossy_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose storage loses energy and whose slots drain it; do not change it."""
    changes = (
        "--set",
        "energy.storage=li-ion",
        "--set",
        "energy.sleep_watt=0.1",
        "--set",
        "energy.compute_joule=0.5",
    )
    return make_run(tmp_path_factory.mktemp("lossy") / "run", "uncoordinated", 0, *changes)


@pytest.fixture(scope="session")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """Four plans of three planners under six episodes, trained under two of them, with their store."""
    changes = {"slots": 12, "learning.local_steps": 2}
    problem = hm.build(hm.Scenario.load("tiny").override(changes))
    planners = ["uncoordinated", "prices", "receiver"]
    store = tmp_path_factory.mktemp("comparison")
    return hm.compare(problem, planners, episodes=6, train=2, store=store, evaluate_every=4)


@pytest.fixture(scope="session")
def compared_runs(comparison: Comparison, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The folders of its runs; do not change them."""
    return comparison.save_runs(tmp_path_factory.mktemp("compared"))


@pytest.fixture
def own_run(finished_runs: list[Path], tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(finished_runs[0], tmp_path / "run"))


@pytest.fixture(scope="session")
def run_with_ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of which the gap ledger was asked; do not change it."""
    return make_run(tmp_path_factory.mktemp("ledger") / "run", "uncoordinated", 0, "--ledger")
