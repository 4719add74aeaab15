"""Runs in their places of one stack of weights: which rows are whose, who trains or sends in a slot, what arrives."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import numpy.typing as npt

from heliomesh.common.streams import stream
from heliomesh.learning.aggregation import Rule, check_contraction
from heliomesh.learning.minibatch import Minibatches
from heliomesh.learning.run import TrainingError
from heliomesh.learning.settings import TrainJob
from heliomesh.physics.topology import Topology, build_topology, reweighted
from heliomesh.scenario.errors import refuse
from heliomesh.scenario.schema import Learning
from heliomesh.simulation.trace import TraceError
from heliomesh.tasks.dataset import Dataset
from heliomesh.tasks.partition import split

# settings that all runs of a stack have in common
_OF_DATA = ("dataset", "path", "validation", "model", "buffers", "local_steps", "batch")
_OF_STEPS = ("learning_rate", "schedule", "final_rate", "schedule_slots", "optimizer", "momentum", "second_momentum")
SHARED = (*_OF_DATA, *_OF_STEPS, "quasi_global", "on_air", "top_k_share")


_OF_MIXING = ("edge_receiver", "edge_sender", "edge_weight", "self_weight")


@dataclass(frozen=True)
class Member:
    """A run in its place of the stack: its devices, or those of a part of its network with their neighbours.

    A part has the rows of its own devices first. Rows of neighbours only wait for what is sent from elsewhere: they
    are never scheduled, and no edge leads to them.
    """

    job: TrainJob
    topology: Topology  # of the rows
    minibatches: Minibatches
    rows: slice  # of the stack
    num_own: int  # rows that train here
    devices: npt.NDArray[np.int64]  # (row,) their numbers in the network
    scheduled: npt.NDArray[np.bool_]  # (slot, device)
    sent: npt.NDArray[np.bool_]  # (slot, device) heard or not
    delivered: npt.NDArray[np.bool_]  # (slot, edge)
    trained_before: npt.NDArray[np.int64]  # (slot, device) earlier slots in which the device trained
    edge_weight: npt.NDArray[np.float64] | None  # (slot, edge) where weights of averaging changed on the way

    def mixing_in(self, slot: int) -> Topology:
        """The network with the weights in force in a slot; the same object where they are the network's own."""
        if self.edge_weight is None or np.array_equal(self.edge_weight[slot], self.topology.edge_weight):
            return self.topology
        return reweighted(self.topology, self.edge_weight[slot])

    def batches(self, slot: int) -> npt.NDArray[np.int64]:
        """Samples of those who train in a slot; (active, K, batch)."""
        active = np.flatnonzero(self.scheduled[slot])
        return self.minibatches.of(self.devices[active], self.trained_before[slot, active])


def lined_up(jobs: Sequence[TrainJob], dataset: Dataset) -> tuple[Member, ...]:
    """Jobs checked and lined up; runs with equal topologies share one object."""
    members: list[Member] = []
    for job in jobs:
        topology = build_topology(job.scenario)
        check_trace(job, topology)
        settings = job.scenario.learning
        check_contraction(settings.aggregation, topology, settings.allow_divergence)
        if members and all(
            np.array_equal(getattr(members[-1].topology, name), getattr(topology, name)) for name in _OF_MIXING
        ):
            topology = members[-1].topology
        rng = stream(job.training_seed, "partition")
        partition = split(dataset.train_labels, settings, topology.num_devices, rng)
        scheduled = job.trace.scheduled[job.episode]
        start = members[-1].rows.stop if members else 0
        delivered, sent = job.trace.delivered[job.episode], job.trace.power_watt[job.episode] > 0
        slot, edge = np.nonzero(delivered)
        sent[slot, topology.edge_sender[edge]] = True  # a trace made by hand may have arrivals without power
        members.append(
            Member(
                job=job,
                topology=topology,
                minibatches=Minibatches(partition, job.training_seed, settings.local_steps, settings.batch),
                rows=slice(start, start + topology.num_devices),
                num_own=topology.num_devices,
                devices=np.arange(topology.num_devices),
                scheduled=scheduled,
                sent=sent,
                delivered=delivered,
                trained_before=scheduled.cumsum(0) - scheduled,
                edge_weight=None if job.trace.edge_weight is None else job.trace.edge_weight[job.episode],
            )
        )
    return tuple(members)


