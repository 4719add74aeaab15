"""Seconds of a round against Flower's simulation and fluke, in one run, with the same model, data, steps and batch.

All train the same network on the same images: every one of m clients makes K = 5 SGD steps of 32 samples in each
round. A round of heliomesh is a slot without losses: local steps, then gossip averaging among neighbours of a ring,
so m models live on. A round of the others is centralized FedAvg: the server sends its model to all clients, they
train, and it averages what they return, so one model lives on. Flower runs clients in Ray processes, one per core;
fluke runs them one after the other in this process. Nobody evaluates. The median round counts, after two to warm up.
A package that is not installed is left out and named:

    pip install 'flwr[simulation]' fluke-fl
    python benchmarks/peers.py --model mlp --clients 10
"""

import argparse
import importlib
import importlib.util
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn

import heliomesh as hm
from heliomesh.jobs.steps import lossless
from heliomesh.learning.replay import Replay
from heliomesh.learning.settings import TrainJob, TrainSettings
from heliomesh.tasks.model import build_model

STEPS, BATCH, RATE, CLASSES, WARM_UP = 5, 32, 0.01, 10, 2
SHAPES = {"mlp": (1, 8, 8), "cnn": (1, 28, 28)}


@dataclass(frozen=True)
class Task:
    """What all train: a model by name, and ``STEPS · BATCH`` samples for each client."""

    model: str
    clients: int
    rounds: int  # that are timed

    def network(self) -> nn.Module:
        """The first weights, the same for all."""
        return build_model(self.model, SHAPES[self.model], CLASSES, 0)

    def samples(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Random images and labels of all clients: speed does not depend on what they show."""
        generator, number = torch.Generator().manual_seed(0), self.clients * STEPS * BATCH
        inputs = torch.randn(number, *SHAPES[self.model], generator=generator)
        return inputs, torch.arange(number) % CLASSES

    def own(self, client: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Samples of one client."""
        here = slice(client * STEPS * BATCH, (client + 1) * STEPS * BATCH)
        inputs, labels = self.samples()
        return inputs[here], labels[here]


def heliomesh_rounds(task: Task) -> list[float]:
    """Seconds of slots in which everybody trains and everything arrives."""
    learning = {"model": task.model, "local_steps": STEPS, "batch": BATCH, "learning_rate": RATE}
    changes = {f"learning.{name}": value for name, value in learning.items()}
    network = {"network.topology": "ring", "network.devices": task.clients, "network.edges": None}
    slots = task.rounds + WARM_UP
    scenario = hm.Scenario.load("ring10").override(changes | network | {"slots": slots})
    inputs, labels = (part.numpy() for part in task.samples())
    dataset = hm.dataset_from_arrays("random", inputs, labels, inputs[:CLASSES], labels[:CLASSES], CLASSES)
    replay = Replay([TrainJob(scenario, lossless(hm.build(scenario), 1), 0)], dataset, TrainSettings())
    taken = []
    for slot in range(slots):
        start = time.perf_counter()
        replay.step(slot)
        taken.append(time.perf_counter() - start)
    return taken


def flower_rounds(task: Task) -> list[float]:
    """Seconds between the averages of a Flower simulation with FedAvg."""
    os.environ |= {"RAY_DEDUP_LOGS": "0", "FLWR_TELEMETRY_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    client_app, server_app, ends = ClientApp(), ServerApp(), []

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        model = task.network()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        local_steps(model, *task.own(int(context.node_config["partition-id"])))
        metrics = MetricRecord({"num-examples": STEPS * BATCH})
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    class Timed(FedAvg):  # type: ignore[misc]
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            averages = super().aggregate_train(server_round, replies)
            ends.append(time.perf_counter())
            return averages

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = Timed(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=task.clients)
        first = ArrayRecord(task.network().state_dict())
        strategy.start(grid=grid, initial_arrays=first, num_rounds=task.rounds + WARM_UP + 1)

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, task.clients, backend_config=resources)
    return [after - before for before, after in pairwise(ends)]


def local_steps(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> None:
    """One epoch of plain SGD, K steps, as a user of Flower writes it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for some, their in zip(inputs.split(BATCH), labels.split(BATCH), strict=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(some), their).backward()
        optimizer.step()


def fluke_rounds(task: Task) -> list[float]:
    """Seconds of rounds of fluke's FedAVG."""
    from fluke import DDict, FlukeENV
    from fluke.algorithms.fedavg import FedAVG
    from fluke.data import DataContainer, DataSplitter
    from fluke.utils import FederationObserver

    class Clock(FederationObserver):  # type: ignore[misc]
        def __init__(self) -> None:
            self.start, self.taken = 0.0, list[float]()

        def start_round(self, **_: Any) -> None:
            self.start = time.perf_counter()

        def end_round(self, **_: Any) -> None:
            self.taken.append(time.perf_counter() - self.start)

    FlukeENV().set_seed(0)
    FlukeENV().set_eval_cfg(task="classification", n_classes=CLASSES, locals=False, server=False)
    inputs, labels = task.samples()
    data = DataContainer(inputs, labels, inputs[:CLASSES], labels[:CLASSES], CLASSES)
    client = {"batch_size": BATCH, "local_epochs": 1, "loss": "CrossEntropyLoss"}
    client |= {"optimizer": {"name": "SGD", "lr": RATE}, "scheduler": {"name": "StepLR", "step_size": 1, "gamma": 1}}
    settings = DDict(client=client, server={"weighted": True}, model=task.network())
    algorithm, clock = FedAVG(task.clients, DataSplitter(data), settings), Clock()
    algorithm.set_callbacks([clock])
    algorithm.run(task.rounds + WARM_UP, 1.0)
    return clock.taken


PEERS: dict[str, tuple[str, str, Callable[[Task], list[float]]]] = {
    "heliomesh": ("heliomesh", "", heliomesh_rounds),
    "Flower": ("flwr", "pip install 'flwr[simulation]'", flower_rounds),
    "fluke": ("fluke", "pip install fluke-fl", fluke_rounds),
}


def why_not(module: str, install: str) -> str | None:
    """Why a package cannot run here; None where it can."""
    if importlib.util.find_spec(module) is None:
        return f"not installed; run {install}"
    try:
        importlib.import_module(module)
    except Exception as error:  # a package whose own dependencies do not fit together may raise anything
        return f"installed, but importing it raises {type(error).__name__}: {str(error).splitlines()[0]}"
    return None


def measured(task: Task) -> dict[str, float]:
    """Median seconds of a round, by package; prints a line for each."""
    found = {}
    for name, (module, install, rounds_of) in PEERS.items():
        if (reason := why_not(module, install)) is not None:
            print(f"| {name} | {reason} |")
            continue
        found[name] = statistics.median(rounds_of(task)[WARM_UP:])
        print(f"| {name} | {1000 * found[name]:.1f} |", flush=True)
    return found


def main() -> None:
    """Print the table, and the ratios last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mlp", choices=sorted(SHAPES))
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    print(f"{options.model}, {options.clients} clients, K = {STEPS}, batch {BATCH}\n")
    print("| package | ms a round |\n| --- | --- |")
    found = measured(Task(options.model, options.clients, options.rounds))
    ours = found.pop("heliomesh")
    ratios = [f"{name} takes {seconds / ours:.3g} × as long" for name, seconds in found.items()]
    print(f"\n{options.model}, m = {options.clients}: {'; '.join(ratios) or 'nothing to compare with is installed'}")


if __name__ == "__main__":
    main()
