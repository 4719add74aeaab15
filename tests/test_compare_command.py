"""`heliomesh compare` with training: numbers, runs and page."""

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from heliomesh.cli import app
from heliomesh.commands import progress
from heliomesh.learning.run import Run
from heliomesh.learning.trainer import Training
from heliomesh.planners import myopic
from tests.conftest import Call

SMALL = ["--set", "slots=8", "--set", "learning.dataset=synthetic", "--quiet"]
SHORT = ["compare", "tiny", "prices", "uncoordinated", "--episodes", "2", "--quiet"]


def test_trains_under_every_plan_and_keeps_what_it_made(tmp_path: Path) -> None:
    runs, page = tmp_path / "runs", tmp_path / "page.html"
    arguments = [*SHORT, "--train", "2", "--runs", str(runs), "--report", str(page), "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    rows = {row["planner"]: row for row in json.loads(result.stdout)["rows"]}
    assert set(rows) == {"prices", "prices alone", "uncoordinated"}
    kept = {path.name: Run.load(path) for path in runs.iterdir()}
    assert set(kept) == {f"{name}-{e}" for name in ("prices", "prices-alone", "uncoordinated") for e in range(2)}
    for episode in range(2):
        assert rows["prices alone"]["accuracy"][episode] == kept[f"prices-alone-{episode}"].final["accuracy_mean"]
    assert page.read_text(encoding="utf-8").lower().startswith("<!doctype html>")


def test_prints_accuracies_for_people(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [*SHORT, "--train", "2"])
    assert result.exit_code == 0
    assert "accuracy after 12 slots on digits, 2 episodes" in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_ledger_for_people_programs_and_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    arguments = [*SHORT, "--train", "2", "--ledger"]
    printed = CliRunner().invoke(app, arguments).stdout
    assert "accuracy lost against the lossless ideal, percentage points, means" in printed  # of two seeds
    heads = next(line for line in printed.splitlines() if "steps not trained" in line)
    assert heads.split("  ")[0].strip() == "planner"
    result = CliRunner().invoke(app, [*arguments, "--report", str(page), "--json"])
    assert result.exit_code == 0, result.output
    for row in json.loads(result.stdout)["rows"]:
        ledger = row["ledger"]
        parts = zip(ledger["steps not trained"], ledger["disagreement"], ledger["optimiser"], strict=True)
        assert [sum(part) for part in parts] == pytest.approx(ledger["gap to the ideal"], abs=1e-9)
        gaps = [100 * (a - b) for a, b in zip(ledger["accuracy of the ideal"], row["accuracy"], strict=True)]
        assert ledger["gap to the ideal"] == pytest.approx(gaps, abs=1e-9)
    assert '"gap_ledger":{"gap to the ideal":{"mean":' in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("yardstick", ["receiver", "centralized"])
def test_powers_outside_the_action_set_have_no_gap(yardstick: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bound and optimum speak of the scenario's powers only."""
    monkeypatch.setattr(myopic, "VARIANTS", ({"mode": "continuous"}, {}), raising=False)
    arguments = ["compare", "tiny", yardstick, "myopic", "--episodes", "2", "--quiet"]
    found = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    by_name = {row["planner"]: row for row in found["rows"]}
    outside, inside = by_name["myopic continuous"], by_name["myopic"]
    assert outside["cost"] > 0
    assert "gap" not in outside
    if yardstick == "centralized":  # batteries stay on the grid of `tiny`: the optimum is the best bound
        assert found["lower bound"] == by_name["centralized"]["expected cost (grid)"]
    assert inside["gap"] == pytest.approx(inside["cost"] / found["lower bound"] - 1)
    table = CliRunner().invoke(app, arguments).stdout
    (line,) = [line for line in table.splitlines() if "myopic continuous" in line]
    assert "refused" not in line
    assert line.count("±") == 1  # the cost, without a gap


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--report", "page.html"], "--report: expected --train"),
        (["--runs", "folder"], "--runs: expected --train"),
        (["--ledger"], "--ledger: expected --train"),
        (["--train", "1", "--runs", "."], "--runs: expected an empty or new folder"),
        (["--train", "1", "--report", "nowhere/page.html"], "--report: expected a file in an existing folder"),
    ],
)
def test_refuses_what_it_could_not_keep_before_any_work(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: Call,
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    code, _, told = call(*SHORT, *arguments)
    assert code == 2
    assert sentence in told


def test_the_page_says_why_a_planner_refused_also_with_folders_kept(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    arguments = [
        "compare",
        "tiny",
        "centralized:memory_gib=1e-7",
        "uncoordinated",
        "--episodes",
        "2",
        "--train",
        "1",
    ]
    small = ["--set", "slots=4", "--runs", str(tmp_path / "runs"), "--report", str(page)]
    result = CliRunner().invoke(app, arguments + small)
    assert result.exit_code == 0, result.output
    assert "<li>centralized:memory_gib=1e-7 refused. " in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_keeps_the_stack_and_the_same_command_goes_on(
    number: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    command = (*SHORT, "--train", 2, "--store", tmp_path / "kept", "--json")
    original, trained = Training._train_slot, []

    def train_slot(training: Training) -> None:
        trained.append(training)
        if len(trained) == 5:
            os.kill(os.getpid(), number)
        original(training)

    monkeypatch.setattr(Training, "_train_slot", train_slot)
    assert call(*command)[::2] == (code, "stopped after slot 5 of 12; the same command goes on\n")
    found, printed, _ = call(*command)
    assert (found, len(trained)) == (0, 12)
    rows = [
        [row["accuracy"] for row in json.loads(text)["rows"]] for text in (printed, call(*command[:-3], "--json")[1])
    ]
    assert rows[0] == rows[1]


def test_progress_in_a_file_is_a_line_a_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    clock = iter(range(0, 1000, 20))
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    assert list(progress.track_unless(quiet=False)(range(9), "train", 9)) == list(range(9))
    assert capsys.readouterr().err == "train: 2 of 9\ntrain: 5 of 9\ntrain: 8 of 9\n"


def test_schemes_and_a_target_for_people_and_programs() -> None:
    schemes = ["uncoordinated", "turns:last_slots=2+actions=separate", "uncoordinated+agree=2"]
    asked = ["compare", "tiny", *schemes, "--episodes", "4", "--train", "2", "--target", "0.2", *SMALL]
    printed = CliRunner().invoke(app, asked, env={"COLUMNS": "200"})
    assert printed.exit_code == 0, printed.output
    for words in ("until the mean device reaches 20%", "worst device %", "joule to the target", "of 2"):
        assert words in printed.output
    told = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)
    assert [row["planner"] for row in told["rows"]] == schemes
    for row in told["rows"]:
        assert len(row["slots to target"]) == len(row["joule to target"]) == len(row["accuracy"]) == 2
        assert len(row["worst device"]) == len(row["spent joule"]) == 2
    refused = CliRunner().invoke(app, [*asked[:5], "--target", "0.2"])
    assert str(refused.exception) == "--target: expected --train with a number of episodes, actual value 0"


def test_tuning_says_what_it_chose() -> None:
    asked = ["study", "tune", "tiny", "uncoordinated", "turns:power_watt=2.0", "--train", "1", *SMALL]
    printed = CliRunner().invoke(app, asked)
    assert printed.exit_code == 0, printed.output
    told = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)
    assert list(told) == ["uncoordinated", "turns:power_watt=2.0"]
    for found in told.values():
        assert found["tried"][found["chosen"]] == max(found["tried"].values())
