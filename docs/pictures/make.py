"""Draw the gallery: the beginning of one episode of `ring10` under every planner, all in the same weather.

python docs/pictures/make.py [PLANNER ...]
"""

import sys
from html import escape
from pathlib import Path

import numpy as np

import heliomesh as hm
from heliomesh.pages.colours import scheme_colour
from heliomesh.planning import find_planner

SLOTS = 60  # shown
APART = ("contributions", "news")  # made for devices that train and send apart, and drawn so
_LEFT, _TOP, _STEP, _ROW, _BARS = 74, 46, 11, 17, 46  # [px]
_SHADES = 8  # of a battery, from empty to full
_EMPTY, _FULL = (255, 255, 255), (95, 174, 156)
_GREY = "#566171"


def episode_svg(problem: hm.Problem, trace: hm.Trace, title: str, slots: int = SLOTS) -> str:
    """SVG text of the first episode: batteries as a heat strip, what is sent as dots, update loss as bars."""
    slots, devices = min(slots, problem.slots), problem.num_devices
    filled = trace.battery_joule[0] / problem.battery.capacity_joule.numpy()  # (slot + 1, device) share
    width, base = _LEFT + slots * _STEP + 16, _TOP + devices * _ROW
    colour, apart = scheme_colour(trace.planner).light, _trains_or_sends_alone(trace)
    height = base + _BARS + 62 + 18 * apart
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="sans-serif" font-size="11" fill="#222222">',
        f"<title>{escape(title)}</title>",
        f"<desc>{escape(_description(trace, filled))}</desc>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="18" font-size="14">{escape(title)}</text>',
        f'<text x="{_LEFT}" y="35" fill="#566171">{escape(_facts(trace))}</text>',
    ]
    parts += _batteries(filled[:slots])
    parts += _packets(problem, trace, slots, colour) + _silent_training(trace, slots)
    parts += _bars(trace.update_loss[0, :slots].sum(-1), base, devices)
    for device in range(devices):
        y = _TOP + device * _ROW + 12
        parts.append(f'<text x="{_LEFT - 6}" y="{y}" text-anchor="end">{"device " * (device == 0)}{device}</text>')
    for slot in range(0, slots, 10):
        x = _LEFT + slot * _STEP + _STEP / 2
        parts.append(
            f'<text x="{x}" y="{base + _BARS + 20}" text-anchor="middle">{"slot " * (slot == 0)}{slot}</text>'
        )
    parts += _legend(base + _BARS + 44, colour) + (_second_legend(base + _BARS + 62) if apart else [])
    return "\n".join([*parts, "</svg>"]) + "\n"


def _trains_or_sends_alone(trace: hm.Trace) -> bool:
    """Whether some device trains without sending, or the reverse, in the first episode."""
    return bool((trace.scheduled[0] != (trace.power_watt[0] > 0)).any())


def _facts(trace: hm.Trace) -> str:
    summary = hm.summarise(trace.episode(0))
    return (
        f"whole episode: {summary.cost.mean:.2f} updates lost per slot, devices active "
        f"{summary.participation:.0%} of the time, {summary.delivery:.0%} of packets arrive"
    )


def _description(trace: hm.Trace, filled: np.ndarray) -> str:
    """What the picture shows, for those who cannot see it."""
    return (
        f"Slots run to the right, devices downwards. The shade is the battery, {filled.mean():.0%} full in the mean; "
        f"dots are packets, larger with more power; bars are update loss. {_facts(trace)}."
    )


def _batteries(filled: np.ndarray) -> list[str]:
    """Cells (slot, device) by shade, one path each."""
    level = np.clip((filled * _SHADES).round().astype(int), 0, _SHADES)
    paths = []
    for shade in range(1, _SHADES + 1):
        mixed = (round(low + shade / _SHADES * (high - low)) for low, high in zip(_EMPTY, _FULL, strict=True))
        fill = "#" + "".join(f"{part:02x}" for part in mixed)
        cells = "".join(
            f"M{_LEFT + slot * _STEP} {_TOP + device * _ROW}h{_STEP}v{_ROW - 1}h-{_STEP}z"
            for slot, device in np.argwhere(level == shade)
        )
        paths.append(f'<path fill="{fill}" d="{cells}"/>')
    return paths


