"""Agents do what the simulator does, over real connections."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heliomesh.jobs.training import train
from heliomesh.learning.run import Run
from heliomesh.model.policy import Plan
from heliomesh.model.problem import Problem
from heliomesh.scenario.scenario import Scenario
from heliomesh.simulation.trace import Trace, simulate
from tests.agents.network import (
    LOUD,
    bidding,
    deployed,
    final_weights,
    planned,
    running,
    share_of_equal_slots,
    small,
    told,
)

from heliomesh.field.agents.folder import AgentFolder  # isort: skip
from tests.agents.lines import read_journal


def trained_alone(scenario: Scenario, trace: Trace) -> Run:
    """What the simulator trains with one thread, as every agent does: sums depend on it in the last bit."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return train(scenario, trace, seed=3, strategy="loop")
    finally:
        torch.set_num_threads(threads)


def agents_equal_the_simulator(root: Path, problem: Problem, plan: Plan) -> None:
    """Run agents on replayed numbers: they say nothing, act as simulated, and end with the same bits."""
    folders = deployed(problem, plan, root, seed=3)
    with running(folders) as network:
        network.wait()
    assert "".join(map(told, folders)) == ""
    trace = simulate(problem, plan, 1, 3)
    assert trace.delivered.any()
    assert share_of_equal_slots(folders, trace) == 1.0
    expected = trained_alone(problem.scenario, trace)
    assert torch.equal(final_weights(folders), expected.weights)


@pytest.mark.parametrize(("devices", "hops"), [(3, 1), (5, 2)])
def test_agents_do_what_the_simulator_does(tmp_path: Path, devices: int, hops: int) -> None:
    problem = small(**{"network.devices": devices, "slots": 8})
    agents_equal_the_simulator(tmp_path / "net", problem, planned(problem, hops))


@pytest.mark.parametrize(
    "changes", [{"network.devices": 4}, {"network.devices": 3, "energy.control": "paid", "energy.control_loss": 0.3}]
)
def test_agents_bid_as_the_simulator_does(tmp_path: Path, changes: dict[str, Any]) -> None:
    problem = small(**{"energy.actions": "separate", "slots": 10, **LOUD, **changes})
    agents_equal_the_simulator(tmp_path / "net", problem, bidding(problem))


@pytest.mark.parametrize("talk", ["messages", "silent"])
def test_agents_bid_without_an_end_as_the_simulator_does(tmp_path: Path, talk: str) -> None:
    problem = small(**{"energy.actions": "separate", "slots": 10, "cost.deadline": [4], **LOUD, "network.devices": 3})
    agents_equal_the_simulator(tmp_path / "net", problem, bidding(problem, endless=True, talk=talk))


@pytest.mark.slow
def test_twenty_agents_do_what_the_simulator_does(tmp_path: Path) -> None:
    problem = small(**{"network.devices": 20, "slots": 50})
    plan = planned(problem)
    folders = deployed(problem, plan, tmp_path / "net", seed=3)
    with running(folders) as network:
        network.wait(1800)
    trace = simulate(problem, plan, 1, 3)
    share = share_of_equal_slots(folders, trace)
    expected = trained_alone(problem.scenario, trace)
    equal = torch.equal(final_weights(folders), expected.weights)
    print(f"equal slots {share:.4%} of {20 * 50}, weights equal {equal}, accuracy {expected.final}")
    assert share >= 0.999
    assert equal


@pytest.mark.slow
def test_twenty_agents_with_own_random_numbers_are_like_the_simulator(tmp_path: Path) -> None:
    problem = small(**{"network.devices": 20, "slots": 50})
    plan = planned(problem)
    folders = deployed(problem, plan, tmp_path / "net")
    for device, folder in enumerate(folders):  # nobody shares luck with anybody
        sensor = folder.settings.sensor.model_copy(update={"seed": 1000 + device})
        AgentFolder(folder.path).write_settings(folder.settings.model_copy(update={"sensor": sensor}))
    with running(folders) as network:
        network.wait(1800)
    lines = [line for folder in folders for line in read_journal(folder)]
    found = {
        "trained": np.mean([line["trained"] for line in lines]),
        "delivered": np.mean([np.mean(line["delivered"]) for line in lines]),
        "spent": np.mean([line["planned_joule"] for line in lines]),
    }
    trace = simulate(problem, plan, 200, 7)
    expected = {"trained": trace.scheduled, "delivered": trace.delivered, "spent": trace.spent_joule}
    for name, value in found.items():
        by_episode = expected[name].mean((1, 2))
        low, high = np.quantile(by_episode, [0.005, 0.995])
        print(f"{name}: {value:.4f}, simulated {by_episode.mean():.4f}, 99 % of episodes {low:.4f} to {high:.4f}")
        assert low <= value <= high, name
