"""The command line of living networks."""

import json

import pytest
from typer.testing import CliRunner

from heliomesh.cli import app


def run(*words):
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


def test_live_prints_the_three_plans_and_the_share_recovered():
    words = ("live", "tiny", "--set", "slots=30", "--change", "link.0-1=off@5", "--planner", "uncoordinated")
    result = run(*words, "--episodes", "4", "--json")
    facts = json.loads(result.output)
    assert facts["cost, fresh"] <= facts["cost, replanned"] <= facts["cost, stale"]
    assert facts["recovered share"] > 0
    text = run(*words, "--episodes", "4").output
    assert "Recovered" in text
    assert "re-planned" in text


def test_prune_and_scope_print_both_sides():
    facts = json.loads(run("prune", "tiny", "--planner", "uncoordinated", "--episodes", "4", "--json").output)
    assert facts["before"]["links"] - facts["after"]["links"] == len(facts["dropped"])
    words = ("scope", "tiny", "--set", "slots=3", "--episodes", "4")
    facts = json.loads(run(*words, "--json").output)
    assert facts["base"]["offline bytes"] <= facts["chosen"]["offline bytes"] <= facts["full"]["offline bytes"]
    assert "traffic avoided" in run(*words).output
    assert "Dropped" in run("prune", "tiny", "--planner", "uncoordinated", "--episodes", "4").output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("live", "tiny", "--change", "harvest=0.5@0"), "--change: expected a change after slot 0"),
        (("live", "tiny", "--change", "sun=0@3"), "--change: expected harvest=F"),
        (("live", "tiny", "--change", "harvest=0@3", "--false-alarm-prob", "2"), "--false-alarm-prob: expected"),
        (("prune", "tiny", "--keep-gap", "1.5"), "--keep-gap: expected a share from 0 to 1"),
        (("scope", "tiny", "--keep-gain", "0"), "--keep-gain: expected a share above 0"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(call, words, said):
    code, printed, told = call(*words)
    assert (code, printed) == (2, "")
    assert told.startswith(f"error: {said}")
    assert told.count("\n") == 1
