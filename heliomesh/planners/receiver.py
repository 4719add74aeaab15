"""Receiver-centric planning: near-optimal, local, with a certificate.

The cost is a sum of terms, one per receiver: c = Σ_i (f_i(h_i, p_{N_i}) + a share of the idle penalty of each device
heard). Let V_i be the exact optimum of receiver i's own term, as if all devices it hears acted for it alone. Then

    Σ_i V_i  ≤  V*                                                      (the lower bound)

because the minimum of a sum is at least the sum of the minima, and each V_i is a dynamic program over the few
variables (h_i, b_{N_i}) that its term depends on. Each slot is decided jointly, by neighbour messages, as

    p = argmin  Σ_i [ f_i(h_i, p_{N_i}) + W_i(h_i, b_{N_i} − e(p)) ]    (W_i: expected next V_i after spending)

Receivers that hear too many devices for a table are bounded by action prices instead (`problem/dual.py`), and the
devices' values at those prices take the place of W_i; with ``fit = true`` fitted values do (`problem/fitted.py`).
Receivers with equal surroundings share one table. Far from the horizon a slot only adds a constant to V_i; the
recursion stops there, and the bound uses the smallest such constant, so that it stays a bound.

The bound is computed in float64 whatever the problem's number type: float32 rounds to the nearest, so its values may
lie above the true ones. A float32 problem only stores and looks up narrower tables.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from scipy.optimize import minimize
from torch import Tensor

from heliomesh.problem.best_response import descend
from heliomesh.problem.context import Planning
from heliomesh.problem.coordination import Coordination, Group
from heliomesh.problem.cost import receiver_factor
from heliomesh.problem.dual import DualBound, Effort, is_pruned, least_bytes, priced_groups, raise_bound
from heliomesh.problem.exact import backward_induction, expected_first, induction_bytes
from heliomesh.problem.factor import Factor, action
from heliomesh.problem.fitted import FittedFutures, fit_futures
from heliomesh.problem.overhead import coordination_overhead
from heliomesh.problem.policy import ActionPolicy, Observation, ParallelMap, Plan, Track, untracked
from heliomesh.problem.problem import Part, Problem, build
from heliomesh.problem.product_form import ProductForm
from heliomesh.problem.single import best_responses, least_totals
from heliomesh.problem.size import DEFAULT_LIMIT_GIB, check_fits, entries
from heliomesh.scenario import ScenarioError, Section

_REMEDY = "lower the degree, energy.battery_levels or channel.levels, raise memory_gib, or use the planner 'prices'"


class Options(Section):
    """Options of the receiver planner."""

    largest_table: Annotated[int, Field(ge=0)] | None = Field(
        None,
        description="most states × joint actions of a receiver's table, larger ones get prices instead; "
        "default: what fits the memory and about a minute",
    )
    steps: Annotated[int, Field(ge=1, le=100_000)] = Field(100, description="ascent steps of the prices")
    channel_steps: Annotated[int, Field(ge=0, le=100_000)] = Field(
        40, description="further steps of prices that see channels"
    )
    rounds: Annotated[int, Field(ge=1, le=100_000)] = Field(8, description="most coordinate rounds per slot")
    messages: Annotated[int, Field(ge=0, le=100_000)] | None = Field(
        None, description="min-sum rounds before them; default 10 under half duplex, else none"
    )
    own_share: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None, description="half duplex: share of a device's idle penalty booked on itself; default .6 lazy, .7 plain"
    )
    fit: bool = Field(
        False, description="receivers without a table decide by fitted values; prices still give their bound"
    )
    tolerance: Annotated[float, Field(gt=0)] = Field(
        1e-4, description="stop the recursion once slots differ by a constant to within this cost"
    )
    memory_gib: float = Field(
        DEFAULT_LIMIT_GIB,
        gt=0,
        description="most memory by estimate [GiB]: more receivers get prices, prices watch fewer channels; "
        "refused where nothing fits",
    )


@dataclass(frozen=True)
class Surroundings:
    """Receivers that share one table, and that table."""

    futures: Tensor  # (stored slot, state): W_i, the last stored slot being the first of the horizon that was needed
    bound: float  # on the total cost of one receiver's term


@dataclass(frozen=True)
class ReceiverTables(ActionPolicy):
    """Joint decisions on the receivers' tables."""

    problem: Problem
    coordination: Coordination
    tables: tuple[Tensor, ...]  # per kind of surroundings: (stored slot, state), counted from the horizon
    kind_of: dict[int, Tensor]  # per group offset: (receiver,) kind, −1 for receivers bounded by prices
    futures: Tensor | None  # (slot, device, energy): value of the energy left, where receivers are bounded by prices
    rounds: int
    messages: int
    fitted: Mapping[int, FittedFutures]  # by receiver: approximate values where they replace prices

    def action(self, slot: int, seen: Observation) -> Tensor:
        """Coordinate rounds from the largest powers, from silence and from the min-sum messages' advice."""
        return torch.cat([self._decide(slot, piece) for piece in seen.pieces(self.coordination.batch)])

    def _decide(self, slot: int, seen: Observation) -> Tensor:
        problem, coordination = self.problem, self.coordination
        state = seen.energy_state(problem)
        device = torch.arange(problem.num_devices, device=problem.device)
        price = problem.idle_cost.masked_fill(~problem.feasible[device, state], torch.inf)
        left = problem.energy_left[device, state]  # (batch, device, action)
        if self.futures is not None:
            price = price + self.futures[slot][device.unsqueeze(-1), left]
        tables = coordination.flat((self._objective(slot, g, seen, left) for g in coordination.groups), price)
        greedy = torch.where(price.isinf(), -1.0, problem.actions.power_watt).argmax(-1)
        return coordination.decide(tables, price, [greedy, torch.zeros_like(greedy)], self.rounds, self.messages)

    def _objective(self, slot: int, group: Group, seen: Observation, left: Tensor) -> Tensor:
        """f_i + W_i for all joint actions of a group; (batch, receiver, joint action)."""
        now = self.coordination.slot_costs(group, seen.channel_level)
        return self.values_left(slot, group, seen, left) + now

    def values_left(self, slot: int, group: Group, seen: Observation, left: Tensor) -> Tensor:
        """W_i for all joint actions of a group, left (batch, device, action); (batch, receiver, joint action)."""
        problem, count = self.problem, len(self.problem.actions)
        first = problem.channel.site_of_edge[group.edges]
        sites = first[:, :1] if problem.scenario.channel.state == "receiver" else first
        index = torch.zeros(len(left), len(group.receivers), dtype=torch.long, device=problem.device)
        for k in range(sites.shape[1]):
            index = index * problem.channel.levels + seen.channel_level[:, sites[:, k]]
        joint = index.reshape(*index.shape, *(1,) * group.heard)
        for k in range(group.heard):
            own = left[:, group.actors[:, k]]  # (batch, receiver, action)
            shape = (*index.shape, *(1,) * k, count, *(1,) * (group.heard - 1 - k))
            joint = joint * problem.num_energy + own.reshape(shape)
        joint = joint.flatten(2)
        value = torch.zeros(joint.shape, dtype=problem.dtype, device=problem.device)
        kinds = self.kind_of[group.offset]
        for kind in set(kinds.tolist()) - {-1}:
            table = self.tables[kind]
            which = kinds == kind
            value[:, which] = table[min(problem.slots - 1 - slot, len(table) - 1)][joint[:, which]]
        for place, receiver in enumerate(group.receivers.tolist()):
            if receiver in self.fitted:
                level, energy = seen.channel_level[:, sites[place, 0]], left[:, group.actors[place]]
                value[:, place] = self.fitted[receiver].joint(problem.slots - 1 - slot, level, energy)
        return value


