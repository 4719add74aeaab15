"""Policies that remember: the slot loop hands their memory on, and whatever cannot do so refuses them."""

from dataclasses import dataclass, fields
from pathlib import Path

import pytest
import torch

import heliomesh as hm
from heliomesh.field.fleet.scheme import scheme_of
from heliomesh.interop.export_tables import tabulate
from heliomesh.model.planner_context import PlannerContext
from heliomesh.model.policy import Noticed, Observation, Plan
from heliomesh.planners.uncoordinated import Greedy
from heliomesh.scenario.errors import ScenarioError
from heliomesh.scenario.section import Section
from tests.conftest import Call

REMEMBERING = ("news", "contributions", "bids")
QUICK = {"news": {}, **{name: {"practice": 1, "passes": 1, "levels": 9} for name in ("contributions", "bids")}}


def tiny(**changes: object) -> hm.Problem:
    return hm.build(hm.Scenario.load("tiny").override({"slots": 20, **changes}))


@dataclass(frozen=True)
class Counting(Greedy):
    """As much as the battery pays for; counts its packets that arrived."""

    def recall(self, seen: Observation) -> tuple[torch.Tensor, ...]:
        """Packets so far; (batch, edge)."""
        if seen.noticed is None:
            return (torch.zeros(len(seen.battery_joule), self.problem.topology.num_edges),)
        return (seen.memory[0] + seen.noticed.arrived,)


def sentence(refused: pytest.ExceptionInfo[ScenarioError], planner: str) -> str:
    text = str(refused.value)
    assert "\n" not in text
    assert "expected" in text
    assert repr(planner) in text
    return text


@pytest.mark.parametrize("planner", REMEMBERING)
def test_exact_cost_refuses_memory(planner: str) -> None:
    problem = tiny()
    plan = hm.plan(problem, planner, bound=False, **QUICK[planner])
    with pytest.raises(ScenarioError) as refused:
        hm.exact_cost(problem, plan)
    assert "remembers nothing of earlier slots, as exact evaluation needs" in sentence(refused, planner)


def test_exact_cost_names_a_bare_policy_that_remembers() -> None:
    problem = tiny()
    with pytest.raises(ScenarioError) as refused:
        hm.exact_cost(problem, Counting(problem))
    assert "remembers nothing" in sentence(refused, "Counting")


@pytest.mark.parametrize("planner", REMEMBERING)
def test_tables_refuse_memory(planner: str) -> None:
    plan = hm.plan(tiny(), planner, bound=False, **QUICK[planner])
    with pytest.raises(ScenarioError) as refused:
        tabulate(plan)
    assert "remembers earlier slots" in sentence(refused, planner)


def test_tables_refuse_memory_where_devices_look_actions_up() -> None:
    with pytest.raises(ScenarioError, match="actual plan 'counting' remembers earlier slots"):
        tabulate(Plan("counting", Counting(tiny())))


@pytest.mark.parametrize("planner", sorted(set(REMEMBERING) - {"bids"}))  # whose devices remember by themselves
def test_the_fleet_refuses_memory(planner: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        scheme_of(tiny(), planner, {})
    assert "whose devices need no more than neighbours can tell them" in sentence(refused, planner)


def counting(context: PlannerContext[Section]) -> Counting:
    return Counting(context.problem)


def test_live_refuses_a_memory_that_says_nothing_of_its_axes() -> None:
    with pytest.raises(ScenarioError) as refused:
        hm.live(tiny(), ["harvest=0.5@10"], counting, episodes=2, train=0)
    assert "remembers nothing of earlier slots, as a change of plans needs" in sentence(refused, "counting")


COMMANDS = {
    "export json": ["export", "tiny", "news"],
    "export c": ["export", "tiny", "news", "--format", "c"],
    "fleet": ["device", "fleet", "tiny", "--planner", "news"],
}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_commands_end_with_2_and_one_sentence(call: Call, words: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "out"
    code, printed, told = call(*words, *(["--out", folder] if words[0] in ("export", "device") else []))
    assert (code, printed) == (2, "")
    assert told.startswith("error: ")
    assert told.count("\n") == 1
    assert "expected" in told
    assert "'news'" in told
    assert not folder.exists()


def test_the_slot_loop_hands_memory_on() -> None:
    problem = tiny()
    policy, counted = Counting(problem), []

    @dataclass(frozen=True)
    class Spying(Counting):
        def decide(self, slot, seen):
            counted.append(seen.memory[0])
            return super().decide(slot, seen)

    trace = hm.simulate(problem, Spying(problem), episodes=3)
    packets = torch.from_numpy(trace.delivered).cumsum(1)  # (episode, slot, edge)
    assert torch.equal(torch.stack(counted[1:], 1), packets[:, :-1].float())
    assert (hm.simulate(problem, policy, episodes=3).cost == trace.cost).all()


@pytest.mark.parametrize("planner", REMEMBERING)
def test_episodes_do_not_see_each_others_memory(planner: str) -> None:
    problem = tiny()
    plan = hm.plan(problem, planner, bound=False, **QUICK[planner])
    together, alone = hm.simulate(problem, plan, episodes=3), hm.simulate(problem, plan, episodes=[2])
    assert (together.cost[2:] == alone.cost).all()


def test_some_episodes_keep_all_that_is_seen() -> None:
    """A policy may look at any of it, also where episodes are decided about in groups."""
    generator = torch.Generator().manual_seed(0)
    first, second, third = (torch.rand(5, 3, generator=generator) for _ in range(3))
    noticed = Noticed(first, second > 0.5, third > 0.5, second)
    whole = Observation(first.long(), second, third.long(), third, noticed, (first, second))
    halves = whole.pieces(3)
    assert [len(half.uniform) for half in halves] == [3, 2]
    assert whole.pieces(5) == [whole]
    for part, rows in (
        *zip(halves, (slice(0, 3), slice(3, 5)), strict=True),
        (whole.of(torch.tensor([4, 1])), [4, 1]),
    ):
        for name in ("channel_level", "battery_joule", "weather", "uniform"):
            assert torch.equal(getattr(part, name), getattr(whole, name)[rows])
        for field in fields(Noticed):
            assert torch.equal(getattr(part.noticed, field.name), getattr(noticed, field.name)[rows])
        assert all(torch.equal(mine, full[rows]) for mine, full in zip(part.memory, whole.memory, strict=True))
