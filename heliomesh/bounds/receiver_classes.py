"""Receivers with what they hear: equal surroundings share one table, and each books its share of idle penalties."""

import torch
from torch import Tensor

from heliomesh.model.cost import receiver_factor
from heliomesh.model.factor import Factor, action
from heliomesh.model.problem import Part, Problem
from heliomesh.slot.coordination import Coordination


def surroundings(problem: Problem, coordination: Coordination) -> tuple[list[Part], dict[int, Tensor]]:
    """One representative cluster per kind of surroundings, and every receiver's kind."""
    number: dict[tuple[object, ...], int] = {}
    clusters: list[Part] = []
    kind_of = {}
    site, noise_watt = problem.channel.site_of_edge.tolist(), problem.link.noise_watt.tolist()
    topology, sender_kind = problem.topology, problem.device_kind[problem.topology.edge_sender]
    # what distinguishes every edge and its sender for a receiver
    looks = list(zip(topology.edge_weight.tolist(), problem.edge_gain.tolist(), sender_kind.tolist(), strict=True))
    for group in coordination.groups:
        kinds, places = [], (group.receivers.tolist(), group.actors.tolist(), group.edges.tolist())
        for receiver, actors, edges in zip(*places, strict=True):
            own = int(problem.device_kind[receiver]) if problem.link.half_duplex else None
            key = (len(actors), noise_watt[receiver], own, *(looks[edge] for edge in edges))
            if key not in number:
                number[key] = len(clusters)
                sites = tuple(dict.fromkeys(site[edge] for edge in edges))
                clusters.append(Part(tuple(actors), sites, (receiver,)))
            kinds.append(number[key])
        kind_of[group.offset] = torch.tensor(kinds, device=problem.device)
    return clusters, kind_of


def booked(problem: Problem, receiver: int, device: int) -> Tensor:
    """What a receiver books for a device's action: over all receivers it adds up to the idle penalty; (action,)."""
    receivers = len(problem.topology.neighbours[device])
    if not problem.link.half_duplex:
        return problem.idle_cost[device] / receivers
    own = 0.6 if problem.scenario.network.mixing == "lazy-metropolis" else 0.7  # booked on itself
    return (own if receiver == device else (1 - own) / receivers) * problem.idle_cost[device]


def receiver_terms(problem: Problem, cluster: Part) -> list[Factor]:
    """One receiver's own cost term: f_i and what it books for the actions of the devices heard."""
    receiver = cluster.receivers[0]
    booking = [Factor((action(j),), booked(problem, receiver, j)) for j in cluster.devices]
    return [receiver_factor(problem, receiver), *booking]
