"""The fleet's clock and its observer.

The clock says which part of which slot it is, and hands out what the world does to each device; it carries nothing
from one device to another. The observer reads off every device what happened to it, for a trace and for metrics that
no device ever sees. Towards the trainer a fleet is a `Stack`: whoever holds the weights.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from heliomesh.common.durable import write_json
from heliomesh.common.streams import stream
from heliomesh.field.fleet.device import Installation
from heliomesh.field.fleet.learner import lesson_of
from heliomesh.field.fleet.messages import PLANNING, Kind, Receipt
from heliomesh.field.fleet.observer import absent, observed, recorded
from heliomesh.field.fleet.planning import Timetable
from heliomesh.field.fleet.scheme import FleetScheme
from heliomesh.field.fleet.world import World
from heliomesh.jobs.job import Job
from heliomesh.jobs.steps import origin
from heliomesh.jobs.store import Store
from heliomesh.learning.replay import Replay
from heliomesh.learning.run import Run, TrainingError
from heliomesh.learning.settings import TrainJob, TrainSettings
from heliomesh.learning.stacked import Scores
from heliomesh.learning.strategy import Report
from heliomesh.learning.trainer import ALONE, Execution, Training
from heliomesh.model.policy import Plan, Track
from heliomesh.model.problem import Problem
from heliomesh.simulation.trace import Recorder, Trace
from heliomesh.tasks.dataset import Dataset, load_dataset
from heliomesh.tasks.partition import split

_MESSAGES = "messages.json"


class Post(Protocol):
    """Devices that can be called, wherever they are."""

    def call(self, name: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Let devices do their part of a phase and wait until their messages have arrived; results of the living."""

    def kill(self, device: int) -> None:
        """End a device at once."""


MakePost = Callable[[Sequence[Installation]], Post]
Logbooks = dict[int, dict[Receipt, tuple[int, int]]]  # by device that received


@dataclass(frozen=True)
class FleetRun:
    """A finished run of a fleet."""

    scheme: FleetScheme
    job: Job  # with the deaths among the changes of its world
    plan: Plan
    trace: Trace
    run: Run
    logbooks: Logbooks  # of the devices that lived to the end
    died: dict[int, int]  # device to the slot from which on it was dead

    def total(self, *kinds: Kind) -> tuple[int, int]:
        """Messages of some kinds and their bytes, every hop counted."""
        found = [
            size for logbook in self.logbooks.values() for receipt, size in logbook.items() if receipt.kind in kinds
        ]
        return sum(count for count, _ in found), sum(num_bytes for _, num_bytes in found)

    @property
    def message_facts(self) -> dict[str, Any]:
        """Messages and bytes over single hops as the living devices received them, beside what the model predicts."""
        slots, predicted = self.scheme.problem.slots, self.scheme.predicted
        kinds: tuple[Kind, ...] = ("share", "policy", "state", "model")
        totals = {kind: self.total(kind) for kind in kinds}
        facts: dict[str, Any] = {f"messages: {kind}": count for kind, (count, _) in totals.items()}
        return facts | {
            "planning bytes, counted": sum(totals[kind][1] for kind in PLANNING),
            "planning bytes, predicted": predicted.offline_bytes,
            "coordination bytes per slot, counted": totals["state"][1] / slots,
            "coordination bytes per slot, predicted": predicted.online_bytes_per_slot,
            "model bytes per slot, counted": totals["model"][1] / slots,
            "died": " ".join(f"{device}@{slot}" for device, slot in sorted(self.died.items())) or "none",
        }

    def save(self, folder: Path) -> None:
        """Write the files of `heliomesh run`, and what was counted."""
        store = Store(folder, single=True)
        with store.alone():
            store.put_plan(self.job, self.plan)
            store.put_trace(self.job, self.trace)
            store.put_run(self.job, self.run)
            write_json(folder / _MESSAGES, self.message_facts)


def run_fleet(
    scheme: FleetScheme,
    make_post: MakePost,
    job: Job,
    *,
    deaths: Mapping[int, int] | None = None,
    work: Execution = ALONE,
) -> FleetRun:
    """Install a fleet, let it plan, and run it through the horizon.

    ``deaths`` maps devices to the slot in which they are killed, before they do anything in it. A device that ends
    by itself is treated alike.
    """
    recorder, trace = recorded(scheme.problem, scheme.planner, job.seed)
    world = World(scheme.problem, job.episode, job.seed)
    made: list[FleetStack] = []

    def make_stack(jobs: Sequence[TrainJob], loaded: Dataset, settings: TrainSettings) -> FleetStack:
        watching = Replay(jobs, loaded, settings)
        post = make_post(_installations(scheme, world, watching, loaded, jobs[0].training_seed, settings))
        plan = _planned(scheme, post, work.track)
        made.append(FleetStack(scheme.problem, post, world, recorder, watching, plan, dict(deaths or {})))
        return made[0]

    dataset = job.dataset or load_dataset(job.scenario.learning)
    training = Training([job.train_job(trace)], dataset, job.training, [{}], replace(work, make_stack=make_stack))
    (run,) = training.to_the_end(work.track)
    fleet = made[0]
    killed = tuple(f"device.{device}=killed@{slot}" for device, slot in sorted(fleet.died.items()))
    done = replace(job, changes=job.changes + killed)  # who died, and so the trace, is known only now
    facts = {**run.provenance, **origin(done, trace), "trace": job.train_job(trace).trace_hash}
    return FleetRun(scheme, done, fleet.plan, trace, replace(run, provenance=facts), fleet.logbooks(), fleet.died)


