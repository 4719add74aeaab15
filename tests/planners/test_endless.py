"""Plans without an end against a plain dynamic program over the joint lattice, and around cycles of every kind."""

import functools
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.bounds import dual, minorant, receiver_floor
from heliomesh.bounds.dual import Effort, raise_bound
from heliomesh.grid.cycle_fixed_point import settle_values
from heliomesh.model.endless import Endless, cycle_of, natural_cycle
from heliomesh.model.policy import Observation, untracked
from tests.planners.test_certificate import slot_costs

UNIT = 0.5  # joule: all energies of a network are multiples of it
NETWORKS = 120
PLANNERS: list[tuple[str, dict[str, Any]]] = [
    ("receiver", {}),
    ("receiver", {"interpolate": False}),
    ("receiver", {"largest_table": 0}),
    ("prices", {}),
    ("prices", {"coordinate": False}),
    ("decentralized", {"rounds": 1, "hops": 1}),
]


def drawn(number: int) -> hm.Scenario:
    """A network of one to three devices on a lattice of energies; channels, duplex and cycles come in turn."""
    rng = np.random.default_rng([number, 17])
    devices = (2, 1, 2, 3)[number % 4]
    pairs = [[i, j] for i in range(devices) for j in range(i)]
    capacity = rng.integers(2, 4 if devices == 3 else 6, devices)
    atoms = [0.0, float(rng.integers(1, 4)) * UNIT]
    kinds: list[dict[str, Any]] = [
        {"source": "table", "joule": atoms, "prob": [0.6, 0.4]},
        {"source": "trace", "joule": [*atoms, UNIT], "start": 1},
        {"source": "table", "joule": [UNIT], "prob": [1.0]},  # batteries that fill in step
        {"source": "markov", "joule": [atoms, [UNIT, UNIT]], "prob": [[0.5, 0.5]] * 2, "kernel": [[0.7, 0.3]] * 2},
    ]
    harvest = kinds[number // 4 % (3 if devices == 3 else 4)]
    return hm.Scenario.parse(
        {
            "slots": 4,
            "network": {"topology": "edges", "devices": devices, "edges": pairs, "allow_disconnected": True},
            "channel": {
                "source": "table",
                "state": "link" if devices == 2 and number % 3 == 0 else "receiver",
                "gains": [0.4, 1.5],
                "kernel": rng.dirichlet([2.0, 1.0], size=2).tolist(),
            },
            "link": {"waterfall": 0.5, "noise_watt": 0.3, "half_duplex": number // 2 % 2 == 1},
            "energy": {
                "powers_watt": [0.0, 0.5, 1.0] if devices < 3 else [0.0, 1.0],
                "transmit_second": 1.0,
                "slot_second": 1.0,
                "compute_joule": (rng.integers(1, 3, devices) * UNIT).tolist(),
                "actions": "separate" if number % 5 == 4 and devices < 3 else "coupled",
                "capacity_joule": (capacity * UNIT).tolist(),
                "initial": "uniform",
            },
            "harvest": harvest,
            "cost": {"idle_penalty": float(rng.choice([0.0, 0.5, 1.0]))},
        }
    )


class Lattice:
    """The network's joint states with plain kernels, costs and moves."""

    def __init__(self, scenario: hm.Scenario) -> None:
        problem = self.problem = hm.build(scenario)
        law = problem.harvest.law
        self.top = np.rint(problem.battery.capacity_joule.numpy() / UNIT).astype(int)
        self.spent = np.rint(problem.actions.spent_joule.numpy() / UNIT).astype(int)
        levels, sites = problem.channel.levels, problem.channel.num_sites
        ranges = [range(levels)] * sites
        ranges += [range(law.num_weather * (top + 1)) for top in self.top]
        self.states = list(itertools.product(*ranges))
        self.number = {state: index for index, state in enumerate(self.states)}
        self.sites = sites
        self.joint = list(itertools.product(range(len(problem.actions)), repeat=problem.num_devices))
        self.left = np.full((len(self.joint), len(self.states)), -1)
        for index, joint in enumerate(self.joint):
            for place, state in enumerate(self.states):
                self.left[index, place] = self.after(state, joint)

    def after(self, state: tuple[int, ...], joint: tuple[int, ...]) -> int:
        """The state after spending, or −1."""
        energies = list(state)
        for device, chosen in enumerate(joint):
            energy = state[self.sites + device]
            if self.spent[device, chosen] > energy % (self.top[device] + 1):
                return -1
            energies[self.sites + device] = energy - self.spent[device, chosen]
        return self.number[tuple(energies)]

    @functools.cached_property
    def period(self) -> int:
        """Slots after which the network is as it was: three at most in these."""
        return {1: 1}.get(len(self.problem.harvest.law.joule), 3)

    def kernel(self, slot: int) -> Any:
        """Moves of all states after spending; (state, state)."""
        law, found = self.problem.harvest.law, np.ones((1, 1))
        for _ in range(self.sites):
            found = np.kron(found, self.problem.channel.kernel.numpy())
        settings: Any = self.problem.scenario.harvest
        for top in self.top:
            own = np.zeros((law.num_weather, top + 1, law.num_weather, top + 1))
            for weather, level in itertools.product(range(law.num_weather), range(top + 1)):
                if settings.source == "trace":
                    outcomes = [(settings.joule[(settings.start + slot) % 3], 1.0)]
                elif settings.source == "markov":
                    outcomes = list(zip(settings.joule[weather], settings.prob[weather], strict=True))
                else:
                    outcomes = list(zip(settings.joule, settings.prob, strict=True))
                for joule, prob in outcomes:
                    full = min(level + round(joule / UNIT), top)
                    own[weather, level, :, full] += prob * law.kernel[weather].numpy()
            found = np.kron(found, own.reshape(law.num_weather * (top + 1), -1))
        return found

    @functools.cached_property
    def slots(self) -> list[tuple[Any, Any]]:
        """Kernel, and costs (joint action, state), of the slots of a cycle."""
        found, slot_cost = [], slot_costs(self.problem)
        for slot in range(self.period):
            table = {
                (levels, joint): slot_cost(levels, joint, ())
                for levels in {state[: self.sites] for state in self.states}
                for joint in self.joint
            }
            cost = np.array([[table[state[: self.sites], joint] for state in self.states] for joint in self.joint])
            found.append((self.kernel(slot), np.where(self.left < 0, np.inf, cost)))
        return found

    def optimum(self) -> float:
        """Least average cost per slot, by relative value iteration with half steps."""

        def around(value: Any) -> Any:
            for kernel, cost in reversed(self.slots):
                value = (cost + (kernel @ value)[self.left]).min(0)
            return value

        found = settled(around, len(self.states), alike=True) / self.period
        assert found.max() - found.min() < 1e-6  # any battery can be filled, so where it starts does not matter
        return float(found.min())

    def cost_of(self, policy: Any) -> float:
        """Average cost per slot of a plan without an end, from the first state that is best for it."""
        chosen = [self.actions(policy, slot) for slot in range(policy.period)]
        place = np.arange(len(self.states))

        def around(value: Any) -> Any:
            for slot in reversed(range(policy.period)):
                kernel, cost = self.slots[slot % self.period]
                value = cost[chosen[slot], place] + (kernel @ value)[self.left[chosen[slot], place]]
            return value

        return float(settled(around, len(self.states), alike=False).min()) / policy.period

    def actions(self, policy: Any, slot: int) -> Any:
        """Joint action of the policy in every state; (state,)."""
        states = torch.tensor(self.states)
        cells = torch.from_numpy(self.top + 1)
        energy = states[:, self.sites :]
        battery = (energy % cells).double() * UNIT
        seen = Observation(states[:, : self.sites], battery, energy // cells, torch.zeros_like(battery))
        joint = policy.checked_action(slot, seen).tolist()
        return np.array([self.joint.index(tuple(row)) for row in joint])


def settled(around: Any, states: int, alike: bool) -> Any:
    """What a cycle costs in the long run, by the first state; (state,). With ``alike`` it is the same for all."""
    value, rise = np.zeros(states), np.full(states, np.inf)
    for _ in range(10_000):
        after = around(value)
        before, rise = rise, after - value
        if (rise.max() - rise.min() if alike else np.abs(rise - before).max()) < 1e-10:
            break
        value = (value + after) / 2  # half steps settle even where all moves in step
        value -= value.min()
    return rise


@pytest.mark.parametrize("batch", [0, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 12))])
def test_bound_optimum_and_costs_are_in_order(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds on coarse grids know nothing of the lattice; the optimum and the plans' costs on it are exact."""
    for number in range(batch, NETWORKS, 12):
        scenario = drawn(number)
        lattice, cycle = Lattice(scenario), cycle_of(hm.build(scenario))
        optimum = lattice.optimum()
        with monkeypatch.context() as patched:
            patched.setattr(minorant, "_LEVELS", 4 + number % 9)
            patched.setattr(dual, "_ROUGH_LEVELS", 5)
            patched.setattr(receiver_floor, "_FEWEST_LEVELS", 2)
            patched.setattr(receiver_floor, "_MOST_LEVELS", 3 + number % 5)
            found = [raise_bound(cycle, Effort(10, 5), untracked), receiver_floor.receiver_floor(cycle)]
        for bound in found:
            assert bound is None or bound / cycle.slots <= optimum + 1e-7, number
        planner, options = PLANNERS[number // 12 % len(PLANNERS)]
        plan = hm.plan(hm.build(scenario), planner, endless=True, **options)
        assert lattice.cost_of(plan.policy) >= optimum - 1e-7, (number, planner, options)


def test_every_kind_of_cycle_is_among_the_networks() -> None:
    problems = [hm.build(drawn(number)) for number in range(NETWORKS)]
    assert {natural_cycle(problem) for problem in problems} == {1, 3}
    assert {Lattice(drawn(number)).period for number in range(24)} == {1, 3}
    assert sum(problem.harvest.law.num_weather > 1 for problem in problems) >= 12


def test_on_fine_grids_the_bound_is_tight() -> None:
    gaps = []
    for number in (1, 5, 13, 17):  # one device each: prices lose nothing
        scenario = drawn(number).override({"cost.idle_penalty": 1.0})
        lattice, bound = Lattice(scenario), hm.average_bound(hm.build(scenario))
        assert bound is not None
        gaps.append(lattice.optimum() - bound)
    assert max(gaps) < 1e-3, gaps
    assert min(gaps) > -1e-7


@pytest.mark.parametrize(("planner", "options"), PLANNERS)
def test_where_the_grid_is_exact_the_bound_is_the_optimum_and_plans_come_near(
    planner: str, options: dict[str, Any], tiny: Any
) -> None:
    problem = tiny({"network.devices": 4, "slots": 300})
    bound = hm.average_bound(problem)
    plan = hm.plan(problem, planner, endless=True, **options)
    late = hm.simulate(problem, plan, episodes=24, seed=1).update_loss.sum(-1)[:, 50:].mean()
    assert bound is not None
    assert bound * 0.99 < late < bound * 1.15


def test_expected_cost_is_the_average_of_devices_that_act_alone(tiny: Any) -> None:
    problem = tiny({"slots": 400})
    plan = hm.plan(problem, "prices", endless=True, coordinate=False, interpolate=False)
    late = hm.simulate(problem, plan, episodes=64, seed=3).update_loss.sum(-1)[:, 50:].mean(1)
    assert plan.expected_cost is not None
    assert abs(late.mean() - plan.expected_cost) < 4 * late.std() / 8


DAYS = {
    "harvest": {"source": "solar", "data": "clear-sky", "latitude": 36.0, "longitude": -80.0, "law": "weather"},
    "harvest.hours": [0.0, 24.0],
    "harvest.panel_cm2": 0.02,
    "energy.slot_second": 10800.0,
    "energy.transmit_second": 1.0,
    "energy.capacity_joule": 20.0,
    "energy.battery_levels": None,
}


@pytest.mark.parametrize("slots", [5, 24])
def test_a_day_is_a_cycle_whatever_the_horizon(slots: int) -> None:
    problem = hm.build(hm.Scenario.load("tiny").override(DAYS | {"slots": slots}))
    cycle = cycle_of(problem)
    assert (natural_cycle(problem), cycle.slots, len(cycle.harvest.law.phase_of_slot)) == (8, 8, 8)
    whole = hm.build(problem.scenario.override({"slots": 16}))
    for slot in range(16):
        torch.testing.assert_close(cycle.energy_kernels(slot % 8), whole.energy_kernels(slot))
    plan = hm.plan(problem, "receiver", endless=True)
    assert isinstance(plan.policy, Endless)
    assert (plan.policy.period, plan.converged) == (8, True)


@pytest.mark.parametrize("planner", ["receiver", pytest.param("prices", marks=pytest.mark.slow)])
def test_nights_are_bridged(planner: str) -> None:
    """A day's plan costs less than spending all at once, over a fortnight."""
    problem = hm.build(hm.Scenario.load("tiny").override(DAYS | {"slots": 112}))
    plan = hm.plan(problem, planner, endless=True)
    own = hm.simulate(problem, plan, 32, seed=2).cost
    greedy = hm.simulate(problem, hm.plan(problem, "uncoordinated"), 32, seed=2).cost
    assert own.mean() < greedy.mean()


@pytest.mark.parametrize(("planner", "options"), PLANNERS)
def test_a_saved_plan_goes_on_as_before(planner: str, options: dict[str, Any], tmp_path: Path, tiny: Any) -> None:
    problem, longer = tiny({}), tiny({"slots": 40})
    plan = hm.plan(problem, planner, endless=True, **options)
    plan.save(tmp_path / "plan.safetensors")
    again = hm.Plan.load(tmp_path / "plan.safetensors")
    np.testing.assert_array_equal(hm.simulate(longer, plan, 4).cost, hm.simulate(longer, again, 4).cost)


REFUSED: dict[str, tuple[dict[str, Any], str, dict[str, Any], str]] = {
    "known clouds": ({"harvest.cloudy": [[2, 3, 0.1]], "harvest.cloudy_known": True}, "receiver", {}, "harvest: "),
    "literal": ({}, "decentralized", {"form": "literal"}, "decentralized option.endless: expected false"),
    "no such option": ({}, "myopic", {}, "myopic option.endless: "),
}


@pytest.mark.parametrize(("changes", "planner", "options", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_has_no_cycle_is_refused(
    changes: dict[str, Any], planner: str, options: dict[str, Any], sentence: str, tiny: Any
) -> None:
    with pytest.raises(hm.ScenarioError, match=sentence):
        hm.plan(tiny(changes), planner, endless=True, **options)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_values_settle_as_far_as_their_numbers_can(dtype: torch.dtype) -> None:
    """Values of some hundreds change in the last bits of float32 for ever; the rounds end all the same."""
    kernel = torch.tensor([[0.9, 0.1], [0.3, 0.7]], dtype=dtype)
    cost, rounds = torch.tensor([123.4, 0.7], dtype=dtype), []

    def around(value: torch.Tensor) -> torch.Tensor:
        rounds.append(value)
        return cost + value @ kernel.T

    assert settle_values(around, torch.zeros(1, 2, dtype=dtype), 1)[0]
    assert len(rounds) < 200
    rise = around(rounds[-1]) - rounds[-1]
    assert torch.allclose(rise, torch.tensor(0.75 * 123.4 + 0.25 * 0.7, dtype=dtype), rtol=1e-5)
