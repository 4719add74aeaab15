"""What a device is told when it is installed: its part of the problem, its neighbours and the next hop to others.

A view keeps the numbering of the network, but holds only what the device may know: the links into devices that it
sees, the weights of its own links, and the energies of devices within its k hops. Everything else is replaced by
numbers that stand for nothing, and no setting of another device remains in its scenario.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heliomesh.model.policy import Sight
from heliomesh.model.problem import Problem
from heliomesh.physics.harvesting import with_law
from heliomesh.physics.storage import LOSSLESS
from heliomesh.physics.topology import Topology
from heliomesh.scenario.scenario import Scenario
from heliomesh.scenario.schema import PER_DEVICE


@dataclass(frozen=True)
class View:
    """A device's knowledge of the network."""

    device: int
    hops: int  # from how far it is told what others measure
    problem: Problem
    neighbours: tuple[int, ...]
    distance: dict[int, int]  # of every device within the hops, itself excluded
    next_hop: dict[int, int]  # the neighbour to whom messages for such a device go


def view_of(problem: Problem, device: int, hops: int) -> View:
    """The view of a device that sees ``hops`` links far."""
    topology = problem.topology
    members = topology.within(device, hops)
    told, heard = (Sight.within(problem, device, far).owners("energy") for far in (hops, max(hops, 1)))
    return View(
        device=device,
        hops=hops,
        problem=_known_to(problem, device, told, heard),
        neighbours=topology.neighbours[device],
        distance={other: links for other, links in members.items() if other != device},
        next_hop={other: next_hop(topology, device, other) for other in members if other != device},
    )


def next_hop(topology: Topology, device: int, destination: int) -> int:
    """The first of the neighbours that are nearest to the destination."""
    distance = topology.within(destination, topology.num_devices)
    return min(topology.neighbours[device], key=lambda neighbour: (distance[neighbour], neighbour))


def _known_to(problem: Problem, device: int, members: list[int], receivers: list[int]) -> Problem:
    """The problem with the energies of ``members`` and the links into ``receivers``."""
    known = torch.zeros(problem.num_devices, dtype=torch.bool)
    known[members] = True
    edges = np.flatnonzero(np.isin(problem.topology.edge_receiver, receivers))
    listening = torch.zeros_like(known)
    listening[receivers] = True
    actions, battery, link, law = problem.actions, problem.battery, problem.link, problem.harvest.law
    numbers = vars(battery.losses).items()
    return replace(
        problem,
        scenario=_own_scenario(problem.scenario, device),
        topology=_known_topology(problem.topology, device, edges),
        channel=replace(problem.channel, site_of_edge=problem.channel.site_of_edge[edges]),
        harvest=with_law(problem.harvest, replace(law, scale=_kept(law.scale, known, 0.0), clouds=None)),
        battery=replace(
            battery,
            capacity_joule=_kept(battery.capacity_joule, known, 1.0),
            losses=replace(battery.losses, **{name: _kept(own, known, name in LOSSLESS) for name, own in numbers}),
        ),
        link=replace(link, noise_watt=_kept(link.noise_watt, listening, torch.nan), path_gain=link.path_gain[edges]),
        actions=replace(
            actions,
            spent_joule=_kept(actions.spent_joule, known.unsqueeze(1), torch.nan),
            needed_joule=_kept(actions.needed_joule, known.unsqueeze(1), torch.nan),
            steps_up=_kept(actions.steps_up, known.unsqueeze(1), battery.levels),  # nobody can pay that
            needed_steps_up=_kept(actions.needed_steps_up, known.unsqueeze(1), battery.levels),
        ),
    )


def _kept(values: Tensor, known: Tensor, nothing: float) -> Tensor:
    return torch.where(known, values, torch.tensor(nothing, dtype=values.dtype))


def _known_topology(topology: Topology, device: int, edges: Any) -> Topology:
    receiver, sender = topology.edge_receiver[edges], topology.edge_sender[edges]
    own = (receiver == device) | (sender == device)
    others = np.arange(topology.num_devices) != device
    return Topology(
        topology.num_devices,
        receiver,
        sender,
        np.where(own, topology.edge_weight[edges], np.nan),
        np.where(others, np.nan, topology.self_weight),
        np.full_like(topology.position_metre, np.nan),
        np.full(len(receiver), np.nan),
    )


def _own_scenario(scenario: Scenario, device: int) -> Scenario:
    """Settings that all devices share, and the device's own where they differ; no seed and no graph."""
    changes: dict[str, Any] = {
        "name": f"device {device}",
        "seed": 0,
        "network.topology": "edges",
        "network.edges": [],
        "network.positions_metre": None,
        "network.names": None,
        "network.links": None,
        "network.allow_disconnected": True,
        "learning.partition": "iid",
        "learning.indices": None,
    }
    for section in PER_DEVICE:
        settings = getattr(scenario, section)
        for field in settings.per_device:
            value = getattr(settings, field)
            if isinstance(value, tuple):
                changes[f"{section}.{field}"] = value[device]
    return scenario.override(changes)
