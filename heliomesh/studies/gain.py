"""What planning for learning gives: the same devices, weather and data under plans for packets and for learning."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from heliomesh.common.arguments import NOT_EMPTY, Count, checked
from heliomesh.jobs.job import IDEAL
from heliomesh.jobs.scheme import Scheme
from heliomesh.jobs.store import opened
from heliomesh.jobs.training import split_settings
from heliomesh.scenario.scenario import Scenario
from heliomesh.simulation.diagnostics import Interval, interval
from heliomesh.studies.line import Line, grouped_runs
from heliomesh.studies.results import Result

# The paper's devices train and send in one action, and keep the weight of packets that are lost. Both rules are
# named, since a scenario may name another than the default.
COUPLED: dict[str, Any] = {"energy.actions": "coupled", "learning.aggregation": "model"}
SEPARATE: dict[str, Any] = {"energy.actions": "separate", "learning.aggregation": "reassigned"}
SCHEMES = (
    Scheme("for learning", "contributions", changes=SEPARATE),
    Scheme("paper's proposal", "decentralized", changes=COUPLED),
    Scheme("uncoordinated", "uncoordinated", changes=COUPLED),
)
# what experiments compare: plans for packets, rules that others use, plans for learning, and the ideal
RIVALS = (
    Scheme("coupled", "receiver", changes=COUPLED),
    Scheme("proposal", "decentralized", {"hops": 2}, COUPLED),
    Scheme("skiptrain", "skiptrain", changes=SEPARATE),
    Scheme("turns", "turns", changes=SEPARATE),
    Scheme("fixed fraction", "fixed_fraction", changes=SEPARATE),
    Scheme("news", "news", changes=SEPARATE),
    Scheme("contributions", "contributions", changes=SEPARATE),
    Scheme(IDEAL, IDEAL, changes=COUPLED),
)


@dataclass(frozen=True)
class Gain:
    """All schemes; the first is what the others are compared with."""

    arms: tuple[Result, ...]

    def over(self, arm: Result) -> Interval:
        """How many points the first scheme is better than another at the end, paired by seed."""
        return interval(self.gained(arm))

    def gained(self, arm: Result) -> npt.NDArray[np.float64]:
        """The same by seed; (seed,)."""
        return self.arms[0].accuracy - arm.accuracy


@checked
def gain(
    scenario: Scenario,
    seeds: Count = 5,
    *,
    schemes: Annotated[Sequence[Scheme], NOT_EMPTY] = SCHEMES,
    folder: str | Path | None = None,
    **settings: Any,
) -> Gain:
    """Train a scenario's models under several schemes, with common random numbers.

    Parameters
    ----------
    scenario
        What is trained, and where.
    seeds
        Runs of each scheme, paired by seed.
    schemes
        The first is what the others are compared with. By default a plan for learning, the paper's proposal and no
        plan.
    folder
        Where plans, traces and runs are kept, so that nothing is computed twice.
    **settings
        Fields of `TrainSettings` and of `Execution`, such as ``device``, ``track`` or ``observer``.

    Returns
    -------
    Gain
        The runs of every scheme, and paired differences.
    """
    training, work = split_settings({"keep_weights": False, **settings})
    lines = [Line("gain", scheme, scheme.scenario(scenario), seeds) for scheme in schemes]
    with opened(folder) as store:
        runs = grouped_runs(store, [line.jobs(training) for line in lines], work)
    return Gain(tuple(map(Result, lines, runs)))
