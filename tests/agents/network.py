"""Agents as processes of this machine, with real Zenoh traffic over loopback."""

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("zenoh", reason="eclipse-zenoh is not installed")
pytest.importorskip("cryptography", reason="cryptography is not installed")

from heliomesh.common.durable import read_tensors
from heliomesh.common.mistakes import MistakeError
from heliomesh.field.agents.agent import run_agent
from heliomesh.field.agents.deploy import Deployment, deploy
from heliomesh.field.agents.folder import AgentFolder, ClockSettings, SensorSettings
from heliomesh.model.policy import Plan
from heliomesh.model.problem import Problem, build
from heliomesh.planning import make_plan
from heliomesh.scenario.scenario import Scenario
from heliomesh.simulation.trace import Trace
from tests.agents.lines import read_journal
from tests.forking import CONTEXT

SMALL: dict[str, Any] = {
    "energy.battery_levels": 3,
    "energy.capacity_joule": 2.0,
    "energy.powers_watt": [0.0, 1.0],
    "learning.local_steps": 2,
    "learning.batch": 8,
}
LOUD: dict[str, Any] = {"link.noise_watt": 1e-3, "harvest.scale": 2.0}  # devices send often and are heard
READY = ClockSettings(kind="ready", patience_second=60.0)


def small(**changes: Any) -> Problem:
    return build(Scenario.load("tiny").override({**SMALL, **changes}))


def free_ports(count: int) -> int:
    """The first of so many ports in a row that nobody uses, below those that outgoing connections take."""
    first = 20_000 + time.time_ns() // 1000 % 12_000
    while any(_used(port) for port in range(first, first + count)):
        first += count
    return first


def _used(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def deployed(
    problem: Problem, plan: Plan, root: Path, clock: ClockSettings = READY, seed: int = 0, **more: Any
) -> list[AgentFolder]:
    """Folders of agents that train by "loop": which strategy is quickest depends on the load, and so would bits."""
    port = free_ports(problem.num_devices)
    sensor, how = SensorSettings(kind="simulated", seed=seed), {"strategy": "loop", **more}
    return deploy(problem, plan, root, Deployment(clock, sensor, first_port=port, training_seed=seed, **how))


def planned(problem: Problem, hops: int = 1) -> Plan:
    return make_plan(problem, "decentralized", {"rounds": 1, "hops": hops}, bound=False)


def bidding(problem: Problem, **options: Any) -> Plan:
    return make_plan(problem, "bids", {"practice": 2, "passes": 1, "talk": "messages", **options}, bound=False)


def live(folder: Path) -> None:
    """A process's whole life."""
    log = folder / "told.txt"

    def notify(sentence: str) -> None:
        with log.open("a") as file:
            file.write(sentence + "\n")

    try:
        run_agent(AgentFolder(folder), notify)
    except MistakeError as error:
        notify(f"error: {error}")
        raise SystemExit(2) from None


def told(folder: AgentFolder) -> str:
    log = folder.path / "told.txt"
    return log.read_text() if log.exists() else ""


@dataclass
class Running:
    """Agents at work."""

    folders: Sequence[AgentFolder]
    processes: dict[int, Any]
    life: Callable[[Path], None] = live

    def start(self, device: int) -> None:
        process = CONTEXT.Process(target=self.life, args=(self.folders[device].path,))
        process.start()
        self.processes[device] = process

    def kill(self, device: int) -> None:
        self.processes[device].kill()
        self.processes[device].join()

    def wait(self, second: float = 240.0) -> None:
        until = time.monotonic() + second
        for process in self.processes.values():
            process.join(max(until - time.monotonic(), 0.01))
        late = [device for device, process in self.processes.items() if process.exitcode is None]
        assert not late, f"agents {late} have not ended"

    def wait_for_slot(self, device: int, slot: int, second: float = 120.0) -> None:
        until = time.monotonic() + second
        while not any(line["slot"] >= slot for line in read_journal(self.folders[device])):
            assert time.monotonic() < until, f"device {device} has not come to slot {slot}"
            time.sleep(0.05)


@contextmanager
def running(
    folders: Sequence[AgentFolder], devices: Sequence[int] | None = None, life: Callable[[Path], None] = live
) -> Iterator[Running]:
    found = Running(folders, {}, life)
    try:
        for device in range(len(folders)) if devices is None else devices:
            found.start(device)
        yield found
    finally:
        for process in found.processes.values():
            process.kill()
            process.join()


def share_of_equal_slots(folders: Sequence[AgentFolder], trace: Trace) -> float:
    """Share of slots and devices with the simulator's action, battery and deliveries."""
    edge_start = np.searchsorted(trace.edge_receiver, np.arange(len(folders) + 1))
    equal = []
    for device, folder in enumerate(folders):
        edges = slice(edge_start[device], edge_start[device + 1])
        lines = {line["slot"]: line for line in read_journal(folder)}
        for slot in range(trace.scheduled.shape[1]):
            line = lines.get(slot)
            equal.append(
                line is not None
                and line["trained"] == trace.scheduled[0, slot, device]
                and line["power_watt"] == trace.power_watt[0, slot, device]
                and line["battery_joule"] == trace.battery_joule[0, slot, device]
                and line["delivered"] == trace.delivered[0, slot, edges].tolist()
            )
    return float(np.mean(equal))


def final_weights(folders: Sequence[AgentFolder]) -> torch.Tensor:
    return torch.stack([read_tensors(folder.model, RuntimeError)["weights"] for folder in folders])
