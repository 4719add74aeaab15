"""Energy bookkeeping: first battery + harvested = spent + overflow + last battery."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from heliomesh.simulation.trace import Trace


@dataclass(frozen=True)
class Ledger:
    """Totals over slots [J]; every array has shape (episode, device)."""

    initial_joule: npt.NDArray[np.float64]
    harvested_joule: npt.NDArray[np.float64]
    spent_joule: npt.NDArray[np.float64]
    overflow_joule: npt.NDArray[np.float64]
    stored_joule: npt.NDArray[np.float64]

    @property
    def imbalance_joule(self) -> npt.NDArray[np.float64]:
        """What the books fail to explain; rounding only."""
        return (self.initial_joule + self.harvested_joule) - (
            self.spent_joule + self.overflow_joule + self.stored_joule
        )


def energy_ledger(trace: Trace) -> Ledger:
    """Balance every device of every episode."""
    return Ledger(
        initial_joule=trace.battery_joule[:, 0],
        harvested_joule=trace.harvested_joule.sum(1),
        spent_joule=trace.spent_joule.sum(1),
        overflow_joule=trace.overflow_joule.sum(1),
        stored_joule=trace.battery_joule[:, -1],
    )
