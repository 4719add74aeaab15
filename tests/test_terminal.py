"""What is printed: hostile names are shown and not obeyed, and every terminal can print it."""

import ast
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tomli_w

import heliomesh
from heliomesh import Scenario
from heliomesh.commands.terminal import console, print_any_letter, printable, say
from tests.conftest import Call

HOSTILE = "a\x1b[2J\x07\x9b31m\u202e[red]b[/]\nerror: c"
SHOWN = r"a\x1b[2J\x07\x9b31m\u202e[red]b[/]\nerror: c"
SMALL = ["--set", "slots=4", "--set", "learning.local_steps=1", "--quiet"]
PROGRAM = "from heliomesh.cli import main; main()"
NOTHING_BUT_ASCII = {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_escapes_keep_what_can_be_seen() -> None:
    assert printable("±→≤ äß 名 \U0001f31e") == "±→≤ äß 名 \U0001f31e"
    assert printable(HOSTILE) == SHOWN
    assert printable("a\nb\tc", lines=True) == "a\nb\\tc"
    assert printable(os.fsdecode(b"r\xff")) == r"r\udcff"


def test_a_console_shows_markup_and_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    console(width=80).print(HOSTILE)
    assert capsys.readouterr().out == f"{SHOWN}\n"


def obeyed(text: str) -> list[str]:
    return [letter for letter in "\x1b\x07\x9b\u202e" if letter in text]


@pytest.fixture
def hostile(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a scenario and a run that have hostile names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    scenario = Scenario.load("tiny").as_dict() | {"name": HOSTILE}
    Path("s.toml").write_text(tomli_w.dumps(scenario), encoding="utf-8")
    code, *printed = call("run", "s.toml", "uncoordinated", "--out", HOSTILE, *SMALL)
    assert code == 0
    assert not obeyed("".join(printed))
    assert SHOWN in printed[0]
    return tmp_path


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["store", "list", "."], 0),
        (["store", "show", HOSTILE], 0),
        (["store", "verify", "."], 0),
        (["report", HOSTILE, "--out", f"{HOSTILE}.html"], 0),
        (["plan", "s.toml", "uncoordinated"], 0),
        (["compare", "s.toml", "uncoordinated", "--episodes", "2"], 0),
        (["run", "s.toml", "uncoordinated", "--out", HOSTILE, "--set", "slots=5"], 2),
        (["store", "show", f"none{HOSTILE}"], 2),
        (["scenario", "show", HOSTILE], 2),
        (["plan", "tiny", HOSTILE], 2),
        (["scenario", "show", "tiny", "--set", f"link.{HOSTILE}=1"], 2),
        (["scenario", "show", "tiny", "--set", f"learning.dataset={HOSTILE}"], 0),
        (["store", "show", HOSTILE, f"extra{HOSTILE}"], 2),
        (["store", "show", HOSTILE, f"--option{HOSTILE}"], 2),
        ([HOSTILE], 2),
        ([f"--{HOSTILE}"], 2),
    ],
)
def test_a_hostile_name_is_shown_and_not_obeyed(hostile: Path, call: Call, words: list[str], code: int) -> None:
    left, printed, told = call(*words)
    assert left == code
    assert not obeyed(printed + told)
    assert r"\x1b[2J" in printed + told or r"\u001b[2J" in printed


def test_a_hostile_field_of_a_file_is_shown_and_not_obeyed(call: Call, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(tomli_w.dumps({HOSTILE: 1}), encoding="utf-8")
    code, _, told = call("scenario", "validate", tmp_path / "s.toml")
    assert (code, told.count("\n")) == (2, 1)
    assert not obeyed(told)
    assert SHOWN in told


def test_facts_on_a_terminal_obey_nothing(call: Call, hostile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes it for a terminal and writes escapes of its own
    code, printed, _ = call("store", "show", HOSTILE)
    assert code == 0
    assert "\x1b[2J" not in printed
    assert "\u202e" not in printed


def test_every_letter_can_be_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    print_any_letter()
    say("3 ± 1 → ≤ 名")
    console(width=40).print("5 ± 2")
    stream.flush()
    assert stream.buffer.getvalue() == b"3 +- 1 -> <= \\u540d\n5 +- 2\n"  # type: ignore[attr-defined]


def heliomesh_in_ascii(*words: str | bytes, cwd: Path) -> subprocess.CompletedProcess[bytes]:
    environment = os.environ | NOTHING_BUT_ASCII | {"PYTHONIOENCODING": "ascii", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(Path(heliomesh.__file__).parents[1])
    command = [sys.executable, "-c", PROGRAM, *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, env=environment, check=False)  # noqa: S603


@pytest.mark.skipif(sys.platform == "darwin", reason="file names are UTF-8 there")
def test_a_terminal_without_letters_and_a_folder_whose_name_is_no_text(call: Call, tmp_path: Path) -> None:
    folder = b"r\xff"
    compared = heliomesh_in_ascii(
        *("compare", "tiny", "uncoordinated", "--train", "2", "--episodes", "2", *SMALL, "--runs", folder),
        *("--report", folder + b".html"),
        cwd=tmp_path,
    )
    assert (compared.returncode, compared.stderr) == (0, b"")
    assert b" +- " in compared.stdout
    (tmp_path / os.fsdecode(folder + b".html")).read_text(encoding="utf-8")
    run = folder + b"/uncoordinated-0"
    place = tmp_path / os.fsdecode(run)
    assert call("store", "verify", place)[1] == f"{tmp_path}/r\\udcff/uncoordinated-0: whole\n1 of 1 runs are whole\n"
    assert json.loads(call("store", "show", place, "--json")[1])["folder"] == str(place)
    wrong = heliomesh_in_ascii("store", "show", folder + b"/none", cwd=tmp_path)
    assert (wrong.returncode, wrong.stderr.count(b"\n")) == (2, 1)
    assert wrong.stderr.startswith(rb"error: r\udcff/none: expected")


def test_a_scenario_file_may_have_any_name(call: Call, tmp_path: Path) -> None:
    place = tmp_path / os.fsdecode(b"r\xff.toml")
    place.write_text(Scenario.load("tiny").to_toml().replace('name = "tiny"', ""), encoding="utf-8")
    code, printed, _ = call("scenario", "show", place, "--json")
    assert code == 0
    assert json.loads(printed)["name"] == r"r\udcff"


def test_commands_print_by_this_door_only() -> None:
    package = Path(heliomesh.__file__).parent
    doors = {"Console", "print", "stdout", "stderr", "__stdout__", "__stderr__", "echo", "secho"}
    for path in [package / "cli.py", *sorted((package / "commands").glob("*.py"))]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if path.name == "terminal.py":
                continue
            called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
            assert called not in doors, path
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert not (node.value.id in ("sys", "typer") and node.attr in doors), path
