"""Conditions: how the world differs from the scenario, as it is (truth) or as devices believe it to be (belief).

One noun serves both, so that a belief can be compared with the truth. The world keeps all edges of the scenario: a
link that is gone has no gain, a device that is away has an empty battery, no harvest and no gain on its links. A
plan, on the other hand, is made for the links that remain: its mixing weights are those of the smaller graph, and
nobody waits for packets that cannot come.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from heliomesh.model.policy import Weights
from heliomesh.model.problem import Problem
from heliomesh.physics.chain import stationary_law
from heliomesh.physics.harvesting import rescaled
from heliomesh.physics.topology import Topology, with_mixing

Pair = tuple[int, int]  # an undirected link, the smaller device first
Kernel = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Conditions:
    """What is different from the scenario; nothing by default."""

    harvest: tuple[tuple[int, float], ...] = ()  # factor on a device's harvest, where it is not 1; by rising device
    links_off: frozenset[Pair] = frozenset()
    away: frozenset[int] = frozenset()  # devices that are dead, have left or have not joined yet
    kernel: Kernel | None = None  # of the channel's levels, [now][next]

    def harvest_factor(self, devices: int) -> list[float]:
        """Factor on every device's harvest, 0 for those that are away."""
        factor = dict(self.harvest) | dict.fromkeys(self.away, 0.0)
        return [factor.get(device, 1.0) for device in range(devices)]

    def with_harvest(self, factor: dict[int, float]) -> "Conditions":
        """The same but for these devices' factors."""
        after = dict(self.harvest) | factor
        return replace(self, harvest=tuple(sorted((device, f) for device, f in after.items() if f != 1.0)))

    def is_lost(self, pair: Pair) -> bool:
        """Whether nothing can come over a link."""
        return pair in self.links_off or bool(self.away.intersection(pair))


def pairs_of_edges(topology: Topology) -> list[Pair]:
    """The undirected link of every directed edge; (edge,)."""
    ends = zip(topology.edge_receiver.tolist(), topology.edge_sender.tolist(), strict=True)
    return [(min(pair), max(pair)) for pair in ends]


def links(topology: Topology) -> list[Pair]:
    """The undirected links, sorted."""
    return sorted(set(pairs_of_edges(topology)))


def present(problem: Problem, conditions: Conditions) -> Tensor:
    """Devices that are there, whose updates count; (device,) bool."""
    there = torch.ones(problem.num_devices, dtype=torch.bool, device=problem.device)
    there[sorted(conditions.away)] = False
    return there


def world_under(problem: Problem, conditions: Conditions) -> Problem:
    """The world to simulate: all edges, those lost without gain; who is away holds and harvests nothing."""
    there, kept = present(problem, conditions), edges_kept(problem, conditions)
    found = _laws_under(problem, conditions)
    return replace(
        found,
        battery=replace(found.battery, capacity_joule=problem.battery.capacity_joule * there),
        link=replace(problem.link, path_gain=problem.link.path_gain * kept),
    )


def problem_under(problem: Problem, conditions: Conditions) -> Problem:
    """The problem to plan for: the remaining links only, with their own mixing weights; sites keep their numbers."""
    kept, topology = edges_kept(problem, conditions), problem.topology
    pairs = np.stack([topology.edge_receiver, topology.edge_sender], axis=1)[kept.cpu().numpy()]
    found = _laws_under(problem, conditions)
    return replace(
        found,
        topology=with_mixing(problem.scenario.network, pairs, topology.position_metre),
        channel=replace(found.channel, site_of_edge=found.channel.site_of_edge[kept]),
        link=replace(problem.link, path_gain=problem.link.path_gain[kept]),
    )


def weights_under(problem: Problem, conditions: Conditions) -> Weights:
    """Mixing weights of the remaining links on all edges of the network, 0 on those lost; (edge,) and (device,)."""
    smaller = problem_under(problem, conditions).topology
    edge = torch.zeros(problem.topology.num_edges, dtype=torch.float64, device=problem.device)
    edge[edges_kept(problem, conditions)] = torch.from_numpy(smaller.edge_weight).to(problem.device)
    return Weights(edge, torch.from_numpy(smaller.self_weight).to(problem.device))


def books_under(problem: Problem, conditions: Conditions) -> Problem:
    """The problem by which devices keep their books: all links, those lost without weight."""
    weights = weights_under(problem, conditions)
    edge, own = weights.edge.cpu().numpy(), weights.own.cpu().numpy()
    topology = replace(problem.topology, edge_weight=edge, self_weight=own)
    return replace(problem, topology=topology)


def edges_kept(problem: Problem, conditions: Conditions) -> Tensor:
    """Directed edges that still carry something; (edge,) bool."""
    kept = [not conditions.is_lost(pair) for pair in pairs_of_edges(problem.topology)]
    return torch.tensor(kept, dtype=torch.bool, device=problem.device)


def _laws_under(problem: Problem, conditions: Conditions) -> Problem:
    """The problem with its harvests and its channel's kernel."""
    factor = torch.tensor(conditions.harvest_factor(problem.num_devices), dtype=torch.float64, device=problem.device)
    channel = problem.channel
    if conditions.kernel is not None:
        kernel = np.array(conditions.kernel)
        channel = replace(
            channel,
            kernel=torch.from_numpy(kernel).to(channel.kernel.device),
            stationary=torch.from_numpy(stationary_law(kernel)).to(channel.stationary.device),
        )
    return replace(problem, harvest=rescaled(problem.harvest, factor), channel=channel)
