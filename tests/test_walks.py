"""How far a change goes: walks through the code, counted from the modules themselves; docs/walk.md states them.

A module is on the walk of a name if it uses that name as code: as a variable, an attribute, a field or an argument.
"""

import ast
import re
from pathlib import Path

import pytest

from tests.lines import PACKAGE

MODULES = {path.relative_to(PACKAGE): path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {path: ast.parse(text) for path, text in MODULES.items()}
WALK = (PACKAGE.parent / "docs" / "walk.md").read_text(encoding="utf-8")


def names(tree: ast.AST) -> set[str]:
    """All names that a module uses as code, and the texts that it compares with."""
    found: set[str] = set()
    for node in ast.walk(tree):
        for field in ("id", "attr", "arg", "name"):
            value = getattr(node, field, None)
            if isinstance(value, str):
                found.add(value)
    return found


NAMES = {path: names(tree) for path, tree in TREES.items()}


def naming(*asked: str) -> list[Path]:
    """Modules that use one of the names."""
    return [path for path, own in NAMES.items() if own & set(asked)]


def importing(module: str) -> list[Path]:
    """Modules that import a module by its full name."""
    return [
        path
        for path, tree in TREES.items()
        if any(isinstance(node, ast.ImportFrom) and node.module == module for node in ast.walk(tree))
    ]


def stated(row: str) -> int:
    """What docs/walk.md says of a walk."""
    found = re.search(rf"\| {re.escape(row)} \| (\d+) \|", WALK)
    assert found is not None, row
    return int(found[1])


def test_the_way_of_a_capacity_from_the_scenario_to_the_page() -> None:
    found = naming("capacity_joule")
    assert len(found) == stated("a battery's capacity, from the scenario to the page") <= 25, sorted(map(str, found))


CATALOGS = ("learning/aggregations", "learning/optimisers", "tasks/datasets", "tasks/models")
PARTS = {"bids", "decentralized", "turns"}  # planners whose parts a fleet's devices play
EXPORTED = {"bids"}  # planners with C of their own


@pytest.mark.parametrize("catalog", [*CATALOGS, "planners", "physics/harvest", "physics/channels"])
def test_what_stands_in_a_catalog_is_found_by_its_name_alone(catalog: str) -> None:
    """No module imports a file of a catalog, so that one more is one file."""
    files = [path for path in MODULES if path.parent == Path(catalog) and path.stem != "__init__"]
    assert files
    users = {path.stem: importing(f"heliomesh.{'.'.join(path.with_suffix('').parts)}") for path in files}
    assert {stem for stem, found in users.items() if found} <= PARTS | EXPORTED
    assert stated("an aggregation rule, a planner, a dataset, a model, an optimiser, a channel, a harvest") == 1


def test_a_storage_law_is_one_sheet() -> None:
    sheets = [path.stem for path in (PACKAGE / "scenario" / "storages").glob("*.toml")]
    named = [
        (path, sheet)
        for path, text in MODULES.items()
        for sheet in sheets
        if sheet != "ideal" and re.search(rf"[\"']{sheet}[\"']", text)
    ]
    assert named == []
    assert stated("a storage sheet") == 1


def test_an_action_set_is_known_in_few_files() -> None:
    texts = ('"separate"', "train_only")
    found = [path for path, text in MODULES.items() if any(re.search(rf"^[^#]*{one}", text, re.M) for one in texts)]
    assert len(found) == stated("an action") <= 6, sorted(map(str, found))


def test_an_observation_is_known_in_few_files() -> None:
    """Which messages were heard: where the observation has it, where it is filled in, and who looks at it."""
    known = re.compile(r"seen\.heard\b|^    heard: Tensor|\bheard=", re.MULTILINE)
    found = [path for path, text in MODULES.items() if "Observation" in text and known.search(text)]
    assert len(found) == stated("an observation") <= 3, sorted(map(str, found))
