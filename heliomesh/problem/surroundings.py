"""Receivers with what they hear: equal surroundings share one table, and each books its share of idle penalties."""

import torch
from torch import Tensor

from heliomesh.problem.coordination import Coordination, Group
from heliomesh.problem.cost import receiver_factor
from heliomesh.problem.factor import Factor, action
from heliomesh.problem.problem import Part, Problem


def surroundings(problem: Problem, coordination: Coordination) -> tuple[list[Part], dict[int, Tensor]]:
    """One representative cluster per kind of surroundings, and every receiver's kind."""
    number: dict[tuple[object, ...], int] = {}
    clusters: list[Part] = []
    kind_of = {}
    for group in coordination.groups:
        kinds = []
        for position, receiver in enumerate(group.receivers.tolist()):
            key = _look(problem, coordination, group, position)
            if key not in number:
                number[key] = len(clusters)
                sites = tuple(dict.fromkeys(problem.channel.site_of_edge[group.edges[position]].tolist()))
                clusters.append(Part(tuple(group.actors[position].tolist()), sites, (receiver,)))
            kinds.append(number[key])
        kind_of[group.offset] = torch.tensor(kinds, device=problem.device)
    return clusters, kind_of


def _look(problem: Problem, coordination: Coordination, group: Group, position: int) -> tuple[object, ...]:
    """What distinguishes one receiver's surroundings from another's."""
    receiver = int(group.receivers[position])
    own = coordination.device_looks[receiver] if problem.link.half_duplex else ()
    looks = tuple(coordination.edge_look(edge) for edge in group.edges[position].tolist())
    return group.heard, float(problem.link.noise_watt[receiver]), own, looks


def booked(problem: Problem, receiver: int, device: int, own_share: float | None) -> Tensor:
    """What a receiver books for a device's action: over all receivers it adds up to the idle penalty; (action,)."""
    receivers = len(problem.topology.neighbours[device])
    if not problem.link.half_duplex:
        return problem.idle_cost[device] / receivers
    lazy = problem.scenario.network.mixing == "lazy-metropolis"
    own = own_share if own_share is not None else (0.6 if lazy else 0.7)
    return (own if receiver == device else (1 - own) / receivers) * problem.idle_cost[device]


def receiver_terms(problem: Problem, cluster: Part, own_share: float | None) -> list[Factor]:
    """One receiver's own cost term: f_i and what it books for the actions of the devices heard."""
    receiver = cluster.receivers[0]
    booking = [Factor((action(j),), booked(problem, receiver, j, own_share)) for j in cluster.devices]
    return [receiver_factor(problem, receiver), *booking]
