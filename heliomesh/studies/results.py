"""What stored results say: means with 95 % intervals over seeds, and paired differences between schemes."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
import pandas as pd

from heliomesh.jobs.job import MACHINE, Job
from heliomesh.jobs.store import Store
from heliomesh.learning.run import Run, TrainingError
from heliomesh.model.problem import compute_joule
from heliomesh.simulation.diagnostics import Interval, interval
from heliomesh.studies.line import Line

_SHOWN = ("accuracy_mean", "average_accuracy", "spent_joule")  # columns of the curves
Against = Sequence[tuple[str, str]] | str | float
_LARGEST = 1e100  # squares must stay numbers


@dataclass(frozen=True)
class Result:
    """The runs of a line."""

    line: Line
    curves: pd.DataFrame  # one row per seed and evaluated slot: the trainer's columns and ``seed``
    facts: dict[str, Any]  # cost by seed, mean shares, and what the first run says of itself

    @property
    def computed_with(self) -> str:
        """Versions of what computed the runs, and the processor; an empty text where they do not say it."""
        versions, machine = (self.facts.get(name) for name in ("versions", "machine"))
        if not isinstance(versions, dict) or not isinstance(machine, dict):
            return ""
        chip = machine.get("gpu") or machine.get("processor") or machine.get("machine")  # as the first runs name it
        return f"numpy {versions.get('numpy')}, torch {versions.get('torch')}, {chip}"

    @property
    def missing(self) -> int:
        """Seeds that have no run."""
        return self.line.num_seeds - int(self.curves["seed"].nunique())


def result_of(line: Line, runs: Sequence[Run]) -> Result:
    """Runs of a line in the order of their seeds; raises TrainingError where stored numbers are none."""
    by_run = [pd.DataFrame({"seed": seed, **run.metrics}) for seed, run in enumerate(runs)]
    curves = pd.concat(by_run, ignore_index=True)
    for column in ("slot", *_SHOWN):
        if column not in curves or not curves[column].abs().le(_LARGEST).all():
            raise TrainingError(line.name, f"finite numbers in column {column}", ": others")
    by_seed = {name: _numbers(line, runs, name) for name in ("cost", "participation", "delivery")}
    means = {name: fmean(by_seed[name]) for name in ("participation", "delivery")}
    radio_joule = _radio_joule(line, runs, by_seed["participation"])
    facts = {**runs[0].provenance, "cost": by_seed["cost"], **means, "radio_joule": radio_joule}
    return Result(line, curves, facts)


def _radio_joule(line: Line, runs: Sequence[Run], participation: Sequence[float]) -> list[float] | None:
    """What devices spent on sending [J], of every seed: all but training; None where training differs by device."""
    compute = compute_joule(line.scenario)
    if len(set(compute)) > 1:
        return None
    slots_trained = [share * line.scenario.slots * len(compute) for share in participation]
    return [run.final["spent_joule"] - slots * compute[0] for run, slots in zip(runs, slots_trained, strict=True)]


def _numbers(line: Line, runs: Sequence[Run], fact: str) -> list[float]:
    """A fact of every seed; raises TrainingError where one is no number."""
    stored = [run.provenance.get(fact) for run in runs]
    if not all(_is_number(value) for value in stored):
        raise TrainingError(line.name, f"{fact} of {len(runs)} seeds in numbers", f"value {stored!r:.60}")
    return [float(value) for value in stored if _is_number(value)]


def stored_runs(store: Store, jobs: Sequence[Job]) -> list[Run] | None:
    """The runs of a line if all are there: as asked for or, failing that, all trained on one other machine."""
    if all(store.has(job) for job in jobs):
        return store.runs(jobs)
    found = [store.packs.alike(job.identity()) for job in jobs]
    ways = [{_way(run): run for run in runs} for runs in found]
    shared = sorted(set.intersection(*map(set, ways)))
    return [way[shared[0]] for way in ways] if shared else None


def _way(run: Run) -> tuple[str, ...]:
    """On what a run was trained, and with which versions where its identity has them."""
    identity = run.provenance["identity"]
    return tuple(str(identity.get(part)) for part in MACHINE)


@dataclass(frozen=True)
class Final:
    """One line over its horizon; accuracies in percent."""

    setting: str
    scheme: str
    place: float | None
    accuracy: npt.NDArray[np.float64]  # (seed,) mean over devices, at the end
    accuracy_over_run: npt.NDArray[np.float64]  # (seed,) mean over devices and evaluated slots
    average_accuracy: npt.NDArray[np.float64]  # (seed,) of the average model, at the end
    cost: npt.NDArray[np.float64]  # (seed,) update loss per slot, summed over devices
    spent_joule: npt.NDArray[np.float64]  # (seed,) by all devices in all slots
    seeds: tuple[int, ...]  # (seed,) rising: what the entries above belong to
    radio_joule: npt.NDArray[np.float64] | None = None  # (seed,) of it on sending; None where that is not known


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds in percentage points, and Student's t test of it against zero."""

    points: Interval
    p_value: float  # two-sided; NaN where all seeds agree

    @property
    def sign(self) -> int:
        """+1 or −1 where the interval excludes zero, else 0."""
        if self.points.mean - self.points.half_width > 0:
            return 1
        return -1 if self.points.mean + self.points.half_width < 0 else 0