def _installations(
    scheme: FleetScheme, world: World, watching: Replay, dataset: Dataset, seed: int, settings: TrainSettings
) -> list[Installation]:
    """What each device is given; only here are the shares of all devices in one place."""
    problem, learning = scheme.problem, scheme.problem.scenario.learning
    partition = split(dataset.train_labels, learning, problem.num_devices, stream(seed, "partition"))
    rounds = () if scheme.timetable is None else scheme.timetable.rounds
    given = []
    for device in range(problem.num_devices):
        view = scheme.view(device)
        lesson = lesson_of(
            dataset,
            partition,
            device,
            view.problem.scenario,
            seed,
            watching.report.setting,
            settings.precision,
        )
        given.append(
            Installation(
                view=view,
                lesson=lesson,
                battery_joule=float(world.first_battery_joule[device]),
                policy=scheme.policy(view),
                partners=scheme.partners[device] if scheme.partners else None,
                rounds=rounds,
            )
        )
    return given


def _planned(scheme: FleetScheme, post: Post, track: Track) -> Plan:
    """Let the devices plan, and look at what they found."""
    if scheme.timetable is None:
        return scheme.plan({})
    _let_plan(scheme.timetable, post, scheme.planned.unrolled_slots, track)
    return scheme.plan(_asked(post, "planned", dict.fromkeys(range(scheme.problem.num_devices), ())))


def _let_plan(table: Timetable, post: Post, slots: int, track: Track) -> None:
    """Rounds for so many slot indices, backwards."""
    everyone = range(len(table.colour))
    for slot in track(range(slots - 1, -1, -1), "plan by messages", slots):
        for number in range(len(table.rounds)):
            for turn in range(table.num_turns):
                _asked(post, "tell", dict.fromkeys(everyone, (slot, turn)))
                _asked(post, "move", dict.fromkeys(table.movers(turn), (slot, number)))
        _asked(post, "settle", dict.fromkeys(everyone, (slot,)))


def _asked(post: Post, name: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
    """Call devices none of which may be dead yet: a plan has a part of each."""
    results = post.call(name, arguments)
    missing = sorted(set(arguments) - set(results))
    if missing:
        raise TrainingError(f"device {missing[0]}: its process ended before all devices had planned.")
    return results


class FleetStack:
    """The weights of a fleet, where the trainer asks for them: every slot is one of the devices' own."""

    def __init__(
        self,
        problem: Problem,
        post: Post,
        world: World,
        recorder: Recorder,
        watching: Replay,
        plan: Plan,
        deaths: dict[int, int],
    ) -> None:
        self.plan, self.died = plan, dict[int, int]()
        self.members, self.layout = watching.members, watching.layout
        self._problem, self._post, self._world, self._recorder = problem, post, world, recorder
        self._watching, self._deaths = watching, deaths
        self._battery_joule = world.first_battery_joule.tolist()  # last seen of each device

    @property
    def num_slots(self) -> int:
        """Horizon T."""
        return self._watching.num_slots

    @property
    def report(self) -> Report:
        """The strategy with which devices train."""
        return self._watching.report

    @property
    def facts(self) -> dict[str, Any]:
        """Where it trains."""
        return {"device": "cpu", "fleet": self._problem.num_devices}

    def step(self, slot: int) -> npt.NDArray[np.float64]:
        """One slot of all devices; returns their training losses, NaN where idle or dead; (device,)."""
        for device in [device for device, when in self._deaths.items() if when == slot]:
            self._post.kill(device)
        sensed = self._world.open()
        self._post.call("open", {device: (slot, one) for device, one in enumerate(sensed)})
        self._post.call("act", dict.fromkeys(range(len(sensed)), (slot,)))
        level, weather = self._world.channel_level, self._world.weather
        fates = self._world.close(slot)
        happened = self._post.call("close", {device: (slot, fate) for device, fate in enumerate(fates)})
        for device in set(range(len(fates))) - set(happened):
            self.died.setdefault(device, slot)
        seen = [
            happened.get(device) or absent(self._problem, device, self._battery_joule[device])
            for device in range(len(fates))
        ]
        self._battery_joule = [one.battery_after_joule for one in seen]
        self._recorder.add(observed(self._problem, seen, level, weather))
        return np.array([one.loss for one in seen])

    def gather_state(self) -> dict[str, Tensor]:
        """The devices' weights, of a dead one those that were seen last; what else they remember stays with them."""
        everyone = range(self._problem.num_devices)
        for device, row in self._post.call("weights", dict.fromkeys(everyone, ())).items():
            self._watching.weights[device] = row
        return {"weights": self._watching.weights}

    def restore(self, state: Mapping[str, Tensor], done: int) -> None:
        """A fleet keeps no checkpoints."""
        raise TrainingError("fleet: a fleet cannot resume from a checkpoint.")

    def score_devices(self, done: int) -> Scores:
        """Every device's model on the observer's test samples; (device,)."""
        return self._watching.score_devices(done)

    def score_models(self, models: Tensor) -> Scores:
        """Other models on the observer's test set."""
        return self._watching.score_models(models)

    def logbooks(self) -> Logbooks:
        """What the living devices received."""
        everyone = range(self._problem.num_devices)
        return self._post.call("logbook", dict.fromkeys(everyone, ()))