def plan(context: Planning[Options]) -> Plan:
    """One dynamic program per kind of surroundings."""
    problem, options = context.problem, context.options
    coordination = Coordination(problem)
    coordination.check_fits(options.memory_gib)
    solved = solve(problem, coordination, options, context.track, context.parallel_map)
    messages = coordination.message_rounds(options.messages)
    policy = ReceiverTables(
        problem, coordination, solved.tables, solved.kind_of, solved.futures, options.rounds, messages, solved.fitted
    )
    return Plan(
        "receiver",
        policy,
        lower_bound=solved.bound / problem.slots,
        rounds=options.rounds,
        overhead=coordination_overhead(
            problem,
            first_bytes=2,  # its energy state
            messages=messages,
            rounds=options.rounds,
            table_entries=max((table.numel() for table in solved.tables), default=0),
        ),
        notes=(solved.note,),
    )


@dataclass(frozen=True)
class Solved:
    """The receivers' values and the bound they give."""

    bound: float  # on the total cost over the horizon
    tables: tuple[Tensor, ...]  # see `ReceiverTables`
    kind_of: dict[int, Tensor]
    futures: Tensor | None
    fitted: Mapping[int, FittedFutures]
    note: str


def solve(
    problem: Problem, coordination: Coordination, options: Options, track: Track, parallel_map: ParallelMap = map
) -> Solved:
    """Tables where they are small enough, prices elsewhere; works at any degree."""
    wide = problem.wide
    clusters, kind_of = _chosen_kinds(problem, coordination, options)
    check_fits(
        "receiver tables and prices",
        estimate_bytes(problem, clusters, coordination, kind_of),
        options.memory_gib,
        _REMEDY,
    )
    kinds = torch.cat(list(kind_of.values())) if kind_of else torch.zeros(0, dtype=torch.long)
    sizes = torch.bincount(kinds[kinds >= 0], minlength=len(clusters)).tolist()
    moved = _moved_cost(wide, clusters, sizes, options)
    solved = list(
        track(
            parallel_map(partial(_surroundings, problem, options, moved), clusters), "receiver tables", len(clusters)
        )
    )
    bound = sum(size * kind.bound for size, kind in zip(sizes, solved, strict=True)) + _lonely(wide)
    note, futures = f"{sum(sizes)} receivers by {len(solved)} different tables", None
    priced = _without_table(coordination, kind_of)
    if priced:
        stored = sum(kind.futures.numel() * kind.futures.element_size() for kind in solved)
        effort = Effort(options.steps, options.channel_steps, options.memory_gib - stored / 2**30)
        exact = coordination if wide is problem else Coordination(wide)
        own_price = _own_prices(wide, priced, options, moved)
        dual = _priced_bound(wide, exact, priced, own_price, effort, track)
        bound, futures = bound + dual.bound, dual.futures.to(problem.dtype)
        pruned = sum(int((kind_of[g.offset] < 0).sum()) for g in coordination.groups if is_pruned(problem, g))
        note += f", {len(priced)} by prices" + (f", {pruned} of them pruned" if pruned else "")
    fitted: Mapping[int, FittedFutures] = {}
    if priced and options.fit:
        fitted, futures = _fitted(problem, coordination, priced, options, moved.to(problem.dtype), track), None
        note += ", which only bound: they decide by fitted values"
    return Solved(bound, tuple(kind.futures for kind in solved), kind_of, futures, fitted, note)


