"""How good trained models are and what they cost, by seed, so that schemes can be compared seed by seed."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from heliomesh.learning.run import Run

Scores = Mapping[str, npt.NDArray[np.float64]]  # (seed,) each

# at the end of a run: the mean device's and the worst device's share of right answers, and energy of all devices [J]
_AT_THE_END = {"accuracy": "accuracy_mean", "worst_device": "accuracy_min", "spent_joule": "spent_joule"}


def finals(runs: Sequence[Run], name: str) -> npt.NDArray[np.float64]:
    """A metric at the end of every run; (seed,)."""
    return np.array([run.final[name] for run in runs])


def scores(runs: Sequence[Run], target: float | None = None) -> Scores:
    """Scores at the end and, with a target accuracy, slots and joules until the mean device first reaches it.

    They are NaN in runs that never do.
    """
    found = {name: finals(runs, column) for name, column in _AT_THE_END.items()}
    if target is not None:
        reached = np.array([_when_reached(run, target) for run in runs])
        found |= {"slots_to_target": reached[:, 0], "joule_to_target": reached[:, 1]}
    return found


def _when_reached(run: Run, target: float) -> tuple[float, float]:
    """The first evaluated slot with the target accuracy, and the energy spent by then [J]."""
    reached = np.flatnonzero(run.metrics["accuracy_mean"] >= target)
    if not len(reached):
        return float("nan"), float("nan")
    return float(run.metrics["slot"][reached[0]]), float(run.metrics["spent_joule"][reached[0]])
