"""Wrong arguments of the Python functions get one clear sentence, like wrong settings."""

import subprocess
import sys

import pytest

import heliomesh as hm


def test_wrong_arguments_of_the_python_face() -> None:
    with pytest.raises(TypeError, match="scenario: expected a Scenario"):
        hm.build("tiny")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="problem: expected a Problem"):
        hm.plan(hm.Scenario.load("tiny"), "prices")  # type: ignore[arg-type]
    problem = hm.build(hm.Scenario.load("tiny"))
    plan = hm.plan(problem, "uncoordinated", bound=False)
    with pytest.raises(ValueError, match="seed: expected at least 0"):
        hm.simulate(problem, plan, 1, -1)
    other = hm.build(hm.Scenario.load("tiny").override({"network.devices": 6}))
    with pytest.raises(ValueError, match="plan: expected one for"):
        hm.simulate(other, plan, 1)
    assert hm.exact_cost(problem, plan) == hm.exact_cost(problem, plan.policy)  # type: ignore[arg-type]


_FORKS = """
import multiprocessing
import torch
import heliomesh as hm

torch.set_num_threads(2)
# so many devices and episodes that torch shares the work among its threads
problem = hm.build(hm.Scenario.load("tiny").override({"network.devices": 250, "slots": 3}))
plan = hm.plan(problem, "uncoordinated", bound=False)

def cost():
    return float(hm.simulate(problem, plan, episodes=250).cost.sum())

def child(found):
    found.put((cost(), torch.get_num_threads()))

expected, context = cost(), multiprocessing.get_context("fork")
found = context.Queue()
process = context.Process(target=child, args=(found,))
process.start()
process.join(240)
if process.exitcode is None:
    process.kill()
    raise SystemExit("the forked child hangs")
assert found.get() == (expected, 1)
assert cost() == expected and torch.get_num_threads() == 2
"""


@pytest.mark.skipif(sys.platform == "win32", reason="nothing is forked on Windows")
def test_a_child_forked_after_a_simulation_simulates_too() -> None:
    ended = subprocess.run([sys.executable, "-c", _FORKS], capture_output=True, text=True, check=False)  # noqa: S603
    assert ended.returncode == 0, ended.stderr
