"""The silent form of `bids`: no messages, neighbours known by their packets alone, and the choice to be silent."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.model.policy import Noticed, Observation, decided
from heliomesh.planners.bids import Bidders
from heliomesh.planners.bids.silent import Silent
from heliomesh.simulation.slot_loop import Episodes
from heliomesh.slot.bids import Account, trained
from heliomesh.slot.frame import FRAME_SLOTS

QUICK: dict[str, Any] = {"practice": 2, "passes": 1}
CHANGES: dict[str, Any] = {"energy.actions": "separate", "slots": 40, "learning.partition": "shards"}


def build(name: str = "ring10", **changes: Any) -> hm.Problem:
    return hm.build(hm.Scenario.load(name).override(CHANGES | changes))


@pytest.fixture(scope="module")
def silent() -> Silent:
    policy = hm.plan(build(), "bids", talk="silent", **QUICK).policy
    assert isinstance(policy, Silent)
    return policy


def seen_before(policy: Silent, slots: int = 12, batch: int = 6) -> Observation:
    """What is seen in the middle of simulated episodes, and what was noticed."""
    under_way, memory = Episodes(policy.problem, list(range(batch)), 3), ()
    for slot in range(slots):
        seen = replace(under_way.see(), memory=memory).recalled_by(policy)
        memory = seen.memory
        under_way.advance(decided(policy.problem, policy, slot, seen), "silent")
    return replace(under_way.see(), memory=memory)


def test_a_silent_plan_says_nothing_and_sends_in_its_slots_only(silent: Silent) -> None:
    plan = hm.plan(silent.problem, "bids", talk="silent", **QUICK)
    assert silent.talk is None
    assert plan.overhead.online_bytes_per_slot == 0
    assert plan.notes[0] == "devices exchange no messages"
    trace = hm.simulate(silent.problem, plan, episodes=4)
    may_send = silent.frame.may_send[np.arange(silent.problem.slots) % FRAME_SLOTS]
    assert not (trace.power_watt > 0)[:, ~may_send].any()
    assert (trace.power_watt > 0).any(0).sum() > may_send.sum() / 3
    lossy = hm.build(silent.problem.scenario.override({"energy.control_loss": 0.9}))
    other = hm.simulate(lossy, hm.plan(lossy, "bids", talk="silent", **QUICK), episodes=4)
    np.testing.assert_array_equal(other.power_watt, trace.power_watt)


def test_a_packet_tells_its_sender_s_account(silent: Silent) -> None:
    seen = seen_before(silent)
    topology = silent.problem.topology
    assert seen.noticed is not None
    assert seen.noticed.arrived.any()
    progress, lean, ahead, believed = silent.recall(seen)
    now = trained(Account(*seen.memory[:2]), silent.own.direction, seen.noticed.trained)
    for episode, edge in seen.noticed.arrived.nonzero().tolist():
        receiver, sender = int(topology.edge_receiver[edge]), int(topology.edge_sender[edge])
        assert ahead[episode, edge] == now.progress[episode, sender] - progress[episode, receiver]
        assert torch.equal(believed[episode, edge], now.lean[episode, sender])
    assert lean.shape == seen.memory[1].shape


def test_who_sent_believes_that_its_neighbours_came_nearer(silent: Silent) -> None:
    seen = seen_before(silent)
    noticed, edges = seen.noticed, silent.problem.topology.num_edges
    assert noticed is not None
    nothing = replace(noticed, arrived=torch.zeros_like(noticed.arrived), trained=torch.zeros_like(noticed.trained))
    ahead = torch.full_like(seen.memory[2], -640)
    memory = (*seen.memory[:2], ahead, seen.memory[3])

    def after(watt: float) -> torch.Tensor:
        sent = torch.full_like(noticed.power_watt, watt)
        return silent.recall(replace(seen, memory=memory, noticed=replace(nothing, power_watt=sent)))[2]

    assert torch.equal(after(0.0), ahead)
    assert (after(0.6) > ahead).all()
    assert (after(0.6) < 0).all()
    assert after(0.6).shape[1] == edges


def test_a_device_knows_only_itself_and_what_packets_told_it(silent: Silent) -> None:
    """Nothing of device 5 but what others believe of it matters to the others."""
    seen = seen_before(silent)
    receiver = torch.from_numpy(silent.problem.topology.edge_receiver)
    battery, level = seen.battery_joule.clone(), seen.channel_level.clone()
    memory = [part.clone() for part in seen.memory]
    battery[:, 5], level[:, 5] = 0.0, 0
    memory[0][:, 5], memory[1][:, 5] = 0, 100
    memory[2][:, receiver == 5], memory[3][:, receiver == 5] = 99, 7
    changed = replace(seen, battery_joule=battery, channel_level=level, memory=tuple(memory))
    others = torch.arange(10) != 5
    differs = torch.zeros(10, dtype=torch.bool)
    for slot in range(8):
        now, then = silent.action(slot, seen), silent.action(slot, changed)
        assert torch.equal(now[:, others], then[:, others])
        differs |= (now != then).any(0)
    assert differs[5]


def test_the_plan_decides_how_much_to_talk() -> None:
    assert isinstance(hm.plan(build(), "bids", **QUICK).policy, Bidders)
    assert not isinstance(hm.plan(build(), "bids", **QUICK).policy, Silent)
    cheap = hm.plan(build(**{"energy.control": "paid", "energy.control_bit_per_second": 1e6}), "bids", **QUICK)
    assert not isinstance(cheap.policy, Silent)
    (expected,) = (note for note in cheap.notes if note.startswith("expected of messages"))
    assert "of silence" in expected
    dear = hm.plan(build(**{"energy.control": "paid", "energy.control_bit_per_second": 200.0}), "bids", **QUICK)
    assert isinstance(dear.policy, Silent)
    forced = build(**{"energy.control": "paid", "energy.control_bit_per_second": 200.0})
    assert not isinstance(hm.plan(forced, "bids", talk="messages", **QUICK).policy, Silent)


def test_where_the_band_forbids_messages_devices_are_silent() -> None:
    band = {"energy.control": "paid", "energy.control_bit_per_second": 100.0, "energy.duty_cycle": 0.51}
    plan = hm.plan(build(**band), "bids", **QUICK)
    assert isinstance(plan.policy, Silent)
    assert any("energy.duty_cycle" in note for note in plan.notes)
    with pytest.raises(hm.ScenarioError, match=r"energy.duty_cycle"):
        hm.plan(build(**band), "bids", talk="messages", **QUICK)


def test_before_the_first_packet_nothing_is_noticed(silent: Silent) -> None:
    under_way = seen_before(silent, slots=0)
    memory = silent.recall(under_way)
    assert [tuple(part.shape[:2]) for part in memory] == [(6, 10), (6, 10), (6, 20), (6, 20)]
    assert all(not part.any() for part in memory[:3])
    receiver = torch.from_numpy(silent.problem.topology.edge_receiver)
    assert torch.equal(memory[3], -silent.own.direction[receiver].expand(6, -1, -1))
    assert isinstance(under_way.noticed, Noticed | None)


@pytest.mark.parametrize(
    "network",
    [
        {"network.devices": 1},
        {"network.topology": "edges", "network.edges": [], "network.devices": 3, "network.allow_disconnected": True},
    ],
)
def test_devices_without_neighbours_train_alone(network: dict[str, Any]) -> None:
    problem = build(**network)
    trace = hm.simulate(problem, hm.plan(problem, "bids", talk="silent", **QUICK), episodes=4)
    assert trace.scheduled.any()
    assert not (trace.power_watt > 0).any()
    paid = build(**network, **{"energy.control": "paid"})
    assert hm.simulate(paid, hm.plan(paid, "bids", **QUICK), episodes=2).scheduled.any()


@pytest.mark.parametrize("rule", ["model", "renormalized", "reassigned"])
@pytest.mark.parametrize("network", [{}, {"network.topology": "complete", "network.devices": 2}])
def test_somebody_speaks_first(rule: str, network: dict[str, Any]) -> None:
    problem = build(**network, **{"learning.aggregation": rule, "slots": 100})
    trace = hm.simulate(problem, hm.plan(problem, "bids", talk="silent"), episodes=4)
    assert (trace.power_watt > 0).mean() > 0.03


def test_the_form_that_is_chosen_is_the_plan_that_asking_for_it_gives() -> None:
    problem = build(**{"energy.control": "paid", "energy.control_bit_per_second": 1e6})
    chosen, asked = (hm.plan(problem, "bids", **QUICK, **talk).policy for talk in ({}, {"talk": "messages"}))
    assert isinstance(chosen, Bidders)
    assert isinstance(asked, Bidders)
    assert chosen.values is not None
    assert asked.values is not None
    assert torch.equal(chosen.values, asked.values)


def test_devices_that_can_hardly_count_their_energy_are_named() -> None:
    small = {f"energy.{name}": 1e-6 for name in ("capacity_joule", "compute_joule", "transmit_second")}
    plan = hm.plan(build(**small), "bids", **QUICK)
    assert "devices count whole microjoules: a full battery has only 1" in plan.notes
    costly = build(**{"energy.compute_joule": 1e14})
    assert not hm.simulate(costly, hm.plan(costly, "bids", **QUICK), episodes=2).scheduled.any()
