"""Cost against computation and against message bytes, as an SVG picture: the lower left corner is best.

Every point has its planner's name beside it, with a line between them where the crowd leaves no nearer place.
"""

import math
from itertools import cycle
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from heliomesh.pages.colours import scheme_colour
from heliomesh.pages.drawing import drawing, svg_text
from heliomesh.pages.label_places import label_centres
from heliomesh.studies.compare import Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKERS = "osD^vPX<>p*hd1"  # planners differ by shape too, not by colour alone
_FONT_SIZE, _FONT_ROOM = 9, 1.12  # a reader's font may be wider than ours
_MARK_RADIUS = 7  # [px]
_NEAR = 12  # from a point to its name's nearer side [points]: beyond that a line joins them
_HOLLOW: Any = {"markersize": 8, "fillstyle": "none", "markeredgewidth": 1.8, "capsize": 3}  # shows what lies below


class _Point(NamedTuple):
    """One planner that was not refused."""

    planner: str
    gap_percent: float
    half_width_percent: float  # NaN for a single episode
    seconds: float  # of planning
    online_bytes: float  # of control a slot


def pareto_svg(comparison: Comparison, title: str) -> str:
    """SVG text with two panels: gap over planning time, and gap over online control bytes per slot."""
    with drawing():
        return svg_text(pareto(comparison, title), title, _description(comparison))


def pareto(comparison: Comparison, title: str) -> "Figure":
    """The picture; refused planners are left out."""
    from matplotlib.figure import Figure

    figure, points = Figure(figsize=(11, 4.2), layout="constrained"), _points(comparison)
    left, right = figure.subplots(1, 2, sharey=True)
    panels = ((left, [point.seconds for point in points]), (right, [point.online_bytes for point in points]))
    for panel, places in panels:
        _fill(panel, points, places)
    left.set(title=title, xlabel="planning time [s]", ylabel=f"cost above {comparison.reference} [%]")
    right.set_xlabel("control bytes a slot")
    figure.draw_without_rendering()  # settles where the panels are
    figure.set_layout_engine("none")
    for panel, places in panels if points else ():
        _name_points(panel, points, places, 72 / figure.dpi)
    return figure


def _name_points(panel: "Axes", points: list[_Point], places: list[float], to_points: float) -> None:
    """Write every planner's name where it covers no other mark; ``to_points`` turns pixels into points."""
    data = np.array([(place, point.gap_percent) for point, place in zip(points, places, strict=True)])
    spread = np.array([[0.0, np.nan_to_num(point.half_width_percent)] for point in points])
    drawn, low, high = (panel.transData.transform(ends) for ends in (data, data - spread, data + spread))
    marks = np.hstack([low - _MARK_RADIUS, high + _MARK_RADIUS])
    sizes = np.array([_size(panel, point.planner) for point in points]) * to_points * _FONT_ROOM
    frame = np.array([panel.get_window_extent().extents])
    centres = label_centres(drawn * to_points, sizes, marks * to_points, frame * to_points)
    for point, place, offset, size in zip(points, data, centres - drawn * to_points, sizes, strict=True):
        is_near = np.linalg.norm(np.maximum(np.abs(offset) - size / 2, 0)) < _NEAR
        _write_name(panel, point.planner, place, offset, leader=not is_near)


def _size(panel: "Axes", name: str) -> tuple[float, float]:
    """Width and height of a name [px]."""
    text = panel.text(0, 0, name, fontsize=_FONT_SIZE, transform=panel.transAxes)
    box = text.get_window_extent()
    text.remove()
    return box.width, box.height


def _write_name(
    panel: "Axes", name: str, place: npt.NDArray[np.float64], offset: npt.NDArray[np.float64], *, leader: bool
) -> None:
    """A name at an offset [points] from its point, with a line between them where asked."""
    colour = scheme_colour(name).light
    line = {"arrowstyle": "-", "color": colour, "linewidth": 0.8, "shrinkA": 0, "shrinkB": 5}
    panel.annotate(
        name,
        (float(place[0]), float(place[1])),
        (float(offset[0]), float(offset[1])),
        textcoords="offset points",
        ha="center",
        va="center",
        fontsize=_FONT_SIZE,
        arrowprops=line if leader else None,
    )


def _points(comparison: Comparison) -> list[_Point]:
    return [
        _Point(
            row.planner,
            100 * row.gap.mean,
            100 * row.gap.half_width,
            row.plan.seconds,
            row.plan.overhead.online_bytes_per_slot if row.plan.overhead else 0.0,
        )
        for row in comparison.rows
        if row.plan is not None and row.gap is not None
    ]


def _fill(panel: "Axes", points: list[_Point], places: list[float]) -> None:
    """Draw gaps with their intervals over a logarithmic axis, which has a place for zero where it is needed."""
    for point, place, marker in zip(points, places, cycle(_MARKERS), strict=False):
        colour, spread = scheme_colour(point.planner).light, np.nan_to_num(point.half_width_percent)
        panel.errorbar(place, point.gap_percent, spread, fmt=marker, label=point.planner, color=colour, **_HOLLOW)
    positive = [place for place in places if place > 0]
    low = 10.0 ** math.floor(math.log10(min(positive))) if positive else 1.0
    if len(positive) < len(places):
        panel.set_xscale("symlog", linthresh=low, linscale=0.4)
        panel.set_xlim(left=-low / 4)
    else:
        panel.set_xscale("log")
    panel.xaxis.set_major_formatter("{x:g}")
    panel.xaxis.set_minor_formatter("")
    panel.margins(x=0.12, y=0.12)  # room for names
    panel.grid(alpha=0.3)


def _description(comparison: Comparison) -> str:
    """What the picture shows, for those who cannot see it."""
    each = "; ".join(
        f"{point.planner} {point.gap_percent:.2f} %, {point.seconds:.2g} s, {point.online_bytes:.0f} bytes a slot"
        for point in _points(comparison)
    )
    return f"Cost above {comparison.reference}, planning time and online control bytes per slot: {each}."
