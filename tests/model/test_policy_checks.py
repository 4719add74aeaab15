"""Policies are anybody's code: they see copies, and what they return is checked wherever it is used."""

import ast
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import heliomesh as hm
from heliomesh.field.fleet.device import OwnPolicy
from heliomesh.field.living.conditional_plan import Answering, Switching
from heliomesh.field.living.conditions import Conditions
from heliomesh.model.factor import energy
from heliomesh.model.policy import ActionPolicy, Decision, Plan, Weights
from heliomesh.model.problem import Problem

BATCH, DEVICES, EDGES = 2, 5, 10


@pytest.fixture(scope="module")
def problem():
    found = hm.build(hm.Scenario.load("tiny").override({"slots": 4, "energy.initial": 3.0}))
    assert (found.num_devices, found.topology.num_edges) == (DEVICES, EDGES)
    return found


def test_no_guard_vanishes_under_python_o():
    """`python -O` skips assert statements; the package has none."""
    found = [
        f"{path}:{node.lineno}"
        for path in Path(hm.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Assert)
    ]
    assert found == []


class Scribbler:
    """Sends as its own plan says, and writes into all that it is shown."""

    def __init__(self, policy: Any, field: str) -> None:
        self.policy, self.field = policy, field

    def decide(self, slot: int, seen: Any) -> Decision:
        decision = self.policy.decide(slot, seen)
        place = seen if hasattr(seen, self.field) else seen.noticed
        if place is not None:
            getattr(place, self.field).fill_(1)
        return decision


@pytest.mark.parametrize(
    "field", ["battery_joule", "channel_level", "weather", "uniform", "harvested_joule", "arrived"]
)
def test_a_policy_cannot_write_into_the_world(problem, field):
    plan = hm.plan(problem, "uncoordinated")
    expected = hm.simulate(problem, plan, episodes=BATCH)
    found = hm.simulate(problem, replace(plan, policy=Scribbler(plan.policy, field)), episodes=BATCH)
    for name in ("battery_joule", "channel_level", "harvested_joule", "delivered", "update_loss"):
        assert (getattr(found, name) == getattr(expected, name)).all(), name


@dataclass(frozen=True)
class Fixed:
    """Returns what it was given."""

    decision: Any
    continuous_powers: bool = False

    def decide(self, slot: int, seen: Any) -> Any:
        return self.decision


def silent(**changes: Any) -> Decision:
    nothing = torch.zeros(BATCH, DEVICES, dtype=torch.float64)
    return replace(Decision(nothing, nothing.bool()), **changes)


def powers(value: float) -> torch.Tensor:
    return torch.full((BATCH, DEVICES), value, dtype=torch.float64)


def weights(edge: float, own: float) -> Weights:
    return Weights(torch.full((BATCH, EDGES), edge), torch.full((BATCH, DEVICES), own))


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        (Fixed(None), r"Fixed.decide: expected a Decision, actual type NoneType"),
        (Fixed(silent(power_watt=[0.0])), r"power_watt: expected a tensor of shape \(2, 5\), actual type list"),
        (
            Fixed(silent(power_watt=powers(0.0)[:1])),
            r"power_watt: expected the shape \(2, 5\), actual shape \(1, 5\)",
        ),
        (Fixed(silent(power_watt=powers(0.0).float())), "power_watt: expected numbers of type torch.float64"),
        (Fixed(silent(power_watt=powers(torch.nan))), r"power_watt: expected one of 0, 1, 2 \[W\], actual value nan"),
        (Fixed(silent(power_watt=powers(-1.0))), "power_watt: expected one of 0, 1, 2 .* -1"),
        (Fixed(silent(power_watt=powers(0.5))), "power_watt: expected one of 0, 1, 2 .* 0.5"),
        (Fixed(silent(power_watt=powers(-0.5)), True), r"power_watt: expected from 0 to 2 \[W\], actual value -0.5"),
        (Fixed(silent(power_watt=powers(torch.nan)), True), "power_watt: expected from 0 to 2 .* nan"),
        (Fixed(silent(power_watt=powers(2.5)), True), "power_watt: expected from 0 to 2 .* 2.5"),
        (Fixed(silent(trained=powers(0.0))), "trained: expected type torch.bool, actual type torch.float64"),
        (Fixed(silent(weights=weights(torch.inf, 0.5))), "weights.edge: expected weights from 0 to 1, .* inf"),
        (Fixed(silent(weights=weights(0.5, -0.5))), "weights.own: expected weights from 0 to 1, .* -0.5"),
        (
            Fixed(silent(power_watt=powers(2.0), trained=powers(1.0).bool())),
            "Fixed: expected to spend .* actual spending",
        ),
    ],
)
def test_what_a_policy_returns_is_checked(problem, policy, sentence):
    with pytest.raises(hm.ScenarioError, match=sentence):
        hm.simulate(problem, Plan("fixed", policy), episodes=BATCH)


