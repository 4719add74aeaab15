"""How good the models of a changing world become, against the same devices in a world that does not change.

Four runs of a seed have common random numbers, data and first weights, so they are the same until the first change:
*unchanged*, the plan in a world where nothing happens, and the three reactions of `living/reaction.py`.

Accuracy is the mean over the devices that are there at the end, in all four runs. A device that is gone neither
trains nor sends nor hears, so its model stays as it was: it serves nobody, and no plan can do anything about it. It
counts in no mean, not even in the unchanged run, so that all runs are judged by the same devices.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from heliomesh.common.durable import make_folder, write_text
from heliomesh.field.living.change import Era
from heliomesh.field.living.reaction import REACTIONS
from heliomesh.jobs.job import Job
from heliomesh.jobs.store import Store
from heliomesh.learning.run import Run
from heliomesh.learning.trainer import Execution
from heliomesh.model.problem import Problem
from heliomesh.scenario.errors import refuse
from heliomesh.simulation.diagnostics import columns, interval
from heliomesh.studies.line import by_episode, grouped_runs

if TYPE_CHECKING:
    import pandas as pd

UNCHANGED = "unchanged"

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Survivors:
    """Runs by plan and seed: unchanged, stale, re-planned, fresh."""

    devices: tuple[int, ...]  # that are there at the end
    change_slot: int
    runs: Mapping[str, Sequence[Run]]  # by plan, one per seed

    def accuracy(self, plan: str) -> Array:
        """Mean over the devices that are left, in percent; (seed, evaluated slot)."""
        return np.stack([100 * run.accuracy[:, self.devices].mean(1) for run in self.runs[plan]])

    def final(self, plan: str) -> Array:
        """The same at the end; (seed,)."""
        last: Array = self.accuracy(plan)[:, -1]
        return last

    def since_change(self, plan: str) -> Array:
        """Mean over the evaluations after the first change; (seed,)."""
        after: Array = self.accuracy(plan)[:, self.slots > self.change_slot].mean(1)
        return after

    def facts(self) -> dict[str, Any]:
        """Who is left, and their accuracies by plan and seed, as commands print them."""
        return {
            "devices at the end": list(self.devices),
            "accuracy": {plan: self.final(plan).tolist() for plan in self.runs},
            "accuracy since the change": {plan: self.since_change(plan).tolist() for plan in self.runs},
        }

    @property
    def slots(self) -> Array:
        """Slots done at each evaluation; (evaluated slot,)."""
        return next(iter(self.runs.values()))[0].metrics["slot"]

    def table(self) -> "pd.DataFrame":
        """One line per plan: accuracies in percent, and differences in points, paired by seed; 95 % half-widths."""
        import pandas as pd

        lines = []
        for plan in self.runs:
            own = {"accuracy": self.final(plan), "since_change": self.since_change(plan)}
            own |= {f"against_{other}": self.final(plan) - self.final(other) for other in (UNCHANGED, "stale")}
            lines.append({"plan": plan, **columns(**{name: interval(values) for name, values in own.items()})})
        return pd.DataFrame(lines)

    def curves(self) -> "pd.DataFrame":
        """One line per plan, seed and evaluated slot: accuracy in percent over the devices that are left."""
        import pandas as pd

        parts = [
            pd.DataFrame({"plan": plan, "seed": seed, "slot": self.slots.astype(int), "accuracy": row})
            for plan in self.runs
            for seed, row in enumerate(self.accuracy(plan))
        ]
        return pd.concat(parts, ignore_index=True)

    def save(self, folder: str | Path) -> list[Path]:
        """Write both tables as CSV, ``accuracy.csv`` and ``curves.csv``; returns the files."""
        make_folder(Path(folder))
        tables = {"accuracy.csv": self.table(), "curves.csv": self.curves()}
        for name, table in tables.items():
            write_text(Path(folder) / name, table.to_csv(index=False))
        return [Path(folder) / name for name in tables]


def there_at_the_end(problem: Problem, truth: Sequence[Era]) -> tuple[int, ...]:
    """Devices that are there after the last change; raises ScenarioError where nobody is."""
    away = truth[-1].conditions.away
    there = tuple(device for device in range(problem.num_devices) if device not in away)
    refuse(not there, "changes", "at least one device alive at the end", "number 0")
    return there


def survivors(
    store: Store, changing: Job, seeds: int, devices: tuple[int, ...], change_slot: int, work: Execution
) -> Survivors:
    """Train all four plans under the first episodes; episode e has the training seed ``changing.seed`` + e."""
    jobs = {UNCHANGED: replace(changing, changes=())}
    jobs |= {reaction: replace(changing, reaction=reaction) for reaction in REACTIONS}
    runs = grouped_runs(store, [by_episode(job, seeds) for job in jobs.values()], work)
    return Survivors(devices, change_slot, dict(zip(jobs, runs, strict=True)))
