"""Changes of the world over time, as a user writes them: WHAT=VALUE@SLOT.

    harvest=0.5@50      every device harvests half as much from slot 50 on
    harvest.3=0.5@50    device 3 alone
    link.3-4=off@50     the link between 3 and 4 disappears; =on brings it back
    device.3=dead@50    device 3 neither harvests nor sends; =alive lets it join, with an empty battery
    channel=[[…],…]@50  another kernel of the channel's levels, [now][next]

The truth is piecewise constant: a change holds until another one touches the same thing.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter

from heliomesh.field.living.conditions import Conditions, Pair, links
from heliomesh.model.problem import Problem
from heliomesh.scenario.checks import check_kernel
from heliomesh.scenario.errors import ScenarioError, refuse

_FIELD = "changes"
_FORMS = "harvest=F, harvest.J=F, link.I-J=off|on, device.J=dead|alive or channel=KERNEL"


Truth = dict[int, Conditions]  # from each of these slots on, rising from 0


def eras(problem: Problem, changes: Sequence[str]) -> Truth:
    """The truth over the horizon; raises ScenarioError for a wrong change."""
    found = {0: Conditions()}
    for slot, what, value in sorted((_parsed(problem, text) for text in changes), key=itemgetter(0)):
        found[slot] = _after(problem, found[max(found)], what, value)
    return found


def _parsed(problem: Problem, text: str) -> tuple[int, str, str]:
    """Slot, what changes, and its new value in words."""
    body, at, slot = text.rpartition("@")
    what, sign, value = body.partition("=")
    whole = at and sign and slot.strip().isdecimal()
    refuse(not whole, _FIELD, f"WHAT=VALUE@SLOT with {_FORMS}", f"value {text!r}")
    number = int(slot)
    refuse(number >= problem.slots, _FIELD, f"a slot below slots = {problem.slots}", f"value {text!r}")
    return number, what.strip(), value.strip()


def _after(problem: Problem, before: Conditions, what: str, value: str) -> Conditions:
    """Conditions after one change."""
    kind, _, which = what.partition(".")
    match kind, value:
        case "harvest", _:
            devices = [_device(problem, which)] if which else range(problem.num_devices)
            return before.with_harvest(dict.fromkeys(devices, _factor(value)))
        case "link", "off" | "on":
            pair = _pair(problem, which)
            off = before.links_off | {pair} if value == "off" else before.links_off - {pair}
            return replace(before, links_off=off)
        case "device", "dead" | "alive":
            device = _device(problem, which)
            return replace(before, away=before.away | {device} if value == "dead" else before.away - {device})
        case "channel", _ if not which:
            return replace(before, kernel=_kernel(problem, value))
    raise ScenarioError(_FIELD, f"{_FORMS}", f"value {f'{what}={value}'!r}")


def _factor(text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = -1.0
    refuse(not 0 <= factor < float("inf"), _FIELD, "a factor on the harvest of at least 0", f"value {text!r}")
    return factor


def _device(problem: Problem, text: str) -> int:
    known = text.isdecimal() and int(text) < problem.num_devices
    refuse(not known, _FIELD, f"a device in 0..{problem.num_devices - 1}", f"value {text!r}")
    return int(text)


def _pair(problem: Problem, text: str) -> Pair:
    ends, known = text.split("-"), links(problem.topology)
    if len(ends) == 2 and all(end.isdecimal() for end in ends):
        low, high = sorted(map(int, ends))
        if (low, high) in known:
            return low, high
    example = "{}-{}".format(*known[0]) if known else "none"
    raise ScenarioError(_FIELD, f"a link of the network such as {example}", f"value {text!r}")


def _kernel(problem: Problem, text: str) -> tuple[tuple[float, ...], ...]:
    try:
        kernel = tuple(tuple(float(p) for p in row) for row in tomllib.loads(f"kernel = {text}")["kernel"])
    except (ValueError, TypeError):
        raise ScenarioError(_FIELD, "rows of probabilities for channel", f"value {text!r}") from None
    check_kernel(_FIELD, kernel, problem.channel.levels)
    return kernel
