"""A measure over battery capacity and panel, as an SVG picture: the lower left corner is the least to build.

Every pair that was tried is a cell with its mean, better ones darker; thin lines join equal means. The thick line is
the border of what meets the target, rings mark the smallest pairs that do.
"""

import math
from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise, product

from heliomesh.engine.sizing import Axes, Pair, Prices, Sizing

_LEFT, _TOP, _CELL_WIDTH, _CELL_HEIGHT, _BELOW = 74, 50, 78, 46, 104  # [px]
_LEAST_WIDTH = 600  # [px], for the title and the legend
_WORST, _BEST = (255, 255, 255), (120, 178, 222)  # of the cells; dark text is legible on both
_TARGET, _LINE, _TEXT = "#b34700", "#7a7a7a", "#222222"
_NUM_LINES = 6  # of equal means, about

Point = tuple[float, float]


def contour_svg(sizing: Sizing, title: str, prices: Prices | None = None) -> str:
    """SVG text; with prices the cheapest pair has a second ring."""
    place = _Place(sizing.axes)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {place.width} {place.height}" '
        f'width="{place.width}" height="{place.height}" font-family="sans-serif" font-size="12" fill="{_TEXT}">',
        f"<title>{escape(title)}</title>",
        f"<desc>{escape(description(sizing, prices))}</desc>",
        '<defs><pattern id="skipped" width="7" height="7" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><path stroke="#d8d8d8" d="M0 0V7"/></pattern></defs>',
        f'<rect width="{place.width}" height="{place.height}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="26" font-size="15">{escape(title)}</text>',
    ]
    parts += [_cell(sizing, pair, place) for pair in sizing.axes.pairs]
    for level in _levels(sizing):
        parts += _path(isoline(sizing, level, place), f'class="equal" stroke="{_LINE}" stroke-width="0.8"')
    aimed = f'class="target-mean" stroke="{_TARGET}" stroke-width="1.6" stroke-dasharray="5 4"'
    parts += _path(isoline(sizing, sizing.target.value, place), aimed)
    parts += _path(_border(sizing, place), f'class="target" stroke="{_TARGET}" stroke-width="3.5"')
    parts += [_number(sizing, pair, place) for pair in sizing.axes.pairs]
    parts += _rings(sizing, prices, place) + _frame(sizing.axes, place) + _legend(sizing, prices, place)
    return "\n".join([*parts, "</svg>"]) + "\n"


def description(sizing: Sizing, prices: Prices | None = None) -> str:
    """What the picture shows, for those who cannot see it."""
    target, pairs = sizing.target, sizing.smallest
    limit, each = ("least", "") if target.measure == "accuracy" else ("most", " per device and slot")
    aim = f"{target.measure} of at {limit} {target.value:g}"
    text = f"Mean {target.measure}{each} of {len(sizing.found)} pairs of battery capacity and panel; target: {aim}. "
    if not pairs:
        return text + f"No pair meets it; the best is {in_words(sizing, sizing.best)}."
    text += "The smallest pairs that meet it: " + "; ".join(in_words(sizing, pair) for pair in pairs) + "."
    return text + ("" if prices is None else f" The cheapest is {in_words(sizing, sizing.cheapest(prices))}.")


def in_words(sizing: Sizing, pair: Pair) -> str:
    """A pair with what was found there."""
    found = sizing.found[pair]
    where = f"{pair.capacity_joule:g} J with {pair.panel:g} {sizing.axes.panel_unit}"
    return f"{where} ({found.mean:.4g} ± {found.half_width:.2g})"


class _Place:
    """Positions in the picture [px]; every value of an axis has a column or row of its own."""

    def __init__(self, axes: Axes) -> None:
        self._column = {value: number for number, value in enumerate(axes.capacity_joule)}
        self._row = {value: number for number, value in enumerate(axes.panel)}
        self.right = _LEFT + len(self._column) * _CELL_WIDTH
        self.base = _TOP + len(self._row) * _CELL_HEIGHT
        self.width, self.height = max(self.right + 24, _LEAST_WIDTH), self.base + _BELOW

    def centre(self, pair: Pair) -> Point:
        """Middle of a pair's cell."""
        x = _LEFT + (self._column[pair.capacity_joule] + 0.5) * _CELL_WIDTH
        return x, self.base - (self._row[pair.panel] + 0.5) * _CELL_HEIGHT


