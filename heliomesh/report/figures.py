"""Figures of the experiments, drawn with matplotlib: curves over slots, or final accuracy over a setting."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from heliomesh.durable import written_whole
from heliomesh.engine.results import curve, final
from heliomesh.engine.store import Result
from heliomesh.report.colours import OTHER, SCHEMES
from heliomesh.simulation.diagnostics import interval

if TYPE_CHECKING:  # drawing is an extra
    from matplotlib.axes import Axes

# what figures call the planners
_PLANNER = {"proposal": "decentralized", "proposal, literal": "decentralized literal", "myopic (SCA)": "myopic"}
_DASHED = {"proposal, literal", "ideal", "uncoordinated"}


def draw(results: Sequence[Result], title: str, place: str | None, target: Path) -> None:
    """Write a figure: one panel per setting, with 95 % intervals over seeds; SVG or PNG by the target's name."""
    from matplotlib.figure import Figure

    settings = list(dict.fromkeys(result.arm.setting for result in results))
    figure = Figure(figsize=(1.2 + 4.4 * len(settings), 4.0), layout="constrained")
    panels = figure.subplots(1, len(settings), sharey=True, squeeze=False)[0]
    for panel, setting in zip(panels, settings, strict=True):
        own = [result for result in results if result.arm.setting == setting]
        if place is None:
            _over_slots(panel, own)
        else:
            _over_places(panel, own)
        panel.set_xlabel(place or "slot")
        panel.set_title(setting)
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("mean device accuracy [%]")
    panels[-1].legend(fontsize=8)
    figure.suptitle(title)
    target.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(target) as path:
        # no date, so that equal results give equal files
        figure.savefig(path, format=target.suffix[1:], metadata={"Date": None} if target.suffix == ".svg" else None)


def _over_slots(panel: "Axes", results: Sequence[Result]) -> None:
    for result in results:
        slots, means = curve(result, "accuracy_mean")
        middle = 100 * np.array([one.mean for one in means])
        width = 100 * np.nan_to_num([one.half_width for one in means])
        line = panel.plot(slots, middle, **_look(result.arm.scheme.label))[0]
        panel.fill_between(slots, middle - width, middle + width, color=line.get_color(), alpha=0.15, linewidth=0)


def _over_places(panel: "Axes", results: Sequence[Result]) -> None:
    for label in dict.fromkeys(result.arm.scheme.label for result in results):
        finals = [final(result) for result in results if result.arm.scheme.label == label]
        finals.sort(key=lambda one: one.place or 0.0)
        means = [interval(one.accuracy) for one in finals]
        panel.errorbar(
            [one.place or 0.0 for one in finals],
            [one.mean for one in means],
            np.nan_to_num([one.half_width for one in means]),
            capsize=3,
            marker="o",
            **_look(label),
        )


def _look(label: str) -> dict[str, Any]:
    colour = SCHEMES.get(_PLANNER.get(label, label), OTHER).light
    return {"color": colour, "linestyle": "--" if label in _DASHED else "-", "label": label}