@dataclass(frozen=True)
class Paired:
    """Differences of two lines' accuracies over common seeds.

    One evaluation is noisy, as SGD is; the mean over a run's evaluations tells smaller differences apart.
    """

    first: Final
    second: Final
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


def final(result: Result) -> Final:
    """The last row of every seed and their mean."""
    by_seed = result.curves.sort_values(["seed", "slot"]).groupby("seed")
    last = by_seed.last()
    return Final(
        result.line.setting,
        result.line.scheme.label,
        result.line.place,
        100 * last["accuracy_mean"].to_numpy(),
        100 * by_seed["accuracy_mean"].mean().to_numpy(),
        100 * last["average_accuracy"].to_numpy(),
        np.array(result.facts["cost"]),
        last["spent_joule"].to_numpy(),
        seeds_of(result),
        None if result.facts["radio_joule"] is None else np.array(result.facts["radio_joule"]),
    )


def seeds_of(result: Result) -> tuple[int, ...]:
    """The seeds of a result, rising."""
    return tuple(sorted(result.curves["seed"].unique().tolist()))


def num_common_seeds(seeds_by_name: Iterable[tuple[str, tuple[int, ...]]]) -> int:
    """How many seeds all lines begin with, the shortest line's number; others would have met other random numbers.

    Raises TrainingError where a line's seeds are not the first of a longer line's.
    """
    (first, expected), *others = seeds_by_name
    for name, actual in others:
        if any(one != other for one, other in zip(expected, actual, strict=False)):
            raise TrainingError(name, f"the seeds {list(expected)} of {first}, to pair them by", f"{list(actual)}")
    return min([len(expected), *(len(actual) for _, actual in others)])


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and abs(value) <= _LARGEST


def estimate(points: npt.NDArray[np.float64]) -> Estimate:
    """From one number per seed."""
    from scipy.stats import ttest_1samp  # slow to import and needed here only

    alike = len(points) < 2 or np.ptp(points) == 0
    return Estimate(interval(points), float("nan") if alike else float(ttest_1samp(points, 0).pvalue))


def paired(first: Final, second: Final) -> Paired:
    """Compare two lines over the seeds that both have; raises TrainingError where their seeds differ."""
    common = num_common_seeds((_named(one), one.seeds) for one in (first, second))
    at_end = first.accuracy[:common] - second.accuracy[:common]
    over_run = first.accuracy_over_run[:common] - second.accuracy_over_run[:common]
    return Paired(first, second, estimate(at_end), estimate(over_run))


def _named(one: Final) -> str:
    return " ".join(str(word) for word in (one.setting, one.scheme, one.place) if word not in ("", None))


def accuracy_curve(result: Result) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Evaluated slots (slot,) and the devices' mean accuracy in percent (slot, seed)."""
    table = result.curves.pivot(index="slot", columns="seed", values="accuracy_mean")
    return table.index.to_numpy(dtype=np.float64), 100 * table.to_numpy(dtype=np.float64)


def compared(finals: Sequence[Final], against: Against) -> list[Paired]:
    """Paired comparisons of what a figure is about, panel by panel.

    ``against`` lists pairs of schemes; or is one scheme, or one place on the horizontal axis, with which all others
    are compared.
    """
    places = isinstance(against, int | float)  # of one scheme, else schemes at one place
    found = []
    for own in _grouped(finals, lambda one: (one.setting, one.scheme if places else one.place)):
        if isinstance(against, str | int | float):
            references = [one for one in own if against == (one.place if places else one.scheme)]
            found += [paired(one, other) for other in references for one in own if one is not other]
        else:
            by_name = {one.scheme: one for one in own}
            found += [paired(by_name[a], by_name[b]) for a, b in against if a in by_name and b in by_name]
    return found


def _grouped(finals: Sequence[Final], key: Callable[[Final], Hashable]) -> list[list[Final]]:
    return [[one for one in finals if key(one) == panel] for panel in dict.fromkeys(map(key, finals))]


def trends(finals: Sequence[Final], pairs: Sequence[tuple[str, str]]) -> list[Trend]:
    """Whether accuracies, and gains of each pair's first, grow with the place, panel by panel."""
    found = []
    for own in _grouped(finals, lambda one: one.setting):
        schemes = dict.fromkeys(one.scheme for one in own)
        named: list[tuple[str, str | None]] = [(scheme, None) for scheme in schemes]
        for first, second in [*named, *pairs]:
            slopes = [_slopes(own, first, second, name) for name in ("accuracy", "accuracy_over_run")]
            estimates = [estimate(slope) for slope in slopes if slope is not None]
            if estimates:
                found.append(Trend(own[0].setting, first, second, *estimates))
    return found


def _slopes(own: Sequence[Final], first: str, second: str | None, measure: str) -> npt.NDArray[np.float64] | None:
    """Each seed's least-squares slope over the place, (seed,); none where fewer than two places have all it needs."""
    above = {one.place or 0.0: one for one in own if one.scheme == first}
    below = {one.place or 0.0: one for one in own if one.scheme == second}
    places = [place for place in above if second is None or place in below]
    if len(places) < 2:
        return None
    used = [side[place] for place in places for side in (above, below) if place in side]
    common = num_common_seeds((_named(one), one.seeds) for one in used)
    first_ones, seconds = (
        np.array([getattr(side[place], measure)[:common] if place in side else np.zeros(common) for place in places])
        for side in (above, below)
    )
    slopes: npt.NDArray[np.float64] = np.polyfit(places, first_ones - seconds, 1)[0]
    return slopes
