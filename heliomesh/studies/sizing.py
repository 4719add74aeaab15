"""Sizing: the smallest batteries and panels with which a network meets a target.

A pair is a battery capacity and a panel, both the same for every device. Every pair is planned for and simulated, and
for a target of accuracy trained, with common random numbers. A pair meets the target if the worse end of the 95 %
interval does.
More battery and more panel are taken to do no harm where that saves work: a pair then need not be tried if a smaller
one meets the target or a larger one misses it.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from heliomesh.jobs.job import Job
from heliomesh.jobs.store import Store, opened
from heliomesh.jobs.training import split_fields
from heliomesh.learning.readiness import check_trainable
from heliomesh.learning.settings import TrainSettings
from heliomesh.learning.trainer import ALONE, Work
from heliomesh.problem.policy import Track, untracked
from heliomesh.scenario import Scenario, ScenarioError
from heliomesh.simulation.diagnostics import Interval, interval

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
Measure = Literal["update loss", "accuracy"]

EPISODES: dict[Measure, int] = {"update loss": 16, "accuracy": 5}  # of a pair, where no number is given
_FACTORS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)  # on the scenario's own values, where none are named
_PANEL_FIELDS = {"panel_cm2": "cm²", "scale": "times the harvest"}  # a source's setting and its unit


class Pair(NamedTuple):
    """What every device is built with."""

    capacity_joule: float
    panel: float  # in the unit of the axis

    def within(self, other: "Pair") -> bool:
        """Whether neither part is larger than the other's."""
        return self.capacity_joule <= other.capacity_joule and self.panel <= other.panel


@dataclass(frozen=True)
class Axes:
    """The capacities and panels to try."""

    capacity_joule: tuple[float, ...]  # rising
    panel: tuple[float, ...]  # rising
    panel_field: str  # the setting of the scenario, such as ``harvest.panel_cm2``
    panel_unit: str

    @property
    def pairs(self) -> list[Pair]:
        """All pairs, the largest capacity first, so that a plan which does not fit is refused at once."""
        return [Pair(capacity, panel) for capacity in reversed(self.capacity_joule) for panel in self.panel]

    def scenario(self, base: Scenario, pair: Pair) -> Scenario:
        """The scenario with every device built so."""
        return base.override({"energy.capacity_joule": pair.capacity_joule, self.panel_field: pair.panel})


def axes_of(
    scenario: Scenario, capacity_joule: Sequence[float] | None = None, panel: Sequence[float] | None = None
) -> Axes:
    """The axes with these values; by default from a quarter to four times the scenario's own."""
    energy, harvest = scenario.energy, scenario.harvest
    name = next((name for name in _PANEL_FIELDS if name in type(harvest).model_fields), None)
    if name is None:
        wanted = " or ".join(_PANEL_FIELDS)
        actual = scenario.as_dict()["harvest"]["source"]
        raise ScenarioError("harvest.source", f"expected a source with a setting {wanted}, actual value {actual!r}")
    own_panel = getattr(harvest, name)
    for path, value in (("energy.capacity_joule", energy.capacity_joule), (f"harvest.{name}", own_panel)):
        if not isinstance(value, float):
            raise ScenarioError(path, f"expected one number for all devices, actual number of values {len(value)}")
    default = [factor * float(energy.capacity_joule) for factor in _FACTORS]  # type: ignore[arg-type]
    return Axes(
        _capacities(default if capacity_joule is None else capacity_joule),
        _panels([factor * own_panel for factor in _FACTORS] if panel is None else panel),
        f"harvest.{name}",
        _PANEL_FIELDS[name],
    )


def _capacities(values: Sequence[float]) -> tuple[float, ...]:
    for value in values:
        if not (math.isfinite(value) and value > 0):
            raise ScenarioError("capacity_joule", f"expected numbers above 0, actual value {value:g}")
    return tuple(sorted(set(values)))


def _panels(values: Sequence[float]) -> tuple[float, ...]:
    for value in values:
        if not (math.isfinite(value) and value >= 0):
            raise ScenarioError("panel", f"expected numbers of at least 0, actual value {value:g}")
    return tuple(sorted(set(values)))


