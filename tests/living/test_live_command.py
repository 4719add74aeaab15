"""The command line of living networks."""

import json

import pytest
from typer.testing import CliRunner

from heliomesh.cli import app


def run(*words):
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


def test_live_prints_the_three_plans_and_the_share_recovered():
    words = (
        "study",
        "change",
        "tiny",
        "--set",
        "slots=30",
        "--change",
        "link.0-1=off@5",
        "--planner",
        "uncoordinated",
    )
    result = run(*words, "--episodes", "4", "--train", "0", "--json")
    facts = json.loads(result.output)
    assert "accuracy" not in facts
    assert facts["cost, fresh"] <= facts["cost, replanned"] <= facts["cost, stale"]
    assert facts["recovered share"] > 0
    text = run(*words, "--episodes", "4", "--train", "0").output
    assert "Recovered" in text
    assert "re-planned" in text


def test_live_trains_and_leaves_curves_and_a_picture(tmp_path):
    words = (
        "study",
        "change",
        "tiny",
        "--set",
        "slots=8",
        "--change",
        "device.1=dead@3",
        "--planner",
        "uncoordinated",
    )
    words += ("--episodes", "2", "--train", "2", "--evaluate-every", "4", "--out", str(tmp_path / "kept"))
    text = run(*words).output
    assert "accuracy % of the 4 devices at the end on digits, 2 seeds" in text
    assert "over unchanged" in text
    assert "curves.svg" in text
    facts = json.loads(run(*words, "--json").output)
    assert facts["devices at the end"] == [0, 2, 3, 4]
    assert list(facts["accuracy"]) == ["unchanged", "stale", "re-planned", "fresh"]
    assert all(len(seeds) == 2 for seeds in facts["accuracy"].values())
    kept = tmp_path / "kept"
    picture = (kept / "curves.svg").read_text(encoding="utf-8")
    assert "unchanged" in picture
    assert "re-planned" in picture
    assert "over unchanged [points]" in picture
    assert json.loads(run("store", "list", str(kept), "--json").output)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("study", "change", "tiny", "--change", "harvest=0.5@0"), "--change: expected a change after slot 0"),
        (("study", "change", "tiny", "--change", "sun=0@3"), "--change: expected harvest=F"),
        (
            ("study", "change", "tiny", "--change", "harvest=0@3", "--false-alarm-prob", "2"),
            "--false-alarm-prob: expected",
        ),
        (
            ("study", "change", "tiny", "--change", "harvest=0@3", "--train", "0", "--out", "x"),
            "--out: expected --train with",
        ),
        (
            ("study", "change", "tiny", "--change", "harvest=0@3", "--set", "learning.dataset=none"),
            "learning.dataset: expected",
        ),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(call, words, said):
    code, printed, told = call(*words)
    assert (code, printed) == (2, "")
    assert told.startswith(f"error: {said}")
    assert told.count("\n") == 1
