"""Receiver-centric planning: near-optimal, local, with a certificate.

The cost is a sum of terms, one per receiver: c = Σ_i (f_i(h_i, p_{N_i}) + a share of the idle penalty of each device
heard). Let V_i be the exact optimum of receiver i's own term, as if all devices it hears acted for it alone. Then

    Σ_i V_i  ≤  V*                                                      (the lower bound)

because the minimum of a sum is at least the sum of the minima, and each V_i is a dynamic program over the few
variables (h_i, b_{N_i}) that its term depends on. Each slot is decided jointly, by neighbour messages, as

    p = argmin  Σ_i [ f_i(h_i, p_{N_i}) + W_i(h_i, b_{N_i} − e(p)) ]    (W_i: expected next V_i after spending)

Receivers with equal surroundings share one table. Far from the horizon a slot only adds a constant to V_i; the
recursion stops there, and the bound uses the smallest such constant, so that it stays a bound.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from heliomesh.problem.coordination import Coordination, Group
from heliomesh.problem.cost import receiver_factor
from heliomesh.problem.exact import backward_induction, expected_first
from heliomesh.problem.factor import Factor, action
from heliomesh.problem.overhead import Overhead, control_joule
from heliomesh.problem.policy import ActionPolicy, Observation, ParallelMap, Plan, Track, untracked
from heliomesh.problem.problem import Part, Problem
from heliomesh.problem.single import best_responses
from heliomesh.problem.size import DEFAULT_LIMIT_GIB, check_fits, entries
from heliomesh.scenario import Section

_REMEDY = "lower the degree, energy.battery_levels or channel.levels, raise memory_gib, or use the planner 'prices'"


class Options(Section):
    """Options of the receiver planner."""

    rounds: Annotated[int, Field(ge=1)] = Field(8, description="most coordination rounds per slot")
    own_share: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None, description="half duplex: share of a device's idle penalty booked on itself; default .6 lazy, 1 plain"
    )
    tolerance: Annotated[float, Field(gt=0)] = Field(
        1e-7, description="stop the recursion once slots differ by a constant to within this cost"
    )
    memory_gib: float = Field(DEFAULT_LIMIT_GIB, gt=0, description="refuse to start above this estimate [GiB]")


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
    kind_of: dict[int, Tensor]  # per group offset: (receiver,) kind
    rounds: int

    def action(self, slot: int, seen: Observation) -> Tensor:
        """Coordinate rounds from the cheapest own actions and from silence."""
        return torch.cat([self._decide(slot, piece) for piece in seen.pieces(self.coordination.batch)])

    def _decide(self, slot: int, seen: Observation) -> Tensor:
        problem, coordination = self.problem, self.coordination
        state = seen.energy_state(problem)
        device = torch.arange(problem.num_devices, device=problem.device)
        price = problem.idle_cost.masked_fill(~problem.feasible[device, state], torch.inf)
        left = problem.energy_left[device, state]  # (batch, device, action)
        tables = torch.cat([self._objective(slot, g, seen, left).flatten(1) for g in coordination.groups], 1)
        greedy = torch.where(price.isinf(), -1.0, problem.actions.power_watt).argmax(-1)
        return coordination.best_of(tables, price, [greedy, torch.zeros_like(greedy)], self.rounds)

    def _objective(self, slot: int, group: Group, seen: Observation, left: Tensor) -> Tensor:
        """f_i + W_i for all joint actions of a group; (batch, receiver, joint action)."""
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
        value = torch.empty(joint.shape, dtype=problem.dtype, device=problem.device)
        kinds = self.kind_of[group.offset]
        for kind in set(kinds.tolist()):
            table = self.tables[kind]
            which = kinds == kind
            value[:, which] = table[min(problem.slots - 1 - slot, len(table) - 1)][joint[:, which]]
        return value + self.coordination.slot_costs(group, seen.channel_level)


def plan(
    problem: Problem,
    options: Options,
    rng: np.random.Generator,
    parallel_map: ParallelMap = map,
    track: Track = untracked,
) -> Plan:
    """One dynamic program per kind of surroundings."""
    coordination = Coordination(problem)
    clusters, kind_of = _kinds(problem, coordination)
    check_fits("receiver tables", estimate_bytes(problem, clusters), options.memory_gib, _REMEDY)
    solved = [
        solve_cluster(problem, cluster, _terms(problem, cluster, options), options.tolerance)
        for cluster in track(clusters, "receiver tables", len(clusters))
    ]
    sizes = torch.bincount(torch.cat(list(kind_of.values())), minlength=len(solved)).tolist()
    bound = sum(size * kind.bound for size, kind in zip(sizes, solved, strict=True)) + _lonely(problem)
    policy = ReceiverTables(problem, coordination, tuple(kind.futures for kind in solved), kind_of, options.rounds)
    return Plan(
        "receiver",
        policy,
        lower_bound=bound / problem.slots,
        rounds=options.rounds,
        overhead=receiver_overhead(problem, solved, options.rounds),
        notes=(f"{sum(sizes)} receivers, {len(solved)} different tables",),
    )


def _kinds(problem: Problem, coordination: Coordination) -> tuple[list[Part], dict[int, Tensor]]:
    """One representative cluster per kind of surroundings, and every receiver's kind."""
    number: dict[tuple[object, ...], int] = {}
    clusters: list[Part] = []
    kind_of = {}
    noise = problem.link.noise_watt.tolist()
    for group in coordination.groups:
        kinds = []
        for position, receiver in enumerate(group.receivers.tolist()):
            actors = tuple(group.actors[position].tolist())
            own = coordination.device_looks[receiver] if problem.link.half_duplex else ()
            looks = tuple(coordination.edge_look(edge) for edge in group.edges[position].tolist())
            key = (noise[receiver], own, looks)
            if key not in number:
                number[key] = len(clusters)
                edges = group.edges[position]
                sites = tuple(dict.fromkeys(problem.channel.site_of_edge[edges].tolist()))
                clusters.append(Part(actors, sites, (receiver,)))
            kinds.append(number[key])
        kind_of[group.offset] = torch.tensor(kinds, device=problem.device)
    return clusters, kind_of


