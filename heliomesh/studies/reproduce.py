"""The paper's figures and tables: which lines they have, and what their runs say."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from heliomesh.common.arguments import checked
from heliomesh.jobs.job import Job
from heliomesh.jobs.store import Store
from heliomesh.jobs.training import split_settings
from heliomesh.learning.precision import check_precision
from heliomesh.learning.settings import TrainSettings
from heliomesh.learning.strategy import check_strategy
from heliomesh.model.problem import torch_device
from heliomesh.studies.decomposition import changes_of, shapley_values
from heliomesh.studies.experiments import Experiment, experiments
from heliomesh.studies.line import Line
from heliomesh.studies.results import Against, Paired, Result, Trend, compared, result_of, stored_runs, trends

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Figure:
    """An experiment with the results that are there."""

    name: str
    title: str
    place: str | None  # of the horizontal axis; None: slots
    against: Against  # what its lines are compared with
    results: tuple[Result, ...]
    absent: tuple[Line, ...] = ()  # lines that were not run yet, or not with the planner as it is now
    radio: bool = False  # whether it is about joules spent on sending
    shared: bool = False  # whether its lines are all sets of some changes

    @property
    def shares(self) -> dict[str, dict[str, npt.NDArray[np.float64]]]:
        """Points that each change is worth, whatever the order, by setting with all sets; (seed,) by change."""
        score: dict[str, dict[frozenset[str], npt.NDArray[np.float64]]] = {}
        for one in self.results if self.shared else ():
            score.setdefault(one.line.setting, {})[changes_of(one.label)] = one.accuracy
        incomplete = {line.setting for line in self.absent}
        return {setting: shapley_values(own) for setting, own in score.items() if setting not in incomplete}

    @property
    def comparisons(self) -> list[Paired]:
        """What the figure is about, paired by seed."""
        return compared(self.results, self.against)

    @property
    def trends(self) -> list[Trend]:
        """Slopes along the horizontal axis, where there is one and pairs are compared."""
        if not self.place or isinstance(self.against, str | int | float):
            return []
        return trends(self.results, self.against)

    def table(self) -> "pd.DataFrame":
        """One row per line and seed: setting, scheme, place, accuracies in percent, cost."""
        import pandas as pd

        numbers = ("accuracy", "accuracy_over_run", "average_accuracy", "cost")
        return pd.DataFrame(
            {"setting": one.line.setting, "scheme": one.label, "place": one.line.place, "seed": seed}
            | {name: getattr(one, name)[number] for name in numbers}
            for one in self.results
            for number, seed in enumerate(one.seeds)
        )


@checked
def reproduce(
    names: Sequence[str | Experiment] | None = None,
    folder: str | Path = "results",
    *,
    quick: bool = False,
    only: Literal["plan", "read"] | None = None,
    **settings: Any,
) -> list[Figure]:
    """Run experiments and return what they show; what the folder holds is not repeated.

    Parameters
    ----------
    names
        Experiments by name, or of one's own; by default all.
    folder
        Where results are kept.
    quick
        Make a small version of every figure.
    only
        ``"plan"`` plans and simulates, to train later; ``"read"`` returns what is stored.
    **settings
        Fields of `TrainSettings` and of `Execution`, such as ``device``, ``track`` or ``observer``.

    Returns
    -------
    list of Figure
        Lines with intervals over paired seeds.
    """
    training, work = split_settings({"keep_weights": False, "runs_at_once": 10, **settings})
    check_precision(training.precision)
    check_strategy(training.strategy)
    store = store_of(Path(folder), quick)
    asked = experiments(names)
    if only != "read":
        if only is None and work.train_map is None:
            torch_device(training.device)  # refuse before hours of planning; Ray's workers have devices of their own
        jobs = [(one.name, [line.jobs(training) for line in one.lines(quick)]) for one in asked]
        with store.alone():
            store.traces(_absent(chain(*(groups for _, groups in jobs)), store), work)
            for name, groups in jobs if only is None else ():
                store.runs(_absent(groups, store), work)
                store.pack(name, list(chain(*groups)))
    return figures(asked, store, quick, training)


def store_of(folder: Path, quick: bool) -> Store:
    """Where results are kept; quick ones have a store of their own."""
    return Store(folder / "quick" if quick else folder)


def _absent(groups: Iterable[Sequence[Job]], store: Store) -> list[Job]:
    """The jobs of lines that are not complete."""
    return [job for jobs in groups if not all(map(store.has, jobs)) for job in jobs]


def figures(asked: Sequence[Experiment], store: Store, quick: bool, training: TrainSettings) -> list[Figure]:
    """The experiments with the results that are there; earlier ones in full stand in for an incomplete figure."""
    shown = []
    for one in asked:
        found = _figure(one, store, quick, training)
        earlier = _figure(one.earlier, store, quick, training) if found.absent and one.earlier else found
        shown.append(found if earlier.absent else earlier)
    return shown


def _figure(one: Experiment, store: Store, quick: bool, training: TrainSettings) -> Figure:
    lines = one.lines(quick)
    found = [(line, stored_runs(store, line.jobs(training))) for line in lines]
    results = [result_of(line, runs) for line, runs in found if runs is not None]
    oldest: dict[object, int] = {}  # schemes are compared as one version of their planner plans them
    for own in results:
        oldest[own.line.scheme.planner] = min(
            own.planner_version, oldest.get(own.line.scheme.planner, own.planner_version)
        )
    for number, own in enumerate(results):
        least = oldest[own.line.scheme.planner]
        if own.planner_version > least and (runs := stored_runs(store, own.line.jobs(training), least)):
            results[number] = result_of(own.line, runs)
    absent = tuple(line for line, runs in found if runs is None)
    title = f"{one.title} (quick version, {lines[0].scenario.learning.dataset})" if quick else one.title
    return Figure(one.name, title, one.place, one.against, tuple(results), absent, one.radio, one.shared)
