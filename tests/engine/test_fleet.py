"""The fleet: what devices know, what they receive, and that they do what library and simulator do."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from heliomesh.field.fleet import clock
from heliomesh.field.fleet.bidder import OwnBids
from heliomesh.field.fleet.clock import FleetRun, run_fleet
from heliomesh.field.fleet.device import Installation
from heliomesh.field.fleet.messages import PLANNING, Message
from heliomesh.field.fleet.planning import partners_of, timetable
from heliomesh.field.fleet.post import Post
from heliomesh.field.fleet.scheme import ALONE, BIDS, IN_TURN, WITH_OTHERS, FleetScheme, scheme_of
from heliomesh.field.fleet.view import next_hop, view_of
from heliomesh.jobs.job import Job
from heliomesh.jobs.training import train
from heliomesh.learning.settings import TrainSettings
from heliomesh.model.endless import one_cycle
from heliomesh.model.factor import Factor, Variable, site
from heliomesh.model.policy import ActionPolicy, Observation, Plan, state_variables
from heliomesh.model.problem import Problem, build
from heliomesh.planners.bids import Bidders
from heliomesh.planners.bids.silent import Silent
from heliomesh.planners.decentralized.neighbourhood import Neighbourhood
from heliomesh.planners.decentralized.planner import LocalTables, Options
from heliomesh.planning import make_plan, planner_names
from heliomesh.scenario.errors import ScenarioError
from heliomesh.scenario.on_air import Format, update_bits
from heliomesh.scenario.scenario import Scenario
from heliomesh.simulation.trace import Trace, simulate

SEED = 3
SMALL: dict[str, Any] = {
    "slots": 6,
    "energy.battery_levels": 3,
    "energy.capacity_joule": 2.0,
    "energy.powers_watt": [0.0, 1.0],
    "learning.local_steps": 2,
    "learning.batch": 8,
}
PATH = {"network.topology": "edges", "network.edges": [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5]], "network.devices": 6}
PLACES = {"network.positions_metre": [[0, 0], [100, 0], [200, 50]], "network.names": ["a", "b", "c"]}
UNLIKE = {"channel.gain": [1.0, 0.9, 0.8, 1.2, 1.1, 0.7], "harvest.scale": [1.0, 0.8, 1.1, 0.9, 1.2, 0.7]}
SEPARATE = {"energy.actions": "separate", "energy.compute_joule": 1.5}  # a battery of 1 J pays for sending only
LOSSY = {
    "energy.storage": "supercapacitor",
    "energy.capacity_joule": 4.0,
    "energy.compute_joule": 0.3,
    "energy.leak_per_day": [0.9, 0.8, 0.7, 0.9, 0.8, 0.7],
    "energy.slot_second": 3600.0,
    "energy.sleep_watt": [5e-5, 1e-4, 8e-5, 1e-4, 3e-4, 1e-4],
    "energy.receive_watt": 0.02,
    "energy.listen_second": 3.0,
    "energy.wake_joule": 0.01,
}
TALKING = {"energy.actions": "separate", "slots": 20}
DEAR = {"energy.control": "paid", "energy.control_watt": 1.0, "energy.control_bit_per_second": 2e3}
QUICK = {"practice": 2, "passes": 1, "talk": "messages"}
SILENT = {**QUICK, "talk": "silent"}
HEARD = {**TALKING, "slots": 40, "link.noise_watt": 1e-3, "harvest.scale": 2.0, "learning.partition": "shards"}
WEATHER = {
    "harvest.source": "markov",
    "harvest.joule": [[0.0, 1.0], [1.0, 2.0]],
    "harvest.prob": [[0.5, 0.5], [0.5, 0.5]],
    "harvest.kernel": [[0.7, 0.3], [0.3, 0.7]],
}


def small(**changes: Any) -> Problem:
    return build(Scenario.load("tiny").override({**SMALL, **changes}))


def ran(problem: Problem, planner: str, options: Mapping[str, Any], **more: Any) -> FleetRun:
    scheme = scheme_of(problem, planner, options)
    return run_fleet(scheme, job_of(scheme), **more)


def job_of(scheme: FleetScheme, evaluate_every: int = 3) -> Job:
    """What a fleet is asked to do."""
    training = TrainSettings(evaluate_every=evaluate_every)
    scenario = scheme.problem.scenario
    return Job(scenario, scheme.planner, scheme.options, seed=SEED, training_seed=SEED, training=training)


def assert_same_traces(one: Trace, other: Trace) -> None:
    for name in (field.name for field in fields(Trace)):
        mine, theirs = getattr(one, name), getattr(other, name)
        assert np.array_equal(mine, theirs) if isinstance(mine, np.ndarray) else mine == theirs, name


def assert_same_runs(found: FleetRun, trace: Trace, scenario: Scenario) -> None:
    expected = train(scenario, trace, seed=SEED, evaluate_every=3)
    for name, column in expected.metrics.items():
        assert np.array_equal(found.run.metrics[name], column, equal_nan=True), name
    assert torch.equal(found.run.weights, expected.weights)
    assert np.array_equal(found.run.accuracy, expected.accuracy)
    same = ("trace", "scenario", "seed", "dataset", "parameters", "strategy")
    assert {name: found.run.provenance[name] for name in same} == {name: expected.provenance[name] for name in same}


@pytest.mark.parametrize(
    ("planner", "options", "changes"),
    [
        ("uncoordinated", {}, {"learning.aggregation": "renormalized", "learning.schedule": "step"}),
        ("uncoordinated", {}, {"learning.aggregation": "model", "learning.quasi_global": 0.5}),
        ("uncoordinated", {}, {"learning.on_air": "int8"}),
        ("uncoordinated", {}, {**SEPARATE, "learning.on_air": "top-k", "learning.quasi_global": 0.5}),
        (
            "uncoordinated",
            {},
            {"learning.on_air": "top-k", "learning.aggregation": "update", "network.mixing": "lazy-metropolis"},
        ),
        ("uncoordinated", {}, {"link.half_duplex": True, "channel.state": "reciprocal", **PATH, **UNLIKE}),
        ("uncoordinated", {}, {"energy.consumed_watt": [0.0, 1.3], "energy.compute_joule": 0.5}),
        ("skiptrain", {"train_rounds": 2, "sync_rounds": 1}, {"energy.train_only": True}),
        ("uncoordinated", {}, SEPARATE),
        ("uncoordinated", {}, {**SEPARATE, "learning.aggregation": "renormalized", "link.half_duplex": True}),
        ("uncoordinated", {}, {**SEPARATE, "learning.aggregation": "update", "network.mixing": "lazy-metropolis"}),
        ("decentralized", {"rounds": 2, "hops": 1}, {**SEPARATE, **PATH}),
        (
            "skiptrain",
            {"train_rounds": 2, "sync_rounds": 1},
            {"energy.actions": "separate", "harvest.joule": [1.0, 1.5, 2.0], **PATH, **UNLIKE},
        ),
        ("fixed_fraction", {"share": 0.9}, {**SEPARATE, **PATH, **UNLIKE}),
        ("uncoordinated", {}, PLACES),
        ("turns", {"power_watt": 1.0, "last_slots": 2}, {"energy.actions": "separate", **PATH, **UNLIKE}),
        ("turns", {}, {"link.half_duplex": True}),
        ("decentralized", {"rounds": 2}, {**PATH, **UNLIKE}),
        ("uncoordinated", {}, {**PATH, **UNLIKE, **LOSSY}),
        ("fixed_fraction", {}, {**PATH, **UNLIKE, **LOSSY, "energy.actions": "separate"}),
        ("skiptrain", {}, {**PATH, **LOSSY, "energy.actions": "separate", "harvest.joule": [2.0, 3.0, 4.0]}),
        ("decentralized", {"rounds": 2, "hops": 1}, {**PATH, **UNLIKE, **LOSSY, "energy.battery_levels": 5}),
        ("decentralized", {"rounds": 1, "hops": 0}, {**PATH, **LOSSY, "energy.battery_levels": None}),
        ("decentralized", {"rounds": 2}, {"network.devices": 6, "channel.state": "link", "slots": 3}),
        ("decentralized", {"rounds": 3, "hops": 1}, {"link.half_duplex": True, "network.devices": 6}),
        ("decentralized", {"rounds": 2, "hops": 1, "order": "simultaneous"}, {**WEATHER, "network.devices": 6}),
        ("decentralized", {"rounds": 2, "hops": 0}, {}),
        ("decentralized", {"rounds": 1, "hops": 1, "endless": True}, {**PATH, "slots": 15}),
        ("decentralized", {"rounds": 0}, {**PATH, "learning.quasi_global": 0.9}),
        (
            "decentralized",
            {"rounds": 2},
            {**PATH, "learning.aggregation": "update", "network.mixing": "lazy-metropolis"},
        ),
        ("bids", QUICK, {**TALKING, "learning.aggregation": "renormalized"}),
        ("bids", QUICK, {**TALKING, "learning.aggregation": "model", "link.half_duplex": True}),
        ("bids", {**QUICK, "leans": "devices"}, {**TALKING, **PATH, **UNLIKE, "energy.control_loss": 0.3}),
        ("bids", QUICK, {**TALKING, **DEAR, "energy.control_loss": 0.3}),
        ("bids", QUICK, {**TALKING, **PATH, **UNLIKE, **LOSSY, **DEAR}),
        ("bids", QUICK, {**TALKING, **WEATHER, "channel.state": "link"}),
        ("bids", SILENT, {**HEARD, **PATH, "energy.control_loss": 0.3}),
        ("bids", SILENT, {**HEARD, **DEAR, **WEATHER, "link.half_duplex": True}),
        ("bids", {**QUICK, "talk": "auto"}, {**HEARD, **DEAR, **PATH}),
        ("bids", {**SILENT, "endless": True}, {**HEARD, "slots": 70, "channel.state": "link"}),
        ("bids", {**QUICK, "endless": True}, {**TALKING, "cost.deadline": [5, 8], **UNLIKE, **PATH, **DEAR}),
    ],
)
def test_a_fleet_does_what_plan_simulator_and_trainer_do(
    planner: str, options: dict[str, Any], changes: dict[str, Any]
) -> None:
    problem = small(**changes)
    found = ran(problem, planner, options)
    own = {"share_tables": False} if planner == "decentralized" else {}
    plan = make_plan(problem, planner, {**options, **own}, bound=False)
    trace = simulate(problem, plan, 1, SEED)
    expected, policy = one_cycle(plan.policy), one_cycle(found.plan.policy)
    if isinstance(expected, LocalTables):
        assert isinstance(policy, LocalTables)
        assert expected.scopes == policy.scopes
        assert all(map(torch.equal, expected.tables, policy.tables))
        assert (plan.residual, plan.converged, plan.overhead) == (
            found.plan.residual,
            found.plan.converged,
            found.plan.overhead,
        )
    assert trace.scheduled.any()
    if problem.scenario.energy.actions == "separate":
        assert ((trace.power_watt > 0) & ~trace.scheduled).any()
    assert_same_traces(found.trace, trace)
    assert_same_runs(found, trace, problem.scenario)


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        ({"rounds": 2}, PATH),
        ({"rounds": 2}, {"network.devices": 7, "slots": 3}),
        ({"rounds": 2, "hops": 1}, {"link.half_duplex": True, **WEATHER}),
        ({"rounds": 1, "hops": 1}, {"network.topology": "complete", "network.devices": 4, "slots": 3}),
    ],
)
def test_messages_come_from_neighbours_about_the_neighbourhood_and_as_many_as_predicted(
    options: dict[str, Any], changes: dict[str, Any]
) -> None:
    problem = small(**changes)
    scheme = scheme_of(problem, "decentralized", options)
    found = run_fleet(scheme, job_of(scheme))
    assert scheme.timetable is not None
    distance = dict(nx.all_pairs_shortest_path_length(problem.topology.graph))
    for device, logbook in found.logbooks.items():
        for receipt in logbook:
            assert distance[device][receipt.sender] == 1
            # whatever a device gets, to keep or to pass on, is about devices within its own k hops
            assert 1 <= distance[device][receipt.origin] <= (1 if receipt.kind == "model" else scheme.hops)
            assert receipt.kind in ("share", "policy", "state", "model")
            assert receipt.kind != "model" or receipt.origin == receipt.sender
    assert found.total(*PLANNING)[1] == found.plan.overhead.offline_bytes > 0
    assert found.total("state")[1] == found.plan.overhead.online_bytes_per_slot * problem.slots > 0
    # every pair that shares a cost exchanges one table each way in every round of every slot, over every hop
    partners = scheme.partners
    hops = sum(distance[i][source] for i, one in enumerate(partners) for source in one.sources)
    exchanges = problem.slots * len(scheme.timetable.rounds)
    assert found.total("share")[0] == found.total("policy")[0] == hops * exchanges
    pairs = sum(length for row in distance.values() for length in row.values() if length <= scheme.hops)
    assert found.total("state")[0] == pairs * problem.slots
    sent = (found.trace.power_watt[0] > 0)[:, problem.topology.edge_sender]
    assert found.total("model") == (sent.sum(), sent.sum() * found.run.weights.shape[1] * 4)


def test_bids_and_grants_are_as_many_as_predicted_and_come_from_neighbours() -> None:
    problem = small(**TALKING, **PATH, **DEAR)
    found = ran(problem, "bids", QUICK)
    assert found.total("bid")[0] == found.total("grant")[0] > 0
    said = int((found.trace.control_joule > 0).sum())
    facts, most = found.message_facts, problem.slots * problem.num_devices
    assert 0 < said < most  # some could not pay
    counted, predicted = (facts[f"coordination bytes per slot, {how}"] for how in ("counted", "predicted"))
    assert counted * most == pytest.approx(predicted * said)
    for device, logbook in found.logbooks.items():
        assert {receipt.origin for receipt in logbook} <= set(problem.topology.neighbours[device])


def test_a_part_of_bids_tells_of_no_other_device() -> None:
    problem = small(**TALKING, **PATH)
    policy = make_plan(problem, "bids", QUICK, bound=False).policy
    assert isinstance(policy, Bidders)
    assert policy.values is not None
    values, directions = policy.values.clone(), policy.model.directions.clone()
    values[:, 1:], directions[1:] = values[:, 1:].flip(1), directions[1:].flip(0)
    assert OwnBids.of(policy, 0) == OwnBids.of(replace(policy, values=values, directions=directions), 0)
    assert all(OwnBids.of(policy, device).fits(problem, device) for device in range(6))
    assert not OwnBids.of(policy, 0).fits(problem, 1)
    cycle = one_cycle(make_plan(problem, "bids", {**QUICK, "endless": True}, bound=False).policy)
    assert isinstance(cycle, Bidders)
    part = OwnBids.of(cycle, 0)
    assert part.fits(problem, 0)
    assert len(part.entries) > problem.slots
    assert not part.model_copy(update={"endless": False}).fits(problem, 0)
    assert not part.model_copy(update={"bias_weight": (), "entries": ()}).fits(problem, 0)


def test_a_part_of_a_silent_plan_fits_its_device_and_no_other() -> None:
    problem = small(**TALKING, **PATH)
    policy = make_plan(problem, "bids", SILENT, bound=False).policy
    assert isinstance(policy, Silent)
    parts = OwnBids.all_of(policy)
    assert all(part.fits(problem, device) for device, part in enumerate(parts))
    assert not parts[0].fits(problem, 5)
    for change in ({"may_send": ()}, {"lands": ()}, {"landed": ((1, 0, 0),)}, {"their_share": (1, 2)}):
        assert not parts[0].model_copy(update=change).fits(problem, 0)
    with pytest.raises(ValidationError, match="less than or equal to 32768"):
        OwnBids.model_validate(parts[0].model_dump() | {"landed": ((1 << 16, 0),)})


def test_a_silent_device_goes_on_from_what_it_stored() -> None:
    problem = small(**TALKING, **PATH)
    policy = make_plan(problem, "bids", SILENT, bound=False).policy
    assert isinstance(policy, Silent)
    view, part = view_of(problem, 2, 0), OwnBids.of(policy, 2)
    first, second = part.bidder(view), part.bidder(view)
    model = bytes([200, 0, *[5] * len(part.direction)])
    for delivered in ([model, None], [None, None]):
        first.learn(len(part.trained) - 1, delivered)
    assert first.state().keys() == {"progress", "lean", "ahead", "believed"}
    assert first.state()["ahead"].tolist() != [0, 0]
    second.restore(first.state())
    for name, value in first.state().items():
        assert torch.equal(second.state()[name], value), name
    second.restore({**first.state(), "ahead": torch.zeros(5, dtype=torch.long)})  # of another plan's neighbours
    assert torch.equal(second.state()["believed"], first.state()["believed"])
    assert second.fault("bid", 1, b"") == "a bid under a silent plan"
    assert second.fault("model", 1, model) is None


def test_a_killed_bidder_is_not_heard_and_the_others_go_on() -> None:
    problem = small(**TALKING, **PATH)
    found = ran(problem, "bids", QUICK, deaths={2: 5})
    assert found.died == {2: 5}
    assert not found.trace.scheduled[0, 5:, 2].any()
    assert found.trace.scheduled[0, 5:].any()
    assert not any(receipt.origin == 2 and receipt.slot >= 5 for book in found.logbooks.values() for receipt in book)


class Hasty(Post):
    """Messages arrive before others have begun, as they may where devices are processes."""

    def call(self, name: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        results: dict[int, Any] = {}
        for number, values in reversed(arguments.items()):
            results |= super().call(name, {number: values})
        return results


@pytest.mark.parametrize(
    ("planner", "options"),
    [
        ("decentralized", {"rounds": 2, "order": "turns"}),
        ("decentralized", {"rounds": 2, "order": "simultaneous"}),
        ("bids", QUICK),
    ],
)
def test_it_does_not_matter_who_is_first(
    planner: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    scheme = scheme_of(small(**PATH, slots=4), planner, options)
    calm = run_fleet(scheme, job_of(scheme))
    monkeypatch.setattr(clock, "Post", Hasty)
    hasty = run_fleet(scheme, job_of(scheme))
    assert_same_traces(calm.trace, hasty.trace)
    assert torch.equal(calm.run.weights, hasty.run.weights)
    assert calm.logbooks == hasty.logbooks


def test_whoever_plans_alone_sends_models_only() -> None:
    found = ran(small(), "uncoordinated", {})
    assert found.total("share", "policy", "state") == (0, 0)
    assert found.total("model")[0] > 0


@pytest.mark.parametrize("on_air", ["float32", "int8", "top-k"])
def test_models_take_the_bits_of_their_format(on_air: Format) -> None:
    problem = small(**{"learning.on_air": on_air})
    found = ran(problem, "uncoordinated", {})
    count, num_bytes = found.total("model")
    assert count > 0
    assert num_bytes == count * -(-update_bits(found.run.weights.shape[1], on_air) // 8)


def test_tables_in_single_precision_take_the_bytes_that_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = Scenario.load("tiny").override({**SMALL, **PATH, "slots": 3})
    problem = build(scenario, dtype="float32")
    carried: list[tuple[int, int]] = []

    class Weighed(Post):
        def call(self, name: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
            for number, device in self._devices.items():
                if not isinstance(device, _Scale):
                    self._devices[number] = _Scale(device, carried)  # type: ignore[assignment]
            return super().call(name, arguments)

    scheme = scheme_of(problem, "decentralized", {"rounds": 2})
    monkeypatch.setattr(clock, "Post", Weighed)
    run_fleet(scheme, job_of(scheme))
    assert carried
    assert all(actual <= counted for actual, counted in carried)
    assert any(actual == counted for actual, counted in carried)  # frames are no larger than they need be


@dataclass
class _Scale:
    """A device whose tables are weighed as they arrive."""

    device: Any
    carried: list[tuple[int, int]]

    def deliver(self, sender: int, messages: list[Message]) -> Any:
        for message in messages:
            if isinstance(message.content, Factor):
                self.carried.append((message.content.table.nbytes, message.num_bytes))
        return self.device.deliver(sender, messages)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.device, name)


def test_a_view_does_not_change_with_what_is_beyond_it() -> None:
    changed = {
        "energy.capacity_joule": [2.0, 2.0, 2.0, 2.0, 4.0, 3.0],
        "channel.gain": [1.0, 1.0, 1.0, 1.0, 0.5, 0.25],
        "link.noise_watt": [0.3, 0.3, 0.3, 0.3, 0.3, 0.1],
        "energy.compute_joule": [1.0, 1.0, 1.0, 1.0, 0.5, 0.5],
        "harvest.scale": [1.0, 1.0, 1.0, 1.0, 2.0, 3.0],
        "seed": 5,
        "network.edges": [*PATH["network.edges"], [5, 6]],
        "network.devices": 7,
    }
    changed |= {name: [*value, 0.7] for name, value in changed.items() if name.split(".")[0] in _PER_DEVICE}
    near, far = small(**PATH), small(**{**PATH, **changed})
    for hops in (0, 1, 2):
        mine, theirs = view_of(near, 0, hops), view_of(far, 0, hops)
        assert (mine.neighbours, mine.distance, mine.next_hop) == (
            theirs.neighbours,
            theirs.distance,
            theirs.next_hop,
        )
        # as many devices as there are is all that a view tells of the rest
        for ours, other in zip(_numbers(mine.problem, 6), _numbers(theirs.problem, 6), strict=True):
            assert torch.equal(ours.nan_to_num(), other.nan_to_num())
        kept = {"network": {"devices": 6}}
        assert {**mine.problem.scenario.as_dict(), **kept} == {**theirs.problem.scenario.as_dict(), **kept}


_PER_DEVICE = ("energy", "channel", "link", "harvest")


def _numbers(problem: Problem, devices: int) -> Iterator[Tensor]:
    """All numbers of a problem, by device only those of the first ones."""
    topology, link, actions = problem.topology, problem.link, problem.actions
    yield from map(torch.from_numpy, (topology.edge_receiver, topology.edge_sender, topology.edge_weight))
    yield torch.from_numpy(topology.self_weight)[:devices]
    yield torch.from_numpy(topology.position_metre)[:devices]
    yield torch.from_numpy(topology.edge_metre)
    yield from (link.path_gain, link.noise_watt[:devices], problem.channel.site_of_edge)
    battery = problem.battery
    yield from (actions.spent_joule[:devices], actions.steps_up[:devices], battery.capacity_joule[:devices])
    yield from (actions.needed_joule[:devices], actions.needed_steps_up[:devices])
    yield from (getattr(battery.losses, field.name)[:devices] for field in fields(battery.losses))
    yield problem.harvest.law.scale[:devices]


def test_a_device_is_given_its_own_samples_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, seen = small(**PATH), []

    def note(given: Any) -> Post:
        seen.extend(given)
        return Post(given)

    scheme = scheme_of(problem, "uncoordinated", {})
    monkeypatch.setattr(clock, "Post", note)
    run_fleet(scheme, job_of(scheme))
    rows = [{tuple(sample.flatten().tolist()) for sample in one.lesson.samples.inputs} for one in seen]
    assert all(isinstance(one, Installation) for one in seen)
    assert sum(map(len, rows)) == len(set().union(*rows))  # digits has no equal samples
    assert all(one.view.problem.scenario.learning.indices is None for one in seen)


# a dead device


@dataclass(frozen=True)
class Deaf(ActionPolicy):
    """The policy of a plan when one device is dead from a slot on: what would come from it or through it stays."""

    problem: Problem
    tables: LocalTables
    dead: int
    since: int
    before: dict[tuple[int, Variable], int]

    def action(self, slot: int, seen: Observation) -> Tensor:
        chosen = []
        now = {
            variable: int(value)
            for device in range(self.problem.num_devices)
            for variable, value in seen.assignment(self.problem, state_variables(self.problem, device)).items()
        }
        for device, (scope, table) in enumerate(zip(self.tables.scopes, self.tables.tables, strict=True)):
            for variable in scope:
                if slot < self.since or not self._is_lost(device, variable):
                    self.before[device, variable] = now[variable]
            chosen.append(int(table[slot][tuple(self.before[device, variable] for variable in scope)]))
        if slot >= self.since:
            chosen[self.dead] = 0
        return torch.tensor([chosen])

    def _is_lost(self, device: int, variable: Variable) -> bool:
        owner = variable.owner  # sites belong to their receivers here
        way = [owner]
        while way[-1] != device:
            way.append(next_hop(self.problem.topology, way[-1], device))
        return self.dead in way


@pytest.mark.parametrize(("dead", "since"), [(2, 3), (0, 0)])
def test_a_killed_device_is_a_dead_one_and_the_others_go_on(dead: int, since: int) -> None:
    problem = small(**PATH, slots=7)
    options = {"rounds": 2, "share_tables": False}
    found = ran(problem, "decentralized", options, deaths={dead: since})
    plan = make_plan(problem, "decentralized", options, bound=False)
    assert isinstance(plan.policy, LocalTables)
    start = {(i, v): 0 for i, scope in enumerate(plan.policy.scopes) for v in scope}
    simulated = simulate(problem, Plan("decentralized", Deaf(problem, plan.policy, dead, since, start)), 1, SEED)
    expected = _unheard(simulated, problem, dead, since)
    assert found.died == {dead: since}
    assert simulated.scheduled[0, since:].any()
    alive = np.arange(problem.num_devices) != dead
    for name in ("scheduled", "power_watt", "battery_joule", "spent_joule", "harvested_joule", "overflow_joule"):
        assert np.array_equal(getattr(found.trace, name)[..., alive], getattr(expected, name)[..., alive]), name
    for name in ("delivered", "error_prob", "update_loss", "channel_level"):
        assert np.allclose(getattr(found.trace, name), getattr(expected, name), rtol=0, atol=1e-15), name
    assert not found.trace.scheduled[0, since:, dead].any()
    assert not found.trace.spent_joule[0, since:, dead].any()
    # the trainer under the simulated trace: the dead one keeps its model, the others average without it
    run = train(problem.scenario, expected, seed=SEED, evaluate_every=3)
    assert torch.equal(found.run.weights, run.weights)
    assert np.array_equal(found.run.accuracy, run.accuracy)


def _unheard(trace: Trace, problem: Problem, dead: int, since: int) -> Trace:
    """A simulated trace in which nobody listens at the dead device."""
    into = problem.topology.edge_receiver == dead
    delivered, error = trace.delivered.copy(), trace.error_prob.copy()
    delivered[:, since:, into], error[:, since:, into] = False, 1.0
    lost = error - trace.error_prob  # (1, slot, edge)
    loss = trace.update_loss.copy()
    for edge in np.flatnonzero(into):
        loss[..., problem.topology.edge_sender[edge]] += problem.topology.edge_weight[edge] * lost[..., edge]
    return replace(trace, delivered=delivered, error_prob=error, update_loss=loss)


# what is refused


@pytest.mark.parametrize(
    ("planner", "options", "sentence"),
    [
        (
            "decentralised",
            {},
            "one of bids, decentralized, fixed_fraction, skiptrain, turns, uncoordinated, whose devices need no more",
        ),
        ("decentralized", {"form": "literal"}, "option.form: expected 'default' in a fleet"),
        ("decentralized", {"share_tables": True}, "option.share_tables: expected false in a fleet"),
        ("uncoordinated", {"rounds": 2}, "uncoordinated option.rounds"),
        ("bids", {"passes": 0}, "bids option.passes: expected at least 1 for devices"),
    ],
)
def test_what_needs_more_than_the_neighbourhood_is_refused(
    planner: str, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ScenarioError) as refused:
        scheme_of(small(), planner, options)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("planner", sorted(set(planner_names()) - {BIDS, WITH_OTHERS, IN_TURN, *ALONE}))
def test_every_other_planner_is_refused_with_a_reason(planner: str) -> None:
    with pytest.raises(ScenarioError, match="whose devices need no more than neighbours can tell them, actual value"):
        scheme_of(small(), planner, {})


def test_the_timetable_lets_no_two_that_share_a_receiver_move_at_once() -> None:
    problem = small(**PATH)
    table = timetable(problem, Options())
    for turn in range(table.num_turns):
        movers = set(table.movers(turn))
        for receiver in range(problem.num_devices):
            assert len(movers & set(problem.heard_by(receiver))) <= 1
    gammas = [gamma for gamma, _ in table.rounds]
    assert all(now <= then for now, then in pairwise(gammas))
    areas = [Neighbourhood(problem, device, 2) for device in range(problem.num_devices)]
    assert site(0) in partners_of(problem, areas, table)[1].scope