def _terms(problem: Problem, cluster: Part, options: Options) -> list[Factor]:
    """The receiver's own cost term: f_i and its shares of the idle penalties of the devices heard."""
    receiver = cluster.receivers[0]
    terms = [receiver_factor(problem, receiver)]
    for device in cluster.devices:
        share = idle_share(problem, receiver, device, options.own_share)
        terms.append(Factor((action(device),), share * problem.idle_cost[device]))
    return terms


def idle_share(problem: Problem, receiver: int, device: int, own_share: float | None) -> float:
    """Share of a device's idle penalty that a receiver books; over all receivers that hear it they sum to one."""
    receivers = len(problem.topology.neighbours[device])
    if not problem.link.half_duplex:
        return 1 / receivers
    lazy = problem.scenario.network.mixing == "lazy-metropolis"
    own = own_share if own_share is not None else (0.6 if lazy else 1.0)
    return own if receiver == device else (1 - own) / receivers


def solve_cluster(problem: Problem, cluster: Part, terms: list[Factor], tolerance: float) -> Surroundings:
    """Exact values of one receiver's term, down to where further slots only add a constant."""
    futures, value = [], torch.zeros(())
    least_rise, previous = 0.0, None
    remaining = problem.slots
    for step in backward_induction(problem, cluster, terms):
        futures.append(step.future.flatten())
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
    actions, futures = best_responses(problem, price)
    chosen = actions[0].long().unsqueeze(-1)
    left = problem.energy_left.gather(2, chosen).squeeze(-1)
    value = problem.idle_cost.gather(1, actions[0].long()) + futures[0].gather(1, left)
    return float((value * problem.initial_energy_law).sum(1)[lonely].sum())


def estimate_bytes(problem: Problem, clusters: list[Part]) -> float:
    """Peak memory: tables of all kinds over the horizon and the widest minimisation."""
    width = torch.empty((), dtype=problem.dtype).element_size()
    states = [float(entries(problem.sizes(cluster.states))) for cluster in clusters]
    joint = [float(len(problem.actions)) ** len(cluster.devices) for cluster in clusters]
    return width * (2 * problem.slots * sum(states) + 4 * max(states, default=0) + 8 * max(joint, default=0))


def receiver_overhead(problem: Problem, solved: list[Surroundings], rounds: int) -> Overhead:
    """Online, senders tell each receiver their energy state, and per round receivers answer with one cost per action.

    Nothing travels offline: a receiver plans from the parameters of the devices it hears.
    """
    edges = problem.topology.num_edges
    online = edges * 2 + rounds * edges * (1 + 4 * len(problem.actions))
    return Overhead(
        table_entries=max((kind.futures.numel() for kind in solved), default=0),
        online_bytes_per_slot=online,
        online_joule_per_slot=control_joule(problem, online),
    )
