"""A job: everything that decides a result, and its key.

A job has three results, each a step further: a plan, the trace of one simulated episode, and a trained run. Each has
an *identity*, plain data with all that decides it, and a key, the sha256 of that identity. Equal keys mean equal bits
on one machine; whatever changes the bits changes the key. Versions of numpy and torch count without their last
number. Another processor or number of threads rounds differently: results say what they were computed on, keys do
not.

A setting of the scenario or option of a planner that equals its default is left out of the identity, so that a new
setting with a harmless default leaves all keys alone. A default decides results nevertheless: whoever changes one
raises `RESULTS_VERSION`, or the ``VERSION`` of a planner.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from heliomesh.common.arguments import Count, Index, Probability, checked
from heliomesh.common.catalog import CodeOrName
from heliomesh.common.durable import json_sha256
from heliomesh.field.living.detector import USUAL_FALSE_ALARM_PROB
from heliomesh.field.living.reaction import Reaction
from heliomesh.jobs.fingerprint import COMPUTING, Parts, minor, of_path, of_variant
from heliomesh.learning.run import versions
from heliomesh.learning.schedule import schedule_slots
from heliomesh.learning.settings import TrainJob, TrainSettings
from heliomesh.learning.strategy import known_strategy
from heliomesh.planning import PLANNER_CATALOG, chosen_options, find_planner, planner_text
from heliomesh.scenario.errors import refuse
from heliomesh.scenario.files import FILE_FIELDS
from heliomesh.scenario.scenario import Scenario
from heliomesh.scenario.schema import AGGREGATION_CATALOG, CHANNEL_CATALOG, HARVEST_CATALOG, OPTIMISER_CATALOG
from heliomesh.simulation.trace import Trace
from heliomesh.tasks.dataset import DATASET_CATALOG, Dataset
from heliomesh.tasks.footprint import sample_flop, update_bits
from heliomesh.tasks.model import MODEL_CATALOG

# raise it when the same inputs give other numbers, and when a default changes: identities leave defaults out
RESULTS_VERSION = 4
IDEAL = "ideal"  # in place of a planner: everyone trains and sends in every slot, and nothing is lost

Step = Literal["plan", "trace", "run"]
STEPS: tuple[Step, ...] = ("plan", "trace", "run")
VERSIONS = "computed with"  # the part of an identity that has the versions of what computes
PLANNER_VERSION = "planner version"  # the part that has the version of a built-in planner
MACHINE = ("device", "precision", "strategy", VERSIONS)  # parts of a run's identity that only change its rounding


@checked
@dataclass(frozen=True)
class Job:
    """One episode of a planner on a scenario, and a model trained under it.

    Attributes
    ----------
    scenario
        Every input.
    planner
        A name, or a function or module that can be imported.
    options
        Options of the planner.
    seed
        Draws the simulation.
    episode
        Number of the episode.
    changes
        Of the world, WHAT=VALUE@SLOT as in `living/change.py`.
    reaction
        To changes; None: the plan for the scenario as it is holds to the end.
    false_alarm_prob
        Of the reaction "re-planned", over the horizon.
    agree
        Slots before each deadline in which devices only send, whatever the plan does.
    training_seed
        Draws partition, first weights, minibatches and test samples; default: the scenario's.
    training
        How to train and what to measure.
    until
        Slots to train; default: the horizon.
    plan_device
        Where the planner's tables live.
    plan_dtype
        Numbers of these tables.
    trace
        A trace with the episode to train under, in place of a planner.
    dataset
        In place of the scenario's.
    """

    scenario: Scenario
    planner: CodeOrName = "receiver"
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: Index = 0
    episode: Index = 0
    changes: tuple[str, ...] = ()
    reaction: Reaction | None = None
    false_alarm_prob: Probability = USUAL_FALSE_ALARM_PROB
    agree: Index = 0
    training_seed: Index | None = None
    training: TrainSettings = field(default_factory=TrainSettings)
    until: Count | None = None
    plan_device: str = "cpu"
    plan_dtype: str = "float64"
    trace: Trace | None = None
    dataset: Dataset | None = None

    def __post_init__(self) -> None:
        reacts = self.agree > 0 and self.reaction is not None
        refuse(reacts, "agree", "0 with a reaction to changes", f"value {self.agree}")

    @property
    def num_slots(self) -> int:
        """Slots to train."""
        return self.until or self.scenario.slots

    @checked
    def key(self, step: Step = "run") -> str:
        """Hexadecimal sha256 of all that decides a result."""
        return self._keys[step]

    @cached_property
    def _keys(self) -> dict[Step, str]:
        return {step: json_sha256(self.identity(step)) for step in STEPS}

    @checked
    def identity(self, step: Step = "run") -> dict[str, Any]:
        """All that decides a result, as plain data; what equals its default is left out."""
        return {"plan": self._plan, "trace": self._trace, "run": self._run}[step]

    @property
    def planner_options(self) -> Mapping[str, Any]:
        """The options; a planner that reads labels is told which samples devices will train on."""
        if not self._reads_labels:
            return self.options
        if self.dataset is not None:  # a plan knows the scenario alone
            return {**self.options, "leans": "devices"}
        known = self.training_seed in (None, self.scenario.seed)
        return self.options if known else {"partition_seed": self.training_seed, **self.options}

    @property
    def _reads_labels(self) -> bool:
        if self.planner == IDEAL or self.trace is not None:
            return False
        return getattr(find_planner(self.planner).checked_options(self.options), "leans", None) == "labels"

    @cached_property
    def _plan(self) -> dict[str, Any]:
        used = versions()
        made = {"results version": RESULTS_VERSION, VERSIONS: {name: minor(used[name]) for name in COMPUTING}}
        if self.trace is not None:
            return made | {"planner": self.trace.planner}
        known, version = self.planner == IDEAL, version_of(self.planner)
        return made | {
            "scenario": world_of(self.scenario, self.scenario.chosen()),
            "planner": IDEAL if known else planner_text(self.planner),
            "planner source": None if known else of_variant(PLANNER_CATALOG, self.planner),
            **({PLANNER_VERSION: version} if version else {}),
            "options": {} if known else chosen_options(self.planner, self.planner_options),
            "planned on": self.plan_device.partition(":")[0],
            "planned in": self.plan_dtype,
            **({} if known else self._planned_for),
            **({"agree": self.agree} if self.agree else {}),
        }

    @property
    def _planned_for(self) -> dict[str, Any]:
        """What the planner reads of the learning, beside what sets energies; most read nothing."""
        learning = self.scenario.chosen().get("learning", {})
        names = find_planner(self.planner).reads_learning
        labels = self._reads_labels and self.dataset is None
        read = {name: learning[name] for name in (*names, *(_DECIDE_LABELS * labels)) if name in learning}
        if labels and "path" in learning:
            read["data"] = of_path(Path(learning["path"]).expanduser())
        return {"planned for": read} if read else {}

    @cached_property
    def _trace(self) -> dict[str, Any]:
        if self.trace is not None:
            content = self.train_job(self.trace).trace_hash
            return self._plan | {"seed": self.trace.seed, "episode": self.episode, "trace": content}
        drawn = {"seed": self.seed, "episode": self.episode, "changes": list(self.changes)}
        if self.reaction is not None:
            drawn["reaction"] = self.reaction
        if self.reaction == "re-planned" and self.false_alarm_prob != USUAL_FALSE_ALARM_PROB:
            drawn["false alarm prob"] = float(self.false_alarm_prob)
        return self._plan | drawn

    @cached_property
    def _run(self) -> dict[str, Any]:
        chosen, training = self.scenario.chosen(), self.training
        learning = chosen.get("learning", {})
        path = learning.pop("path", None)  # its content counts; data of the catalog are pinned by their code
        data = None if path is None or self.dataset is not None else of_path(Path(path).expanduser())
        mixing = chosen.get("network", {}).get("mixing")
        # arrays of a trace that was handed in name the links of averaging, not their weights
        handed_in = {} if self.trace is None or mixing is None else {"mixing": mixing}
        return self._trace | {
            **handed_in,
            "learning": learning,
            "data": data if self.dataset is None else self.dataset.sha256,
            "code": _learning_code(self.scenario),
            "training seed": self.scenario.seed if self.training_seed is None else self.training_seed,
            "train until": self.num_slots,
            "evaluate every": training.evaluate_every,
            "device samples": training.device_samples,
            "device": training.device.partition(":")[0],
            "precision": training.precision,
            "strategy": known_strategy(self.scenario.learning, training, self.dataset),
        }

    def train_job(self, trace: Trace) -> TrainJob:
        """The training as the trainer takes it; a trace that was simulated for the job has one episode."""
        scenario, episode = self.scenario, 0 if self.trace is None else self.episode
        if self.until is not None:
            whole, scenario = scenario, scenario.first_slots(self.until)
            if whole.learning.schedule is not None:  # the first slots of the whole training
                scenario = scenario.override({"learning.schedule_slots": schedule_slots(whole)})
            trace = trace.first_slots(self.until)
        return TrainJob(scenario, trace, episode, self.training_seed)


_DECIDE_LABELS = ("dataset", "validation", "min_samples", "indices")  # with the partition, which labels a device has


def version_of(planner: CodeOrName) -> int:
    """The version of a planner's decisions; 0: the first, or no planner."""
    return 0 if planner == IDEAL else find_planner(planner).version


