"""Sizing: the smallest batteries and panels with which a network meets a target.

A pair is a battery capacity, the same for every device, and a panel. Where every device has a panel of its own, one
factor scales them all. Every pair is planned for and simulated, and for a target of accuracy trained, with common
random numbers. A pair meets the target if the worse end of the 95 % interval does. So must the limit on darkness, the
share of device slots in which a battery does not pay for standing by.
More battery and more panel are taken to do no harm where that saves work: a pair then need not be tried if a smaller
one meets the target or a larger one misses it.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from heliomesh.common.arguments import NOT_EMPTY, Count, Index, at_least, checked
from heliomesh.jobs.job import Job
from heliomesh.jobs.store import Store, opened
from heliomesh.jobs.training import split_fields
from heliomesh.learning.preflight import check_trainable
from heliomesh.learning.settings import TrainSettings
from heliomesh.learning.trainer import ALONE, Execution
from heliomesh.model.policy import Track, untracked
from heliomesh.scenario.errors import ScenarioError, refuse
from heliomesh.scenario.scenario import Scenario
from heliomesh.simulation.diagnostics import Interval, interval
from heliomesh.simulation.ledger import dark_slots
from heliomesh.studies.line import by_episode
from heliomesh.studies.results import finals

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
Measure = Literal["update loss", "accuracy"]

EPISODES: dict[Measure, int] = {"update loss": 16, "accuracy": 5}  # of a pair, where no number is given
_FACTORS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)  # on the scenario's own values, where none are named
MOST_DARK = 0.05  # share of device slots, where no limit is given
_PANEL_FIELDS = {"panel_cm2": "cm²", "scale": "times the harvest"}  # a source's setting and its unit
_FACTOR_UNIT = {"panel_cm2": "times the panels", "scale": "times the harvest"}  # where each device has its own


_ENDS = (("smallest", min), ("largest", max))  # of an axis


class BatteryPanel(NamedTuple):
    """What every device is built with."""

    capacity_joule: float
    panel: float  # in the unit of the axis

    def within(self, other: "BatteryPanel") -> bool:
        """Whether neither part is larger than the other's."""
        return self.capacity_joule <= other.capacity_joule and self.panel <= other.panel


@dataclass(frozen=True)
class Axes:
    """The capacities and panels to try."""

    capacity_joule: tuple[float, ...]  # rising
    panel: tuple[float, ...]  # rising
    panel_field: str  # the setting of the scenario, such as ``harvest.panel_cm2``
    panel_unit: str
    own_panels: tuple[float, ...] | None = None  # of every device, where a value is a factor on all of them

    @property
    def pairs(self) -> list[BatteryPanel]:
        """All pairs, the largest capacity first, so that a plan which does not fit is refused at once."""
        return [BatteryPanel(capacity, panel) for capacity in reversed(self.capacity_joule) for panel in self.panel]

    def scenario(self, base: Scenario, pair: BatteryPanel) -> Scenario:
        """The scenario with every device built so."""
        panel = pair.panel if self.own_panels is None else [pair.panel * own for own in self.own_panels]
        return base.override({"energy.capacity_joule": pair.capacity_joule, self.panel_field: panel})

    def price(self, pair: BatteryPanel, prices: "Prices") -> float:
        """Price of a device's battery and panel, the mean of all devices."""
        mean_own = 1.0 if self.own_panels is None else float(np.mean(self.own_panels))
        return prices.per_joule * pair.capacity_joule + prices.per_panel_unit * pair.panel * mean_own

    def border(self, pair: BatteryPanel) -> list[str]:
        """Where a pair is the smallest or largest of an axis, so that what lies beyond was not tried."""
        parts = (("battery", self.capacity_joule, pair.capacity_joule), ("panel", self.panel, pair.panel))
        ends = (
            (f"{end} {part}", of(tried), own) for part, tried, own in parts if len(tried) > 1 for end, of in _ENDS
        )
        return [words for words, last, own in ends if own == last > 0]


