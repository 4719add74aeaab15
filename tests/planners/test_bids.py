"""The planner `bids`: devices alone decide as the simulator does, know their neighbours only, and may be unheard."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.common.streams import stream
from heliomesh.jobs.job import Job
from heliomesh.model.policy import Noticed, Observation
from heliomesh.planners.bids import Bidders
from heliomesh.slot.bids import (
    NOBODY,
    Account,
    Bid,
    Grant,
    Listener,
    Own,
    arrival_at,
    bid,
    bid_bytes,
    choose,
    grant,
    grant_bytes,
    price,
    read_bid,
    read_grant,
    spending,
    training_gain,
)
from heliomesh.slot.energy_table import TABLE_BYTES, battery_units, held

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
    progress = torch.from_numpy(rng.integers(5 * 64, 9 * 64, (batch, devices)))
    share = torch.from_numpy(rng.dirichlet(np.full(devices, 0.5), (batch, devices)))
    lean = (share @ policy.own.direction.double()).round().long()
    none = torch.zeros(batch, devices, dtype=torch.long)
    return Observation(level, battery, none, none, memory=(progress, lean))


def alone(policy: Bidders, slot: int, seen: Observation) -> list[int]:
    """Actions of one episode, by every device from its own state and from the bytes of its neighbours."""
    problem, terms, weight = policy.problem, policy.terms, policy.bias_weight_in(slot)
    neighbours, units = problem.topology.neighbours, battery_units(problem, seen.battery_joule)[0]
    owns, accounts, prices, first = [], [], [], []
    for i in range(problem.num_devices):
        there = policy.table.present[i]
        rows = {name: part[i] for name, part in policy.own._asdict().items()}
        by_neighbour = ("weight", "share", "arrival", "place", "hears")
        rows["hears"] = rows["hears"][:, there]
        owns.append(Own(**rows | {name: rows[name][there] for name in by_neighbour}))
        accounts.append(Account(*(part[0, i] for part in seen.memory)))
        cost = spending(owns[i], policy.entries[slot, i, seen.weather[0, i]].long(), units[i])
        gain = training_gain(terms, accounts[i], owns[i].direction, weight)
        prices.append(price(terms, owns[i], cost, units[i], gain))
        first.append(bid(terms, accounts[i], owns[i].direction, prices[i]))
    told = [bid_bytes(said) for said, _ in first]
    level = seen.channel_level[0, problem.channel.site_of_edge]
    granted = []
    for i, (_, trains) in enumerate(first):
        edges = slice(*problem.topology.edge_start[i : i + 2])
        own = Listener(
            *accounts[i], trains, owns[i].share, owns[i].weight, arrival_at(owns[i], level[edges]), owns[i].hears
        )
        heard = [read_bid(told[j]) for j in neighbours[i]]
        bids = Bid(*(torch.stack(parts) for parts in zip(*heard, strict=True)))
        granted.append(grant(terms, own, bids, torch.ones(len(heard), dtype=torch.bool), weight))
    wanted = [grant_bytes(one) for one in granted]
    chosen = []
    for i, others in enumerate(neighbours):
        heard_grants = [read_grant(wanted[j]) for j in others]
        grants = Grant(*(torch.stack(parts) for parts in zip(*heard_grants, strict=True)))
        place = torch.tensor([neighbours[j].index(i) for j in others])
        assert torch.equal(place, owns[i].place)
        reached = torch.ones(len(others), dtype=torch.bool)
        chosen.append(int(choose(terms, prices[i], granted[i], grants, reached, place)[0]))
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


def test_accounts_follow_the_models():
    """To within rounding, they are what real numbers would be."""
    problem = build("ring10", **SHARDS)
    policy = bidders(problem)
    seen = somewhere(policy.problem, policy)
    rng = np.random.default_rng(0)
    arrived = torch.from_numpy(rng.random((12, problem.topology.num_edges)) < 0.4)
    trains = torch.from_numpy(rng.random((12, 10)) < 0.5)
    noticed = Noticed(torch.zeros(12, 10), arrived, trains, torch.zeros(12, 10))
    known = policy.contributions(seen.memory)
    exact = policy.model.averaged(policy.model.trained(known, trains), arrived)
    found = policy.contributions(policy.recall(replace(seen, noticed=noticed)))
    assert (found.progress - exact.progress).abs().max() <= 1 / 64
    assert (found.lean - exact.lean).abs().max() <= 1.5 * policy._lean_step


@pytest.mark.parametrize("name", ["ring10", "tiny"])
def test_tables_hold_values_of_energy_within_their_tolerance(name):
    problem = bidders(build(name)).problem
    rng, battery = np.random.default_rng(0), problem.battery
    level = torch.arange(battery.levels, dtype=torch.float64)
    curve = torch.exp(-level / battery.levels * 3)  # falling and convex, as values of energy are
    values = (
        5
        * torch.linspace(1, 0.2, problem.slots)[:, None, None]
        * curve
        * torch.from_numpy(1 + rng.random((problem.num_devices, 1)))
    )
    table = held(problem, values)
    rows = [len(torch.unique(table[:, device], dim=0)) for device in range(problem.num_devices)]
    assert max(rows) * 2 * table[0, 0].numel() <= TABLE_BYTES
    assert min(rows) > 5
    policy = replace(bidders(build(name)), values=table)
    for slot in (0, problem.slots // 2, problem.slots - 1):
        joule = battery.step_joule * 0.37 * (battery.levels - 1)
        state = replace(somewhere(policy.problem, policy, 1), battery_joule=joule.unsqueeze(0))
        cost = policy.price(slot, state)[0] / 2**16 + policy.training_gain(slot, state)[0]
        paid = problem.affordable(state.battery_joule)[0]
        left = (
            0.37 * (battery.levels - 1) - problem.actions.spent_joule / battery.step_joule.unsqueeze(-1)
        ).clamp_min(0)
        low = left.long()
        row = values[slot].gather(1, low) * (1 - left + low) + values[slot].gather(1, low + 1) * (left - low)
        exact = row - values[slot].amin(-1, keepdim=True)
        difference = (cost - cost[:, :1]) - (exact - exact[:, :1])
        assert difference[paid].abs().max() < 0.06


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
    table = policy.table
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
    assert float(mine.progress.mean()) > 1.15 * float(theirs.progress.mean())
    assert float(mine.bias.mean()) < 0.3 * float(theirs.bias.mean())
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