def request(identity: Mapping[str, Any]) -> str:
    """The sha256 of what was asked for: an identity without what code, data files and versions say meanwhile."""
    asked = {name: part for name, part in identity.items() if name not in _NOT_ASKED}
    world = {name: part for name, part in asked.get("scenario", {}).items() if name not in _NOT_ASKED}
    for section, file in FILE_FIELDS:
        if section in world:
            world[section] = {name: value for name, value in world[section].items() if name != file}
    return json_sha256(asked | {"scenario": world})


_NOT_ASKED = ("results version", VERSIONS, "planner source", "channel source", "harvest source", "code", "data")


def world_of(scenario: Scenario, data: dict[str, Any]) -> dict[str, Any]:
    """What decides plans and traces, of all settings or those chosen, which are ``data``.

    The scenario without its name, files by content; of learning what sets energies: a model's bits on air and its
    operations, where the scenario asks for them.
    """
    data.pop("name", None)
    data.get("network", {}).pop("names", None)
    learning = data.pop("learning", {})
    energy: dict[str, Any] = {name: learning[name] for name in ("local_steps", "batch") if name in learning}
    if scenario.energy.transmit_second == "bits":
        energy["update_bits"] = update_bits(scenario.learning)
    if scenario.energy.compute_second == "flop":
        energy["sample_flop"] = sample_flop(scenario.learning)
    data |= {"learning": energy} if energy else {}
    for section, name in FILE_FIELDS:
        if name in data.get(section, {}):
            data[section][name] = of_path(Path(data[section][name]))
    places = (("channel", CHANNEL_CATALOG), ("harvest", HARVEST_CATALOG))
    sources = {name: of_variant(place, data[name]["source"]) for name, place in places}
    return data | {f"{name} source": code for name, code in sources.items() if code is not None}


def _learning_code(scenario: Scenario) -> dict[str, Parts]:
    """What user-given code of the learning says."""
    learning = scenario.learning
    places = {
        "dataset": (DATASET_CATALOG, learning.dataset),
        "model": (MODEL_CATALOG, learning.model),
        "aggregation": (AGGREGATION_CATALOG, learning.aggregation),
        "optimizer": (OPTIMISER_CATALOG, learning.optimizer),
    }
    sources = {name: of_variant(place, one) for name, (place, one) in places.items() if one is not None}
    return {name: code for name, code in sources.items() if code is not None}
