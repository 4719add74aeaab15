"""Figures of the experiments, drawn with matplotlib: curves over slots, or final accuracy over a setting."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from heliomesh.durable import written_whole
from heliomesh.engine.arm import IDEAL
from heliomesh.engine.results import curve, final
from heliomesh.engine.store import Result
from heliomesh.report.colours import CLASSES, OTHER, SCHEMES
from heliomesh.simulation.diagnostics import interval

if TYPE_CHECKING:  # drawing is an extra
    from matplotlib.axes import Axes

# what figures call the planners
_PLANNER = {"proposal": "decentralized", "proposal, literal": "decentralized literal", "myopic (SCA)": "myopic"}
_DASHED = {"proposal, literal", IDEAL, "uncoordinated"}
_MOST_COLUMNS = 2
_DODGE = 0.012  # between neighbouring series, as a share of the axis, so that their intervals stay apart

Look = dict[str, Any]


def draw(results: Sequence[Result], title: str, place: str | None, target: Path) -> None:
    """Write a figure: one panel per setting, with 95 % intervals over seeds; SVG or PNG by the target's name."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    settings = list(dict.fromkeys(result.arm.setting for result in results))
    looks = _looks(list(dict.fromkeys(result.arm.scheme.label for result in results)))
    columns = min(len(settings), _MOST_COLUMNS)
    rows = math.ceil(len(settings) / columns)
    figure = Figure(figsize=(1.2 + 4.4 * columns, 0.4 + 3.6 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
    panels = grid.ravel()[: len(settings)]
    for panel, setting in zip(panels, settings, strict=True):
        own = [result for result in results if result.arm.setting == setting]
        if place is None:
            _over_slots(panel, own, looks)
        else:
            _over_places(panel, own, looks)
        panel.set_xlabel(place or "slot")
        panel.set_title(setting)
        panel.grid(alpha=0.3)
    for left in grid[:, 0]:
        left.set_ylabel("mean device accuracy [%]")
    for empty in grid.ravel()[len(settings) :]:
        empty.set_visible(False)
    panels[0].legend(fontsize=8)
    figure.suptitle(title)
    target.parent.mkdir(parents=True, exist_ok=True)
    # no date and no random names, so that equal results give equal files
    with written_whole(target) as path, rc_context({"svg.hashsalt": "heliomesh"}):
        figure.savefig(path, format=target.suffix[1:], metadata={"Date": None} if target.suffix == ".svg" else None)


def _over_slots(panel: "Axes", results: Sequence[Result], looks: dict[str, Look]) -> None:
    for result in results:
        slots, means = curve(result, "accuracy_mean")
        middle = 100 * np.array([one.mean for one in means])
        width = 100 * np.nan_to_num([one.half_width for one in means])
        line = panel.plot(slots, middle, **looks[result.arm.scheme.label])[0]
        panel.fill_between(slots, middle - width, middle + width, color=line.get_color(), alpha=0.15, linewidth=0)


def _over_places(panel: "Axes", results: Sequence[Result], looks: dict[str, Look]) -> None:
    places = sorted({result.arm.place or 0.0 for result in results})
    step = _DODGE * (places[-1] - places[0])
    for index, (label, look) in enumerate(looks.items()):
        finals = sorted(
            (final(result) for result in results if result.arm.scheme.label == label),
            key=lambda one: one.place or 0.0,
        )
        means = [interval(one.accuracy) for one in finals]
        panel.errorbar(
            [(one.place or 0.0) + step * (index - (len(looks) - 1) / 2) for one in finals],
            [one.mean for one in means],
            np.nan_to_num([one.half_width for one in means]),
            capsize=3,
            marker="o",
            markersize=4,
            **look,
        )
    panel.set_xticks(places)


def _looks(labels: Sequence[str]) -> dict[str, Look]:
    """Colour and dash by label: planners have their own, whatever else a figure compares takes the next free one."""
    known = {label: SCHEMES.get(_PLANNER.get(label, label)) for label in labels}
    others = [label for label, colour in known.items() if colour is None and label != IDEAL]
    chosen = {label: colour.light for label, colour in known.items() if colour is not None}
    chosen |= {label: CLASSES[index % len(CLASSES)] for index, label in enumerate(others)} | {IDEAL: OTHER.light}
    return {
        label: {"color": chosen[label], "linestyle": "--" if label in _DASHED else "-", "label": label}
        for label in labels
    }
