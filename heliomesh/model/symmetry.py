"""Devices that play the same role share one table: automorphisms of the network with all its parameters.

A relabelling of devices that keeps the graph, gains, noise, energies and first batteries maps an optimal (or
simultaneous-update) solution to itself, so one representative per role suffices and the others are renamed copies.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import eq

import networkx as nx

from heliomesh.model.factor import Variable, energy
from heliomesh.model.problem import Part, Problem

_MOST_DEVICES = 64  # the search for automorphisms is exponential in the worst case


@dataclass(frozen=True)
class Role:
    """A device's representative and the renaming that carries the representative's tables to the device."""

    representative: int
    rename: Callable[[Variable], Variable]


def same_part(problem: Problem, source: Part, target: Part) -> Callable[[Variable], Variable] | None:
    """A renaming that carries one independent part of the network onto another, or None."""
    if problem.num_devices > _MOST_DEVICES or len(source.devices) != len(target.devices):
        return None
    graph = _attributed_graph(problem)
    for device in target.devices:
        mapping = _automorphism(graph, _marks(problem, source.devices[0]), _marks(problem, device))
        if mapping is not None:
            return _renaming(problem, mapping)
    return None


def turns(problem: Problem) -> tuple[int, ...]:
    """The problem's colours, made equal on parts that are copies of one another."""
    colour = list(problem.colour)
    for number, part in enumerate(problem.parts):
        for earlier in problem.parts[:number]:
            rename = same_part(problem, earlier, part)
            if rename is not None:
                for device in earlier.devices:
                    colour[rename(energy(device)).owner] = colour[device]
                break
    return tuple(colour)


def roles(problem: Problem, colour: Sequence[int]) -> tuple[Role, ...]:
    """One role per device and colour; devices without a known symmetry represent themselves."""
    found: dict[int, Role] = {}
    representatives: list[int] = []
    searchable = problem.num_devices <= _MOST_DEVICES
    graph = _attributed_graph(problem) if searchable else nx.DiGraph()
    for device in range(problem.num_devices):
        for other in representatives if searchable else ():
            mapping = _automorphism(graph, _marks(problem, other, colour), _marks(problem, device, colour))
            if mapping is not None:
                found[device] = Role(other, _renaming(problem, mapping))
                break
        else:
            representatives.append(device)
            found[device] = Role(device, lambda variable: variable)
    return tuple(found[device] for device in range(problem.num_devices))


def _marks(problem: Problem, root: int, colour: Sequence[int] | None = None) -> dict[int, tuple[bool, int]]:
    """What a relabelling must keep besides the parameters: the root, its part, and the colours within that part."""
    inside = set(problem.part_of(root).devices)
    colours = (0,) * problem.num_devices if colour is None else colour
    return {one: (one == root, colours[one] if one in inside else -1) for one in range(problem.num_devices)}


def _attributed_graph(problem: Problem) -> "nx.DiGraph[int]":
    graph: nx.DiGraph[int] = nx.DiGraph()
    for device in range(problem.num_devices):
        graph.add_node(device, look=(float(problem.link.noise_watt[device]), int(problem.device_kind[device])))
    topology = problem.topology
    ends = zip(topology.edge_receiver.tolist(), topology.edge_sender.tolist(), strict=True)
    strengths = zip(problem.edge_gain.tolist(), topology.edge_weight.tolist(), strict=True)
    for (receiver, sender), strength in zip(ends, strengths, strict=True):
        graph.add_edge(sender, receiver, strength=strength)
    return graph


def _automorphism(
    graph: "nx.DiGraph[int]", source: dict[int, tuple[bool, int]], target: dict[int, tuple[bool, int]]
) -> dict[int, int] | None:
    """A relabelling of the graph onto itself that carries the source's marks to the target's."""
    first, second = graph.copy(), graph.copy()
    nx.set_node_attributes(first, source, "mark")
    nx.set_node_attributes(second, target, "mark")
    matcher = nx.isomorphism.DiGraphMatcher(first, second, node_match=eq, edge_match=eq)
    return next(matcher.isomorphisms_iter(), None)


def _renaming(problem: Problem, mapping: dict[int, int]) -> Callable[[Variable], Variable]:
    topology, site_of_edge = problem.topology, problem.channel.site_of_edge
    if problem.scenario.channel.state == "receiver":
        sites = mapping
    else:
        ends = zip(topology.edge_receiver.tolist(), topology.edge_sender.tolist(), strict=True)
        carried = [topology.edge(mapping[receiver], mapping[sender]) for receiver, sender in ends]
        sites = dict(zip(site_of_edge.tolist(), site_of_edge[carried].tolist(), strict=True))

    def rename(variable: Variable) -> Variable:
        table = sites if variable.kind == "site" else mapping
        return Variable(variable.kind, table[variable.owner])

    return rename
