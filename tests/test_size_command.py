"""`heliomesh size`, as users call it."""

import json
from functools import partial
from xml.etree import ElementTree

import pytest

PAIRS = ["--capacity", "1,3,6", "--panel", "0.5,1,2", "--episodes", "8"]


@pytest.fixture
def size(call, monkeypatch):
    """Call `heliomesh size` on a screen of a known width."""
    monkeypatch.setenv("COLUMNS", "100")
    return partial(call, "size")


def test_loss_as_json(size):
    code, printed, told = size(
        "tiny", "--target-loss", 0.7, *PAIRS, "--price-battery", 2, "--price-panel", 1, "--json"
    )
    facts = json.loads(printed)
    assert (code, told) == (0, "")
    assert facts["target"] == {"measure": "update loss", "value": 0.7, "slot": 12}
    assert (len(facts["tried"]), facts["skipped"], facts["panel setting"]) == (9, [], "harvest.scale")
    for pair in facts["tried"]:
        assert pair["meets"] == (pair["mean"] + pair["half_width"] <= 0.7)
        assert pair["price"] == 2 * pair["capacity_joule"] + pair["panel"]
    assert facts["smallest"]
    assert facts["cheapest"]["price"] == min(pair["price"] for pair in facts["tried"] if pair["meets"])


def test_loss_in_words_and_pictures(size, tmp_path):
    arguments = ["tiny", "--target-loss", 0.7, *PAIRS, "--set", "name=[b]mine[/b]"]
    code, printed, _ = size(*arguments, "--out", tmp_path / "size.svg", "--price-panel", 1)
    assert code == 0
    assert printed.startswith("[b]mine[/b], receiver: mean update loss per device and slot, 8 episodes")
    assert "Smallest pairs with update loss at most 0.7 at 95 % confidence:" in printed
    assert "Cheapest: " in printed
    assert "- does not" in printed  # a mean that is better may still not be sure to be
    assert "--set energy.initial=0.0" in printed
    ElementTree.parse(tmp_path / "size.svg")  # noqa: S314


def test_accuracy_skips_what_follows_and_goes_on_from_a_store(size, tmp_path):
    arguments = ["tiny", "--target-accuracy", 0.3, "--capacity", "2,3", "--panel", "0.5,2", "--episodes", 3, "--json"]
    arguments += ["--by-slot", 6, "--set", "learning.learning_rate=0.3", "--strategy", "loop", "--store", tmp_path]
    code, printed, _ = size(*arguments)
    facts = json.loads(printed)
    assert code == 0
    assert facts["target"]["slot"] == 6
    assert len(facts["tried"]) + len(facts["skipped"]) == 4
    assert facts["skipped"]
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*")}
    assert sum(path.name == "manifest.json" for path in kept) == 3 * len(facts["tried"])  # a run in every episode
    assert json.loads(size(*arguments)[1]) == facts
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*")} == kept


DRAIN = ["--set", "energy.sleep_watt=1.0", "--set", "energy.initial=0.0"]


def test_devices_in_the_dark_do_not_meet_a_target(size):
    """Almost any loss will do, so the smallest pair did; most of its devices never wake up."""
    code, printed, told = size("tiny", "--target-loss", 1.0, *PAIRS, *DRAIN)
    assert (code, printed) == (2, "")
    assert "--most-dark: expected a limit that some pair keeps, actual value 0.05 is exceeded by all" in told
    assert "the least dark being 6 J with 2 times the harvest (0." in told
    assert [line.split(":")[0] for line in told.splitlines()] == ["note", "error"]  # the sun pays for little


def test_darkness_and_borders_are_reported(size):
    arguments = ["tiny", "--target-loss", 1.0, *PAIRS, *DRAIN, "--most-dark", 0.7]
    code, printed, _ = size(*arguments)
    assert code == 0
    told = " ".join(printed.split())
    assert "d more than 70 % of device slots dark" in told
    assert "% dark)" in told
    assert "Note: 1 J with 1 times the harvest lies at the border of the grid (smallest battery)" in told
    facts = json.loads(size(*arguments, "--json")[1])
    assert facts["most dark"] == 0.7
    assert all(0 < pair["dark"] <= 0.7 for pair in facts["smallest"])
    assert facts["smallest"][0]["border"] == ["smallest battery"]


def test_a_target_out_of_reach_says_the_best_and_still_draws(size, tmp_path):
    code, printed, told = size("tiny", "--target-loss", 0.1, *PAIRS, "--out", tmp_path / "size.svg")
    assert (code, printed) == (2, "")
    assert "actual value 0.1 is missed by all 9, the best being 6 J with 2 times the harvest (0." in told
    assert told.count("\n") == 1
    assert (tmp_path / "size.svg").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--target-loss: expected exactly one of --target-loss and --target-accuracy, actual number of them 0"),
        (["--target-loss", 0.5, "--target-accuracy", 0.5], "actual number of them 2"),
        (["--target-loss", 50], "--target-loss: expected a share from 0 to 1, actual value 50"),
        (["--target-loss", 0.5, "--most-dark", 5], "--most-dark: expected a share from 0 to 1, actual value 5"),
        (["--target-accuracy", "nan"], "--target-accuracy: expected a share from 0 to 1, actual value nan"),
        (["--target-loss", 0.5, "--capacity", "1;2"], "--capacity: expected numbers with commas between"),
        (["--target-loss", 0.5, "--capacity", "1,0"], "--capacity: expected numbers above 0, actual value 0"),
        (["--target-loss", 0.5, "--panel", "1,-2"], "--panel: expected numbers of at least 0, actual value -2"),
        (["--target-loss", 0.5, "--panel", ""], "--panel: expected numbers with commas between, actual value ''"),
        (["--target-loss", 0.5, "--price-panel", "inf"], "--price-panel: expected a number of at least 0"),
        (["--target-loss", 0.5, "--planner", "reciever"], "planner: expected one of"),
        (["--target-loss", 0.5, "--option", "hops=2"], "receiver option.hops: expected one of"),
        (["--target-loss", 0.5, "--out", "size.png"], "--out: expected a name that ends in .svg"),
        (["--target-loss", 0.5, "--out", "absent/size.svg"], "--out: expected a file in an existing folder"),
        (["--target-loss", 0.5, "--by-slot", 3], "--by-slot: expected a value with --target-accuracy only"),
        (["--target-accuracy", 0.5, "--by-slot", 13], "--by-slot: expected at most slots = 12, actual value 13"),
        (["--target-loss", 0.5, "--set", "energy.initial=3.0"], "energy.initial: expected at most"),
    ],
)
def test_mistakes_are_one_sentence(size, arguments, words):
    code, printed, told = size("tiny", *arguments)
    assert (code, printed) == (2, "")
    assert words in told
    assert told.startswith("error: ")
    assert told.count("\n") == 1