def _packets(problem: hm.Problem, trace: hm.Trace, slots: int, colour: str) -> list[str]:
    """Dots where a device sends, larger with more power; hollow where a neighbour does not get it.

    They have the scheme's colour where the device trains too, and are grey where it only sends.
    """
    power, trained = trace.power_watt[0, :slots], trace.scheduled[0, :slots]
    lost = np.zeros_like(power, dtype=bool)  # (slot, device) whether some packet of a device is lost
    np.logical_or.at(lost, (slice(None), trace.edge_sender), ~trace.delivered[0, :slots])
    paths = []
    for watt in np.unique(power[power > 0]):
        size = 4.5 + 4.0 * watt / float(problem.actions.power_watt.max())
        sent = power == watt
        for ink, where in ((colour, sent & trained), (_GREY, sent & ~trained)):
            if where.any():
                dots = f'stroke-width="{size:.1f}" stroke-linecap="round" d="{_dots(where)}"'
                paths.append(f'<path stroke="{ink}" {dots}/>')
        hollow = _dots(sent & lost)
        paths.append(f'<path stroke="#ffffff" stroke-width="{size - 2.4:.1f}" stroke-linecap="round" d="{hollow}"/>')
    return paths


def _silent_training(trace: hm.Trace, slots: int) -> list[str]:
    """Short lines where a device trains without sending."""
    where = trace.scheduled[0, :slots] & (trace.power_watt[0, :slots] == 0)
    if not where.any():
        return []
    lines = _dots(where).replace("h0", "m-3 0h6")
    return [f'<path stroke="{_GREY}" stroke-width="2" d="{lines}"/>']


def _dots(where: np.ndarray) -> str:
    return "".join(
        f"M{_LEFT + slot * _STEP + _STEP / 2:g} {_TOP + device * _ROW + _ROW // 2}h0"
        for slot, device in np.argwhere(where)
    )


def _bars(loss: np.ndarray, base: int, devices: int) -> list[str]:
    """Update loss of every slot, at most one per device."""
    bottom = base + 6 + _BARS
    bars = "".join(
        f"M{_LEFT + slot * _STEP + 1} {bottom}v-{_BARS * value / devices:.1f}h{_STEP - 2}V{bottom}z"
        for slot, value in enumerate(loss)
    )
    return [
        f'<path fill="#9aa4b0" d="{bars}"/>',
        f'<text x="{_LEFT - 6}" y="{base + 6 + _BARS / 2}" text-anchor="end">lost</text>',
    ]


def _legend(y: int, colour: str) -> list[str]:
    dot = f'<path stroke="{colour}" stroke-width="8" stroke-linecap="round" d="M7 -3h0"/>'
    hole = '<path stroke="#ffffff" stroke-width="5.6" stroke-linecap="round" d="M7 -3h0"/>'
    marks = [
        (f'<rect y="-9" width="14" height="12" fill="#{"".join(f"{part:02x}" for part in _FULL)}"/>', "full battery"),
        (dot, "sends, and all neighbours get it"),
        (dot + hole, "some neighbour does not"),
        ('<rect y="-9" width="8" height="12" fill="#9aa4b0"/>', "updates lost (full height: all)"),
    ]
    return _marked((_LEFT, _LEFT + 98, _LEFT + 302, _LEFT + 468), y, marks)


def _second_legend(y: int) -> list[str]:
    """Marks of devices that only send, or only train."""
    marks = [
        (f'<path stroke="{_GREY}" stroke-width="8" stroke-linecap="round" d="M7 -3h0"/>', "sends without training"),
        (f'<path stroke="{_GREY}" stroke-width="2" d="M4 -3h6"/>', "trains without sending"),
    ]
    return _marked((_LEFT + 98, _LEFT + 302), y, marks)


def _marked(places: tuple[int, ...], y: int, marks: list[tuple[str, str]]) -> list[str]:
    return [
        f'<g transform="translate({x} {y})">{mark}<text x="20" y="1">{text}</text></g>'
        for x, (mark, text) in zip(places, marks, strict=True)
    ]


def main(names: list[str]) -> None:
    """Draw the named planners in all their variants, or all planners."""
    scenario = hm.Scenario.load("ring10")
    for name in names or hm.planner_names():
        actions = "separate" if name in APART else "coupled"
        problem = hm.build(scenario.override({"energy.actions": actions}))
        for options in find_planner(name).variants:
            plan = hm.plan(problem, name, bound=False, **options)
            trace = hm.simulate(problem, plan, episodes=1, seed=0)
            where = "ring10, separate actions" if name in APART else "ring10"
            svg = episode_svg(problem, trace, f"{plan.planner} on {where}")
            target = Path(__file__).with_name(f"planner-{plan.planner.replace(' ', '-')}.svg")
            target.write_text(svg, encoding="utf-8")
            sys.stdout.write(f"{target.name}: {_facts(trace)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
