"""Agents do what the simulator does, over real connections."""

from pathlib import Path

import pytest
import torch

from heliomesh.jobs.training import train
from heliomesh.simulation.trace import simulate
from tests.agents.network import deployed, final_weights, planned, running, share_of_equal_slots, small, told


@pytest.mark.parametrize(("devices", "hops"), [(3, 1), (5, 2)])
def test_agents_do_what_the_simulator_does(tmp_path: Path, devices: int, hops: int) -> None:
    problem = small(**{"network.devices": devices, "slots": 8})
    plan = planned(problem, hops)
    folders = deployed(problem, plan, tmp_path / "net", seed=3)
    with running(folders) as network:
        network.wait()
    assert "".join(map(told, folders)) == ""
    trace = simulate(problem, plan, 1, 3)
    assert trace.delivered.any()
    assert share_of_equal_slots(folders, trace) == 1.0
    expected = train(problem.scenario, trace, seed=3)
    assert torch.equal(final_weights(folders), expected.weights)


@pytest.mark.slow
def test_twenty_agents_do_what_the_simulator_does(tmp_path: Path) -> None:
    problem = small(**{"network.devices": 20, "slots": 50})
    plan = planned(problem)
    folders = deployed(problem, plan, tmp_path / "net", seed=3)
    with running(folders) as network:
        network.wait(1800)
    trace = simulate(problem, plan, 1, 3)
    share = share_of_equal_slots(folders, trace)
    expected = train(problem.scenario, trace, seed=3)
    equal = torch.equal(final_weights(folders), expected.weights)
    print(f"equal slots {share:.4%} of {20 * 50}, weights equal {equal}, accuracy {expected.final}")
    assert share >= 0.999
    assert equal
