"""What stored results say: means with 95 % intervals over seeds, and paired differences between schemes."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from heliomesh.jobs.job import MACHINE, PLANNER_VERSION, Job, version_of
from heliomesh.jobs.store import Store
from heliomesh.learning.run import Run, TrainingError
from heliomesh.model.workload import compute_joule
from heliomesh.simulation.diagnostics import Interval, interval
from heliomesh.studies.line import Line

_SHOWN = ("slot", "accuracy_mean", "average_accuracy", "spent_joule")  # metrics
_NOTED = ("cost", "participation", "delivery")  # facts of provenance
Against = Sequence[tuple[str, str]] | str | float
_LARGEST = 1e100  # squares must stay numbers

Floats = npt.NDArray[np.float64]
Scores = Mapping[str, Floats]  # (seed,) each

# at the end of a run: the mean device's and the worst device's share of right answers, and energy of all devices [J]
_AT_THE_END = {"accuracy": "accuracy_mean", "worst_device": "accuracy_min", "spent_joule": "spent_joule"}


def finals(runs: Sequence[Run], name: str) -> Floats:
    """A metric at the end of every run; (seed,)."""
    return np.array([run.final[name] for run in runs])


def scores(runs: Sequence[Run], target: float | None = None) -> Scores:
    """Scores at the end and, with a target accuracy, slots and joules until the mean device first reaches it.

    They are NaN in runs that never do.
    """
    found = {name: finals(runs, column) for name, column in _AT_THE_END.items()}
    if target is None:
        return found
    for name, column in (("slots_to_target", "slot"), ("joule_to_target", "spent_joule")):
        reached = [run.metrics[column][run.metrics["accuracy_mean"] >= target] for run in runs]
        found[name] = np.array([values[0] if len(values) else np.nan for values in reached])
    return found


@dataclass(frozen=True)
class Result:
    """The runs of a line, one per seed; accuracies in percent."""

    line: Line
    runs: tuple[Run, ...]

    @property
    def label(self) -> str:
        """The scheme's."""
        return self.line.scheme.label

    def final(self, name: str) -> Floats:
        """A metric at the end of every run; (seed,)."""
        return finals(self.runs, name)

    def noted(self, fact: str) -> Floats:
        """A fact of every run's provenance; (seed,)."""
        return np.array([run.provenance[fact] for run in self.runs])

    @property
    def seeds(self) -> tuple[int, ...]:
        """Training seeds; (seed,)."""
        return tuple(run.provenance["identity"]["training seed"] for run in self.runs)

    @property
    def accuracy(self) -> Floats:
        """Mean over devices at the end; (seed,)."""
        return 100 * self.final("accuracy_mean")

    @property
    def accuracy_over_run(self) -> Floats:
        """Mean over devices and evaluated slots; (seed,)."""
        return np.array([100 * run.metrics["accuracy_mean"].mean() for run in self.runs])

    @property
    def average_accuracy(self) -> Floats:
        """Of the average model at the end; (seed,)."""
        return 100 * self.final("average_accuracy")

    @property
    def curve(self) -> tuple[Floats, Floats]:
        """Evaluated slots (slot,) and the devices' mean accuracy (slot, seed)."""
        return self.runs[0].metrics["slot"], 100 * np.stack([run.metrics["accuracy_mean"] for run in self.runs], 1)

    @property
    def cost(self) -> Floats:
        """Update loss per slot, summed over devices; (seed,)."""
        return self.noted("cost")

    @property
    def radio_joule(self) -> Floats | None:
        """What devices spent on sending [J]: all but training; (seed,). None where training differs by device."""
        compute = compute_joule(self.line.scenario)
        if len(set(compute)) > 1:
            return None
        slots_trained = self.noted("participation") * self.line.scenario.slots * len(compute)
        return self.final("spent_joule") - slots_trained * compute[0]

    @property
    def is_outdated(self) -> bool:
        """Whether an earlier version of the planner planned the runs."""
        return self.planner_version != version_of(self.line.scheme.planner)

    @property
    def planner_version(self) -> int:
        """The version of the planner that planned the runs."""
        return _planned_by(self.runs[0])

    @property
    def computed_with(self) -> str:
        """Versions of what computed the runs, and the processor; an empty text where they do not say it."""
        versions, machine = (self.runs[0].provenance.get(name) for name in ("versions", "machine"))
        if not isinstance(versions, dict) or not isinstance(machine, dict):
            return ""
        chip = machine.get("gpu") or machine.get("processor") or machine.get("machine")  # as the first runs name it
        return f"numpy {versions.get('numpy')}, torch {versions.get('torch')}, {chip}"


def result_of(line: Line, runs: Sequence[Run]) -> Result:
    """Runs of a line in the order of their seeds; raises TrainingError where stored numbers are none."""
    for column in _SHOWN:
        is_told = all(column in run.metrics and (abs(run.metrics[column]) <= _LARGEST).all() for run in runs)
        TrainingError.when(not is_told, line.name, f"finite numbers in column {column}", ": others")
    for fact in _NOTED:
        stored = [run.provenance.get(fact) for run in runs]
        is_told = all(isinstance(value, int | float) and abs(value) <= _LARGEST for value in stored)
        TrainingError.when(not is_told, line.name, f"{fact} of {len(runs)} seeds in numbers", f"value {stored!r:.60}")
    return Result(line, tuple(runs))


