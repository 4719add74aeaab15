"""Two short arms of one figure."""

import heliomesh as hm
from heliomesh.engine.arm import PAIRS, Arm, Scheme

NAME, TITLE, PLACE, AGAINST = "small", "A small figure", None, PAIRS


def arms(quick: bool) -> list[Arm]:
    """The lines of the figure."""
    tiny, schemes = hm.Scenario.load("tiny").override({"slots": 3}), ("uncoordinated", "battery_threshold")
    return [Arm(NAME, Scheme(planner, planner), tiny, 2) for planner in schemes]
