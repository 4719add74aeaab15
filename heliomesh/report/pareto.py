"""Cost against computation and against message bytes, as an SVG picture: the lower left corner is best."""

import math
from dataclasses import dataclass
from html import escape

from heliomesh.comparison import Comparison
from heliomesh.report.colours import scheme_colour
from heliomesh.simulation.diagnostics import Interval

_LEFT, _TOP, _PANEL_WIDTH, _PANEL_HEIGHT, _BETWEEN = 70, 48, 360, 300, 110  # [px]
_WIDTH, _HEIGHT = _LEFT + 2 * _PANEL_WIDTH + _BETWEEN + 110, _TOP + _PANEL_HEIGHT + 56  # [px]


@dataclass(frozen=True)
class Axis:
    """A logarithmic horizontal axis with a place of its own for zero, left of the rest."""

    label: str
    left: float  # [px]
    decades: tuple[int, int]
    with_zero: bool

    def place(self, value: float) -> float:
        """Horizontal position of a value [px]."""
        if value <= 0:
            return self.left + 12
        low, high = self.decades
        start = 40 if self.with_zero else 12
        share = (math.log10(value) - low) / (high - low)
        return self.left + start + min(max(share, 0.0), 1.0) * (_PANEL_WIDTH - start - 12)


@dataclass(frozen=True)
class _Point:
    """One planner that was run."""

    planner: str
    gap: Interval
    seconds: float
    online_bytes: float  # a slot

    @property
    def percent(self) -> float:
        """Cost above the reference [%]."""
        return 100 * self.gap.mean


def pareto_svg(comparison: Comparison, title: str) -> str:
    """SVG text with two panels: gap over planning time, and gap over online control bytes per slot."""
    points = [
        _Point(row.planner, row.gap, row.plan.seconds, row.plan.overhead.online_bytes_per_slot)
        for row in comparison.rows
        if row.plan is not None and row.gap is not None
    ]
    top = max((point.percent for point in points), default=1.0) * 1.1 or 1.0
    bottom = min([0.0, *(point.percent for point in points)]) - 0.05 * top
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif" font-size="12" fill="#222222">',
        f"<title>{escape(title)}</title>",
        f"<desc>{escape(_description(points, comparison.reference))}</desc>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="24" font-size="15">{escape(title)}</text>',
    ]
    panels = (
        ("planning time [s]", [point.seconds for point in points], _LEFT),
        ("control bytes a slot", [point.online_bytes for point in points], _LEFT + _PANEL_WIDTH + _BETWEEN),
    )
    for label, values, left in panels:
        axis = Axis(label, left, _decades(values), any(value <= 0 for value in values))
        parts += _frame(axis, bottom, top, f"above {comparison.reference} [%]")
        dots = [
            (axis.place(value), _height(point.percent, bottom, top))
            for point, value in zip(points, values, strict=True)
        ]
        taken = [(x - 6, x + 6, y + 4) for x, y in dots]
        for point, (x, y) in zip(points, dots, strict=True):
            parts += _dot(point, x, bottom, top)
            parts.append(_name(point.planner, x, y, axis.left, taken))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _decades(values: list[float]) -> tuple[int, int]:
    positive = [value for value in values if value > 0] or [1.0]
    low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
    return low, max(high, low + 1)


def _height(percent: float, bottom: float, top: float) -> float:
    """Vertical position of a gap [px]."""
    return _TOP + _PANEL_HEIGHT * (1 - (percent - bottom) / (top - bottom))


def _frame(axis: Axis, bottom: float, top: float, ordinate: str) -> list[str]:
    low, high = axis.decades
    base = _TOP + _PANEL_HEIGHT
    ticks = [(axis.place(10.0**decade), _power(decade)) for decade in range(low, high + 1)]
    ticks += [(axis.place(0.0), "0")] if axis.with_zero else []
    lines = [f'<path stroke="#222222" fill="none" d="M{axis.left} {_TOP}V{base}H{axis.left + _PANEL_WIDTH}"/>']
    for x, text in ticks:
        lines.append(f'<path stroke="#222222" d="M{x:.1f} {base}v4"/>')
        lines.append(f'<text x="{x:.1f}" y="{base + 17}" text-anchor="middle">{text}</text>')
    for percent in _round_values(bottom, top):
        y = _height(percent, bottom, top)
        lines.append(f'<path stroke="#dddddd" d="M{axis.left} {y:.1f}h{_PANEL_WIDTH}"/>')
        lines.append(f'<text x="{axis.left - 6}" y="{y + 4:.1f}" text-anchor="end">{percent:g}</text>')
    middle = axis.left + _PANEL_WIDTH / 2
    lines.append(f'<text x="{middle}" y="{base + 38}" text-anchor="middle">{escape(axis.label)}</text>')
    x, y = axis.left - 46, _TOP + _PANEL_HEIGHT / 2
    turned = f"rotate(-90 {x} {y})"
    lines.append(f'<text x="{x}" y="{y}" text-anchor="middle" transform="{turned}">{escape(ordinate)}</text>')
    return lines


def _round_values(low: float, high: float) -> list[float]:
    """About five round numbers within an interval."""
    rough = (high - low) / 5
    unit = 10.0 ** math.floor(math.log10(rough))
    step = unit * next(factor for factor in (1, 2, 5, 10) if factor * unit >= rough)
    return [step * n for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _power(decade: int) -> str:
    return f"{10.0**decade:g}" if -3 <= decade <= 4 else f"1e{decade}"


def _dot(point: _Point, x: float, bottom: float, top: float) -> list[str]:
    """A dot with its interval."""
    colour = scheme_colour(point.planner).light
    y = _height(point.percent, bottom, top)
    spread = 0.0 if math.isnan(point.gap.half_width) else 100 * point.gap.half_width
    ends = [_height(point.percent + sign * spread, bottom, top) for sign in (-1, 1)]
    return [
        f'<path stroke="{colour}" stroke-width="2" d="M{x:.1f} {ends[0]:.1f}V{ends[1]:.1f}"/>',
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}"/>',
    ]


def _name(planner: str, x: float, y: float, edge: float, taken: list[tuple[float, float, float]]) -> str:
    """The planner's name beside its dot, where nothing is in the way; ``taken`` (left, right, baseline)."""
    width = _LETTER_WIDTH * len(planner)
    places = [(left, y + rise) for rise in (-8, 16, -22, 30, -36, -50) for left in (x + 8, x - 8 - width)]
    for left, base in places:
        free = all(left > b or left + width < a or abs(base - c) > _LINE_HEIGHT for a, b, c in taken)
        if free and left > edge and base < _TOP + _PANEL_HEIGHT - 2:
            break
    taken.append((left, left + width, base))
    return f'<text x="{left:.1f}" y="{base:.1f}">{escape(planner)}</text>'


_LETTER_WIDTH, _LINE_HEIGHT = 6.6, 13  # [px] of the names


def _description(points: list[_Point], reference: str) -> str:
    """What the picture shows, for those who cannot see it."""
    each = "; ".join(
        f"{point.planner} {point.percent:.2f} %, {point.seconds:.2g} s, {point.online_bytes:.0f} bytes a slot"
        for point in points
    )
    return f"Cost above {reference}, planning time and online control bytes per slot: {each}."
