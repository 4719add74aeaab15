"""The picture of cost against computation and bytes."""

from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from typer.testing import CliRunner

from heliomesh.cli import app
from heliomesh.pages.colours import SCHEMES
from heliomesh.pages.drawing import drawing
from heliomesh.pages.pareto import pareto, pareto_svg
from heliomesh.problem.overhead import Overhead
from heliomesh.problem.policy import Plan
from heliomesh.simulation.diagnostics import Interval
from heliomesh.studies.compare import Comparison, Row

SPACE = "{http://www.w3.org/2000/svg}"


def row(name: str, gap: float, seconds: float, online: float) -> Row:
    plan = Plan(name, policy=None, seconds=seconds, overhead=Overhead(online_bytes_per_slot=online))  # type: ignore[arg-type]
    return Row(name, name, {}, plan, None, np.zeros(2), gap=Interval(gap, 0.01))


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
        Row("centralized", "centralized", {}, None, None, None, refusal="too large"),
    )
    svg = pareto_svg(Comparison(rows, 'a "reference" & more'), "<b>")
    assert "<script>" not in svg
    assert "<b>" not in svg
    assert [len(panel) for panel in dots(rows)] == [1, 1]


def test_a_comparison_in_which_all_were_refused_is_an_empty_picture() -> None:
    assert dots((Row("centralized", "centralized", {}, None, None, None, refusal="too large"),)) == [[], []]


def test_compare_writes_it(tmp_path: Path) -> None:
    target = tmp_path / "picture.svg"
    arguments = ["compare", "tiny", "prices", "uncoordinated", "--episodes", "2", "--svg", str(target)]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    words = [text.text for text in ElementTree.parse(target).iter(f"{SPACE}text")]  # noqa: S314
    assert {"prices", "prices alone", "uncoordinated"} <= set(words)


# Names


def _boxes(figure: Figure, panel: Axes) -> tuple[dict[str, Any], list[Any]]:
    """Where names and markers are [px]."""
    names = {text.get_text(): Text.get_window_extent(text) for text in panel.texts}  # without its line
    scale = figure.dpi / 72
    places = [panel.transData.transform(line.get_xydata()[0]) for line in _points(panel)]
    return names, [Bbox([place - 4 * scale, place + 4 * scale]) for place in places]


CROWD = (
    ("battery_threshold", 0.1186, 0.82, 0.0),
    ("centralized", 0.0164, 4.36, 75.0),
    ("decentralized", 0.0314, 4.36, 120.0),
    ("decentralized literal", 0.2277, 5.68, 120.0),
    ("fixed_fraction", 0.1326, 0.001, 0.0),
    ("myopic", 0.1264, 0.002, 75.0),
    ("prices", 0.0162, 1.99, 4400.0),
    ("prices alone", 0.0266, 2.11, 0.0),
    ("receiver", 0.0147, 0.03, 4180.0),
    ("skiptrain", 0.5048, 0.0005, 0.0),
    ("turns", 0.2892, 0.0007, 0.0),
    ("uncoordinated", 0.128, 0.0009, 0.0),
)


@pytest.mark.parametrize("panel", [0, 1])
def test_names_are_beside_their_points_and_cover_nothing(panel: int) -> None:
    with drawing():
        figure = pareto(Comparison(tuple(row(*one) for one in CROWD), "the certified bound"), "ring10")
        figure.draw_without_rendering()
        axes = figure.axes[panel]
        names, markers = _boxes(figure, axes)
        frame = axes.get_window_extent()
    assert list(names) == [one[0] for one in CROWD]
    for one, other in combinations(names, 2):
        assert not names[one].overlaps(names[other]), f"{one} covers {other}"
    for (name, box), own in zip(names.items(), markers, strict=True):
        assert not any(box.overlaps(marker) for marker in markers), f"{name} covers a point"
        assert frame.x0 <= box.x0 <= box.x1 <= frame.x1
        assert frame.y0 <= box.y0 <= box.y1 <= frame.y1
        across = max(own.x0 - box.x1, box.x0 - own.x1, 0)
        down = max(own.y0 - box.y1, box.y0 - own.y1, 0)
        assert np.hypot(across, down) < 60


def test_a_name_far_from_its_point_has_a_line_to_it() -> None:
    rows = tuple(row(f"planner {number}", 0.1 + 1e-6 * number, 1.0, 1.0) for number in range(9))
    figure = pareto(Comparison(rows, "the optimum"), "t")
    assert any(text.arrow_patch is not None for text in figure.axes[0].texts)  # type: ignore[attr-defined]
    alone = pareto(Comparison(rows[:1], "the optimum"), "t")
    assert all(text.arrow_patch is None for text in alone.axes[0].texts)  # type: ignore[attr-defined]
