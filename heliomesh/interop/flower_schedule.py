"""Who trains, whose updates arrive where, and who owns which samples: an episode for other frameworks to replay.

The schedule is a JSON file (version 1) that names everything a Flower client or server needs: per client its training
samples and mixing weights, per round who trains, who sends and which (receiver, sender) pairs get through.
`write_app` puts it into a Flower app (`flower_app/`) for `flwr run`, with every client's samples as a file.
"""

from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import tomli_w
from pydantic import Field

from heliomesh.common.durable import alone_in, make_folder, write_text, written_whole
from heliomesh.common.streams import stream
from heliomesh.interop.export_tables import write_described
from heliomesh.learning.aggregation import check_contraction
from heliomesh.learning.members import check_trace
from heliomesh.learning.schedule import learning_rates
from heliomesh.learning.settings import TrainJob
from heliomesh.physics.topology import build_topology
from heliomesh.scenario.errors import refuse
from heliomesh.scenario.schema import BUILT_IN_RULES
from heliomesh.scenario.section import Section
from heliomesh.simulation.trace import Trace
from heliomesh.tasks.dataset import Dataset, given_or_loaded
from heliomesh.tasks.partition import split

Index = Annotated[int, Field(ge=0)]


class Client(Section):
    """One device."""

    client: Index
    samples: tuple[Index, ...]  # of the data set's training part
    neighbours: tuple[Index, ...]
    weights: tuple[float, ...]  # a_ij of the neighbours
    self_weight: float  # a_ii


class Round(Section):
    """One slot."""

    trains: tuple[Index, ...]  # clients that take local steps
    sends: tuple[Index, ...]  # those of them that send
    arrivals: tuple[tuple[Index, Index], ...]  # (receiver, sender) of every packet that gets through


class Schedule(Section):
    """One episode."""

    format: Literal["heliomesh-schedule"] = "heliomesh-schedule"
    version: Literal[1] = 1
    planner: str
    scenario: str
    scenario_sha256: str
    simulation_seed: Index
    partition_seed: Index
    dataset: str
    num_classes: Index | None = None
    aggregation: Literal["model", "update", "renormalized", "reassigned"]
    local_steps: Index
    batch: Index
    learning_rate: float
    learning_rates: tuple[float, ...] | None = None  # of each round; None: the same in all
    clients: tuple[Client, ...]
    rounds: tuple[Round, ...]


def make_schedule(job: TrainJob, dataset: Dataset | None = None) -> Schedule:
    """The schedule of a training job, with the partition and the network that `train` would use."""
    scenario, settings = job.scenario, job.scenario.learning
    topology = build_topology(scenario)
    check_trace(job, topology)
    for name, fits, wanted in (
        ("aggregation", settings.aggregation in BUILT_IN_RULES, f"one of {', '.join(BUILT_IN_RULES)}"),
        ("optimizer", settings.optimizer in (None, "sgd"), "sgd in a schedule"),
        ("quasi_global", not settings.quasi_global, "none in a schedule"),
        ("on_air", settings.on_air == "float32", "float32 in a schedule"),
    ):
        refuse(not fits, f"learning.{name}", wanted, f"value {getattr(settings, name)!r}")
    refuse(job.trace.edge_weight is not None, "trace", "one weight per link in a schedule", ": weights that change")
    check_contraction(settings.aggregation, topology, settings.allow_divergence)
    data = given_or_loaded(dataset, settings)
    partition = split(data.train_labels, settings, topology.num_devices, stream(job.training_seed, "partition"))
    return Schedule(
        planner=job.trace.planner,
        scenario=scenario.name,
        scenario_sha256=scenario.content_hash,
        simulation_seed=job.trace.seed,
        partition_seed=job.training_seed,
        dataset=settings.dataset,
        num_classes=data.num_classes,
        aggregation=settings.aggregation,  # type: ignore[arg-type]
        local_steps=settings.local_steps,
        batch=settings.batch,
        learning_rate=settings.learning_rate,
        learning_rates=None if settings.schedule in (None, "constant") else learning_rates(scenario),
        clients=tuple(
            Client(
                client=device,
                samples=tuple(partition.of(device).tolist()),
                neighbours=topology.neighbours[device],
                weights=tuple(topology.edge_weight[slice(*topology.edge_start[device : device + 2])].tolist()),
                self_weight=float(topology.self_weight[device]),
            )
            for device in range(topology.num_devices)
        ),
        rounds=_rounds(job.trace.episode(job.episode)),
    )


def _rounds(trace: Trace) -> tuple[Round, ...]:
    """The slots of a trace's first episode."""
    sent = trace.power_watt[0] > 0  # (slot, device)
    arrived = trace.delivered[0] & sent[:, trace.edge_sender]  # (slot, edge)
    ends = np.stack([trace.edge_receiver, trace.edge_sender], axis=1)
    return tuple(
        Round(
            trains=tuple(np.flatnonzero(trace.scheduled[0, slot]).tolist()),
            sends=tuple(np.flatnonzero(sent[slot]).tolist()),
            arrivals=tuple((receiver, sender) for receiver, sender in ends[arrived[slot]].tolist()),
        )
        for slot in range(len(sent))
    )


def write_schedule(schedule: Schedule, folder: Path) -> list[Path]:
    """Write ``schedule.json`` and its JSON schema; returns the files."""
    return write_described(schedule, folder, "schedule", exclude_none=True)


def write_app(schedule: Schedule, dataset: Dataset, folder: Path) -> list[Path]:
    """Write a Flower app that replays a schedule, and the samples of each client and of the test; returns the files.

    The app names the data by their place now. Whoever moves them says so: ``--run-config 'data="…"'``.
    """
    package, data = folder / "heliomesh_app", folder / "data"
    for place in (folder, package, data):
        make_folder(place)
    train, test = (dataset.train_inputs, dataset.train_labels), (dataset.test_inputs, dataset.test_labels)
    with alone_in(folder):
        parts = {f"client_{one.client}": [part[list(one.samples)] for part in train] for one in schedule.clients}
        for name, (inputs, labels) in {**parts, "test": test}.items():
            with written_whole(data / f"{name}.npz") as path, path.open("wb") as file:
                np.savez(file, inputs=inputs.numpy(), labels=labels.numpy())
        for source in sorted(resources.files("heliomesh.interop.flower_app").iterdir(), key=lambda one: one.name):
            if source.name.endswith(".py"):
                write_text(package / source.name, source.read_text(encoding="utf-8"))
        write_text(package / "schedule.json", schedule.model_dump_json(exclude_none=True) + "\n")
        write_text(folder / "pyproject.toml", _project(schedule, data.resolve()))
    return [folder / "pyproject.toml", *sorted(package.iterdir()), *sorted(data.iterdir())]


def _project(schedule: Schedule, data: Path) -> str:
    """The app's pyproject.toml."""
    app = {
        "publisher": "heliomesh",
        "components": {"serverapp": "heliomesh_app.server_app:app", "clientapp": "heliomesh_app.client_app:app"},
        "config": {"data": str(data)},
    }
    return tomli_w.dumps(
        {
            "build-system": {"requires": ["hatchling"], "build-backend": "hatchling.build"},
            "project": {
                "name": "heliomesh-app",
                "version": "1.0.0",
                "description": f"{schedule.planner} on {schedule.scenario}, replayed",
                "license": "Apache-2.0",
                "dependencies": ["flwr[simulation]>=1.23", "numpy"],
            },
            "tool": {"hatch": {"build": {"targets": {"wheel": {"packages": ["."]}}}}, "flwr": {"app": app}},
        }
    )
