"""What stored results say: means with 95 % intervals over seeds, and paired differences between schemes."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from scipy import stats

from heliomesh.engine.store import Result
from heliomesh.simulation.diagnostics import Interval, interval


@dataclass(frozen=True)
class Final:
    """One arm at the end of its horizon; accuracies in percent."""

    setting: str
    scheme: str
    place: float | None
    accuracy: npt.NDArray[np.float64]  # (seed,) mean over devices
    average_accuracy: npt.NDArray[np.float64]  # (seed,) of the average model
    cost: npt.NDArray[np.float64]  # (seed,) update loss per slot, summed over devices


@dataclass(frozen=True)
class Paired:
    """Difference of two schemes' accuracies over common seeds, in percentage points."""

    better: str
    worse: str
    difference: Interval
    p_value: float  # of Student's paired t test, two-sided

    @property
    def holds(self) -> bool:
        """Whether the interval lies above zero."""
        return self.difference.mean - self.difference.half_width > 0

    @property
    def verdict(self) -> str:
        """The same in words, the contrary included."""
        if self.difference.mean == self.difference.half_width == 0:
            return "the same in every seed"
        if self.difference.mean + self.difference.half_width < 0:
            return "the contrary is shown"
        return "shown" if self.holds else "not shown"


def final(result: Result) -> Final:
    """The last row of every seed."""
    last = result.curves.sort_values(["seed", "slot"]).groupby("seed").last()
    return Final(
        result.arm.setting,
        result.arm.scheme.label,
        result.arm.place,
        100 * last["accuracy_mean"].to_numpy(),
        100 * last["average_accuracy"].to_numpy(),
        np.array(result.manifest["cost"]),
    )


def paired(better: Final, worse: Final) -> Paired:
    """Compare two arms seed by seed."""
    difference = better.accuracy - worse.accuracy
    if len(difference) < 2 or np.ptp(difference) == 0:
        return Paired(better.scheme, worse.scheme, interval(difference), float("nan"))
    return Paired(
        better.scheme,
        worse.scheme,
        interval(difference),
        float(stats.ttest_rel(better.accuracy, worse.accuracy).pvalue),
    )


def curve(result: Result, column: str) -> tuple[npt.NDArray[np.float64], list[Interval]]:
    """Slots and the column's interval over seeds at each."""
    table = result.curves.pivot(index="slot", columns="seed", values=column)
    return table.index.to_numpy(dtype=np.float64), [interval(row) for row in table.to_numpy(dtype=np.float64)]


def ordered(finals: Sequence[Final], schemes: Sequence[str]) -> list[Paired]:
    """Paired comparisons of neighbours in a claimed order, best first."""
    by_name = {one.scheme: one for one in finals}
    known = [by_name[name] for name in schemes if name in by_name]
    return [paired(a, b) for a, b in pairwise(known)]
