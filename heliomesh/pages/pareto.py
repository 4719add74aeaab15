"""Cost against computation and against message bytes, as an SVG picture: the lower left corner is best."""

import math
from itertools import cycle
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from heliomesh.pages.colours import scheme_colour
from heliomesh.pages.drawing import drawing, svg_text
from heliomesh.studies.compare import Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKERS = "osD^vPX<>p*hd1"  # planners differ by shape too, not by colour alone
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
    _fill(left, points, [point.seconds for point in points])
    _fill(right, points, [point.online_bytes for point in points])
    left.set(title=title, xlabel="planning time [s]", ylabel=f"cost above {comparison.reference} [%]")
    right.set_xlabel("control bytes a slot")
    figure.legend(*left.get_legend_handles_labels(), loc="outside right upper")
    return figure


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
    panel.grid(alpha=0.3)


def _description(comparison: Comparison) -> str:
    """What the picture shows, for those who cannot see it."""
    each = "; ".join(
        f"{point.planner} {point.gap_percent:.2f} %, {point.seconds:.2g} s, {point.online_bytes:.0f} bytes a slot"
        for point in _points(comparison)
    )
    return f"Cost above {comparison.reference}, planning time and online control bytes per slot: {each}."
