"""Lines of journals: as idle devices write them, as a simulated trace has them, or as agents have written them."""

import json
from typing import Any

from heliomesh.field.agents.folder import AgentFolder
from heliomesh.field.agents.journal import journal_of
from heliomesh.model.problem import Problem
from heliomesh.simulation.trace import Trace


def idle_line(problem: Problem, device: int, slot: int, battery_joule: float = 1.0) -> dict[str, Any]:
    """Of a device that does nothing."""
    edges = len(problem.topology.neighbours[device])
    idle = dict.fromkeys(("power_watt", "planned_joule", "harvested_joule", "overflow_joule"), 0.0)
    return {
        **idle,
        "slot": slot,
        "device": device,
        "plan": "first",
        "measured_joule": None,
        "channel_level": {},
        "weather": 0,
        "battery_joule": battery_joule,
        "battery_after_joule": battery_joule,
        "trained": False,
        "error_prob": [1.0] * edges,
        "delivered": [False] * edges,
        "loss": None,
    }


def traced_line(problem: Problem, trace: Trace, device: int, slot: int) -> dict[str, Any]:
    """Of a device in the first episode of a trace."""
    start, stop = problem.topology.edge_start[device : device + 2]
    own = {
        "battery_joule": trace.battery_joule[0, slot, device],
        "battery_after_joule": trace.battery_joule[0, slot + 1, device],
        "power_watt": trace.power_watt[0, slot, device],
        "planned_joule": trace.spent_joule[0, slot, device],
        "harvested_joule": trace.harvested_joule[0, slot, device],
        "overflow_joule": trace.overflow_joule[0, slot, device],
    }
    return idle_line(problem, device, slot) | {
        **{name: float(value) for name, value in own.items()},
        "trained": bool(trace.scheduled[0, slot, device]),
        "channel_level": {str(s): int(trace.channel_level[0, slot, s]) for s in problem.sites_into(device)},
        "error_prob": trace.error_prob[0, slot, start:stop].tolist(),
        "delivered": trace.delivered[0, slot, start:stop].tolist(),
    }


def signed(line: dict[str, Any]) -> bytes:
    """What of a line is signed."""
    return json.dumps(line).encode()


def read_journal(folder: AgentFolder) -> list[dict[str, Any]]:
    """All whole lines that are kept, the newest of every slot; a line that a lost supply cut off is left out."""
    found: dict[int, dict[str, Any]] = {}
    for text in journal_of(folder).read():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and isinstance(line.get("slot"), int):
            found[line["slot"]] = line
    return [found[slot] for slot in sorted(found)]
