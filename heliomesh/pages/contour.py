"""A measure over battery capacity and panel, as an SVG picture: the lower left corner is the least to build.

Every pair that was tried is a cell with its mean, better ones darker; thin lines join equal means. The thick line is
the border of what meets the target, rings mark the smallest pairs that do.
"""

import math

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes as Panel
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Ellipse
from matplotlib.ticker import MaxNLocator

from heliomesh.pages.drawing import INK, PAPER, drawing, svg_text
from heliomesh.pages.sizing_words import description
from heliomesh.studies.sizing import Prices, Sizing

_NUM_LINES = 6  # of equal means, about

Matrix = npt.NDArray[np.float64]  # (panel, capacity)


WORST, BEST = PAPER, "#78b2de"  # of cells; ink is legible on both
BORDER, LINES, STRIPES = "#b34700", "#7a7a7a", "#d8d8d8"


def contour_svg(sizing: Sizing, title: str, prices: Prices | None = None) -> str:
    """SVG text; with prices the cheapest pair has a second ring."""
    with drawing():
        return svg_text(contour(sizing, title, prices), title, description(sizing, prices))


def contour(sizing: Sizing, title: str, prices: Prices | None = None) -> Figure:
    """The picture; columns of cells are capacities and rows are panels, each at its number."""
    axes = sizing.axes
    columns, rows = len(axes.capacity_joule), len(axes.panel)
    figure = Figure(figsize=(max(1.3 + 0.95 * columns, 7.5), 1.9 + 0.6 * rows), layout="constrained")
    panel = figure.subplots()
    _cells(panel, sizing)
    _lines(panel, sizing)
    _border(panel, sizing)
    _rings(panel, sizing, prices)
    panel.set_xticks(range(columns), [f"{value:g}" for value in axes.capacity_joule])
    panel.set_yticks(range(rows), [f"{value:.4g}" for value in axes.panel])
    panel.tick_params(colors=INK)
    panel.set(title=title, xlabel="battery capacity [J]", ylabel=f"panel [{axes.panel_unit}]")
    figure.legend(handles=_legend(sizing, prices), loc="outside lower center", ncols=2)
    return figure


def _grid(sizing: Sizing, column: str) -> Matrix:
    """A column of the table of all pairs; NaN where nothing was tried."""
    table = sizing.table().pivot(index="panel", columns="capacity_joule", values=column)
    return table.to_numpy(dtype=np.float64)


def _cells(panel: Panel, sizing: Sizing) -> None:
    """Colours and means; where nothing was tried, stripes and the outcome that follows."""
    quality = LinearSegmentedColormap.from_list("quality", (WORST, BEST))
    colours = quality if sizing.target.measure == "accuracy" else quality.reversed()
    means, meets = _grid(sizing, "mean"), _grid(sizing, "meets")
    columns, rows = (np.arange(size + 1) - 0.5 for size in reversed(means.shape))
    mesh = panel.pcolormesh(columns, rows, np.ma.masked_invalid(means), cmap=colours)
    grounds = np.asarray(colours(mesh.norm(means)))
    panel.patch.set(hatch="//", edgecolor=STRIPES)
    for (row, column), mean in np.ndenumerate(means):
        follows = "meets" if meets[row, column] else "misses"
        text, ground = (follows, WORST) if np.isnan(mean) else (f"{mean:.3f}", grounds[row, column])
        margin = {"facecolor": ground, "edgecolor": "none", "pad": 1.5}  # keeps lines off the number
        panel.text(column, row, text, ha="center", va="center", fontsize=9, bbox=margin)


def _lines(panel: Panel, sizing: Sizing) -> None:
    """Where the mean, linear between pairs, has round values and where it is at the target."""
    means, target = _grid(sizing, "mean"), sizing.target.value
    low, high = np.nanmin(means), np.nanmax(means)
    levels = MaxNLocator(_NUM_LINES).tick_values(low, high)
    rounds = [level for level in levels if low < level < high and not math.isclose(level, target)]
    for wanted, colour, width, dash in ((rounds, LINES, 0.7, "-"), ([target], BORDER, 1.4, "--")):
        if min(means.shape) > 1 and wanted and low < wanted[0] < high:
            panel.contour(means, wanted, colors=colour, linewidths=width, linestyles=dash)


def _border(panel: Panel, sizing: Sizing) -> None:
    """The sides between cells that meet the target and cells that do not."""
    meets = _grid(sizing, "meets")
    for row, column in np.argwhere(meets[:, 1:] != meets[:, :-1]):
        panel.plot([column + 0.5] * 2, [row - 0.5, row + 0.5], color=BORDER, linewidth=3)
    for row, column in np.argwhere(meets[1:] != meets[:-1]):
        panel.plot([column - 0.5, column + 0.5], [row + 0.5] * 2, color=BORDER, linewidth=3)


def _rings(panel: Panel, sizing: Sizing, prices: Prices | None) -> None:
    cheapest = sizing.cheapest(prices) if prices is not None and sizing.smallest else None
    for pair in sizing.smallest:
        place = sizing.axes.capacity_joule.index(pair.capacity_joule), sizing.axes.panel.index(pair.panel)
        for grown in (0.0, 0.12) if pair == cheapest else (0.0,):
            panel.add_patch(Ellipse(place, 0.7 + grown, 0.62 + grown, fill=False, edgecolor=INK, linewidth=1.6))


def _legend(sizing: Sizing, prices: Prices | None) -> list[Line2D]:
    """Marks with their meaning."""
    sign = "≥" if sizing.target.measure == "accuracy" else "≤"
    goal = f"{sizing.target.measure} {sign} {sizing.target.value:g}"
    goal += f" and darkness ≤ {100 * sizing.target.most_dark:g} %" if sizing.is_drained else ""
    rings = "smallest pairs" if prices is None else "smallest pairs; twice: the cheapest"
    return [
        Line2D([], [], color=BORDER, linewidth=3, label=f"border of {goal} with 95 % confidence"),
        Line2D([], [], color=BORDER, linewidth=1.4, linestyle="--", label="mean at the target"),
        Line2D([], [], color=INK, linestyle="", marker="o", fillstyle="none", markersize=11, label=rings),
        Line2D([], [], color=LINES, linewidth=0.7, label="equal means"),
    ]