def axes_of(
    scenario: Scenario, capacity_joule: Sequence[float] | None = None, panel: Sequence[float] | None = None
) -> Axes:
    """The axes with these values; by default from a quarter to four times the scenario's own."""
    energy, harvest = scenario.energy, scenario.harvest
    name = next((name for name in _PANEL_FIELDS if name in type(harvest).model_fields), None)
    if name is None:
        wanted, actual = " or ".join(_PANEL_FIELDS), scenario.as_dict()["harvest"]["source"]
        raise ScenarioError("harvest.source", f"a source with a setting {wanted}", f"value {actual!r}")
    if not isinstance(energy.capacity_joule, float):
        number = len(energy.capacity_joule)
        raise ScenarioError("energy.capacity_joule", "one number for all devices", f"number of values {number}")
    own = getattr(harvest, name)
    own_panels, unit = (None, _PANEL_FIELDS[name]) if isinstance(own, float) else (tuple(own), _FACTOR_UNIT[name])
    default = [factor * energy.capacity_joule for factor in _FACTORS]
    default_panel = [factor * (own if own_panels is None else 1.0) for factor in _FACTORS]
    return Axes(
        _rising("capacity_joule", default if capacity_joule is None else capacity_joule, "above 0", lambda x: x > 0),
        _rising("panel", default_panel if panel is None else panel, "of at least 0", lambda x: x >= 0),
        f"harvest.{name}",
        unit,
        own_panels,
    )


def _rising(field: str, values: Sequence[float], wanted: str, fits: Callable[[float], bool]) -> tuple[float, ...]:
    for value in values:
        refuse(not (math.isfinite(value) and fits(value)), field, f"numbers {wanted}", f"value {value:g}")
    return tuple(sorted(set(values)))


@dataclass(frozen=True)
class Outcome(Interval):
    """What was found at a pair: the measure's mean and half-width, and the share of device slots that are dark."""

    dark: Interval


@dataclass(frozen=True)
class Target:
    """What must be reached: at most this update loss per device and slot, or at least this accuracy."""

    measure: Measure
    value: float  # a share in [0, 1]
    most_dark: float = MOST_DARK  # share of device slots

    def missed_by(self, found: Interval) -> float:
        """How far the worse end of an interval is beyond the target; at most 0 where that is met."""
        if self.measure == "accuracy":
            return self.value - (found.mean - found.half_width)
        return found.mean + found.half_width - self.value

    def too_dark_by(self, found: Outcome) -> float:
        """How far the worse end of the darkness is beyond its limit; at most 0 where that is kept."""
        return found.dark.mean + found.dark.half_width - self.most_dark

    def met_by(self, found: Outcome) -> bool:
        """Whether the target is met and the limit on darkness kept, both with 95 % confidence."""
        return self.missed_by(found) <= 0 and self.too_dark_by(found) <= 0


def target_of(loss: float | None, accuracy: float | None, most_dark: float = MOST_DARK) -> Target:
    """The one target of two that is given, with the limit on darkness."""
    given = {"target_loss": loss, "target_accuracy": accuracy}
    found = {name: value for name, value in given.items() if value is not None}
    expected = "exactly one of target_loss and target_accuracy"
    refuse(len(found) != 1, "target_loss", expected, f"number of them {len(found)}")
    for name, share in (*found.items(), ("most_dark", most_dark)):
        refuse(not 0 <= share <= 1, name, "a share from 0 to 1", f"value {share:g}")
    (value,) = found.values()
    return Target("accuracy" if loss is None else "update loss", value, most_dark)


@dataclass(frozen=True)
class Prices:
    """What a device's parts cost, in any currency."""

    per_joule: float = 0.0
    per_panel_unit: float = 0.0  # per cm², or per factor on a harvest without a panel


