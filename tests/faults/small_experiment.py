"""An experiment so small that it can be disturbed often: two short lines of one figure."""

import heliomesh as hm
from heliomesh.jobs.scheme import Scheme
from heliomesh.studies.experiments import Experiment
from heliomesh.studies.line import PAIRS, Line


def _rows(quick: bool) -> list[Line]:
    tiny, schemes = hm.Scenario.load("tiny").override({"slots": 3}), ("uncoordinated", "battery_threshold")
    return [Line("", Scheme(planner, planner), tiny, 2) for planner in schemes]


SMALL = Experiment("small", "Does it survive?", "A small figure", _rows, PAIRS)
