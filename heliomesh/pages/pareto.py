"""Cost against computation and against message bytes, as an SVG picture: the lower left corner is best."""

import math
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from heliomesh.model.policy import Plan
from heliomesh.pages.colours import scheme_colour
from heliomesh.pages.drawing import drawing, svg_text
from heliomesh.simulation.diagnostics import Interval
from heliomesh.studies.compare import Comparison

_MARKERS = "osD^vPX<>p*hd1H"  # planners differ by shape too, not by colour alone
_HOLLOW: Any = {"markersize": 8, "fillstyle": "none", "markeredgewidth": 1.8, "capsize": 3}  # shows what lies below


def pareto_svg(comparison: Comparison, title: str) -> str:
    """SVG text with two panels: gap over planning time, and gap over online control bytes per slot."""
    each = "; ".join(
        f"{plan.planner} {100 * gap.mean:.2f} %, {plan.seconds:.2g} s, "
        f"{plan.overhead.online_bytes_per_slot:.0f} bytes a slot"
        for plan, gap in _drawn(comparison)
    )
    told = f"Cost above {comparison.reference}, planning time and online control bytes per slot: {each}."
    with drawing():
        return svg_text(pareto(comparison, title), title, told)


def pareto(comparison: Comparison, title: str) -> Figure:
    """The picture; refused planners are left out."""
    figure, drawn = Figure(figsize=(11, 4.6), layout="constrained"), _drawn(comparison)
    left, right = figure.subplots(1, 2, sharey=True)
    _fill(left, drawn, [plan.seconds for plan, _ in drawn])
    _fill(right, drawn, [plan.overhead.online_bytes_per_slot for plan, _ in drawn])
    left.set(title=title, xlabel="planning time [s]", ylabel=f"cost above {comparison.reference} [%]")
    right.set_xlabel("control bytes a slot")
    if drawn:
        figure.legend(*left.get_legend_handles_labels(), loc="outside right upper", fontsize=9)
    return figure


def _drawn(comparison: Comparison) -> list[tuple[Plan, Interval]]:
    """Plans with their gaps."""
    return [(row.plan, row.gap) for row in comparison.rows if row.plan is not None and row.gap is not None]


def _fill(panel: Axes, drawn: list[tuple[Plan, Interval]], places: list[float]) -> None:
    """Draw gaps with their intervals over a logarithmic axis, which has a place for zero where it is needed."""
    for (plan, gap), place, marker in zip(drawn, places, cycle(_MARKERS), strict=False):
        colour, spread = scheme_colour(plan.planner).light, 100 * np.nan_to_num(gap.half_width)
        panel.errorbar(place, 100 * gap.mean, spread, fmt=marker, label=plan.planner, color=colour, **_HOLLOW)
    positive = [place for place in places if place > 0]
    low = 10.0 ** math.floor(math.log10(min(positive))) if positive else 1.0
    if len(positive) < len(places):
        panel.set_xscale("symlog", linthresh=low, linscale=0.4)
        panel.set_xlim(left=-low / 4)
    else:
        panel.set_xscale("log")
    panel.xaxis.set_major_formatter("{x:g}")
    panel.xaxis.set_minor_formatter("")
    panel.margins(x=0.08, y=0.08)
    panel.grid(alpha=0.3)