@dataclass(frozen=True)
class Sizing:
    """What was found; pairs that are not in ``found`` follow from others."""

    axes: Axes
    target: Target
    found: Mapping[BatteryPanel, Outcome]

    def meets(self, pair: BatteryPanel) -> bool:
        """Whether a pair meets the target, by its own interval or because a smaller one does."""
        if pair in self.found:
            return self.target.met_by(self.found[pair])
        return any(other.within(pair) and self.meets(other) for other in self.found)

    @property
    def skipped(self) -> list[BatteryPanel]:
        """Pairs that were not tried."""
        return [pair for pair in self.axes.pairs if pair not in self.found]

    @property
    def smallest(self) -> list[BatteryPanel]:
        """Pareto set of the pairs that meet the target: none has a smaller one beside it; by rising capacity."""
        meeting = [pair for pair in self.found if self.meets(pair)]
        return sorted(pair for pair in meeting if not any(other != pair and other.within(pair) for other in meeting))

    @property
    def best(self) -> BatteryPanel:
        """The pair that comes nearest to the target or goes farthest beyond it."""
        return min(self.found, key=lambda pair: self.target.missed_by(self.found[pair]))

    @property
    def is_drained(self) -> bool:
        """Whether any device was dark at any pair."""
        return any(found.dark.mean > 0 for found in self.found.values())

    @property
    def too_dark(self) -> list[BatteryPanel]:
        """Pairs that would meet the target but for the limit on darkness; by rising capacity."""
        target, found = self.target, self.found
        return sorted(p for p in found if target.missed_by(found[p]) <= 0 < target.too_dark_by(found[p]))

    @property
    def at_border(self) -> dict[BatteryPanel, list[str]]:
        """Those of the smallest pairs beyond which nothing was tried, with where they lie."""
        return {pair: border for pair in self.smallest if (border := self.axes.border(pair))}

    def table(self) -> "pd.DataFrame":
        """One line per pair, by rising capacity and panel: mean, 95 % half-width and darkness where tried."""
        import pandas as pd

        smallest, lines = self.smallest, []
        for pair in sorted(self.axes.pairs):
            found = self.found.get(pair)
            line: dict[str, Any] = {**pair._asdict(), "tried": found is not None}
            line |= {"mean": found and found.mean, "half_width": found and found.half_width}
            line |= {"dark": found and found.dark.mean, "meets": self.meets(pair), "smallest": pair in smallest}
            lines.append(line | {"border": ", ".join(self.axes.border(pair))})
        return pd.DataFrame(lines)

    def cheapest(self, prices: Prices) -> BatteryPanel:
        """The pair of least price that meets the target; there must be one."""
        return min(self.smallest, key=lambda pair: self.axes.price(pair, prices))


class PairSamples(NamedTuple):
    """A pair in independent episodes; (episode,) each."""

    measure: Floats
    dark: Floats  # share of device slots


def search(
    axes: Axes,
    target: Target,
    samples: Callable[[BatteryPanel], PairSamples],
    every_pair: bool = True,
    track: Track = untracked,
) -> Sizing:
    """Try pairs; ``samples`` measures one.

    Without ``every_pair`` those whose outcome follows from others are left out: at most as many are tried as the two
    axes have values together.
    """
    found: dict[BatteryPanel, Outcome] = {}
    sizing = Sizing(axes, target, found)
    most = len(axes.pairs) if every_pair else len(axes.capacity_joule) + len(axes.panel) - 1
    for pair in track(axes.pairs if every_pair else _staircase(sizing), "size", most):
        measure, dark = map(interval, samples(pair))
        found[pair] = Outcome(measure.mean, measure.half_width, dark)
    return sizing


def _staircase(sizing: Sizing) -> Iterator[BatteryPanel]:
    """Along the border of what meets the target: less battery where it is met, more panel where it is missed."""
    capacity, panel = len(sizing.axes.capacity_joule) - 1, 0
    while capacity >= 0 and panel < len(sizing.axes.panel):
        pair = BatteryPanel(sizing.axes.capacity_joule[capacity], sizing.axes.panel[panel])
        yield pair
        if sizing.meets(pair):
            capacity -= 1
        else:
            panel += 1


