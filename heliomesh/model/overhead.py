"""Control traffic: what planning and acting cost in table entries, bytes on the air and joules."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import networkx as nx
import numpy as np
import torch
from torch import Tensor

from heliomesh.common.memory_limit import entries
from heliomesh.model.problem import Problem
from heliomesh.model.workload import transmit_second
from heliomesh.physics.control import build_control
from heliomesh.scenario.errors import ScenarioError


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


class Talk(NamedTuple):
    """Messages of every device in a slot; (device,) each. A policy that talks has them as its attribute ``talk``."""

    sent_byte: Tensor
    sent: Tensor  # number of messages
    heard_byte: Tensor
    heard: Tensor


def is_paid(problem: Problem) -> bool:
    """Whether batteries pay for a plan's messages."""
    return problem.scenario.energy.control == "paid"


def talk_joule(problem: Problem, talk: Talk) -> Tensor:
    """Energy drawn from storage for a slot's messages [J]; (device,)."""
    radio = build_control(problem.scenario.energy, problem.consumption)
    sending = radio.second(talk.sent_byte, talk.sent) * radio.send_watt
    return sending + radio.second(talk.heard_byte, talk.heard) * radio.listen_watt


def paid_talk(problem: Problem, policy: object) -> Talk | None:
    """Messages of a policy, if batteries pay for them; raises ScenarioError where a duty cycle is too short."""
    talk: Talk | None = getattr(policy, "talk", None) if is_paid(problem) else None
    energy = problem.scenario.energy
    share = energy.duty_cycle
    if talk is None or share is None:
        return talk
    radio = build_control(energy, problem.consumption)
    second = transmit_second(problem.scenario) + float(radio.second(talk.sent_byte, talk.sent).max())
    if not second <= share * energy.slot_second * (1 + _DUST):
        expected = f"at least the share of a slot that an update and messages are on air, {second:.4g} s"
        raise ScenarioError("energy.duty_cycle", f"{expected} of {energy.slot_second:g} s", f"value {share:g}")
    return talk


_DUST = 1e-9  # of a slot, for rounded sums


def refuse_uncounted(problem: Problem, policy: object, overhead: Overhead, planner: str) -> None:
    """Raise ScenarioError for a plan that must pay for messages; no policy: where those of devices are not known."""
    if is_paid(problem) and overhead.online_bytes_per_slot > 0 and getattr(policy, "talk", None) is None:
        expected = f"'free' for the planner {planner!r}, whose messages are not counted by device"
        raise ScenarioError("energy.control", expected, "value 'paid'")


class Hop(NamedTuple):
    """What one device tells a neighbour in a slot."""

    sender: int
    listener: int
    num_bytes: float
    messages: float


def _told(problem: Problem, hops: Iterable[Hop]) -> Talk:
    """The messages of all hops, counted by device."""
    sender, listener, *told = np.array([*hops], dtype=float).reshape(-1, 4).T
    counted = (np.bincount(who.astype(int), what, problem.num_devices) for who in (sender, listener) for what in told)
    return Talk(*(torch.from_numpy(one).to(problem.device) for one in counted))


def broadcast_talk(problem: Problem, num_bytes: float, messages: int) -> Talk:
    """Every device tells all of its neighbours at once."""
    degree = torch.tensor([len(near) for near in problem.topology.neighbours], dtype=torch.float64)
    one = torch.ones_like(degree)
    told = (one * num_bytes, one * messages, degree * num_bytes, degree * messages)
    return Talk(*(part.to(problem.device) for part in told))


def coordination_talk(problem: Problem, *, first_bytes: int, messages: int, rounds: int) -> Talk:
    """Who says what of `coordination_overhead`, a message per edge and round each way."""
    row, starts = 4 * len(problem.actions), 3 if messages else 2
    turns, hops = starts * rounds, []
    edges = zip(problem.topology.edge_receiver.tolist(), problem.topology.edge_sender.tolist(), strict=True)
    for receiver, sender in edges:
        hops.append(Hop(sender, receiver, first_bytes + messages * row + turns, 1 + messages + turns))
        hops.append(Hop(receiver, sender, (messages + turns) * row, messages + turns))
    for nodes in nx.connected_components(problem.topology.graph):
        for parent, child in nx.bfs_edges(problem.topology.graph, min(nodes)):
            hops += [Hop(child, parent, 4 * starts, 1), Hop(parent, child, 1, 1)]
    return _told(problem, hops)


def central_talk(problem: Problem) -> Talk:
    """Who says what of `central_overhead`: reports and commands along shortest paths."""
    hops = []
    for nodes in nx.connected_components(problem.topology.graph):
        graph = problem.topology.graph.subgraph(nodes)
        centre = min(sorted(graph), key=lambda one: sum(nx.single_source_shortest_path_length(graph, one).values()))
        for path in nx.single_source_shortest_path(graph, centre).values():
            for near, far in pairwise(path):
                hops += [Hop(far, near, _reported_bytes(problem), 1), Hop(near, far, 1, 1)]
    return _told(problem, hops)


def _reported_bytes(problem: Problem) -> float:
    """A byte per state variable of a device."""
    return 1 + problem.channel.num_sites / problem.num_devices + (problem.harvest.law.num_weather > 1)


def central_overhead(problem: Problem) -> Overhead:
    """Traffic of a controller at the graph's centre: states in and actions out every slot, hop by hop.

    A device reports one byte per state variable and gets one byte back.
    """
    hops = 0.0
    for nodes in nx.connected_components(problem.topology.graph):
        graph = problem.topology.graph.subgraph(nodes)
        hops += min(sum(nx.single_source_shortest_path_length(graph, node).values()) for node in graph)
    online = hops * (_reported_bytes(problem) + 1)
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