def isoline(sizing: Sizing, level: float, place: _Place) -> list[tuple[Point, Point]]:
    """Segments along which the mean, linear within triangles of neighbouring pairs, is at the level."""
    lines = []
    for corners in _triangles(sizing.axes):
        if not all(pair in sizing.found for pair in corners):
            continue
        crossings = [
            _between(place.centre(one), place.centre(other), (level - low) / (high - low))
            for one, other in ((corners[0], corners[1]), (corners[1], corners[2]), (corners[2], corners[0]))
            for low, high in [(sizing.found[one].mean, sizing.found[other].mean)]
            if (low < level) != (high < level)
        ]
        if crossings:
            lines.append((crossings[0], crossings[1]))
    return lines


def _triangles(axes: Axes) -> Iterator[tuple[Pair, Pair, Pair]]:
    """Two triangles for each square of neighbouring pairs."""
    for (left, right), (low, high) in product(pairwise(axes.capacity_joule), pairwise(axes.panel)):
        yield Pair(left, low), Pair(right, low), Pair(left, high)
        yield Pair(right, high), Pair(right, low), Pair(left, high)


def _between(one: Point, other: Point, share: float) -> Point:
    return one[0] + share * (other[0] - one[0]), one[1] + share * (other[1] - one[1])


def _levels(sizing: Sizing) -> list[float]:
    """Round numbers between the least and the largest mean."""
    means = [found.mean for found in sizing.found.values()]
    spread = max(means) - min(means)
    if spread == 0:
        return []
    power = 10.0 ** math.floor(math.log10(spread / _NUM_LINES))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= spread / _NUM_LINES)
    first = math.ceil(min(means) / step)
    levels = [number * step for number in range(first, math.floor(max(means) / step) + 1)]
    return [level for level in levels if not math.isclose(level, sizing.target.value)]  # that has a line of its own


def _border(sizing: Sizing, place: _Place) -> list[tuple[Point, Point]]:
    """Sides between cells that meet the target and cells that do not."""
    lines, half_width, half_height = [], _CELL_WIDTH / 2, _CELL_HEIGHT / 2
    axes = sizing.axes
    for (left, right), panel in product(pairwise(axes.capacity_joule), axes.panel):
        x, y = place.centre(Pair(left, panel))
        if sizing.meets(Pair(left, panel)) != sizing.meets(Pair(right, panel)):
            lines.append(((x + half_width, y - half_height), (x + half_width, y + half_height)))
    for capacity, (low, high) in product(axes.capacity_joule, pairwise(axes.panel)):
        x, y = place.centre(Pair(capacity, low))
        if sizing.meets(Pair(capacity, low)) != sizing.meets(Pair(capacity, high)):
            lines.append(((x - half_width, y - half_height), (x + half_width, y - half_height)))
    return lines


def _path(lines: Sequence[tuple[Point, Point]], look: str) -> list[str]:
    if not lines:
        return []
    steps = "".join(f"M{a[0]:.1f} {a[1]:.1f}L{b[0]:.1f} {b[1]:.1f}" for a, b in lines)
    return [f'<path {look} fill="none" stroke-linecap="round" d="{steps}"/>']


def _cell(sizing: Sizing, pair: Pair, place: _Place) -> str:
    x, y = place.centre(pair)
    corner = f'x="{x - _CELL_WIDTH / 2:.1f}" y="{y - _CELL_HEIGHT / 2:.1f}"'
    fill = _fill(sizing, pair) if pair in sizing.found else "url(#skipped)"
    return f'<rect {corner} width="{_CELL_WIDTH}" height="{_CELL_HEIGHT}" fill="{fill}"/>'


