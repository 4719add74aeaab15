"""Two short lines of one figure."""

import heliomesh as hm
from heliomesh.studies.line import PAIRS, Line, Scheme

NAME, TITLE, PLACE, AGAINST = "small", "A small figure", None, PAIRS


def lines(quick: bool) -> list[Line]:
    """The lines of the figure."""
    tiny, schemes = hm.Scenario.load("tiny").override({"slots": 3}), ("uncoordinated", "battery_threshold")
    return [Line(NAME, Scheme(planner, planner), tiny, 2) for planner in schemes]
