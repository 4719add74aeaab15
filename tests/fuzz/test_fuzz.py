"""A slice of the fuzzer in this process, and the fuzzer's own judgement."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import heliomesh.cli
from tests.fuzz.command import run_command, run_function
from tests.fuzz.kinds import KINDS, Kind
from tests.fuzz.run_folders import SETTINGS, prepare_originals

SLICE = 4  # inputs of each kind


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("originals")
    prepare_originals(folder)
    return folder


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_input_ends_well_or_in_a_sentence(
    kind: Kind, originals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HELIOMESH_DATA", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for number in range(SLICE):
        place = tmp_path / str(number)
        place.mkdir()
        work = kind.make(np.random.default_rng([2025, number]), originals, place)
        ending = run_function(work) if callable(work) else run_command(work)
        assert ending.kind in ("success", "refused"), (number, work, ending.text)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (KeyError("x"), "find"),
        (RuntimeError("shape"), "find"),
        (MemoryError(), "find"),
        (heliomesh.TraceError("trace: expected a, actual b"), "refused"),
        (heliomesh.TraceError("something is wrong"), "find"),
    ],
)
def test_judgement(monkeypatch: pytest.MonkeyPatch, error: Exception, kind: str) -> None:
    """Anything but a sentence is a find, and so is a process that ran out of memory."""

    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(heliomesh.cli, "app", fail)
    assert run_command(["scenario", "list"]).kind == kind


def test_originals_are_right(originals: Path, tmp_path: Path) -> None:
    """Else their damage would prove nothing."""
    store = str(originals / "store")
    for arguments in (
        ["reproduce", "hops", "--quick", "--only-print", "--quiet", "--out", store],
        ["store", "verify", str(originals / "finished"), str(originals / "stopped")],
        [
            "run",
            "tiny",
            "--trace",
            str(originals / "trace.npz"),
            "--out",
            str(tmp_path / "run"),
            "--quiet",
            *SETTINGS,
        ],
    ):
        ending = run_command(arguments)
        assert ending.kind == "success", ending.text


def test_success_is_checked() -> None:
    assert run_command(["scenario", "list"]).kind == "success"
    assert run_command(["simulate", "tiny", "uncoordinated", "--episodes", "1", "--json"]).kind == "success"
    assert run_command(["scenario", "show", "tinny"]).kind == "refused"


@pytest.mark.slow
def test_a_small_campaign_has_no_finds() -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--inputs", "400", "--seed", "77"]
    done = subprocess.run(command, capture_output=True, check=False, encoding="utf-8")  # noqa: S603
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| all | 400 |" in done.stdout