def _number(sizing: Sizing, pair: Pair, place: _Place) -> str:
    """The mean, with a margin in the cell's colour that keeps lines off it, or the outcome that follows."""
    x, y = place.centre(pair)
    where = f'x="{x:.1f}" y="{y + 4:.1f}" text-anchor="middle"'
    if pair in sizing.found:
        margin = f'paint-order="stroke" stroke="{_fill(sizing, pair)}" stroke-width="5"'
        return f"<text {where} {margin}>{sizing.found[pair].mean:.3f}</text>"
    return f'<text {where} fill="#666666">{"meets" if sizing.meets(pair) else "misses"}</text>'


def _fill(sizing: Sizing, pair: Pair) -> str:
    """Colour of a mean, the darker the better."""
    means = [found.mean for found in sizing.found.values()]
    spread = max(means) - min(means)
    share = (sizing.found[pair].mean - min(means)) / spread if spread else 0.0
    if sizing.target.measure == "update loss":
        share = 1 - share
    mixed = (round(bad + share * (good - bad)) for bad, good in zip(_WORST, _BEST, strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)


def _rings(sizing: Sizing, prices: Prices | None, place: _Place) -> list[str]:
    cheapest = sizing.cheapest(prices) if prices is not None and sizing.smallest else None
    lines = []
    for pair in sizing.smallest:
        x, y = place.centre(pair)
        for grown in (0, 4) if pair == cheapest else (0,):
            lines.append(
                f'<ellipse class="chosen" cx="{x:.1f}" cy="{y:.1f}" rx="{28 + grown}" ry="{13 + grown}" fill="none" '
                f'stroke="{_TEXT}" stroke-width="1.8"/>'
            )
    return lines


def _frame(axes: Axes, place: _Place) -> list[str]:
    lines = [f'<path stroke="{_TEXT}" fill="none" d="M{_LEFT} {_TOP}V{place.base}H{place.right}"/>']
    for capacity in axes.capacity_joule:
        x, _ = place.centre(Pair(capacity, axes.panel[0]))
        lines.append(f'<text x="{x:.1f}" y="{place.base + 17}" text-anchor="middle">{capacity:g}</text>')
    for panel in axes.panel:
        _, y = place.centre(Pair(axes.capacity_joule[0], panel))
        lines.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{panel:.4g}</text>')
    middle, x, y = (_LEFT + place.right) / 2, 18, (_TOP + place.base) / 2
    label = f"panel [{axes.panel_unit}]"
    lines.append(f'<text x="{middle}" y="{place.base + 36}" text-anchor="middle">battery capacity [J]</text>')
    lines.append(f'<text x="{x}" y="{y}" text-anchor="middle" transform="rotate(-90 {x} {y})">{escape(label)}</text>')
    return lines


def _legend(sizing: Sizing, prices: Prices | None, place: _Place) -> list[str]:
    """Two rows of marks with their meaning."""
    sign = "≥" if sizing.target.measure == "accuracy" else "≤"
    goal = f"{sizing.target.measure} {sign} {sizing.target.value:g}"
    rings = "smallest pairs" if prices is None else "smallest pairs; twice: the cheapest"
    marks = [
        (f'<path stroke="{_TARGET}" stroke-width="3.5" d="M0 0h22"/>', f"border of {goal} with 95 % confidence"),
        (f'<path stroke="{_TARGET}" stroke-width="1.6" stroke-dasharray="5 4" d="M0 0h22"/>', "mean at the target"),
        (f'<ellipse cx="11" cy="0" rx="11" ry="6" fill="none" stroke="{_TEXT}" stroke-width="1.8"/>', rings),
        (f'<path stroke="{_LINE}" stroke-width="0.8" d="M0 0h22"/>', "equal means"),
    ]
    lines = []
    for number, (mark, text) in enumerate(marks):
        x, y = _LEFT + 340 * (number % 2), place.base + 62 + 22 * (number // 2)
        lines.append(f'<g transform="translate({x} {y})">{mark}<text x="30" y="4">{escape(text)}</text></g>')
    return lines
