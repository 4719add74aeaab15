"""Wrong arguments of the Python functions get one clear sentence, like wrong settings."""

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
