"""Control traffic: what planning and acting cost in table entries, bytes on the air and joules."""

from dataclasses import dataclass

import networkx as nx

from heliomesh.common.memory_limit import entries
from heliomesh.model.problem import Problem


@dataclass(frozen=True)
class Overhead:
    """Control traffic and tables of a plan."""

    table_entries: int = 0  # entries of the largest device's (or the controller's) tables
    offline_bytes: int = 0  # all devices, whole planning, every hop counted
    online_bytes_per_slot: float = 0.0
    offline_joule: float = 0.0
    online_joule_per_slot: float = 0.0
    paper_table_entries: int = 0  # the same tables if they listed every state and action of the neighbourhood


def control_joule(problem: Problem, num_bytes: float) -> float:
    """Energy to send control bytes over one hop each [J]."""
    settings = problem.scenario.energy
    return 8 * num_bytes / settings.control_bit_per_second * settings.control_watt


def central_overhead(problem: Problem) -> Overhead:
    """Traffic of a controller at the graph's centre: states in and actions out every slot, hop by hop.

    A device reports one byte per state variable and gets one byte back.
    """
    hops = 0.0
    for nodes in nx.connected_components(problem.topology.graph):
        graph = problem.topology.graph.subgraph(nodes)
        hops += min(sum(nx.single_source_shortest_path_length(graph, node).values()) for node in graph)
    reported = 1 + problem.channel.num_sites / problem.num_devices + (problem.harvest.law.num_weather > 1)
    online = hops * (reported + 1)
    table = sum(entries(problem.sizes(part.states)) for part in problem.parts)
    full = entries(
        [problem.channel.levels] * problem.channel.num_sites
        + [problem.num_energy * len(problem.actions)] * problem.num_devices
    )
    return Overhead(
        table_entries=table * problem.slots,
        online_bytes_per_slot=online,
        online_joule_per_slot=control_joule(problem, online),
        paper_table_entries=full * problem.slots,
    )


def coordination_overhead(
    problem: Problem, *, first_bytes: int, messages: int, rounds: int, table_entries: int
) -> Overhead:
    """Traffic of joint decisions as `Coordination.decide` makes them, every slot; nothing travels offline.

    Per directed edge: first ``first_bytes`` about the sender, then one cost per action each way in every min-sum
    round; in a coordinate round a sender tells its receiver its action and is told one cost per action. Rounds are
    made from two starts, and from the messages' advice where there is one; the ends' costs are added up along a
    spanning tree and the number of the best end comes back.
    """
    row, starts = 4 * len(problem.actions), 3 if messages else 2
    between = problem.topology.num_edges * (first_bytes + messages * 2 * row + starts * rounds * (1 + row))
    tree_edges = problem.num_devices - problem.topology.num_components
    online = between + tree_edges * (4 * starts + 1)
    return Overhead(
        table_entries=table_entries,
        online_bytes_per_slot=online,
        online_joule_per_slot=control_joule(problem, online),
    )