@dataclass(frozen=True)
class Target:
    """What must be reached: at most this update loss per device and slot, or at least this accuracy."""

    measure: Measure
    value: float  # a share in [0, 1]

    def missed_by(self, found: Interval) -> float:
        """How far the worse end of an interval is beyond the target; at most 0 where that is met."""
        if self.measure == "accuracy":
            return self.value - (found.mean - found.half_width)
        return found.mean + found.half_width - self.value


def target_of(loss: float | None, accuracy: float | None) -> Target:
    """The one target of two that is given."""
    given = {"target_loss": loss, "target_accuracy": accuracy}
    found = [(name, value) for name, value in given.items() if value is not None]
    if len(found) != 1:
        raise ScenarioError(
            "target_loss",
            f"expected exactly one of target_loss and target_accuracy, actual number of them {len(found)}",
        )
    name, value = found[0]
    if not 0 <= value <= 1:
        raise ScenarioError(name, f"expected a share from 0 to 1, actual value {value:g}")
    return Target("update loss" if name == "target_loss" else "accuracy", value)


@dataclass(frozen=True)
class Prices:
    """What a device's parts cost, in any currency."""

    per_joule: float = 0.0
    per_panel_unit: float = 0.0

    def of(self, pair: Pair) -> float:
        """Price of battery and panel."""
        return self.per_joule * pair.capacity_joule + self.per_panel_unit * pair.panel


@dataclass(frozen=True)
class Sizing:
    """What was found; pairs that are not in ``found`` follow from others."""

    axes: Axes
    target: Target
    found: Mapping[Pair, Interval]

    def meets(self, pair: Pair) -> bool:
        """Whether a pair meets the target, by its own interval or because a smaller one does."""
        if pair in self.found:
            return self.target.missed_by(self.found[pair]) <= 0
        return any(other.within(pair) and self.meets(other) for other in self.found)

    @property
    def skipped(self) -> list[Pair]:
        """Pairs that were not tried."""
        return [pair for pair in self.axes.pairs if pair not in self.found]

    @property
    def smallest(self) -> list[Pair]:
        """Pareto set of the pairs that meet the target: none has a smaller one beside it; by rising capacity."""
        meeting = [pair for pair in self.found if self.meets(pair)]
        return sorted(pair for pair in meeting if not any(other != pair and other.within(pair) for other in meeting))

    @property
    def best(self) -> Pair:
        """The pair that comes nearest to the target or goes farthest beyond it."""
        return min(self.found, key=lambda pair: self.target.missed_by(self.found[pair]))

    def table(self) -> "pd.DataFrame":
        """One line per pair, by rising capacity and panel: mean and 95 % half-width where it was tried."""
        import pandas as pd

        smallest = self.smallest
        lines = []
        for pair in sorted(self.axes.pairs):
            found = self.found.get(pair)
            line: dict[str, Any] = {
                "capacity_joule": pair.capacity_joule,
                "panel": pair.panel,
                "tried": found is not None,
            }
            line |= {"mean": found and found.mean, "half_width": found and found.half_width}
            lines.append(line | {"meets": self.meets(pair), "smallest": pair in smallest})
        return pd.DataFrame(lines)

    def cheapest(self, prices: Prices) -> Pair:
        """The pair of least price that meets the target; there must be one."""
        return min(self.smallest, key=prices.of)


def search(
    axes: Axes, target: Target, samples: Callable[[Pair], Floats], every_pair: bool = True, track: Track = untracked
) -> Sizing:
    """Try pairs; ``samples`` gives the measure of a pair in independent episodes, (episode,).

    Without ``every_pair`` those whose outcome follows from others are left out: at most as many are tried as the two
    axes have values together.
    """
    found: dict[Pair, Interval] = {}
    sizing = Sizing(axes, target, found)
    pairs, total = axes.pairs, len(axes.pairs)
    if not every_pair:
        total = len(axes.capacity_joule) + len(axes.panel) - 1
    for pair in track(pairs if every_pair else _staircase(sizing), "size", total):
        found[pair] = interval(samples(pair))
    return sizing


def _staircase(sizing: Sizing) -> Iterator[Pair]:
    """Along the border of what meets the target: less battery where it is met, more panel where it is missed."""
    capacity, panel = len(sizing.axes.capacity_joule) - 1, 0
    while capacity >= 0 and panel < len(sizing.axes.panel):
        pair = Pair(sizing.axes.capacity_joule[capacity], sizing.axes.panel[panel])
        yield pair
        if sizing.meets(pair):
            capacity -= 1
        else:
            panel += 1


