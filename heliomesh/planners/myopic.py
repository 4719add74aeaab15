"""The paper's myopic baseline: a controller minimises this slot's cost and ignores the next.

Successive convex approximation in log-power: z_ij = φ (Σ p_j' g_ij' + σ²) / (p_j g_ij) is convex in log p, and
1 − e^{−z} lies below its tangent, so each step minimises Σ v_ij z_ij(p) with v_ij = a_ij e^{−z_ij} over a box. In one
log-power that is A/p + B·p, least at √(A/B): coordinate passes over devices that share no receiver solve the convex
step, and the true cost never rises. Log-powers never reach zero, so several starts keep subsets of devices silent.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from heliomesh.common.memory_limit import DEFAULT_LIMIT_GIB, check_fits, entries
from heliomesh.grid.exact import decode
from heliomesh.model.cost import part_factors, update_loss
from heliomesh.model.factor import action, site, total
from heliomesh.model.overhead import Talk, central_overhead, central_talk
from heliomesh.model.planner_context import PlannerContext
from heliomesh.model.policy import Decision, Observation, PartPolicy, Plan, Policy
from heliomesh.model.problem import Problem
from heliomesh.physics.link import error_prob
from heliomesh.scenario.section import Rounds, Section
from heliomesh.slot.packet_market import EdgeTensors
from heliomesh.slot.ties import first_least


class Options(Section):
    """Options of the myopic planner."""

    mode: Literal["rounded", "continuous", "exhaustive"] = Field(
        "rounded", description="powers of the set after SCA, any power, or the best of all joint actions"
    )
    starts: Rounds = Field(8, description="SCA starts: all send, one colour sends, random subsets")
    linearisations: Rounds = Field(30, description="most convex steps per start")
    passes: Rounds = Field(2, description="coordinate passes per convex step")
    memory_gib: float = Field(DEFAULT_LIMIT_GIB, gt=0, description="refuse to start above this estimate [GiB]")


def plan(context: PlannerContext[Options]) -> Plan:
    """Nothing to compute in advance, except the cost tables of the exhaustive mode."""
    problem, options = context.problem, context.options
    policy: Policy
    stored = 0
    if options.mode == "exhaustive":
        costs = joint_costs(problem, options.memory_gib)
        policy, stored = Exhaustive(problem, costs), sum(table.numel() for tables in costs for table in tables)
    else:
        solver = build_solver(problem, options, context.rng)
        policy = Rounded(problem, solver) if options.mode == "rounded" else Continuous(problem, solver)
    name = "myopic" if options.mode == "rounded" else f"myopic {options.mode}"
    # it reports and commands as the exact controller does, but has no tables of values
    overhead = replace(central_overhead(problem), table_entries=stored, paper_table_entries=0)
    return Plan(name, policy, overhead=overhead)


def joint_costs(problem: Problem, memory_gib: float) -> tuple[Tensor, ...]:
    """One-slot costs by part, for every channel state and joint action; (channel state, joint action)."""
    scopes = [(*map(site, part.sites), *map(action, part.devices)) for part in problem.parts]
    size = sum(8.0 * entries(problem.sizes(scope)) for scope in scopes)
    check_fits("exhaustive one-slot search", 3 * size, memory_gib, "use mode = 'rounded'")
    tables = []
    for part, scope in zip(problem.parts, scopes, strict=True):
        cost = total(part_factors(problem, part.devices, part.receivers)).aligned(scope)
        channel_states = entries(problem.sizes(scope[: len(part.sites)]))
        tables.append(cost.expand(problem.sizes(scope)).reshape(channel_states, -1))
    return tuple(tables)


class Commanded:
    """A policy whose controller is told all states and tells all actions."""

    problem: Problem

    @property
    def talk(self) -> Talk:
        """Reports and commands."""
        return central_talk(self.problem)


@dataclass(frozen=True)
class Exhaustive(Commanded, PartPolicy):
    """The cheapest affordable joint action of every part."""

    problem: Problem
    costs: tuple[Tensor, ...]  # by part: (channel state, joint action)
    stationary = True

    def action(self, slot: int, seen: Observation) -> Tensor:
        """Search all joint actions; states of equal channels and batteries share one search."""
        problem, count = self.problem, len(self.problem.actions)
        affordable = problem.affordable(seen.battery_joule)
        chosen = torch.zeros(len(seen.battery_joule), problem.num_devices, dtype=torch.long, device=problem.device)
        for part, cost in zip(problem.parts, self.costs, strict=True):
            level = torch.zeros(len(chosen), dtype=torch.long, device=problem.device)
            for index in part.sites:
                level = level * problem.channel.levels + seen.channel_level[:, index]
            key = torch.cat([level.unsqueeze(1), affordable[:, list(part.devices)].flatten(1)], dim=1)
            distinct, which = torch.unique(key, dim=0, return_inverse=True)
            blocked = ~distinct[:, 1:].bool().reshape(len(distinct), len(part.devices), count)
            price = cost[distinct[:, 0]].reshape(len(distinct), *(count,) * len(part.devices)).clone()
            for position in range(len(part.devices)):
                shape = [len(distinct)] + [1] * len(part.devices)
                shape[1 + position] = count
                price.masked_fill_(blocked[:, position].reshape(shape), torch.inf)
            joint = first_least(price.flatten(1))[which]
            chosen[:, list(part.devices)] = decode(joint, len(part.devices), count)
        return chosen


@dataclass(frozen=True)
class Solver:
    """SCA over the whole network for a batch of channel states and power limits."""

    problem: Problem
    options: Options
    colour: Tensor  # (device,) devices of one colour share no receiver
    active_starts: Tensor  # (start, device) who may send
    part_of_device: Tensor  # (device,)

    def powers(self, fading: Tensor, limit_watt: Tensor) -> Tensor:
        """Best powers found, part by part, from all starts; fading (batch, edge), limits (batch, device)."""
        batch, starts = len(fading), len(self.active_starts)
        gain = (fading * self.problem.link.path_gain).repeat(starts, 1)
        limit = limit_watt.repeat(starts, 1) * self.active_starts.repeat_interleave(batch, 0)
        power = limit.clone()  # everyone who may send starts at its limit
        for _ in range(self.options.linearisations):
            previous = power
            power = self.convex_step(gain, limit, power, self.tangent(gain, power), self.options.passes)
            if bool(((power - previous).abs() <= 1e-6 * limit).all()):
                break
        return self._best_per_part(power.reshape(starts, batch, -1), gain.reshape(starts, batch, -1))

    def tangent(self, gain: Tensor, power: Tensor) -> Tensor:
        """v_ij = a_ij e^{−z_ij}, zero where nothing is sent or, under half duplex, heard; (batch, edge)."""
        error = error_prob(self.problem.link, self.problem.topology, power, gain / self.problem.link.path_gain)
        return self.network.edge_weight * (1 - error)

    def convex_step(self, gain: Tensor, limit: Tensor, power: Tensor, weight: Tensor, passes: int) -> Tensor:
        """Minimise Σ_e v_e z_e(p) over 0 < p ≤ limit by coordinate passes, colour by colour."""
        link, receiver, sender = self.problem.link, self.network.receiver, self.network.sender
        noise = link.noise_watt[receiver]
        lowest = limit * 1e-9
        for _ in range(passes):
            for colour in range(int(self.colour.max()) + 1):
                signal = power[:, sender] * gain
                everyone = torch.zeros_like(power).index_add_(1, receiver, signal)[:, receiver]
                disturbance = (everyone - signal).clamp_min(0) + noise
                # A_j = Σ_i v_ij (I_ij + σ_i²) / g_ij
                falling = torch.zeros_like(power).index_add_(1, sender, _ratio(weight * disturbance, gain))
                # B_j = Σ_i g_ij Σ_{j'≠j} v_ij' / (p_j' g_ij')
                harm = _ratio(weight, signal)
                harmed = torch.zeros_like(power).index_add_(1, receiver, harm)[:, receiver] - harm
                rising = torch.zeros_like(power).index_add_(1, sender, gain * harmed.clamp_min(0))
                best = torch.where(rising > 0, torch.sqrt(_ratio(falling, rising)), torch.inf)
                best = torch.minimum(torch.maximum(best, lowest), limit)
                power = torch.where((self.colour == colour) & (limit > 0), best, power)
        return power

    def device_costs(self, gain: Tensor, power: Tensor) -> Tensor:
        """What powers decide of the cost, booked on the part's devices; (..., device).

        With coupled actions the silent do not train. With separate ones powers do not decide who trains.
        """
        problem = self.problem
        error = error_prob(problem.link, problem.topology, power, gain / problem.link.path_gain)
        return update_loss(problem, error, (power > 0) | problem.actions.apart)

    def _best_per_part(self, power: Tensor, gain: Tensor) -> Tensor:
        cost = self.device_costs(gain, power)  # (start, batch, device)
        by_part = cost.new_zeros(*cost.shape[:2], len(self.problem.parts)).index_add_(2, self.part_of_device, cost)
        best = first_least(by_part, 0)[:, self.part_of_device]  # (batch, device)
        return power.gather(0, best.unsqueeze(0)).squeeze(0)

    @cached_property
    def network(self) -> EdgeTensors:
        """Ends and weights of all edges."""
        return EdgeTensors(self.problem)


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    """Quotient, and 0 where the divisor is 0."""
    return torch.where(below > 0, above / torch.where(below > 0, below, 1.0), 0.0)


def build_solver(problem: Problem, options: Options, rng: np.random.Generator) -> Solver:
    """Colours, starting subsets and parts."""
    colour = torch.tensor(problem.colour, device=problem.device)
    starts = [torch.ones_like(colour, dtype=torch.bool)]
    starts += [colour == c for c in range(int(colour.max()) + 1)]
    while len(starts) < options.starts:
        starts.append(torch.from_numpy(rng.random(problem.num_devices) < 0.5).to(problem.device))
    part_of_device = torch.zeros_like(colour)
    for number, part in enumerate(problem.parts):
        part_of_device[list(part.devices)] = number
    return Solver(problem, options, colour, torch.stack(starts[: options.starts]), part_of_device)


@dataclass(frozen=True)
class Continuous(Commanded):
    """Any power up to what the battery pays for and the largest of the set allows."""

    problem: Problem
    solver: Solver
    continuous_powers: ClassVar[bool] = True

    def decide(self, slot: int, seen: Observation) -> Decision:
        """Powers of the best start; who may train without sending does so where it is affordable.

        With separate actions such devices train first, and all send with the energy that is left.
        """
        problem, actions = self.problem, self.problem.actions
        compute, stored = problem.compute_joule, seen.battery_joule - problem.consumption.drain_joule
        able = stored >= compute
        left = stored - (compute * able if actions.apart else compute)
        limit = problem.consumption.most_watt(left).clamp(0, float(actions.power_watt.max()))
        power = self.solver.powers(problem.channel.fading(seen.channel_level), limit)
        if actions.apart:
            return Decision(power, able)
        return Decision(power, (power > 0) | able if actions.trains_silently else power > 0)


@dataclass(frozen=True)
class Rounded(Commanded, PartPolicy):
    """SCA's powers rounded to the nearest affordable action, then improved one device at a time."""

    problem: Problem
    solver: Solver
    stationary = True

    def action(self, slot: int, seen: Observation) -> Tensor:
        """Solve once per distinct channel state and set of affordable actions."""
        affordable = self.problem.affordable(seen.battery_joule)
        key = torch.cat([seen.channel_level, affordable.flatten(1)], dim=1)
        distinct, which = torch.unique(key, dim=0, return_inverse=True)
        level, pays = distinct.split([seen.channel_level.shape[1], affordable[0].numel()], dim=1)
        return self._solve(self.problem.channel.fading(level), pays.bool().reshape(-1, *affordable.shape[1:]))[which]

    def _solve(self, fading: Tensor, affordable: Tensor) -> Tensor:
        """Round, then let devices of one colour switch to their cheapest action until nobody gains."""
        problem, actions = self.problem, self.problem.actions
        limit = (affordable * actions.power_watt).amax(-1)
        power = self.solver.powers(fading, limit)
        distance = (power.unsqueeze(-1) - actions.power_watt).abs().masked_fill(~affordable, torch.inf)
        chosen = _cheapest_of_power(problem, first_least(distance), affordable)
        for _ in range(_MOST_POLISHING):
            improved = self._polish(chosen, fading, affordable)
            if torch.equal(improved, chosen):
                break
            chosen = improved
        return chosen

    def _polish(self, chosen: Tensor, fading: Tensor, affordable: Tensor) -> Tensor:
        """One pass of best single-device changes."""
        for colour in range(int(self.solver.colour.max()) + 1):
            movers = self.solver.colour == colour
            trials = [torch.where(movers, a, chosen) for a in range(affordable.shape[-1])]
            costs = [self._shared_cost(trial, fading) for trial in trials]
            best = first_least(torch.stack(costs, dim=-1).masked_fill(~affordable, torch.inf))
            chosen = torch.where(movers, best, chosen)
        return chosen

    def _shared_cost(self, chosen: Tensor, fading: Tensor) -> Tensor:
        """Per device, all cost at the receivers that hear it, and its own idling; (batch, device)."""
        problem, solver = self.problem, self.solver
        error = error_prob(problem.link, problem.topology, problem.actions.power_watt[chosen], fading)
        missed = error.new_zeros(len(error), problem.num_devices)
        missed.index_add_(1, solver.network.receiver, solver.network.edge_weight * error)
        heard = torch.zeros_like(missed).index_add_(1, solver.network.sender, missed[:, solver.network.receiver])
        if problem.link.half_duplex:
            heard = heard + missed
        device = torch.arange(problem.num_devices, device=problem.device)
        return heard + problem.wide.idle_cost[device, chosen]


_MOST_POLISHING = 10


def _cheapest_of_power(problem: Problem, chosen: Tensor, affordable: Tensor) -> Tensor:
    """Of the affordable actions with the power of those chosen, the one whose training or not costs least."""
    power = problem.actions.power_watt
    same = affordable & (power == power[chosen].unsqueeze(-1))
    return first_least(problem.idle_cost.masked_fill(~same, torch.inf))
