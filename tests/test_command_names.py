"""The names of commands: few, each listed, and every old one answers with the new one."""

import re

import pytest

from heliomesh.cli import COMMANDS, OLD_NAMES, loaded


def test_there_are_at_most_fifteen_commands() -> None:
    assert len(COMMANDS) <= 15
    assert not COMMANDS.keys() & OLD_NAMES.keys()


@pytest.mark.parametrize("name", OLD_NAMES)
@pytest.mark.parametrize("rest", [(), ("--help",), ("tiny", "--json")], ids=["alone", "help", "call"])
def test_an_old_name_is_answered_by_the_new_one(call, name, rest) -> None:
    code, printed, told = call(name, *rest)
    assert (code, printed) == (2, "")
    assert told == f"error: command: expected `heliomesh {OLD_NAMES[name]}`, actual value {name!r}\n"


@pytest.mark.parametrize("name", OLD_NAMES)
def test_the_new_name_of_an_old_command_exists(name) -> None:
    words = OLD_NAMES[name].split()
    command = loaded(words.pop(0))
    while words and hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    known = {flag for parameter in command.params for flag in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known


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
