"""Control traffic: what planning and acting cost in table entries, bytes on the air and joules.

Messages take t = 8 (bytes + header · messages) / rate, sent or listened to at the radio's power. Joules are those
drawn from storage, converter included. Listening comes on top of `energy.listen_second`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import networkx as nx
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heliomesh.common.memory_limit import entries
from heliomesh.model.problem import Problem
from heliomesh.model.workload import check_duty_cycle, transmit_second
from heliomesh.physics.storage import by_device
from heliomesh.scenario.errors import refuse
from heliomesh.scenario.schema import Energy


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
    energy, used = problem.scenario.energy, problem.consumption
    send_watt = torch.full_like(used.factor, energy.control_watt)
    listen_watt = by_device(energy.receive_watt, problem.num_devices).to(used.factor)
    drawn = [watt * used.converter.per_joule(watt) * used.factor for watt in (send_watt, listen_watt)]
    sending = on_air_second(energy, talk.sent_byte, talk.sent) * drawn[0]
    return sending + on_air_second(energy, talk.heard_byte, talk.heard) * drawn[1]


def on_air_second(energy: Energy, num_bytes: Tensor, messages: Tensor) -> Tensor:
    """Time of messages on air [s]; (device,)."""
    header = _HEADER_BYTE if energy.control_header_byte is None else energy.control_header_byte
    return 8 * (num_bytes + header * messages) / energy.control_bit_per_second


_HEADER_BYTE = 12.0  # preamble, address and check sum: 10 bytes by Bluetooth LE, 14 by LoRa at SF7


def paid_talk(problem: Problem, policy: object) -> Talk | None:
    """Messages of a policy, if batteries pay for them; raises ScenarioError where a duty cycle is too short."""
    talk: Talk | None = getattr(policy, "talk", None) if is_paid(problem) else None
    if talk is not None:
        second = float(on_air_second(problem.scenario.energy, talk.sent_byte, talk.sent).max())
        check_duty_cycle(problem.scenario, transmit_second(problem.scenario) + second, "an update and messages are")
    return talk


def refuse_uncounted(
    problem: Problem, policy: object, overhead: Overhead, planner: str, why: str = "are not counted by device"
) -> None:
    """Raise ScenarioError for a plan that must pay for messages; no policy: where those of devices are not known."""
    uncounted = is_paid(problem) and overhead.online_bytes_per_slot > 0 and getattr(policy, "talk", None) is None
    refuse(uncounted, "energy.control", f"'free' for the planner {planner!r}, whose messages {why}", "value 'paid'")


Ends = npt.NDArray[np.int64]
Hops = tuple[Ends, Ends, float, float]  # senders, listeners, bytes, messages of each


def _told(problem: Problem, hops: Sequence[Hops]) -> Talk:
    """The messages of all hops, counted by device."""
    sender, listener, *told = np.concatenate([np.broadcast_arrays(*some) for some in hops], axis=1, dtype=np.float64)
    counted = (np.bincount(who.astype(int), what, problem.num_devices) for who in (sender, listener) for what in told)
    return Talk(*(torch.from_numpy(one).to(problem.device) for one in counted))


def broadcast_talk(problem: Problem, num_bytes: float, messages: int) -> Talk:
    """Every device tells all of its neighbours at once."""
    degree = torch.tensor([len(near) for near in problem.topology.neighbours], dtype=torch.float64)
    one = torch.ones_like(degree)
    told = (one * num_bytes, one * messages, degree * num_bytes, degree * messages)
    return Talk(*(part.to(problem.device) for part in told))


def coordination_talk(problem: Problem, *, first_bytes: int, messages: int, rounds: int) -> Talk:
    """Who says what in joint decisions as `Coordination.decide` makes them.

    Per directed edge: first ``first_bytes`` about the sender, then one cost per action each way in every min-sum
    round; in a coordinate round a sender tells its receiver its action and is told one cost per action. Rounds are
    made from two starts, and from the messages' advice where there is one; the ends' costs are added up along a
    spanning tree and the number of the best end comes back.
    """
    row, starts, topology = 4 * len(problem.actions), 3 if messages else 2, problem.topology
    turns, receiver, sender = starts * rounds, topology.edge_receiver, topology.edge_sender
    trees = (nx.bfs_edges(topology.graph, min(nodes)) for nodes in nx.connected_components(topology.graph))
    parent, child = np.array([edge for tree in trees for edge in tree], dtype=np.int64).reshape(-1, 2).T
    return _told(
        problem,
        [
            (sender, receiver, first_bytes + messages * row + turns, 1 + messages + turns),
            (receiver, sender, (messages + turns) * row, messages + turns),
            (child, parent, 4 * starts, 1),
            (parent, child, 1, 1),
        ],
    )


def central_talk(problem: Problem) -> Talk:
    """Who says what to a controller at the graph's centre: states in and actions out along shortest paths.

    A device reports one byte per state variable and gets one byte back.
    """
    pairs = []
    for nodes in nx.connected_components(problem.topology.graph):
        graph = problem.topology.graph.subgraph(nodes)
        centre = min(sorted(graph), key=lambda one: sum(nx.single_source_shortest_path_length(graph, one).values()))
        pairs += [pair for path in nx.single_source_shortest_path(graph, centre).values() for pair in pairwise(path)]
    near, far = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    reported = 1 + problem.channel.num_sites / problem.num_devices + (problem.harvest.law.num_weather > 1)
    return _told(problem, [(far, near, reported, 1), (near, far, 1, 1)])


def central_overhead(problem: Problem) -> Overhead:
    """Traffic of a controller at the graph's centre: states in and actions out every slot, hop by hop."""
    table = sum(entries(problem.sizes(part.states)) for part in problem.parts)
    full = problem.channel.levels**problem.channel.num_sites * problem.num_energy**problem.num_devices
    overhead = online_overhead(problem, central_talk(problem), table * problem.slots)
    return replace(overhead, paper_table_entries=full * len(problem.actions) ** problem.num_devices * problem.slots)


def online_overhead(problem: Problem, talk: Talk, table_entries: int) -> Overhead:
    """Traffic of a policy that talks in every slot, and its tables; nothing travels offline."""
    online = float(talk.sent_byte.sum())
    return Overhead(table_entries, 0, online, 0.0, control_joule(problem, online))