def _fitted(
    problem: Problem, coordination: Coordination, receivers: set[int], options: Options, moved: Tensor, track: Track
) -> dict[int, FittedFutures]:
    """Approximate values of receivers without tables; equal surroundings share a fit."""
    if problem.scenario.channel.state != "receiver" or problem.link.half_duplex:
        actual = "half duplex" if problem.link.half_duplex else f"channel.state = {problem.scenario.channel.state!r}"
        raise ScenarioError("receiver option.fit", f"expected receiver channels and full duplex, actual {actual}")
    level = torch.arange(problem.channel.levels, device=problem.device).unsqueeze(1).expand(-1, problem.num_devices)
    places = [(g, n, i) for g in coordination.groups for n, i in enumerate(g.receivers.tolist()) if i in receivers]
    found: dict[int, FittedFutures] = {}
    known: dict[tuple[object, ...], FittedFutures] = {}
    for group, place, receiver in track(places, "fitted values", len(places)):
        key = _look(problem, coordination, group, place)
        if key not in known:
            actors = group.actors[place].tolist()
            own = torch.stack([booked(problem, receiver, device, None, moved) for device in actors])
            cost = coordination.slot_costs(group, level)[:, place]
            known[key] = fit_futures(problem, receiver, actors, cost, own, options.tolerance)
        found[receiver] = known[key]
    return found


