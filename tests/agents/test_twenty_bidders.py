"""Twenty agents that bid, with luck of their own: models as good as the simulator's, also where much is lost."""

import os
import random
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heliomesh.jobs.training import train
from heliomesh.learning.stacked import Samples
from heliomesh.learning.strategy import choose_for
from heliomesh.model.policy import Plan
from heliomesh.model.problem import Problem
from heliomesh.simulation.trace import simulate
from heliomesh.tasks.dataset import load_dataset
from heliomesh.tasks.model import build_model
from tests.agents.network import LOUD, READY, bidding, deployed, final_weights, live, running, small, told

from heliomesh.field.agents.folder import AgentFolder, ClockSettings  # isort: skip
from heliomesh.field.agents.link import Link
from tests.agents.lines import read_journal
from tests.agents.namespaces import address
from tests.agents.test_cut_off import WITH_NAMESPACES, in_namespaces

LOST = 0.2  # of the frames
WITH_NFTABLES = pytest.mark.skipif(shutil.which("nft") is None, reason="nftables is not installed")
TWENTY: dict[str, Any] = {
    "network.devices": 20, "slots": 40, "energy.actions": "separate", "energy.control": "paid",
    "learning.partition": "dirichlet", "learning.alpha": 0.5, **LOUD,
    "learning.local_steps": 20, "learning.batch": 16,
}  # fmt: skip


def accuracy_of(problem: Problem, weights: torch.Tensor) -> float:
    """Mean over devices, on the test set."""
    learning, data = problem.scenario.learning, load_dataset(problem.scenario.learning)
    model = build_model(learning.model, data.input_shape, data.num_classes, 0, learning.buffers)
    test = Samples(data.test_inputs, data.test_labels)
    strategy = choose_for(learning, model, test, "fp32", "loop")
    return float(strategy.evaluate(weights, torch.arange(len(weights)), test).accuracy.mean())


def interval_of(problem: Problem, plan: Plan) -> tuple[float, float]:
    """Where a run of the simulator ends in 99 of 100 cases, from twelve of them."""
    trace = simulate(problem, plan, 12, 7)
    runs = [train(problem.scenario, trace, episode=episode, seed=0, strategy="loop") for episode in range(12)]
    found = np.array([run.accuracy[-1].mean() for run in runs])
    half = 3.1 * found.std(ddof=1) * np.sqrt(1 + 1 / len(found))  # Student's t of eleven degrees of freedom
    return float(found.mean() - half), float(found.mean() + half)


def with_own_luck(folders: Iterable[AgentFolder]) -> None:
    for device, folder in enumerate(folders):
        sensor = folder.settings.sensor.model_copy(update={"seed": 1000 + device})
        AgentFolder(folder.path).write_settings(folder.settings.model_copy(update={"sensor": sensor}))


@pytest.mark.slow
def test_twenty_bidders_are_like_the_simulator(tmp_path: Path) -> None:
    problem = small(**TWENTY)
    plan = bidding(problem)
    low, high = interval_of(problem, plan)
    folders = deployed(problem, plan, tmp_path / "net", READY)
    with_own_luck(folders)
    with running(folders) as network:
        network.wait(1800)
    accuracy = accuracy_of(problem, final_weights(folders))
    print(f"accuracy {accuracy:.4f}, the simulator's {low:.4f} to {high:.4f}")
    assert low <= accuracy <= high
    assert "".join(map(told, folders)) == ""


@pytest.mark.slow
@WITH_NAMESPACES
@pytest.mark.parametrize(
    "event", [(), pytest.param((f"DROP:{100 * LOST:.0f}",), marks=WITH_NFTABLES)], ids=["", "lossy"]
)
def test_twenty_bidders_in_twenty_namespaces_are_like_the_simulator(tmp_path: Path, event: tuple[str, ...]) -> None:
    """Also where the kernel drops a fifth of the packets, which TCP sends again: then some messages come too late."""
    ease = min(max(os.getloadavg()[0] / (os.cpu_count() or 1), 1.0), 3.0)
    problem = small(**TWENTY)
    plan = bidding(problem)
    low, high = interval_of(problem, plan)
    clock = ClockSettings(start_second=time.time() + 40 * ease, slot_second=3 * ease, guard_second=0.3 * ease)
    hosts = {device: address(device) for device in range(20)}
    folders = deployed(problem, plan, tmp_path / "net", clock, hosts=hosts)
    with_own_luck(folders)
    in_namespaces(tmp_path / "net", *event)
    accuracy = accuracy_of(problem, final_weights(folders))
    taken = np.mean([len(read_journal(folder)) for folder in folders]) / problem.slots
    print(f"accuracy {accuracy:.4f}, the simulator's {low:.4f} to {high:.4f}; {taken:.1%} of slots")
    assert not any(line["isolated"] for folder in folders for line in read_journal(folder)[-1:])
    assert taken > 0.9
    assert low <= accuracy <= high


def live_on_a_lossy_network(folder: Path) -> None:
    """An agent of which some frames never leave."""
    sent, lost = Link.send, random.Random(str(folder))  # noqa: S311

    def send(link: Link, member: int, frames: Iterable[bytes]) -> None:
        sent(link, member, [frame for frame in frames if lost.random() >= LOST])

    Link.send = send  # type: ignore[method-assign]
    live(folder)


@pytest.mark.slow
def test_twenty_bidders_lose_messages_and_one_of_them_for_a_while(tmp_path: Path) -> None:
    ease = min(max(os.getloadavg()[0] / (os.cpu_count() or 1), 1.0), 3.0)  # a busy machine gets longer slots
    problem = small(**TWENTY)
    plan = bidding(problem)
    low, high = interval_of(problem, plan)
    clock = ClockSettings(start_second=time.time() + 30 * ease, slot_second=3 * ease, guard_second=0.3 * ease)
    folders = deployed(problem, plan, tmp_path / "net", clock)
    with_own_luck(folders)
    with running(folders, life=live_on_a_lossy_network) as network:
        network.wait_for_slot(0, 10, 200 * ease)
        network.kill(3)
        network.wait_for_slot(0, 16, 200 * ease)
        network.start(3)
        network.wait(400 * ease)
    accuracy = accuracy_of(problem, final_weights(folders))
    lines = read_journal(folders[3])
    missed = set(range(problem.slots)) - {line["slot"] for line in lines}
    taken = np.mean([len(read_journal(folder)) for folder in folders]) / problem.slots
    print(f"accuracy {accuracy:.4f}, the simulator's {low:.4f} to {high:.4f}; {taken:.1%} of slots, missed {missed}")
    assert "going on after slot" in told(folders[3])
    assert missed
    assert lines[-1]["slot"] == problem.slots - 1
    assert not any(line["isolated"] for folder in folders for line in read_journal(folder)[-1:])
    assert low <= accuracy <= high
