"""What commands print, digit for digit: `tests/machines.py` runs this as on other processors, threads and locales."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from heliomesh.cli import app

ROOT = Path(__file__).parent.parent
PRINTED = Path(__file__).parent / "printed"
UNEVEN = ["--quiet", "--set", "learning.partition=dirichlet"]
SMALL = {
    "compare_learning_tiny": [
        "compare",
        "tiny",
        "contributions",
        "uncoordinated",
        "--train",
        "4",
        "--set",
        "energy.actions=separate",
        "--set",
        "slots=5",
        "--set",
        "learning.learning_rate=0.1",
        *UNEVEN,
    ],
    "compare_tiny": ["compare", "tiny", "centralized", "myopic", "prices", "receiver", "--train", "2", *UNEVEN],
}


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


@pytest.mark.parametrize("name", SMALL)
def test_a_small_demo_prints_the_stored_digits(name: str) -> None:
    result = CliRunner().invoke(app, SMALL[name])
    assert result.exit_code == 0, result.output
    assert _lines(result.stdout) == _lines((PRINTED / f"{name}.txt").read_text(encoding="utf-8"))


def test_processes_change_nothing_that_is_printed() -> None:
    result = CliRunner().invoke(app, [*SMALL["compare_tiny"], "--processes", "2"])
    assert _lines(result.stdout) == _lines((PRINTED / "compare_tiny.txt").read_text(encoding="utf-8"))


def test_the_page_of_the_demo_names_the_commands_of_the_makefile() -> None:
    made = re.findall(r"^\t\$\(BIN\)/(heliomesh compare .*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert made == _demo_commands()


def _demo_commands() -> list[str]:
    return re.findall(r"\(`(heliomesh [^`]*)`\)", (ROOT / "docs" / "demo.md").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_the_demo_prints_what_its_page_shows(tmp_path: Path) -> None:
    shown = (ROOT / "docs" / "demo.md").read_text(encoding="utf-8").split("```\n")[1::2]
    for command, block in zip(_demo_commands(), shown, strict=True):
        called = [sys.executable, "-c", "from heliomesh.cli import main; main()", *shlex.split(command)[1:]]
        done = subprocess.run(called, cwd=tmp_path, capture_output=True, check=True, encoding="utf-8")  # noqa: S603
        printed = _lines(done.stdout)
        assert [line for line in _lines(block) if line not in printed] == []