def _surroundings(problem: Problem, options: Options, moved: Tensor, cluster: Part) -> Surroundings:
    terms = _terms(problem.wide, cluster, options, moved)
    return solve_cluster(problem.wide, cluster, terms, options.tolerance, problem.dtype)


def least_cost(problem: Problem, track: Track = untracked, options: Options | None = None) -> float:
    """Certified lower bound per slot, at any degree: nothing is listed that only a policy would need."""
    return solve(problem, Coordination(problem), options or Options(), track).bound / problem.slots


def is_quick(problem: Problem) -> bool:
    """Whether the bound takes seconds: few, small tables, and no receiver that needs prices."""
    clusters, kind_of = _chosen_kinds(problem, Coordination(problem), Options())
    priced = any(bool((kinds < 0).any()) for kinds in kind_of.values())
    work = problem.slots * sum(table_size(problem, cluster) for cluster in clusters)
    return not priced and work <= _QUICK_WORK


_QUICK_WORK = 2_000_000_000  # states × joint actions × slots


def _own_prices(problem: Problem, receivers: set[int], options: Options, moved: Tensor) -> Tensor:
    """What receivers without tables book for devices' actions: their shares of idle penalties; (device, action)."""
    own_price = torch.zeros_like(problem.idle_cost)
    for receiver in receivers:
        for device in problem.heard_by(receiver):
            own_price[device] += booked(problem, receiver, device, options.own_share, moved)
    return own_price


def _priced_bound(
    problem: Problem, coordination: Coordination, receivers: set[int], own_price: Tensor, effort: Effort, track: Track
) -> DualBound:
    """Bound on the cost terms of receivers without tables, with what they book (device, action)."""
    uniform = torch.full(
        (problem.slots, problem.num_devices, len(problem.actions)),
        1 / len(problem.actions),
        dtype=problem.dtype,
        device=problem.device,
    )
    laws = descend(problem, ProductForm(problem), uniform, _DESCENT_SWEEPS, track, "action laws").laws
    return raise_bound(problem, priced_groups(problem, coordination, receivers), laws, own_price, effort, track)


_DESCENT_SWEEPS = 3  # the action laws are only a starting point


def _chosen_kinds(
    problem: Problem, coordination: Coordination, options: Options
) -> tuple[list[Part], dict[int, Tensor]]:
    """Tables as large as asked for; by default the largest that fit the memory and take about a minute in all."""
    if options.largest_table is not None:
        return _kinds(problem, coordination, options.largest_table)
    largest = _LARGEST_TABLE
    while True:
        clusters, kind_of = _kinds(problem, coordination, largest)
        work = sum(table_size(problem, cluster) for cluster in clusters)
        needed = estimate_bytes(problem, clusters, coordination, kind_of)
        fits = needed <= options.memory_gib * 2**30 and work <= _TABLE_WORK
        if fits or not clusters:
            return clusters, kind_of
        largest = max(table_size(problem, cluster) for cluster in clusters) - 1


_LARGEST_TABLE = 60_000_000  # states × joint actions
_TABLE_WORK = 600_000_000  # states × joint actions of all tables


