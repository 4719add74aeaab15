"""Planning by name, by module and by function: all get one context and may return a policy alone."""

from types import SimpleNamespace

import pytest
from pydantic import Field

import heliomesh as hm
from heliomesh.common.streams import stream
from heliomesh.model.planner_context import PlannerContext
from heliomesh.planners import turns, uncoordinated
from heliomesh.planners.uncoordinated import Greedy
from heliomesh.planning import find_planner, make_plan
from heliomesh.scenario.section import Section

PROBLEM = hm.build(hm.Scenario.load("tiny"))


class Steps(Section):
    steps: int = Field(3, ge=1)


def greedy(context):
    """As little as a planner can be."""
    return Greedy(context.problem)


@pytest.mark.parametrize("planner", ["uncoordinated", uncoordinated, greedy, f"{__name__}:greedy"])
def test_a_name_a_module_and_a_function_make_the_same_plan(planner):
    trace = hm.simulate(PROBLEM, hm.plan(PROBLEM, planner, bound=False), episodes=2)
    assert trace.cost.tolist() == hm.simulate(PROBLEM, hm.plan(PROBLEM, "uncoordinated"), episodes=2).cost.tolist()


def test_a_function_named_alone_has_the_options_of_its_module():
    assert find_planner("heliomesh.planners.turns:plan").options is turns.Options
    assert find_planner(turns.plan).options is turns.Options
    assert find_planner(greedy).options is Section  # this module's options are not those of a function `greedy`


def test_a_function_names_its_plan_and_is_compared():
    assert hm.plan(PROBLEM, greedy, bound=False).planner == "greedy"
    rows = hm.compare(PROBLEM, [greedy, "uncoordinated"], episodes=2).rows
    assert [row.planner for row in rows] == ["greedy", "uncoordinated"]
    assert rows[0].cost.tolist() == rows[1].cost.tolist()


def test_the_context_has_checked_options_and_the_scenarios_luck():
    seen = []
    planner = SimpleNamespace(Options=Steps, plan=lambda context: seen.append(context) or greedy(context))
    hm.plan(PROBLEM, planner, bound=False, steps=5)
    (context,) = seen
    assert isinstance(context, PlannerContext)
    assert context.options == Steps(steps=5)
    assert context.rng.random() == stream(PROBLEM.scenario.seed, "policy").random()
    with pytest.raises(hm.ScenarioError, match=r"SimpleNamespace option\.steps: expected a number greater"):
        hm.plan(PROBLEM, planner, steps=0)


@pytest.mark.parametrize("warm", [True, False])
def test_only_who_starts_warm_is_given_the_previous_plan(warm):
    seen = []
    planner = SimpleNamespace(STARTS_WARM=warm, plan=lambda context: seen.append(context.previous) or greedy(context))
    first = make_plan(PROBLEM, planner, {}, bound=False)
    make_plan(PROBLEM, planner, {}, bound=False, previous=first)
    assert seen == [None, first if warm else None]


@pytest.mark.parametrize(
    ("planner", "sentence"),
    [
        (5, "planner: expected text or a function or a module or a namespace, actual value 5"),
        ("nobody:plan", "planner: expected importable code as module:name, actual value 'nobody:plan': ModuleNot"),
        (f"{__name__}:nobody", r"planner: expected importable code as module:name, actual value .*nobody"),
        ("receivr", r"planner: expected one of .*, actual value 'receivr'; did you mean 'receiver'\?"),
    ],
)
def test_what_is_no_planner_is_refused(planner, sentence):
    with pytest.raises(hm.MistakeError, match=sentence):
        hm.plan(PROBLEM, planner)
