"""Devices that play the same role share one table: automorphisms of the network with all its parameters.

A relabelling of devices that keeps the graph, gains, noise, energies and first batteries maps an optimal (or
simultaneous-update) solution to itself, so one representative per role suffices and the others are renamed copies.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import networkx as nx

from heliomesh.problem.factor import Variable
from heliomesh.problem.problem import Part, Problem

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
    graph = _attributed_graph(problem, [0] * problem.num_devices)
    for device in target.devices:
        mapping = _automorphism(graph, source.devices[0], device)
        if mapping is not None and {mapping[j] for j in source.devices} == set(target.devices):
            return _renaming(problem, mapping)
    return None


def roles(problem: Problem, colour: Sequence[int]) -> tuple[Role, ...]:
    """One role per device and colour; devices without a known symmetry represent themselves."""
    found: dict[int, Role] = {}
    representatives: list[int] = []
    searchable = problem.num_devices <= _MOST_DEVICES
    graph = _attributed_graph(problem, colour) if searchable else nx.DiGraph()
    for device in range(problem.num_devices):
        for other in representatives if searchable else ():
            mapping = _automorphism(graph, other, device)
            if mapping is not None:
                found[device] = Role(other, _renaming(problem, mapping))
                break
        else:
            representatives.append(device)
            found[device] = Role(device, lambda variable: variable)
    return tuple(found[device] for device in range(problem.num_devices))


def _attributed_graph(problem: Problem, colour: Sequence[int]) -> "nx.DiGraph[int]":
    graph: nx.DiGraph[int] = nx.DiGraph()
    law = problem.harvest.law
    for device in range(problem.num_devices):
        look = (
            colour[device],
            float(problem.link.noise_watt[device]),
            float(law.scale[device] / problem.battery.step_joule[device]),
            tuple(problem.actions.quanta[device].tolist()),
        )
        graph.add_node(device, look=look)
    topology, path_gain = problem.topology, problem.link.path_gain
    for edge, (i, j) in enumerate(zip(topology.edge_receiver, topology.edge_sender, strict=True)):
        # positions are computed, so equal distances may differ in the last digits
        graph.add_edge(
            int(j), int(i), look=(float(f"{float(path_gain[edge]):.9e}"), float(topology.edge_weight[edge]))
        )
    return graph


def _automorphism(graph: "nx.DiGraph[int]", source: int, target: int) -> dict[int, int] | None:
    """A relabelling of the graph onto itself that maps ``source`` to ``target``."""
    first, second = graph.copy(), graph.copy()
    nx.set_node_attributes(first, {node: node == source for node in first}, "root")
    nx.set_node_attributes(second, {node: node == target for node in second}, "root")
    matcher = nx.isomorphism.DiGraphMatcher(
        first, second, node_match=lambda a, b: a == b, edge_match=lambda a, b: a == b
    )
    return next(matcher.isomorphisms_iter(), None)


def _renaming(problem: Problem, mapping: dict[int, int]) -> Callable[[Variable], Variable]:
    topology, site_of_edge = problem.topology, problem.channel.site_of_edge
    if problem.scenario.channel.state == "receiver":
        sites = mapping
    else:
        sites = {
            int(site_of_edge[edge]): int(site_of_edge[topology.edge(mapping[int(i)], mapping[int(j)])])
            for edge, (i, j) in enumerate(zip(topology.edge_receiver, topology.edge_sender, strict=True))
        }

    def rename(variable: Variable) -> Variable:
        table = sites if variable.kind == "site" else mapping
        return Variable(variable.kind, table[variable.index])

    return rename