def _kinds(problem: Problem, coordination: Coordination, largest_table: int) -> tuple[list[Part], dict[int, Tensor]]:
    """One representative cluster per kind of surroundings, and every receiver's kind; −1 where too large."""
    number: dict[tuple[object, ...], int] = {}
    clusters: list[Part] = []
    kind_of = {}
    for group in coordination.groups:
        kinds = []
        for position, receiver in enumerate(group.receivers.tolist()):
            actors = tuple(group.actors[position].tolist())
            key = _look(problem, coordination, group, position)
            sites = tuple(dict.fromkeys(problem.channel.site_of_edge[group.edges[position]].tolist()))
            cluster = Part(actors, sites, (receiver,))
            if key not in number and table_size(problem, cluster) > largest_table:
                number[key] = -1
            elif key not in number:
                number[key] = len(clusters)
                clusters.append(cluster)
            kinds.append(number[key])
        kind_of[group.offset] = torch.tensor(kinds, device=problem.device)
    return clusters, kind_of


def _look(problem: Problem, coordination: Coordination, group: Group, position: int) -> tuple[object, ...]:
    """What distinguishes one receiver's surroundings from another's."""
    receiver = int(group.receivers[position])
    own = coordination.device_looks[receiver] if problem.link.half_duplex else ()
    looks = tuple(coordination.edge_look(edge) for edge in group.edges[position].tolist())
    return float(problem.link.noise_watt[receiver]), own, looks


def table_size(problem: Problem, cluster: Part) -> int:
    """States × joint actions of a receiver's dynamic program; single values count double, since axes are few too."""
    sizes = (*problem.sizes(cluster.states), *[len(problem.actions)] * len(cluster.devices))
    return entries(max(size, 2) for size in sizes)


def _terms(problem: Problem, cluster: Part, options: Options, moved: Tensor) -> list[Factor]:
    """The receiver's own cost term: f_i and what it books for the actions of the devices heard."""
    receiver = cluster.receivers[0]
    terms = [receiver_factor(problem, receiver)]
    for device in cluster.devices:
        terms.append(Factor((action(device),), booked(problem, receiver, device, options.own_share, moved)))
    return terms


def booked(problem: Problem, receiver: int, device: int, own_share: float | None, moved: Tensor) -> Tensor:
    """What a receiver books for a device's action: over all receivers it adds up to the idle penalty; (action,).

    Under half duplex a device's own receiver also books ``moved`` (action,), which the others give back in equal
    parts.
    """
    receivers = len(problem.topology.neighbours[device])
    if not problem.link.half_duplex:
        return problem.idle_cost[device] / receivers
    lazy = problem.scenario.network.mixing == "lazy-metropolis"
    own = own_share if own_share is not None else (0.6 if lazy else 0.7)
    if receiver == device:
        return own * problem.idle_cost[device] + moved
    return ((1 - own) * problem.idle_cost[device] - moved) / receivers


def _moved_cost(problem: Problem, clusters: list[Part], sizes: list[int], options: Options) -> Tensor:
    """Cost per action moved to a device's own receiver that raises the half-duplex bound most; (action,).

    Any value gives a valid bound, so a short direct search suffices: on the commonest kinds of surroundings, and on
    fewer battery levels where those are too large.
    """
    start = torch.zeros(len(problem.actions), dtype=problem.dtype, device=problem.device)
    if not problem.link.half_duplex or not clusters:
        return start
    searched = _few_levels(problem, clusters[int(np.argmax(sizes))])
    common = _commonest(searched, clusters, sizes)

    def loss(prices: npt.NDArray[np.float64]) -> float:
        moved = start.clone()
        moved[1:] = torch.from_numpy(prices)
        return -sum(
            sizes[kind]
            * solve_cluster(
                searched, clusters[kind], _terms(searched, clusters[kind], options, moved), _SEARCH_TOLERANCE
            ).bound
            for kind in common
        )

    free = len(start) - 1
    simplex = np.vstack([np.zeros(free), 0.1 * np.eye(free)])
    search = {"maxfev": 25 * free, "initial_simplex": simplex}
    found = minimize(loss, simplex[0], method="Nelder-Mead", options=search)  # type: ignore[call-overload]
    start[1:] = torch.from_numpy(found.x)
    return start