def part_of(member: Member, own: npt.NDArray[np.int64]) -> Member:
    """A run of which only ``own`` devices train. Edges keep their order, and with it sums keep their bits."""
    whole = member.topology
    edges = np.flatnonzero(np.isin(whole.edge_receiver, own))
    devices = np.concatenate([own, np.setdiff1d(whole.edge_sender[edges], own)])
    is_own, row = np.arange(len(devices)) < len(own), np.full(whole.num_devices, -1)
    row[devices] = np.arange(len(devices))
    topology = Topology(
        num_devices=len(devices),
        edge_receiver=row[whole.edge_receiver[edges]],
        edge_sender=row[whole.edge_sender[edges]],
        edge_weight=whole.edge_weight[edges],
        self_weight=whole.self_weight[devices],
        position_metre=whole.position_metre[devices],
        edge_metre=whole.edge_metre[edges],
    )
    return replace(
        member,
        topology=topology,
        rows=slice(0, len(devices)),
        num_own=len(own),
        devices=devices,
        scheduled=member.scheduled[:, devices] & is_own,
        delivered=member.delivered[:, edges],
        sent=member.sent[:, devices] & is_own,
        trained_before=member.trained_before[:, devices],
        edge_weight=None if member.edge_weight is None else member.edge_weight[:, edges],
    )


def check_trace(job: TrainJob, topology: Topology) -> None:
    """Refuse a trace of another network or horizon."""
    trace = job.trace
    slots, devices = trace.scheduled.shape[1:]
    sizes = (("devices", topology.num_devices, devices), ("slots", job.scenario.slots, slots))
    for what, expected, actual in sizes:
        TraceError.when(actual != expected, "trace", f"{expected} {what}, as the scenario has", f"number {actual}")
    ends = ((topology.edge_receiver, trace.edge_receiver), (topology.edge_sender, trace.edge_sender))
    equal = all(np.array_equal(expected, actual) for expected, actual in ends)
    found = f"network has {len(trace.edge_receiver)} edges or other neighbours"
    TraceError.when(not equal, "trace", f"the scenario's {topology.num_edges} directed edges", found)


def shared_learning(jobs: Sequence[TrainJob]) -> Learning:
    """The ``[learning]`` of the stack; refuses runs that cannot train in one stack."""
    first = jobs[0].scenario
    for job in jobs[1:]:
        pairs = [(f"learning.{name}", first.learning, job.scenario.learning) for name in SHARED]
        for field, one, other in [*pairs, ("slots", first, job.scenario)]:
            expected, actual = (getattr(owner, field.rpartition(".")[2]) for owner in (one, other))
            refuse(expected != actual, field, f"one value in a stack, {expected!r}", f"value {actual!r}")
    return first.learning


def alike(members: Sequence[Member], slot: int) -> list[tuple[Rule, Topology, list[Member]]]:
    """Neighbours in the stack that one pass can average in a slot: equal rule, and equal topology and weights."""
    mixed = [(member.job.scenario.learning.aggregation, member.mixing_in(slot), member) for member in members]
    groups = [list(group) for _, group in groupby(mixed, key=lambda one: (one[0], id(one[1])))]
    return [(group[0][0], group[0][1], [member for _, _, member in group]) for group in groups]


class DivergedError(TrainingError):
    """A loss that is no number; ``run`` is the place in its stack of the run that has it."""

    run = 0


def divergence(device: int, slot: int, actual: str) -> DivergedError:
    """The refusal to go on with a device whose loss is no number."""
    hint = "lower learning.learning_rate or look at that device's samples"
    return DivergedError(f"device {device}: expected finite losses, actual {actual} in slot {slot}; {hint}")


def diverged(members: Sequence[Member], row: int, slot: int, actual: str) -> DivergedError:
    """The same for a row of a stack."""
    run, member = next((run, m) for run, m in enumerate(members) if row < m.rows.stop)
    error = divergence(int(member.devices[row - member.rows.start]), slot, actual)
    error.run = run
    return error
