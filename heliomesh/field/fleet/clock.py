"""The fleet's clock and its observer.

The clock says which part of which slot it is, and hands out what the world does to each device; it carries nothing
from one device to another. The observer reads off every device what happened to it, for a trace and for metrics that
no device ever sees. Towards the trainer a fleet is a `Stack`: whoever holds the weights.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heliomesh.common.durable import write_json
from heliomesh.common.streams import stream
from heliomesh.field.fleet.device import Happened, Installation
from heliomesh.field.fleet.learner import Lesson
from heliomesh.field.fleet.messages import PLANNING, Kind, Logbook
from heliomesh.field.fleet.post import Post
from heliomesh.field.fleet.scheme import FleetScheme
from heliomesh.field.fleet.view import view_of
from heliomesh.field.fleet.world import World
from heliomesh.jobs.job import Job
from heliomesh.jobs.steps import origin
from heliomesh.jobs.store import Store
from heliomesh.learning.replay import Replay
from heliomesh.learning.run import Run
from heliomesh.learning.settings import TrainJob, TrainSettings
from heliomesh.learning.stacked import Samples
from heliomesh.learning.trainer import ALONE, Execution, Training
from heliomesh.model.cost import update_loss
from heliomesh.model.policy import Plan, Track
from heliomesh.simulation.slot_loop import Slot
from heliomesh.simulation.trace import CONTROL, Recorder, Trace, axis_sizes
from heliomesh.tasks.dataset import Dataset, given_or_loaded
from heliomesh.tasks.partition import split

_MESSAGES = "messages.json"
_JOULES = ("battery_joule", "spent_joule", "harvested_joule", "overflow_joule", "battery_after_joule")


@dataclass(frozen=True)
class FleetRun:
    """A finished run of a fleet."""

    scheme: FleetScheme
    job: Job  # with the deaths among the changes of its world
    plan: Plan
    trace: Trace
    run: Run
    logbooks: dict[int, Logbook]  # of the devices that lived to the end
    died: dict[int, int]  # device to the slot from which on it was dead

    def total(self, *kinds: Kind) -> tuple[int, int]:
        """Messages of some kinds and their bytes, every hop counted."""
        found = [
            size for logbook in self.logbooks.values() for receipt, size in logbook.items() if receipt.kind in kinds
        ]
        return sum(count for count, _ in found), sum(num_bytes for _, num_bytes in found)

    @property
    def _broadcast_bytes(self) -> int:
        """Bytes of bids and grants, each counted once however many hear it."""
        said = {
            (receipt.origin, receipt.kind, receipt.slot): num_bytes // count
            for logbook in self.logbooks.values()
            for receipt, (count, num_bytes) in logbook.items()
            if receipt.kind in ("bid", "grant")
        }
        return sum(said.values())

    @property
    def message_facts(self) -> dict[str, Any]:
        """Messages and bytes over single hops as the living devices received them, beside what the model predicts."""
        slots, predicted = self.scheme.problem.slots, self.scheme.predicted
        kinds: tuple[Kind, ...] = ("share", "policy", "state", "bid", "grant", "model")
        totals = {kind: self.total(kind) for kind in kinds}
        facts: dict[str, Any] = {f"messages: {kind}": count for kind, (count, _) in totals.items()}
        return facts | {
            "planning bytes, counted": sum(totals[kind][1] for kind in PLANNING),
            "planning bytes, predicted": predicted.offline_bytes,
            "coordination bytes per slot, counted": (totals["state"][1] + self._broadcast_bytes) / slots,
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


def run_fleet(scheme: FleetScheme, job: Job, *, deaths: Mapping[int, int] = {}, work: Execution = ALONE) -> FleetRun:
    """Install a fleet, let it plan, and run it through the horizon.

    ``deaths`` maps devices to the slot in which they are killed, before they do anything in it.
    """
    recorder, topology = Recorder(scheme.problem, 1), scheme.problem.topology
    if scheme.pays:
        recorder.arrays[CONTROL.name] = np.empty(CONTROL.shape(axis_sizes(scheme.problem, 1)), CONTROL.dtype)
    for array in recorder.arrays.values():
        array.fill(0)
    trace = Trace(  # filled slot by slot
        scenario_toml=scheme.problem.scenario.to_toml(),
        planner=scheme.planner,
        seed=job.seed,
        edge_receiver=topology.edge_receiver,
        edge_sender=topology.edge_sender,
        **recorder.arrays,
    )
    made: list[FleetStack] = []

    def make_stack(jobs: Sequence[TrainJob], loaded: Dataset, settings: TrainSettings) -> FleetStack:
        world = World(scheme.problem, job.episode, job.seed)
        made.append(FleetStack(jobs[0], loaded, settings, scheme, world, recorder, deaths, work.track))
        return made[0]

    dataset = given_or_loaded(job.dataset, job.scenario.learning)
    training = Training([job.train_job(trace)], dataset, job.training, [{}], replace(work, make_stack=make_stack))
    (run,) = training.to_the_end(work.track)
    fleet = made[0]
    killed = tuple(f"device.{device}=killed@{slot}" for device, slot in sorted(deaths.items()))
    done = replace(job, changes=job.changes + killed)  # who died, and so the trace, is known only now
    facts = {**run.provenance, **origin(done, trace), "trace": job.train_job(trace).trace_hash}
    run = replace(run, provenance=facts)
    return FleetRun(scheme, done, fleet.plan, trace, run, fleet.call("logbook"), dict(deaths))


class FleetStack(Replay):
    """The weights of a fleet, where the trainer asks for them: every slot is one of the devices' own."""

    def __init__(
        self,
        job: TrainJob,
        dataset: Dataset,
        settings: TrainSettings,
        scheme: FleetScheme,
        world: World,
        recorder: Recorder,
        deaths: Mapping[int, int],
        track: Track,
    ) -> None:
        super().__init__([job], dataset, settings)
        self._scheme, self._problem, self._world = scheme, scheme.problem, world
        self._recorder, self._deaths = recorder, deaths
        self._battery_joule = world.first_battery_joule.tolist()  # last seen of each device
        self._everyone = range(self._problem.num_devices)
        self.facts = {"device": "cpu", "fleet": len(self._everyone)}
        self._post = Post(self._installations(dataset, settings, job.training_seed))
        self.plan = self._planned(track)

    def _installations(self, dataset: Dataset, settings: TrainSettings, seed: int) -> list[Installation]:
        """What each device is given; only here are the shares of all devices in one place."""
        partition = split(dataset.train_labels, self.learning, len(self._everyone), stream(seed, "partition"))
        given = []
        for device in self._everyone:
            view = view_of(self._scheme.planned, device, self._scheme.hops)
            own = torch.from_numpy(partition.of(device))
            samples = Samples(dataset.train_inputs[own], dataset.train_labels[own])
            shape, classes, strategy = dataset.input_shape, dataset.num_classes, self.setting
            lesson = Lesson(samples, shape, classes, seed, strategy, settings.precision)
            given.append(Installation(view, lesson, self._battery_joule[device], self._scheme.decider(view)))
        return given

    def call(self, name: str, *values: Any) -> dict[int, Any]:
        """Call all devices alike; results of the living."""
        return self._post.call(name, dict.fromkeys(self._everyone, values))

    def _planned(self, track: Track) -> Plan:
        """Let the devices plan, by rounds for every slot index, backwards; what they found."""
        table, slots = self._scheme.timetable, self._scheme.planned.unrolled_slots
        if table is None:
            return self._scheme.plan({})
        for slot in track(range(slots - 1, -1, -1), "plan by messages", slots):
            for number in range(len(table.rounds)):
                for turn in range(table.num_turns):
                    self.call("tell", slot, turn)
                    self._post.call("move", dict.fromkeys(table.movers(turn), (slot, number)))
            self.call("settle", slot)
        return self._scheme.plan(self.call("planned"))

    def step(self, slot: int) -> npt.NDArray[np.float64]:
        """One slot of all devices; returns their training losses, NaN where idle or dead; (device,)."""
        for device in [device for device, when in self._deaths.items() if when == slot]:
            self._post.kill(device)
        sensed = self._world.open()
        self._post.call("open", {device: (slot, one) for device, one in enumerate(sensed)})
        for part in self._scheme.talk:
            self.call(part, slot)
        self.call("act", slot)
        level, weather = self._world.channel_level, self._world.weather
        fates = self._world.close(slot)
        happened = self._post.call("close", {device: (slot, fate) for device, fate in enumerate(fates)})
        for device in set(self._everyone) - set(happened):
            happened[device] = self._absent(device)
        seen = [happened[device] for device in self._everyone]
        self._battery_joule = [one.battery_after_joule for one in seen]
        self._recorder.add(self._observed(seen, level, weather))
        return np.array([one.loss for one in seen])

    def _absent(self, device: int) -> Happened:
        """A dead device: nothing reaches it, and its battery stays as it was seen last."""
        num_edges, joule = len(self._problem.topology.neighbours[device]), self._battery_joule[device]
        nothing = np.ones(num_edges), np.zeros(num_edges, dtype=np.bool_)
        return Happened(joule, joule, 0.0, False, 0.0, 0.0, 0.0, *nothing, loss=float("nan"))

    def _observed(self, seen: Sequence[Happened], channel_level: Tensor, weather: Tensor) -> Slot:
        """A slot of all devices, as the simulator records it."""
        error = torch.from_numpy(np.concatenate([one.error_prob for one in seen])).unsqueeze(0)
        trained = torch.tensor([[one.trained for one in seen]])
        names = (*_JOULES, CONTROL.name) if self._scheme.pays else _JOULES
        joule = {name: torch.tensor([[getattr(one, name) for one in seen]], dtype=torch.float64) for name in names}
        return Slot(
            channel_level=channel_level,
            weather=weather,
            scheduled=trained,
            power_watt=torch.tensor([[one.power_watt for one in seen]], dtype=torch.float64),
            error_prob=error,
            delivered=torch.from_numpy(np.concatenate([one.delivered for one in seen])).unsqueeze(0),
            update_loss=update_loss(self._problem, error, trained),
            dark=self._problem.battery.dark(joule["battery_joule"]),
            **joule,
        )

    def gather_state(self) -> dict[str, Tensor]:
        """The devices' weights, of a dead one those that were seen last; what else they remember stays with them."""
        for device, row in self.call("weights").items():
            self.weights[device] = row
        return {"weights": self.weights}
