"""The frame in which silent devices send: a plain loop computes what it holds, and it beats turns of a colouring."""

import numpy as np
import pytest

import heliomesh as hm
from heliomesh.slot.frame import FRAME_SLOTS, _Search, frame_of

CHANCE = 0.5


def build(name: str = "geometric30", **changes) -> hm.Problem:
    return hm.build(hm.Scenario.load(name).override({"slots": 10, **changes}))


def worth(problem: hm.Problem, chosen: np.ndarray, age: np.ndarray) -> float:
    """The objective, edge by edge."""
    topology, total = problem.topology, 0.0
    for edge in range(topology.num_edges):
        receiver, sender = topology.edge_receiver[edge], topology.edge_sender[edge]
        if chosen[sender]:
            rivals = sum(chosen[other] for other in topology.neighbours[receiver] if other != sender)
            rivals += problem.link.half_duplex and chosen[receiver]
            total += age[edge] * CHANCE * (1 - CHANCE) ** rivals
    return total


@pytest.mark.parametrize("half_duplex", [False, True])
def test_no_single_move_is_better(half_duplex: bool) -> None:
    problem = build(**{"link.half_duplex": half_duplex, "network.devices": 14})
    rng = np.random.default_rng(0)
    for _ in range(5):
        age = rng.uniform(1, 20, problem.topology.num_edges)
        chosen = _Search(problem, CHANCE).senders(age)
        reached = worth(problem, chosen, age)
        assert chosen.any()
        for device in range(problem.num_devices):
            other = chosen.copy()
            other[device] = not other[device]
            assert worth(problem, other, age) <= reached * (1 + 1e-9)


@pytest.mark.parametrize("half_duplex", [False, True])
def test_what_is_clear_is_counted_edge_by_edge(half_duplex: bool) -> None:
    problem = build(**{"link.half_duplex": half_duplex})
    frame, topology = frame_of(problem, CHANCE), problem.topology
    assert frame.may_send.shape == (FRAME_SLOTS, problem.num_devices)
    for slot in (0, 7, FRAME_SLOTS - 1):
        may = frame.may_send[slot]
        for edge, clear in enumerate(frame.clear[slot]):
            receiver, sender = topology.edge_receiver[edge], topology.edge_sender[edge]
            rivals = sum(may[other] for other in topology.neighbours[receiver] if other != sender)
            assert clear == pytest.approx((1 - CHANCE) ** (rivals + (half_duplex and may[receiver])))


def test_nobody_waits_for_ever_and_dense_graphs_hear_more_than_in_turns() -> None:
    problem = build(**{"network.mean_degree": 7.0, "network.max_degree": 12})
    frame = frame_of(problem, CHANCE)
    assert frame.may_send.any(0).all()
    sender = problem.topology.edge_sender
    heard = (frame.clear * CHANCE * frame.may_send[:, sender]).mean()
    in_turns = CHANCE / (max(problem.colour) + 1)  # of every link, and nobody interferes
    assert heard > 1.15 * in_turns


def test_devices_without_neighbours_have_a_frame() -> None:
    frame = frame_of(
        build(
            "ring10", **{"network.topology": "edges", "network.edges": [[0, 1]], "network.allow_disconnected": True}
        ),
        CHANCE,
    )
    assert frame.clear.shape == (FRAME_SLOTS, 2)
    assert frame.may_send[:, :2].any(0).all()
