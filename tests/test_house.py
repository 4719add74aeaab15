"""The house stays small and its rooms hide no doors: budgets of lines, and imports that a contract can see."""

import ast
from pathlib import Path

import pytest

from tests.lines import MOST_LINES_OF_A_FILE, MOST_LINES_OF_A_ROOM, PACKAGE, code_lines, files, rooms
from tests.machines import NUMERIC

MOST_LINES = 28_000  # lower it with every room that gets smaller


def test_what_counts_as_a_line_of_code():
    head = '"""Title."""\n\nimport os  # why\n\n\ndef one(a,\n        b):\n    """Two\n    lines."""\n'
    source = head + "    # note\n    return (a,\n            b)\n"
    assert code_lines(source) == 5


def test_the_house_is_within_its_budget():
    counted = files()
    assert sum(counted.values()) <= MOST_LINES
    assert {room: count for room, count in rooms(counted).items() if count > MOST_LINES_OF_A_ROOM} == {}
    assert {path: count for path, count in counted.items() if count > MOST_LINES_OF_A_FILE} == {}


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_no_edge_between_rooms_is_hidden_in_a_string(path: Path):
    """A catalog is searched by a name that a user gave; a name in the code is an import, which contracts see."""
    hidden = [
        ast.unparse(node)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", "") == "find"
        and len(node.args) == 2
        and all(isinstance(one, ast.Constant) for one in node.args)
    ]
    assert hidden == []


def test_the_tests_of_the_machine_matrix_exist():
    named = {Path(text.partition("::")[0]) for text in NUMERIC}
    assert {path for path in named if not (PACKAGE.parent / path).exists()} == set()
