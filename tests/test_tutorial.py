"""The engineer's tutorial: its commands run, in a shorter week."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

import heliomesh as hm
from heliomesh.cli import app

PAGE = Path(__file__).parents[1] / "docs" / "field40.md"
COMMANDS = re.findall(r"^heliomesh (.*)$", PAGE.read_text(encoding="utf-8"), re.M)
SHORTER = {
    r"--train \d+": "--train 1",
    r"--episodes \d+": "--episodes 2",
    r"@\d+": "@6",
    r"--by-slot \d+": "--by-slot 10",
    r"\[\[288,288,0.1\]\]": "[[4,4,0.1]]",
    r"--capacity \S+": "--capacity 150,300",
    r"--panel \S+": "--panel 2.2,4",
    r"--target-accuracy \S+ (.*)--episodes 2": r"--target-accuracy 0 \1--episodes 5",  # two have a wide interval
    r"size field40": "size field40 --most-dark 1",  # twelve slots begin at dawn, with any battery
    r"-o passes=1": "-o passes=1 -o practice=1",
}


def shortened(command: str) -> list[str]:
    for wanted, instead in SHORTER.items():
        command = re.sub(wanted, instead, command)
    slots = [] if command.startswith("scenario radios") else ["--set", "slots=12"]
    return shlex.split(command) + slots


@pytest.mark.parametrize("command", COMMANDS, ids=[command[:40] for command in COMMANDS])
def test_every_command_of_the_tutorial_runs(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, shortened(command))
    assert result.exit_code == 0, result.output + str(result.exception)
    for name in re.findall(r"--(?:out|report) (\S+)", command):
        assert Path(name).exists()


def test_the_stations_are_those_of_the_file():
    problem = hm.build(hm.Scenario.load("field40"))
    assert problem.num_devices == 40
    assert problem.scenario.network.names is not None
    assert problem.scenario.network.names[:2] == ("A1", "A2")
    assert problem.scenario.energy.radio is None  # its numbers stand in the scenario
    # by hand: 4,810 parameters of 8 bits and 19 scales of 32, at SF7's 5,468.75 bit/s
    assert problem.consumption.sending.second == pytest.approx((4810 * 8 + 19 * 32) / 5468.75)
    # listening 8 s at 11.5 mA and 3.3 V, else 5 mW, through a converter of 86.5 to 88.2 %
    assert float(problem.consumption.standby_joule[0]) == pytest.approx(8 * 0.03795 + 592 * 0.005)
    assert float(problem.consumption.drain_joule[0]) == pytest.approx(3.26 / 0.88, rel=0.02)
