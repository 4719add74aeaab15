"""Counted traffic is that of the decisions really made."""

import pytest

import heliomesh as hm
from heliomesh.slot import coordination
from heliomesh.slot.colour_rounds import ListedResponses, TableRounds
from heliomesh.slot.coordination import Coordination


@pytest.mark.parametrize("looked_up", [False, True])
@pytest.mark.parametrize("half_duplex", [False, True])
@pytest.mark.parametrize("planner", ["receiver", "prices"])
def test_every_start_of_the_rounds_is_counted(planner, half_duplex, looked_up, monkeypatch):
    monkeypatch.setattr(coordination, "_MOST_RESPONSES", 1 << 20 if looked_up else 0)
    problem = hm.build(hm.Scenario.load("tiny").override({"link.half_duplex": half_duplex, "slots": 1}))
    plan = hm.plan(problem, planner)
    calls, messages = [], []
    min_sum, looked_up_rounds, run = Coordination.min_sum, ListedResponses.rounds, TableRounds.run

    def counted_rounds(self, *arguments):
        calls.append(arguments[-1])
        return looked_up_rounds(self, *arguments)

    def counted_run(self, turns, most):
        calls.extend([most] * self.chosen.shape[1])  # one episode: a column per start
        return run(self, turns, most)

    def counted_messages(self, tables, price, most):
        messages.append(most)
        return min_sum(self, tables, price, most)

    monkeypatch.setattr(ListedResponses, "rounds", counted_rounds)
    monkeypatch.setattr(TableRounds, "run", counted_run)
    monkeypatch.setattr(Coordination, "min_sum", counted_messages)
    hm.simulate(problem, plan, episodes=1)
    row = 4 * len(problem.actions)
    first = 2 if planner == "receiver" else 1 + row
    by_edge = first + sum(messages) * 2 * row + sum(calls) * (1 + row)
    choosing = (problem.num_devices - 1) * (4 * len(calls) + 1)  # sums along a tree, and the answer
    assert plan.overhead.online_bytes_per_slot == problem.topology.num_edges * by_edge + choosing
    assert len(calls) == (3 if half_duplex else 2)


@pytest.mark.parametrize("mode", ["rounded", "exhaustive"])
def test_a_myopic_controller_has_no_tables_of_values(mode):
    problem = hm.build(hm.Scenario.load("tiny"))
    overhead = hm.plan(problem, "myopic", mode=mode).overhead
    assert overhead.online_bytes_per_slot == hm.plan(problem, "centralized").overhead.online_bytes_per_slot
    assert (overhead.table_entries > 0) == (mode == "exhaustive")
    assert overhead.paper_table_entries == 0