def stored_runs(store: Store, jobs: Sequence[Job], latest: int | None = None) -> list[Run] | None:
    """The runs of a line if all are there: as asked for or, failing that, all made in one other way.

    That is trained on another machine, or planned by an earlier version of the planner: by the latest that there is,
    or the latest up to one.
    """
    if latest is None and all(store.has(job) for job in jobs):
        return store.runs(jobs)
    ways = [{_way(run): run for run in store.packs.alike(job.identity())} for job in jobs]
    shared = sorted(way for way in set.intersection(*map(set, ways)) if latest is None or -way[0] <= latest)
    return [way[shared[0]] for way in ways] if shared else None


def _way(run: Run) -> tuple[Any, ...]:
    """How a run was made: the version of the planner, later ones first, then on what it was trained."""
    return -_planned_by(run), *(str(run.provenance["identity"].get(part)) for part in MACHINE)


def _planned_by(run: Run) -> int:
    return int(run.provenance["identity"].get(PLANNER_VERSION, 0))


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds in percentage points, and Student's t test of it against zero."""

    points: Interval
    p_value: float  # two-sided; NaN where all seeds agree

    @property
    def sign(self) -> int:
        """+1 or −1 where the interval excludes zero, else 0."""
        mean, half = self.points.mean, self.points.half_width
        return (mean - half > 0) - (mean + half < 0)


@dataclass(frozen=True)
class Paired:
    """Differences of two lines' accuracies over common seeds.

    One evaluation is noisy, as SGD is; the mean over a run's evaluations tells smaller differences apart.
    """

    first: Line
    second: Line
    at_end: Estimate
    over_run: Estimate


@dataclass(frozen=True)
class Trend:
    """How a scheme's accuracy, or its gain over another, grows along the horizontal axis, in points per unit of it.

    Means over seeds of each seed's least-squares slope.
    """

    setting: str
    first: str
    second: str | None
    at_end: Estimate
    over_run: Estimate


def num_common_seeds(results: Iterable[Result]) -> int:
    """How many seeds all lines begin with, the shortest line's number; others would have met other random numbers.

    Raises TrainingError where a line's seeds are not the first of a longer line's.
    """
    first, *others = results
    expected = f"the seeds {list(first.seeds)} of {first.line.name}, to pair them by"
    for other in others:
        is_other = any(one != its for one, its in zip(first.seeds, other.seeds, strict=False))
        TrainingError.when(is_other, other.line.name, expected, f"{list(other.seeds)}")
    return min(len(one.seeds) for one in (first, *others))


def estimate(points: Floats) -> Estimate:
    """From one number per seed."""
    from scipy.stats import ttest_1samp  # slow to import and needed here only

    alike = len(points) < 2 or np.ptp(points) == 0
    return Estimate(interval(points), float("nan") if alike else float(ttest_1samp(points, 0).pvalue))


def paired(first: Result, second: Result) -> Paired:
    """Compare two lines over the seeds that both have; raises TrainingError where their seeds differ."""
    common = num_common_seeds((first, second))
    at_end = first.accuracy[:common] - second.accuracy[:common]
    over_run = first.accuracy_over_run[:common] - second.accuracy_over_run[:common]
    return Paired(first.line, second.line, estimate(at_end), estimate(over_run))


def compared(results: Sequence[Result], against: Against) -> list[Paired]:
    """Paired comparisons of what a figure is about, panel by panel.

    ``against`` lists pairs of schemes; or is one scheme, or one place on the horizontal axis, with which all others
    are compared.
    """
    places = isinstance(against, int | float)  # of one scheme, else schemes at one place
    found = []
    for own in _grouped(results, lambda one: (one.line.setting, one.label if places else one.line.place)):
        if isinstance(against, str | int | float):
            references = [one for one in own if against == (one.line.place if places else one.label)]
            found += [paired(one, other) for other in references for one in own if one is not other]
        else:
            by_name = {one.label: one for one in own}
            found += [paired(by_name[a], by_name[b]) for a, b in against if a in by_name and b in by_name]
    return found


def _grouped(results: Sequence[Result], key: Callable[[Result], Hashable]) -> list[list[Result]]:
    return [[one for one in results if key(one) == panel] for panel in dict.fromkeys(map(key, results))]


def trends(results: Sequence[Result], pairs: Sequence[tuple[str, str]]) -> list[Trend]:
    """Whether accuracies, and gains of each pair's first, grow with the place, panel by panel.

    Where two places or more have all that it needs.
    """
    found = []
    for own in _grouped(results, lambda one: one.line.setting):
        named: list[tuple[str, str | None]] = [(scheme, None) for scheme in dict.fromkeys(one.label for one in own)]
        for first, second in [*named, *pairs]:
            above, below = (
                {one.line.place or 0.0: one for one in own if one.label == name} for name in (first, second)
            )
            places = [place for place in above if second is None or place in below]
            if len(places) >= 2:
                estimates = [_slope(above, below, places, measure) for measure in ("accuracy", "accuracy_over_run")]
                found.append(Trend(own[0].line.setting, first, second, *estimates))
    return found


def _slope(
    above: Mapping[float, Result], below: Mapping[float, Result], places: Sequence[float], measure: str
) -> Estimate:
    """Each seed's least-squares slope over the place, of the accuracy above or of its lead over the one below."""
    common = num_common_seeds([side[place] for place in places for side in (above, below) if place in side])
    leads = [getattr(above[place], measure)[:common].copy() for place in places]
    for lead, place in zip(leads, places, strict=True):
        lead -= getattr(below[place], measure)[:common] if place in below else 0.0
    return estimate(np.asarray(np.polyfit(places, leads, 1)[0]))
