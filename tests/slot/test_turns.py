"""Turns: who moves at once neither hears each other nor shares a receiver, and every concerned edge is there once."""

import pytest

import heliomesh as hm
from heliomesh.slot.packet_market import EdgeTensors


@pytest.mark.parametrize("name", ["ring10", "geometric30", "field40"])
def test_turns_hold_every_device_and_all_edges_that_its_moves_concern(name):
    network = EdgeTensors(hm.build(hm.Scenario.load(name)))
    topology = network.problem.topology
    moved = sorted(device for turn in network.turns for device in turn.mover.tolist())
    assert moved == list(range(topology.num_devices))
    edges = list(zip(topology.edge_receiver.tolist(), topology.edge_sender.tolist(), strict=True))
    for turn in network.turns:
        movers = turn.mover.tolist()
        out = [edges[number] for number in turn.out.number.tolist()]
        assert out == [(i, j) for i, j in edges if j in movers]
        receivers = [i for i, _ in out]
        assert len(set(receivers)) == len(receivers)
        assert not set(receivers) & set(movers)
        assert [movers[place] for place in turn.out.place.tolist()] == [j for _, j in out]
        into = [edges[number] for number in turn.into.number.tolist()]
        assert into == [(i, j) for i, j in edges if i in movers]
        near = [edges[number] for number in turn.near.number.tolist()]
        assert near == [(i, j) for i, j in edges if i in receivers]
        assert [receivers[place] for place in turn.near.place.tolist()] == [i for i, _ in near]
        assert [near[position] for position in turn.out_near.tolist()] == out