def test_powers_between_the_scenarios_are_for_policies_that_declare_them(problem):
    policy = Fixed(silent(power_watt=powers(0.25)), continuous_powers=True)
    assert (hm.simulate(problem, Plan("fixed", policy), episodes=BATCH).power_watt == 0.25).all()


@dataclass(frozen=True)
class Chooser(ActionPolicy):
    """Returns the same actions in every state."""

    problem: Problem
    chosen: Any
    stationary = True

    def action(self, slot: int, seen: Any) -> Any:
        made = self.chosen
        return made.expand(len(seen.battery_joule), -1) if isinstance(made, torch.Tensor) else made


CHOICES = [
    (torch.full((DEVICES,), -1), "Chooser.action: expected 0 to 2, actual value -1"),
    (torch.full((DEVICES,), 3), "Chooser.action: expected 0 to 2, actual value 3"),
    (torch.zeros(DEVICES), "Chooser.action: expected integers, actual type torch.float32"),
    (torch.zeros(DEVICES, dtype=torch.bool), "Chooser.action: expected integers, actual type torch.bool"),
    (torch.zeros(1, dtype=torch.long), r"Chooser.action: expected the shape \(\d+, 5\), actual shape \(\d+, 1\)"),
    ([0] * DEVICES, "Chooser.action: expected a tensor"),
]


@pytest.mark.parametrize(("chosen", "sentence"), CHOICES)
def test_actions_are_checked_wherever_they_are_used(problem, chosen, sentence):
    policy = Chooser(problem, chosen)
    answer = Answering(problem, "uncoordinated").with_plan(Conditions(), Plan("chooser", policy))
    with pytest.raises(hm.ScenarioError, match=sentence):
        hm.simulate(problem, Plan("chooser", policy), episodes=BATCH)
    with pytest.raises(hm.ScenarioError, match=sentence):
        hm.simulate(problem, Plan("living", Switching(problem, ((0, answer),))), episodes=BATCH)
    with pytest.raises(hm.ScenarioError, match=sentence):
        hm.exact_cost(problem, policy)
    with pytest.raises(hm.ScenarioError, match=sentence):
        OwnPolicy(policy, 0).action(0, {energy(0): 0}, 3.0, 0.5)


def test_exact_evaluation_refuses_what_batteries_do_not_pay_for(problem):
    with pytest.raises(hm.ScenarioError, match=r"Chooser: expected actions that batteries pay for, .* device 0"):
        hm.exact_cost(problem, Chooser(problem, torch.full((DEVICES,), 2)))


@dataclass(frozen=True)
class Drawn(Chooser):
    """Has a law that is none."""

    def action_prob(self, slot: int, seen: Any) -> Any:
        return torch.full((len(seen.battery_joule), DEVICES, 3), 0.5, dtype=torch.float64)


def test_exact_evaluation_refuses_a_law_that_is_none(problem):
    with pytest.raises(hm.ScenarioError, match=r"Drawn.action_prob: expected probabilities .* sums from 1.5"):
        hm.exact_cost(problem, Drawn(problem, torch.zeros(DEVICES, dtype=torch.long)))
