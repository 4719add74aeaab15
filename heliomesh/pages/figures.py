"""Figures of the experiments, drawn with matplotlib: accuracy over slots or over a setting, and paired gains below.

Accuracies of different seeds differ more than those of different schemes; gains are taken seed by seed, so that their
intervals show what the comparison shows.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from heliomesh.common.durable import make_folder, write_text
from heliomesh.jobs.job import IDEAL
from heliomesh.pages.colours import LINES, OTHER, SCHEMES
from heliomesh.pages.drawing import drawing, svg_text
from heliomesh.simulation.diagnostics import interval
from heliomesh.studies.results import Result, accuracy_curve, final, num_common_seeds, seeds_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# what figures call the planners
_PLANNER = {
    "coupled": "receiver",
    "fixed fraction": "fixed_fraction",
    "myopic (SCA)": "myopic",
    "proposal": "decentralized",
    "proposal, literal": "decentralized literal",
}
_DASHED = {"proposal, literal", IDEAL, "uncoordinated"}
_MOST_COLUMNS = 2
_DODGE = 0.012  # between neighbouring series, as a share of the axis, so that their intervals stay apart

Look = dict[str, Any]
Numbers = npt.NDArray[np.float64]
Lines = dict[str, tuple[Numbers, Numbers]]  # by label: places on the horizontal axis (place,), percent (place, seed)


def draw(
    results: Sequence[Result],
    title: str,
    place: str | None,
    reference: str | None,
    target: Path,
    *,
    marks: Sequence[float] = (),
) -> None:
    """Write a figure with 95 % intervals over seeds as SVG.

    One panel per setting; below it the gain over the scheme ``reference``, where it is given and there. ``marks``
    are places on the horizontal axis where something happens.
    """
    labels = dict.fromkeys(result.line.scheme.label for result in results)
    told = f"Mean device accuracy over {place or 'slots'} with 95 % intervals over seeds, of {', '.join(labels)}."
    with drawing():
        figure = _figure(results, title, place, reference)
        for panel in figure.axes:
            for mark in marks:
                panel.axvline(mark, color=OTHER.light, linewidth=1, linestyle=":")
        text = svg_text(figure, title, told)
    make_folder(target.parent)
    write_text(target, text)


def _figure(results: Sequence[Result], title: str, place: str | None, reference: str | None) -> "Figure":
    from matplotlib.figure import Figure

    settings = list(dict.fromkeys(result.line.setting for result in results))
    looks = _looks(list(dict.fromkeys(result.line.scheme.label for result in results)))
    gains = any(result.line.scheme.label == reference for result in results)
    columns = min(len(settings), _MOST_COLUMNS)
    rows = math.ceil(len(settings) / columns)
    heights = [3.6, 2.4] if gains else [3.6]
    figure = Figure(figsize=(1.2 + 4.4 * columns, 0.4 + rows * sum(heights)), layout="constrained")
    grid = figure.subplots(
        rows * len(heights), columns, sharex="col", sharey="row", squeeze=False, height_ratios=heights * rows
    )
    for empty in grid.ravel():
        empty.set_visible(False)
    for number, setting in enumerate(settings):
        above, *below = grid[len(heights) * (number // columns) :, number % columns][: len(heights)]
        own = [result for result in results if result.line.setting == setting]
        lines = _lines(own, place)
        _fill(above, lines, looks, place is not None)
        above.set_title(setting)
        lowest = above
        if below and reference in lines:
            (lowest,) = below
            common = num_common_seeds((result.line.name, seeds_of(result)) for result in own)
            _fill(lowest, _gains(lines, reference, common), looks, place is not None)
            lowest.axhline(0, linewidth=1, **(looks[reference] | {"label": None}))
        lowest.set_xlabel(place or "slot")
        lowest.tick_params(labelbottom=True)  # hidden by the shared axis of a lower row
    for row, left in enumerate(grid[:, 0]):
        left.set_ylabel("mean device accuracy [%]" if row % len(heights) == 0 else f"over {reference} [points]")
    grid[0, 0].legend(fontsize=8)
    figure.suptitle(title, fontsize=11)
    return figure


def _lines(results: Sequence[Result], place: str | None) -> Lines:
    if place is None:
        return {result.line.scheme.label: accuracy_curve(result) for result in results}
    finals = sorted(map(final, results), key=lambda one: one.place or 0.0)
    return {
        label: (
            np.array([one.place or 0.0 for one in finals if one.scheme == label]),
            np.stack([one.accuracy for one in finals if one.scheme == label]),
        )
        for label in dict.fromkeys(result.line.scheme.label for result in results)
    }


def _gains(lines: Lines, reference: str, num_seeds: int) -> Lines:
    """Differences to the reference, seed by seed; without the ideal, whose gain would hide the others'."""
    places, base = lines[reference]
    gains = {}
    for label, (own, percent) in lines.items():
        common, mine, theirs = np.intersect1d(own, places, return_indices=True)
        if label not in (reference, IDEAL) and len(common):
            gains[label] = common, percent[mine, :num_seeds] - base[theirs, :num_seeds]
    return gains


def _fill(panel: "Axes", lines: Lines, looks: dict[str, Look], marked: bool) -> None:
    """Draw lines with their intervals: as bars at marked places, as a band over slots."""
    panel.set_visible(True)
    panel.grid(alpha=0.3)
    ticks = sorted({float(place) for places, _ in lines.values() for place in places})
    for index, (label, (places, percent)) in enumerate(lines.items()):
        means = [interval(row) for row in percent]
        middle = np.array([one.mean for one in means])
        width = np.nan_to_num([one.half_width for one in means])
        if marked:
            shift = _DODGE * (ticks[-1] - ticks[0]) * (index - (len(lines) - 1) / 2)
            panel.errorbar(places + shift, middle, width, capsize=3, marker="o", markersize=4, **looks[label])
        else:
            line = panel.plot(places, middle, **looks[label])[0]
            panel.fill_between(
                places, middle - width, middle + width, color=line.get_color(), alpha=0.15, linewidth=0
            )
    if marked:
        panel.set_xticks(ticks)


def _looks(labels: Sequence[str]) -> dict[str, Look]:
    """Colour and dash by label: planners have their own, whatever else a figure compares takes the next free one.

    Where all are taken, colours come again with a dash.
    """
    known = {label: SCHEMES.get(_PLANNER.get(label, label)) for label in labels}
    others = [label for label, colour in known.items() if colour is None and label != IDEAL]
    chosen = {label: colour.light for label, colour in known.items() if colour is not None}
    chosen |= {label: LINES[index % len(LINES)] for index, label in enumerate(others)} | {IDEAL: OTHER.light}
    dashed = _DASHED.union(others[len(LINES) :])
    return {
        label: {"color": chosen[label], "linestyle": "--" if label in dashed else "-", "label": label}
        for label in labels
    }