def _few_levels(problem: Problem, cluster: Part) -> Problem:
    """The problem with so few battery levels that a cluster's table is quick to solve many times."""
    levels = problem.battery.levels
    while levels > 3 and table_size(problem, cluster) > _SEARCHED_WORK:
        levels = (levels + 1) // 2
        scenario = problem.scenario.override({"energy.battery_levels": levels})
        problem = build(scenario, str(problem.device), str(problem.dtype).removeprefix("torch."))
    return problem


def _commonest(problem: Problem, clusters: list[Part], sizes: list[int]) -> list[int]:
    """Kinds of surroundings, those of most receivers first, up to the work that a search may take."""
    chosen: list[int] = []
    work = 0
    for kind in sorted(range(len(clusters)), key=lambda kind: -sizes[kind]):
        size = table_size(problem, clusters[kind])
        if work + size <= _SEARCHED_WORK:
            chosen.append(kind)
            work += size
    return chosen


_SEARCHED_WORK = 4_000_000  # states × joint actions of the tables on which the cost to move is searched
_SEARCH_TOLERANCE = 1e-4


def solve_cluster(
    problem: Problem, cluster: Part, terms: list[Factor], tolerance: float, stored: torch.dtype = torch.float64
) -> Surroundings:
    """Exact values of one receiver's term, down to where further slots only add a constant; kept as ``stored``."""
    futures, value = [], torch.zeros(())
    least_rise, previous = 0.0, None
    remaining = problem.slots
    for step in backward_induction(problem, cluster, terms, with_code=False):
        futures.append(step.future.flatten().to(stored))
        value, remaining = step.value, step.slot
        if previous is not None and len(problem.harvest.law.joule) == 1:
            rise = value - previous
            least_rise = float(rise.min())
            if float(rise.max()) - least_rise <= tolerance:
                break
        previous = value
    # every earlier slot adds at least least_rise: the Bellman operator is monotone and commutes with constants
    bound = expected_first(problem, cluster.states, value) + remaining * least_rise
    return Surroundings(torch.stack(futures), bound)


def _lonely(problem: Problem) -> float:
    """Least total cost of devices that nobody hears: their own idling."""
    lonely = torch.tensor([not n for n in problem.topology.neighbours], device=problem.device)
    if not bool(lonely.any()):
        return 0.0
    price = problem.idle_cost.expand(problem.slots, -1, -1)
    _, futures = best_responses(problem, price)
    return float(least_totals(problem, price, futures)[lonely].sum())


def _without_table(coordination: Coordination, kind_of: Mapping[int, Tensor]) -> set[int]:
    """Receivers that are bounded by prices."""
    return {int(i) for g in coordination.groups for i in g.receivers[kind_of[g.offset] < 0]}


def estimate_bytes(
    problem: Problem, clusters: list[Part], coordination: Coordination, kind_of: Mapping[int, Tensor]
) -> float:
    """Peak memory: tables of all kinds over the horizon, one twice while it is stacked, and the widest search.

    After that, the tables and the leanest prices of receivers without one. Bounds are computed in float64.
    """
    width, wide = problem.dtype.itemsize, problem.wide
    states = [float(entries(problem.sizes(cluster.states))) for cluster in clusters]
    stored = width * problem.slots * sum(states)
    stacked = width * problem.slots * max(states, default=0.0)
    search = max((induction_bytes(wide, cluster, with_code=False) for cluster in clusters), default=0.0)
    return stored + max(stacked + search, least_bytes(wide, coordination, _without_table(coordination, kind_of)))
