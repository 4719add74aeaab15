"""What docs/reproduction.md says of the results is what `results/` holds."""

import re
from pathlib import Path

import pytest

from heliomesh.learning.settings import TrainSettings
from heliomesh.pages.tables import figure_text
from heliomesh.studies.experiments import EXPERIMENTS
from heliomesh.studies.reproduce import figures, store_of
from tests.conftest import Call

ROOT = Path(__file__).parents[1]
FIGURE = re.compile(r"\d+\.\d+ ± \d+\.\d+")


def intervals(*paths: Path) -> set[str]:
    """Means with intervals, without their signs: prose may say that the second is below the first."""
    return {figure for path in paths for figure in FIGURE.findall(path.read_text(encoding="utf-8"))}


def test_every_interval_of_the_page_stands_in_a_table_of_results():
    quoted = intervals(ROOT / "docs" / "reproduction.md")
    assert len(quoted) > 100
    assert quoted <= intervals(*(ROOT / "results").glob("*.md"), *(ROOT / "results" / "printed").glob("*.txt"))


STORE = store_of(ROOT / "results", quick=False)


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda one: one.name)
def test_every_line_of_every_figure_is_published(experiment):
    (figure,) = figures([experiment], STORE, False, TrainSettings())
    assert [line.name for line in figure.absent] == []
    assert [result.line.name for result in figure.results if len(result.runs) < result.line.num_seeds] == []
    text = figure_text(figure)
    assert (ROOT / "results" / f"{experiment.name}.md").read_text(encoding="utf-8") == text
    assert (ROOT / "results" / f"{experiment.name}.svg").exists() == bool(figure.results)
    assert "not run yet" not in text


def test_the_help_names_every_experiment(call: Call) -> None:
    code, said, _ = call("reproduce", "--help")
    assert code == 0
    assert [one.name for one in EXPERIMENTS if one.name not in said] == []
