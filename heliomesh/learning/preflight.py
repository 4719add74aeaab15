"""Whether a scenario can be trained as asked, told before anything is planned or written."""

import numpy as np

from heliomesh.learning.members import lined_up
from heliomesh.learning.replay import Replay, first_model
from heliomesh.learning.settings import TrainJob, TrainSettings
from heliomesh.learning.strategy import check_strategy
from heliomesh.physics.topology import build_topology
from heliomesh.scenario.scenario import Scenario
from heliomesh.simulation.trace import RECORDED, Trace
from heliomesh.tasks.dataset import Dataset, load_dataset


def check_trainable(
    scenario: Scenario, settings: TrainSettings, seed: int | None = None, *, here: bool = True
) -> Dataset:
    """The scenario's dataset; raises what `train` raises before its first slot, whatever the trace.

    Training in this process (``here``) also needs the device and the memory; actors have their own.
    """
    job = TrainJob(scenario, _idle_trace(scenario), 0, seed)
    dataset = load_dataset(scenario.learning)
    if here:
        Replay([job], dataset, settings)
        return dataset
    check_strategy(settings.strategy)
    lined_up([job], dataset)
    first_model(job, dataset)
    return dataset


def _idle_trace(scenario: Scenario) -> Trace:
    """One episode of the scenario's network in which nobody does anything."""
    topology, slots = build_topology(scenario), scenario.slots
    sizes = {"episode": 1, "slot": slots, "moment": slots + 1, "device": topology.num_devices}
    sizes |= {"edge": topology.num_edges, "site": 0}
    arrays = {column.name: np.zeros(column.shape(sizes), column.dtype) for column in RECORDED}
    ends = {"edge_receiver": topology.edge_receiver, "edge_sender": topology.edge_sender}
    return Trace(scenario.to_toml(), "none", 0, **arrays, **ends)
