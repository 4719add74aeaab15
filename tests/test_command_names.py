"""The names of commands: few, and `run` with a planner or a trace."""

import re

import pytest

from heliomesh.cli import COMMANDS


def test_there_are_at_most_fifteen_commands() -> None:
    assert len(COMMANDS) <= 15


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "planner: expected a planner's name or --trace with a file, actual: neither"),
        (("receiver", "--trace", "t.npz"), "planner: expected .*, actual: 'receiver' and --trace t.npz"),
        (("--trace", "t.npz", "-o", "form=literal"), "--option: expected a planner with it, actual: --trace t.npz"),
        (("--trace", "t.npz", "--ledger"), "--ledger: expected a planner with it, actual: --trace t.npz"),
    ],
)
def test_a_run_has_a_planner_or_a_trace(call, words, said, tmp_path) -> None:
    code, printed, told = call("run", "tiny", *words, "--out", tmp_path / "run")
    assert (code, printed) == (2, "")
    assert re.fullmatch(f"error: {said}\n", told)
    assert not (tmp_path / "run").exists()
