"""`heliomesh bench`: the page, planners from outside, and calls that are refused."""

import json
from pathlib import Path

import pytest

from heliomesh.commands.bench import PAGE
from heliomesh.pages.leaderboard import leaderboard_text
from heliomesh.studies.bench.bench import leaderboard
from tests.conftest import Call

RESULTS = Path(__file__).parents[1] / "results" / "bench"
OWN = """
from heliomesh.planners.uncoordinated import Options, plan
"""


def test_the_published_page_is_what_the_stored_lines_give() -> None:
    """`heliomesh bench --only-print` makes it anew."""
    assert (RESULTS / PAGE).read_text(encoding="utf-8") == leaderboard_text(leaderboard(RESULTS))


def test_lists_the_scenarios(call: Call) -> None:
    code, out, _ = call("bench", "--list")
    assert code == 0
    assert out.startswith("tiny5: Five devices")
    assert len(out.splitlines()) == 10
    assert json.loads(call("bench", "--list", "--json")[1])["bench"] == 1


def test_a_planner_from_outside(tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured, printed, and kept with where it comes from."""
    (tmp_path / "my_planner.py").write_text(OWN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "results"
    code, out, err = call("--trust", "bench", "--planner", "my_planner:", "--only", "tiny5", "--folder", folder)
    assert code == 0, err
    assert "| `my_planner:` | 1.00 |" in out
    assert "tiny5: my_planner:: cost" in err
    (file,) = (folder / "1").glob("my*.json")
    line = json.loads(file.read_text(encoding="utf-8"))
    assert line["package"] is None
    assert len(line["planner_source"]) == 64
    assert "python" in line["entries"]["tiny5"]["made_with"]
    assert (folder / PAGE).read_text(encoding="utf-8") == leaderboard_text(leaderboard(folder))
    rows = json.loads(call("bench", "--only-print", "--json", "--folder", folder)[1])
    assert [(row["planner"], row["scenario"]) for row in rows] == [("my_planner:", "tiny5")]


def test_a_planner_of_an_installed_package(tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its line has the package's name and version, and needs no trust: whoever installed it trusts it."""
    about = tmp_path / "bright-1.2.dist-info"
    about.mkdir()
    (tmp_path / "bright_code.py").write_text(OWN, encoding="utf-8")
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: bright\nVersion: 1.2\n", encoding="utf-8")
    (about / "entry_points.txt").write_text("[heliomesh.planners]\nbright = bright_code\n", encoding="utf-8")
    (about / "top_level.txt").write_text("bright_code\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    arguments = ("bench", "--planner", "bright", "--only", "tiny5", "--folder", tmp_path / "results", "--quiet")
    code, _, err = call(*arguments)
    assert code == 0, err
    file = tmp_path / "results" / "1" / "bright.json"
    line = json.loads(file.read_text(encoding="utf-8"))
    assert (line["package"], line["package_version"], line["planner"]) == ("bright", "1.2", "bright")
    assert len(line["planner_source"]) == 64
    (tmp_path / "bright_code.py").write_text(f"{OWN}# changed", encoding="utf-8")
    code, _, err = call(*arguments[:-1])
    assert code == 0
    assert "note: tiny5: bright: measured again: its code has changed\n" in err
    assert "tiny5: bright: cost" in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--only", "tiny"), "only: expected some of tiny5, ring10"),
        (("--planner", "receivr"), "did you mean 'receiver'?"),
        (("--planner", "no_such_module:plan"), "expected --trust (heliomesh --trust <command>)"),
    ],
)
def test_mistakes_are_one_sentence(
    arguments: tuple[str, ...], sentence: str, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = call("bench", *arguments)
    assert code == 2
    assert sentence in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