@checked
@dataclass(frozen=True)
class Measurement:
    """How a pair is measured: episodes and, for accuracy, training seeds are the same at all of them."""

    measure: Measure
    planner: str = "receiver"
    options: Mapping[str, Any] = field(default_factory=dict)
    episodes: Annotated[int, at_least(2)] = 16  # one has no interval
    seed: Index = 0
    by_slot: Count | None = None  # when accuracy counts; default: at the end
    device: str = "cpu"
    strategy: str = "auto"

    def jobs(self, scenario: Scenario) -> list[Job]:
        """One job per episode; accuracy is evaluated once, when it counts."""
        until = self.by_slot or scenario.slots
        training = TrainSettings(evaluate_every=until, device=self.device, strategy=self.strategy)
        base = Job(scenario, self.planner, self.options, seed=self.seed, training=training, until=until)
        return by_episode(replace(base, plan_device=self.device), self.episodes)

    def check(self, scenario: Scenario) -> None:
        """Refuse what cannot be measured before anything is planned."""
        trains, last = self.measure == "accuracy", self.by_slot or 0
        refuse(last and not trains, "by_slot", "a value with target_accuracy only", f"value {last}")
        refuse(last > scenario.slots, "by_slot", f"at most slots = {scenario.slots}", f"value {last}")
        if trains:
            check_trainable(scenario, TrainSettings(device=self.device, strategy=self.strategy), self.seed)

    def samples(self, scenario: Scenario, store: Store, work: Execution = ALONE) -> PairSamples:
        """The measure and the darkness in every episode, from the store or computed."""
        jobs = self.jobs(scenario)
        if self.measure == "accuracy":
            accuracy = finals(store.runs(jobs, work), "accuracy_mean")
            return PairSamples(accuracy, np.array([dark_slots(store.trace(job, work)).mean() for job in jobs]))
        means = store.means(jobs, work)
        return PairSamples(means.cost / scenario.network.devices, means.dark)


@checked
def size(
    scenario: Scenario | str | Path,
    *,
    target_loss: float | None = None,
    target_accuracy: float | None = None,
    most_dark: float = MOST_DARK,
    capacity_joule: Annotated[Sequence[float], NOT_EMPTY] | None = None,
    panel: Annotated[Sequence[float], NOT_EMPTY] | None = None,
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
    most_dark
        Largest mean share of device slots in which a battery does not pay for standing by, from 0 to 1.
    capacity_joule
        Batteries to try [J]; by default from a quarter to four times the scenario's own.
    panel
        Panels to try [cm²]; factors on a harvest without a panel, or on the panels where every device has its own.
        By default likewise.
    store
        Where results are kept; what was measured before is not measured again.
    **settings
        Fields of `Measurement` and of `Execution`, such as ``planner``, ``episodes`` or ``track``.

    Returns
    -------
    Sizing
        The smallest pairs, and ``at_border`` those beyond which nothing was tried; ``table()`` gives all as a
        pandas table.

    Raises
    ------
    ScenarioError
        Where the target or an axis is wrong.
    """
    base = scenario if isinstance(scenario, Scenario) else Scenario.load(scenario)
    target = target_of(target_loss, target_accuracy, most_dark)
    own, work = split_fields({"keep_weights": False, **settings}, Measurement, Execution)
    measurement = Measurement(target.measure, **own | {"episodes": own.get("episodes") or EPISODES[target.measure]})
    measurement.check(base)
    axes = axes_of(base, capacity_joule, panel)
    axes.scenario(base, min(axes.pairs))  # what the smallest battery cannot hold is refused before any work
    quiet = Execution(**work | {"track": untracked})
    with opened(store) as kept, kept.alone():

        def samples(pair: BatteryPanel) -> PairSamples:
            return measurement.samples(axes.scenario(base, pair), kept, quiet)

        return search(axes, target, samples, target.measure == "update loss", work.get("track", untracked))
