"""The planner `bids`: devices alone decide as the simulator does, know their neighbours only, and may be unheard."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.common.streams import stream
from heliomesh.jobs.job import Job
from heliomesh.model.policy import Observation
from heliomesh.planners.bids import Bidders
from heliomesh.slot.bids import (
    NOBODY,
    Bid,
    Grant,
    Listener,
    bid,
    bid_bytes,
    choose,
    grant,
    grant_bytes,
    read_bid,
    read_grant,
)
from heliomesh.slot.learning_model import Contributions

QUICK: dict[str, Any] = {"practice": 2, "passes": 1}
SHARDS = {"learning.partition": "shards", "learning.shards_per_device": 2}
SEPARATE = {"energy.actions": "separate", "slots": 30}


def build(name: str = "tiny", **changes: Any) -> hm.Problem:
    return hm.build(hm.Scenario.load(name).override(SEPARATE | changes))


def bidders(problem: hm.Problem, **options: Any) -> Bidders:
    policy = hm.plan(problem, "bids", **(QUICK | options)).policy
    assert isinstance(policy, Bidders)
    return policy


def somewhere(problem: hm.Problem, policy: Bidders, batch: int = 12, seed: int = 1) -> Observation:
    """What may be seen in the middle of episodes: batteries, channels, progress and leans at random."""
    rng, devices = np.random.default_rng(seed), problem.num_devices
    level = torch.from_numpy(rng.integers(0, problem.channel.levels, (batch, problem.channel.num_sites)))
    battery = torch.from_numpy(rng.random((batch, devices))) * problem.battery.capacity_joule
    progress = torch.from_numpy(rng.uniform(5, 9, (batch, devices)))
    share = torch.from_numpy(rng.dirichlet(np.full(devices, 0.5), (batch, devices)))
    none = torch.zeros(batch, devices, dtype=torch.long)
    return Observation(level, battery, none, none, memory=(progress, share @ policy.model.directions))


def alone(policy: Bidders, slot: int, seen: Observation) -> list[int]:
    """Actions of one episode, by every device from its own state and from the bytes of its neighbours."""
    problem, terms, now = policy.problem, policy.terms, Contributions(*seen.memory)
    topology, link, price = problem.topology, problem.link, policy.price(slot, seen)[0]
    trained = policy.model.lean_after_training(now)[0]
    first = [bid(terms, now.progress[0, i], now.lean[0, i], trained[i], price[i]) for i in range(problem.num_devices)]
    told = [bid_bytes(said) for said, _ in first]
    fading = problem.channel.fading(seen.channel_level)[0] * link.path_gain
    granted = []
    for i, (_, trains) in enumerate(first):
        edges = slice(*topology.edge_start[i : i + 2])
        arrival = 1 - link.packet_error(fading[edges].unsqueeze(-1) * terms.power_watt, link.noise_watt[i])
        share, weight = policy.model.lone_share[edges], policy.model.network.edge_weight[edges]
        own = Listener(now.progress[0, i], now.lean[0, i], trains, share, weight, arrival)
        heard = [read_bid(told[j]) for j in topology.neighbours[i]]
        bids = Bid(*(torch.stack(parts) for parts in zip(*heard, strict=True)))
        granted.append(grant(terms, own, bids, torch.ones(len(heard), dtype=torch.bool), policy.bias_weight[slot]))
    wanted = [grant_bytes(one) for one in granted]
    chosen = []
    for i, others in enumerate(topology.neighbours):
        heard_grants = [read_grant(wanted[j]) for j in others]
        grants = Grant(*(torch.stack(parts) for parts in zip(*heard_grants, strict=True)))
        place = torch.tensor([topology.neighbours[j].index(i) for j in others])
        reached = torch.ones(len(others), dtype=torch.bool)
        chosen.append(int(choose(terms, price[i], granted[i], grants, reached, place)[0]))
    return chosen


@pytest.mark.parametrize(
    "changes",
    [
        {"network.topology": "geometric", "network.devices": 12, **SHARDS},
        {"network.topology": "star", "network.devices": 6, "link.half_duplex": True},
        {"energy.actions": "coupled", "channel.state": "link"},
        {"learning.aggregation": "renormalized", "learning.partition": "dirichlet", "learning.alpha": 0.3},
    ],
    ids=["geometric", "half duplex star", "coupled", "renormalized"],
)
def test_devices_alone_choose_what_the_simulator_chooses(changes):
    problem = build(**changes)
    policy = bidders(problem)
    seen = somewhere(policy.problem, policy)
    for slot in (3, 28):
        together = policy.action(slot, seen)
        for row in range(len(together)):
            assert alone(policy, slot, seen.of(torch.tensor([row]))) == together[row].tolist()
        assert len(together.unique()) > 1


def test_what_is_three_hops_away_does_not_matter_in_a_slot():
    """Bids reach one hop, and grants that follow from them another."""
    policy = bidders(build("ring10"))
    seen = somewhere(policy.problem, policy)
    other = somewhere(policy.problem, policy, seed=2)
    level, battery = seen.channel_level.clone(), seen.battery_joule.clone()
    progress, lean = (part.clone() for part in seen.memory)
    pairs = ((level, other.channel_level), (battery, other.battery_joule))
    for mine, theirs in (*pairs, (progress, other.memory[0]), (lean, other.memory[1])):
        mine[:, 3:8] = theirs[:, 3:8]
    changed = replace(seen, channel_level=level, battery_joule=battery, memory=(progress, lean))
    now, then = policy.action(3, seen), policy.action(3, changed)
    assert torch.equal(now[:, 0], then[:, 0])
    assert not torch.equal(now[:, 3:8], then[:, 3:8])


def test_lost_messages_matter_to_nobody_but_their_listeners():
    policy = bidders(build("ring10"))
    seen = somewhere(policy.problem, policy, batch=40)
    sender, receiver = (
        torch.from_numpy(one) for one in (policy.problem.topology.edge_sender, policy.problem.topology.edge_receiver)
    )
    everything = torch.ones(40, len(sender), 2, dtype=torch.bool)
    now = policy.action(3, seen)
    assert torch.equal(policy.action(3, replace(seen, heard=everything)), now)
    no_grants, no_bids = everything.clone(), everything.clone()
    no_grants[:, receiver == 0, 1] = False
    no_bids[:, receiver == 0, 0] = False
    deaf, blind = (policy.action(3, replace(seen, heard=heard)) for heard in (no_grants, no_bids))
    assert (deaf != now).any(0).tolist() == [True, *[False] * 9]
    assert (blind != now).any(0)[2:9].tolist() == [False] * 7  # its neighbours, whom it grants nothing, are 1 and 9
    assert (blind != now).any()
    price = policy.price(3, seen)
    silence = policy.action(3, replace(seen, heard=torch.zeros_like(everything)))
    assert torch.equal(silence, price.argmin(-1))


@pytest.mark.parametrize("loss", [0.2, 0.9])
def test_losses_of_messages_change_no_weather(loss):
    """All schemes still meet the same channels, harvests and packet losses, and the same losses of messages."""
    plain, lossy = build(), build(**{"energy.control_loss": loss})
    ours, theirs = (hm.simulate(problem, hm.plan(problem, "uncoordinated"), 4) for problem in (plain, lossy))
    np.testing.assert_array_equal(ours.delivered, theirs.delivered)
    np.testing.assert_array_equal(ours.battery_joule, theirs.battery_joule)
    ours, theirs = (hm.simulate(problem, bidders(problem), 4) for problem in (plain, lossy))
    np.testing.assert_array_equal(ours.channel_level, theirs.channel_level)
    np.testing.assert_array_equal(ours.harvested_joule, theirs.harvested_joule)
    assert (ours.power_watt != theirs.power_watt).any()
    together, one = hm.simulate(lossy, bidders(lossy), 4), hm.simulate(lossy, bidders(lossy), [2])
    np.testing.assert_array_equal(together.power_watt[2], one.power_watt[0])


def test_a_dark_device_says_nothing_and_hears_nothing():
    problem = build("ring10", **{"energy.sleep_watt": 0.01})
    policy = bidders(problem)
    seen = somewhere(policy.problem, policy)
    battery = seen.battery_joule.clone()
    battery.clamp_(min=1.0)[:, 4] = 0.01  # of 0.04 J that a slot drains
    dark = replace(seen, battery_joule=battery)
    first, _ = policy._heard(dark)
    table = policy._table
    names = torch.tensor([problem.topology.neighbours[i] for i in range(10)])
    assert not first[:, 4].any()
    assert not first[:, names == 4].any()
    assert first.sum() == 12 * (int(table.present.sum()) - 4)
    assert (policy.action(3, dark)[:, 4] == 0).all()


def test_bids_train_and_send_sensibly():
    """They bring more progress and less bias than devices that do as much as they can pay for."""
    from tests.planners.test_learning_planners import ends

    changes = {"slots": 60, "learning.aggregation": "renormalized", **SHARDS}
    problem = build("ring10", **changes)
    ours, greedy = (hm.simulate(problem, hm.plan(problem, planner), 8) for planner in ("bids", "uncoordinated"))
    mine, theirs = ends(problem, ours), ends(problem, greedy)
    assert float(mine.progress.mean()) > 1.2 * float(theirs.progress.mean())
    assert float(mine.bias.mean()) < 0.7 * float(theirs.bias.mean())
    assert ours.scheduled[:, -3:].mean() < 0.5 * ours.scheduled.mean()  # devices agree before the end
    unheard = build("ring10", **changes, **{"energy.control_loss": 0.99})
    assert hm.simulate(unheard, hm.plan(unheard, "bids"), 8).delivered.mean() < 0.3 * ours.delivered.mean()


def test_a_plan_says_how_many_bytes_it_sends():
    plan = hm.plan(build("ring10"), "bids", **QUICK)
    assert plan.overhead.online_bytes_per_slot == 10 * (13 + 5)
    assert "a bid has 13 bytes and a grant 5" in plan.notes


def test_what_a_byte_does_not_count_is_refused():
    with pytest.raises(hm.ScenarioError, match="at most 255 neighbours"):
        hm.plan(build(**{"network.topology": "star", "network.devices": 258, "slots": 1}), "bids", **QUICK)
    powers = [0.0, *np.linspace(0.1, 2, 256).tolist()]
    with pytest.raises(hm.ScenarioError, match="at most 256"):
        hm.plan(build(**{"energy.powers_watt": powers, "slots": 1}), "bids", **QUICK)


def test_jobs_plan_for_the_labels_that_they_train_on():
    """A plan is another for another partition, and the same where no labels are read."""
    scenario = hm.Scenario.load("tiny").override(SEPARATE)
    job = Job(scenario, "bids", QUICK)
    keys = {job.key("plan")}
    for other in (
        replace(job, training_seed=1),
        replace(job, scenario=scenario.override({"learning.dataset": "synthetic"})),
        replace(job, scenario=scenario.override({"learning.partition": "dirichlet", "learning.min_samples": 3})),
    ):
        keys.add(other.key("plan"))
    assert len(keys) == 4
    assert replace(job, training_seed=0).key("plan") == job.key("plan")
    assert replace(job, training_seed=1).planner_options == {**QUICK, "partition_seed": 1}
    own = {**QUICK, "leans": "devices"}
    assert replace(job, options=own, training_seed=1).key("plan") == replace(job, options=own).key("plan")
    data = hm.dataset_from_arrays("two", np.zeros((9, 2)), [0, 1, 2] * 3, np.zeros((3, 2)), [0, 1, 2])
    assert replace(job, training_seed=1, dataset=data).planner_options["leans"] == "devices"


def test_contributions_take_label_shares_if_asked():
    problem = build(**SHARDS)
    plain, labelled = (hm.plan(problem, "contributions", leans=leans, **QUICK) for leans in ("devices", "labels"))
    assert plain.policy.directions is None
    assert labelled.policy.directions.shape == (problem.num_devices, 10)
    assert labelled.overhead.online_bytes_per_slot > plain.overhead.online_bytes_per_slot  # ten numbers, not three


def test_the_last_message_of_a_slot_is_of_its_own_stream():
    """Messages are lost by numbers that nothing else draws."""
    problem = build(**{"energy.control_loss": 0.5})
    drawn = stream(3, "control", 0).random((1 + problem.slots, problem.topology.num_edges, 2))
    heard = []

    class Spying(Bidders):
        def recall(self, seen):
            heard.append(seen.heard)
            return super().recall(seen)

    policy = bidders(problem)
    spy = Spying(**{name: getattr(policy, name) for name in ("problem", "bias_weight", "values", "directions")})
    hm.simulate(problem, spy, [0], seed=3)
    np.testing.assert_array_equal(torch.cat(heard).numpy(), drawn[1:] >= 0.5)
    assert NOBODY == 255
