"""The picture of cost against computation and bytes."""

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from typer.testing import CliRunner

from heliomesh.cli import app
from heliomesh.jobs.scheme import Scheme
from heliomesh.model.overhead import Overhead
from heliomesh.model.policy import Plan
from heliomesh.pages.colours import SCHEMES
from heliomesh.pages.pareto import pareto, pareto_svg
from heliomesh.simulation.diagnostics import Interval
from heliomesh.studies.compare import Comparison, Row

SPACE = "{http://www.w3.org/2000/svg}"


def row(name: str, gap: float, seconds: float, online: float) -> Row:
    plan = Plan(name, policy=None, seconds=seconds, overhead=Overhead(online_bytes_per_slot=online))  # type: ignore[arg-type]
    return Row(name, Scheme(name, name), plan, None, np.zeros(2), gap=Interval(gap, 0.01))


def dots(rows: tuple[Row, ...], reference: str = "the optimum", title: str = "t") -> list[list[tuple[float, float]]]:
    """Where points are in each of the two panels [px], from the lower left corner."""
    figure = pareto(Comparison(rows, reference), title)
    figure.draw_without_rendering()
    return [
        [tuple(panel.transData.transform(line.get_xydata()[0])) for line in _points(panel)] for panel in figure.axes
    ]


def _points(panel: Axes) -> list[Line2D]:
    return [container.lines[0] for container in panel.containers]


def test_cheaper_is_lower_quicker_is_left_and_silence_leftmost() -> None:
    rows = (row("receiver", 0.01, 1.0, 1000.0), row("prices alone", 0.2, 0.1, 0.0), row("myopic", 0.1, 10.0, 10.0))
    slow_quick, bytes_sent = map(np.array, dots(rows))
    assert slow_quick[1, 0] < slow_quick[0, 0] < slow_quick[2, 0]
    assert bytes_sent[1, 0] < bytes_sent[2, 0] < bytes_sent[0, 0]
    assert slow_quick[0, 1] < slow_quick[2, 1] < slow_quick[1, 1]


def test_every_planner_has_a_mark_and_a_colour_of_its_own() -> None:
    figure = pareto(Comparison(tuple(row(name, 0.1, 1.0, 1.0) for name in SCHEMES), "the optimum"), "t")
    marks = [(line.get_marker(), line.get_color()) for line in _points(figure.axes[0])]
    assert len({mark for mark, _ in marks}) == len({colour for _, colour in marks}) == len(SCHEMES)


def test_names_are_escaped_and_refusals_left_out() -> None:
    rows = (
        row("<script>", 0.1, 1.0, 1.0),
        Row("centralized", Scheme("centralized", "centralized"), None, None, None, refusal="too large"),
    )
    svg = pareto_svg(Comparison(rows, 'a "reference" & more'), "<b>")
    assert "<script>" not in svg
    assert "<b>" not in svg
    assert [len(panel) for panel in dots(rows)] == [1, 1]


def test_a_comparison_in_which_all_were_refused_is_an_empty_picture() -> None:
    assert dots(
        (Row("centralized", Scheme("centralized", "centralized"), None, None, None, refusal="too large"),)
    ) == [[], []]


def test_compare_writes_it(tmp_path: Path) -> None:
    target = tmp_path / "picture.svg"
    arguments = ["compare", "tiny", "prices", "uncoordinated", "--episodes", "2", "--svg", str(target)]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    words = [text.text for text in ElementTree.parse(target).iter(f"{SPACE}text")]  # noqa: S314
    assert {"prices", "prices alone", "uncoordinated"} <= set(words)


def test_the_legend_names_every_planner_by_its_mark() -> None:
    rows = tuple(row(name, 0.01 * number, 1.0, 1.0) for number, name in enumerate(SCHEMES))
    (legend,) = pareto(Comparison(rows, "the certified bound"), "ring10").legends
    assert [text.get_text() for text in legend.get_texts()] == list(SCHEMES)
