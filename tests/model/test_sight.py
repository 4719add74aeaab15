"""What devices see: a policy that looks beyond its claim is refused by name, wherever policies are used."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import heliomesh as hm
from heliomesh import testing
from heliomesh.model.factor import energy, site
from heliomesh.model.planner_context import PlannerContext
from heliomesh.model.policy import Observation, OwnStatePolicy, Plan, Sight, check_sight
from heliomesh.model.problem import Problem
from heliomesh.planning import planner_names
from heliomesh.scenario.section import Section

BEYOND = r"Cheat\.visible: expected all that device \d looks at, actual another action where only the rest"


@dataclass(frozen=True)
class Cheat(OwnStatePolicy):
    """Says that it looks at its own battery, and sends when its neighbour's is fuller than half."""

    problem: Problem

    def action(self, slot: int, seen: Observation) -> Tensor:
        """The largest affordable action where the next device has energy to spare."""
        other = seen.battery_joule.roll(1, 1) > self.problem.battery.capacity_joule / 2
        return self.problem.actions.last_of(self.problem.affordable(seen.battery_joule)) * other


@dataclass(frozen=True)
class Seeing(Cheat):
    """The same, and says so."""

    def visible(self, device: int) -> Sight:
        """Its own battery and the one before."""
        return Sight([energy(device), energy((device - 1) % self.problem.num_devices)])


def plan(context: PlannerContext[Section]) -> Plan:
    """A planner that cheats."""
    return Plan("cheat", Cheat(context.problem))


def tiny(**changes: object) -> Problem:
    return hm.build(hm.Scenario.load("tiny").override({"slots": 12, **changes}))


@pytest.mark.parametrize("changes", [{}, {"harvest.cloudy": [[2, 3, 0.5]]}], ids=["blocks", "clouds"])
def test_the_simulator_refuses_who_looks_beyond_its_claim(changes: dict[str, object]) -> None:
    problem = tiny(**changes)
    with pytest.raises(hm.ScenarioError, match=BEYOND):
        hm.simulate(problem, Cheat(problem), episodes=4)
    with pytest.raises(hm.ScenarioError, match=BEYOND):
        hm.simulate(problem, Cheat(problem), episodes=4, truth={6: problem})
    with pytest.raises(hm.ScenarioError, match=BEYOND):
        hm.simulate_costs(problem, Cheat(problem), episodes=4)
    assert hm.simulate(problem, Seeing(problem), episodes=4).power_watt.any()


def test_the_contract_of_planners_refuses_it_too() -> None:
    with pytest.raises(testing.ContractError, match=f"planner: expected decisions.*{BEYOND}"):
        testing.check_planner(plan)


@pytest.mark.parametrize("name", planner_names())
def test_no_planner_of_ours_looks_beyond_its_claim(name: str) -> None:
    problem = tiny(slots=3)
    testing._check_sights(problem, hm.plan(problem, name, bound=False).policy)


def test_what_is_out_of_sight_is_another_state() -> None:
    problem = tiny()
    seen = Observation.nothing(problem, 2)
    other = seen.mirrored(problem)
    assert (other.battery_joule == problem.battery.capacity_joule).all()
    assert (other.channel_level == problem.channel.levels - 1).all()
    view = Sight([energy(1), site(3)]).of(seen, other)
    full = problem.battery.capacity_joule.tolist()
    assert view.battery_joule[0].tolist() == [full[0], 0.0, *full[2:]]
    assert (view.channel_level[0] == 0).tolist() == [False, False, False, True, False]
    assert (other.battery_joule == problem.battery.capacity_joule).all()  # which stays as it was


def test_sight_grows_with_hops_and_ends_with_the_network() -> None:
    problem = tiny()
    near, far = (Sight.within(problem, 2, hops) for hops in (0, 1))
    assert near == {energy(2), *(site(number) for number in problem.sites_into(2))}
    assert near < far
    assert far.owners("energy") == sorted({2, *problem.topology.neighbours[2]})
    assert Sight.within(problem, 2, 9).owners("energy") == list(range(5))


def test_a_policy_without_a_claim_may_look_anywhere() -> None:
    problem = tiny()
    seen = Observation.nothing(problem, 1)
    check_sight(hm.plan(problem, "receiver", bound=False).policy, 0, seen)
    seen.battery_joule[:] = problem.battery.capacity_joule
    with pytest.raises(hm.ScenarioError, match=BEYOND):
        check_sight(Cheat(problem), 0, seen, range(5))
    assert torch.equal(seen.battery_joule[0], problem.battery.capacity_joule)
