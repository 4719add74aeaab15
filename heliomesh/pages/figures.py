"""Figures of the experiments, drawn with matplotlib: accuracy over slots or over a setting, and paired gains below.

Accuracies of different seeds differ more than those of different schemes; gains are taken seed by seed, so that their
intervals show what the comparison shows.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from heliomesh.common.durable import make_folder, write_text
from heliomesh.jobs.job import IDEAL
from heliomesh.pages.colours import LINES, OTHER, SCHEMES
from heliomesh.pages.drawing import drawing, svg_text
from heliomesh.simulation.diagnostics import interval
from heliomesh.studies.live import UNCHANGED, Survivors
from heliomesh.studies.results import Result, num_common_seeds

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


def draw(results: Sequence[Result], title: str, place: str | None, reference: str | None, target: Path) -> None:
    """Write a figure with 95 % intervals over seeds as SVG.

    One panel per setting; below it the gain over the scheme ``reference``, where it is given and there.
    """
    panels = {}
    for setting in dict.fromkeys(result.line.setting for result in results):
        own = [result for result in results if result.line.setting == setting]
        panels[setting] = _lines(own, place)
        if reference in panels[setting]:
            num_common_seeds(own)  # refuses others, which make no pairs
    _write(panels, title, place, reference, target)


def draw_survivors(models: Survivors, title: str, target: Path) -> None:
    """Write the curves of all plans in a changing world likewise, with a mark at the first change."""
    lines = {plan: (models.slots, models.accuracy(plan).T) for plan in models.runs}
    _write({"": lines}, title, None, UNCHANGED, target, [models.change_slot])


def _write(
    panels: Mapping[str, Lines],
    title: str,
    place: str | None,
    reference: str | None,
    target: Path,
    marks: Sequence[float] = (),
) -> None:
    labels = list(dict.fromkeys(label for lines in panels.values() for label in lines))
    told = f"Mean device accuracy over {place or 'slots'} with 95 % intervals over seeds, of {', '.join(labels)}."
    with drawing():
        figure = _figure(panels, _looks(labels), title, place, reference)
        for panel in figure.axes:
            for mark in marks:
                panel.axvline(mark, color=OTHER.light, linewidth=1, linestyle=":")
        text = svg_text(figure, title, told)
    make_folder(target.parent)
    write_text(target, text)


def _figure(
    panels: Mapping[str, Lines], looks: dict[str, Look], title: str, place: str | None, reference: str | None
) -> Figure:
    columns = min(len(panels), _MOST_COLUMNS)
    rows = math.ceil(len(panels) / columns)
    heights = [3.6, 2.4] if reference in looks else [3.6]
    figure = Figure(figsize=(1.2 + 4.4 * columns, 0.4 + rows * sum(heights)), layout="constrained")
    grid = figure.subplots(
        rows * len(heights), columns, sharex="col", sharey="row", squeeze=False, height_ratios=heights * rows
    )
    for empty in grid.ravel():
        empty.set_visible(False)
    for number, (setting, lines) in enumerate(panels.items()):
        lowest, *below = grid[len(heights) * (number // columns) :, number % columns][: len(heights)]
        _fill(lowest, lines, looks, place is not None)
        lowest.set_title(setting)
        if below and reference in lines:
            (lowest,) = below
            _fill(lowest, _gains(lines, reference), looks, place is not None)
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
        return {result.label: result.curve for result in results}
    by_place = sorted(results, key=lambda one: one.line.place or 0.0)
    return {
        label: (
            np.array([one.line.place or 0.0 for one in by_place if one.label == label]),
            np.stack([one.accuracy for one in by_place if one.label == label]),
        )
        for label in dict.fromkeys(result.label for result in results)
    }


def _gains(lines: Lines, reference: str) -> Lines:
    """Differences to the reference, seed by seed; without the ideal, whose gain would hide the others'."""
    places, base = lines[reference]
    num_seeds = min(percent.shape[1] for _, percent in lines.values())
    gains = {}
    for label, (own, percent) in lines.items():
        common, mine, theirs = np.intersect1d(own, places, return_indices=True)
        if label not in (reference, IDEAL) and len(common):
            gains[label] = common, percent[mine, :num_seeds] - base[theirs, :num_seeds]
    return gains


def _fill(panel: Axes, lines: Lines, looks: dict[str, Look], marked: bool) -> None:
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
