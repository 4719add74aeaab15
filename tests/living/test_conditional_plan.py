"""Answers: a plan for some links gets what is noticed and remembered of them, and nothing else is lost."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.field.living.conditional_plan import Answering, Switching
from heliomesh.field.living.conditions import Conditions, problem_under
from heliomesh.model.policy import Noticed, Observation
from heliomesh.slot.bids import PROGRESS_STEPS

LOST = Conditions(links_off=frozenset([(0, 1)]))


@pytest.fixture(scope="module")
def problem():
    return hm.build(hm.Scenario.load("tiny").override({"slots": 20, "energy.actions": "separate"}))


def observed(problem, memory, seed=0):
    rng, edges = np.random.default_rng(seed), problem.topology.num_edges
    noticed = Noticed(
        torch.from_numpy(rng.random((3, 5))),
        torch.from_numpy(rng.random((3, edges)) < 0.5),
        torch.from_numpy(rng.random((3, 5)) < 0.5),
        torch.from_numpy(rng.choice([0.0, 0.1], (3, 5))),
    )
    level = torch.zeros(3, problem.channel.num_sites, dtype=torch.long)
    battery = torch.full((3, 5), 2.0, dtype=torch.float64)
    return Observation(level, battery, level[:, :5], battery, noticed, memory)


def test_news_of_lost_links_waits_and_that_of_others_goes_on(problem):
    answer = Answering(problem, "news").answer_to(LOST)
    edges = problem.topology.num_edges
    before = torch.arange(3 * edges, dtype=torch.float64).reshape(3, edges)
    seen = observed(problem, (before, before + 100))
    news, age = answer.recall(seen)
    for edge in range(edges):
        silent = ~seen.noticed.arrived[:, edge]
        trained = seen.noticed.trained[:, int(problem.topology.edge_sender[edge])]
        lost = bool(answer.edge_lost[edge])
        torch.testing.assert_close(news[:, edge], before[:, edge] if lost else (before[:, edge] + trained) * silent)
        torch.testing.assert_close(age[:, edge], before[:, edge] + 100 if lost else (before[:, edge] + 101) * silent)
    assert int(answer.edge_lost.sum()) == 2


def test_contributions_are_of_devices_and_move_over_the_remaining_links(problem):
    answer = Answering(problem, "contributions", {"passes": 0}).answer_to(LOST)
    model = answer.plan.policy.model
    first = replace(model.first(3), progress=model.first(3).progress + 1)
    seen = observed(problem, (first.progress, first.lean))
    progress, lean = answer.recall(seen)
    expected = model.averaged(model.trained(first, seen.noticed.trained), seen.noticed.arrived[:, ~answer.edge_lost])
    torch.testing.assert_close(progress, expected.progress)
    torch.testing.assert_close(lean, expected.lean)


def test_bids_over_the_remaining_links_may_be_unheard(problem):
    """Which messages arrive is told of all links; the plan is told of its own."""
    answer = Answering(problem, "bids", {"passes": 0}).answer_to(LOST)
    lean, rng = answer.plan.policy.recall(observed(problem, ()))[1], np.random.default_rng(1)
    heard = torch.from_numpy(rng.random((3, problem.topology.num_edges, 2)) < 0.5)
    progress = torch.from_numpy(rng.integers(0, 9 * PROGRESS_STEPS, (3, 5)))
    seen = replace(observed(problem, (progress, lean)), heard=heard)
    expected = answer.plan.policy.decide(5, replace(seen, heard=heard[:, ~answer.edge_lost]))
    torch.testing.assert_close(answer.decide(problem, 5, seen).power_watt, expected.power_watt)
    assert (expected.power_watt > 0).any()


def test_a_plan_without_memory_has_none(problem):
    answer = Answering(problem, "uncoordinated").answer_to(LOST)
    assert answer.recall(observed(problem, ())) == ()
    assert answer.memory_axes == ()


def test_a_switch_to_the_same_plan_changes_nothing_of_what_is_remembered(problem):
    """The rule follows its own memory through a switch: as if nothing had been switched."""
    answer = Answering(problem, "news").answer_to(Conditions())
    alone = hm.simulate(problem, answer.plan, 4)
    switched = hm.simulate(problem, Switching(problem, ((0, answer), (7, answer), (13, answer))), 4)
    np.testing.assert_array_equal(alone.power_watt, switched.power_watt)
    np.testing.assert_array_equal(alone.scheduled, switched.scheduled)
    assert ((alone.power_watt > 0) & ~alone.scheduled).any()


def test_a_plan_for_fewer_links_remembers_as_in_a_network_of_those_links(problem):
    smaller = hm.build(
        problem.scenario.override({"network.topology": "edges", "network.edges": [[1, 2], [2, 3], [3, 4], [0, 4]]})
    )
    assert problem_under(problem, LOST).topology.neighbours == smaller.topology.neighbours
    answer = Answering(problem, "news").answer_to(LOST)
    kept = ~answer.edge_lost
    policy = hm.plan(smaller, "news").policy
    memory, own = (), ()
    for slot in range(8):
        seen = observed(problem, memory, slot)
        memory = answer.recall(seen)
        noticed = replace(seen.noticed, arrived=seen.noticed.arrived[:, kept])
        own = policy.recall(replace(seen, noticed=noticed, memory=own))
        for whole, part in zip(memory, own, strict=True):
            torch.testing.assert_close(whole[:, kept], part)