@dataclass(frozen=True)
class Measurement:
    """How a pair is measured: episodes and, for accuracy, training seeds are the same at all of them."""

    measure: Measure
    planner: str = "receiver"
    options: Mapping[str, Any] = field(default_factory=dict)
    episodes: int = 16
    seed: int = 0
    by_slot: int | None = None  # when accuracy counts; default: at the end
    device: str = "cpu"
    strategy: str = "auto"

    def jobs(self, scenario: Scenario) -> list[Job]:
        """One job per episode; accuracy is evaluated once, when it counts."""
        until = self.by_slot or scenario.slots
        training = TrainSettings(evaluate_every=until, device=self.device, strategy=self.strategy)
        base = Job(scenario, self.planner, self.options, seed=self.seed, training=training, until=until)
        base = replace(base, plan_device=self.device)
        return [replace(base, episode=e, training_seed=self.seed + e) for e in range(self.episodes)]

    def check(self, scenario: Scenario) -> None:
        """Refuse what cannot be measured before anything is planned."""
        if self.by_slot is not None and self.measure != "accuracy":
            raise ScenarioError("by_slot", f"expected a value with target_accuracy only, actual value {self.by_slot}")
        if self.by_slot is not None and self.by_slot > scenario.slots:
            raise ScenarioError("by_slot", f"expected at most slots = {scenario.slots}, actual value {self.by_slot}")
        if self.measure == "accuracy":
            check_trainable(scenario, TrainSettings(device=self.device, strategy=self.strategy), self.seed)

    def samples(self, scenario: Scenario, store: Store, work: Work = ALONE) -> Floats:
        """The measure in every episode, from the store or computed; (episode,)."""
        jobs = self.jobs(scenario)
        if self.measure == "accuracy":
            return np.array([run.final["accuracy_mean"] for run in store.runs(jobs, work)])
        return np.array(store.costs(jobs, work)) / scenario.network.devices


def size(
    scenario: Scenario | str | Path,
    *,
    target_loss: float | None = None,
    target_accuracy: float | None = None,
    capacity_joule: Sequence[float] | None = None,
    panel: Sequence[float] | None = None,
    every_pair: bool = False,
    store: Store | str | Path | None = None,
    **settings: Any,
) -> Sizing:
    """Sweep batteries and panels for the smallest pairs that meet a target.

    Parameters
    ----------
    scenario
        A scenario, a shipped scenario's name, or the path of a ``.toml`` file.
    target_loss
        Largest mean update loss per device and slot, from 0 to 1; this or ``target_accuracy``.
    target_accuracy
        Least mean accuracy, from 0 to 1.
    capacity_joule
        Batteries to try [J]; by default from a quarter to four times the scenario's own.
    panel
        Panels to try [cm²], or factors on a harvest without a panel; by default likewise.
    every_pair
        Also train at pairs whose outcome follows from others.
    store
        Where results are kept; what was measured before is not measured again.
    **settings
        Fields of `Measurement` and of `Work`, such as ``planner``, ``episodes`` or ``track``.

    Returns
    -------
    Sizing
        The smallest pairs; ``table()`` gives all as a pandas table.

    Raises
    ------
    ScenarioError
        Where the target or an axis is wrong.
    """
    base = scenario if isinstance(scenario, Scenario) else Scenario.load(scenario)
    target = target_of(target_loss, target_accuracy)
    own, work = split_fields(settings, Measurement, Work)
    own["episodes"] = own.get("episodes") or EPISODES[target.measure]
    measurement = Measurement(target.measure, **own)
    measurement.check(base)
    axes = axes_of(base, capacity_joule, panel)
    axes.scenario(base, min(axes.pairs))  # what the smallest battery cannot hold is refused before any work
    quiet = Work(**{"keep_weights": False, **work, "track": untracked})
    with opened(store) as kept, kept.alone():

        def samples(pair: Pair) -> Floats:
            return measurement.samples(axes.scenario(base, pair), kept, quiet)

        thorough = every_pair or target.measure == "update loss"
        return search(axes, target, samples, thorough, work.get("track", untracked))
