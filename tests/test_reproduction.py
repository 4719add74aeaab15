"""What docs/reproduction.md says of the results is what `results/` holds."""

import re
from pathlib import Path

import pytest

from heliomesh import catalog
from heliomesh.commands.reproduce import EXPERIMENT_CATALOG
from heliomesh.engine.store import Store

ROOT = Path(__file__).parents[1]
FIGURE = re.compile(r"\d+\.\d+ ± \d+\.\d+")


def figures(*paths: Path) -> set[str]:
    """Means with intervals, without their signs: prose may say that the second is below the first."""
    return {figure for path in paths for figure in FIGURE.findall(path.read_text(encoding="utf-8"))}


def test_every_interval_of_the_page_stands_in_a_table_of_results():
    quoted = figures(ROOT / "docs" / "reproduction.md")
    assert len(quoted) > 100
    assert quoted <= figures(*(ROOT / "results").glob("*.md"))


@pytest.mark.parametrize("name", catalog.names(EXPERIMENT_CATALOG))
def test_every_line_of_every_figure_is_published(name):
    module, store = catalog.find(EXPERIMENT_CATALOG, name), Store(ROOT / "results")
    assert [arm.name for arm in module.arms(False) if not store.has(arm)] == []
    assert "not there yet" not in (ROOT / "results" / f"{name}.md").read_text(encoding="utf-8")
