"""What an observer reads off all devices of a network, as the simulator records it."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from heliomesh.field.fleet.device import Happened
from heliomesh.model.cost import update_loss
from heliomesh.model.problem import Problem
from heliomesh.simulation.slot_loop import Slot
from heliomesh.simulation.trace import Recorder, Trace

_COLUMNS = (
    "battery_joule",
    "power_watt",
    "spent_joule",
    "harvested_joule",
    "overflow_joule",
    "battery_after_joule",
)


def recorded(problem: Problem, planner: str, seed: int) -> tuple[Recorder, Trace]:
    """A recorder, and the trace that it fills slot by slot."""
    recorder = Recorder(problem, 1)
    for array in recorder.arrays.values():
        array.fill(0)
    trace = Trace(
        scenario_toml=problem.scenario.to_toml(),
        planner=planner,
        seed=seed,
        edge_receiver=problem.topology.edge_receiver,
        edge_sender=problem.topology.edge_sender,
        **recorder.arrays,
    )
    return recorder, trace


def absent(problem: Problem, device: int, battery_joule: float) -> Happened:
    """A dead device: nothing reaches it, and its battery stays as it was seen last."""
    num_edges = len(problem.topology.neighbours[device])
    return Happened(
        battery_joule=battery_joule,
        battery_after_joule=battery_joule,
        power_watt=0.0,
        trained=False,
        spent_joule=0.0,
        harvested_joule=0.0,
        overflow_joule=0.0,
        error_prob=np.ones(num_edges),
        delivered=np.zeros(num_edges, dtype=np.bool_),
        loss=float("nan"),
    )


def observed(problem: Problem, seen: Sequence[Happened], channel_level: Tensor, weather: Tensor) -> Slot:
    """A slot of all devices, as the simulator records it."""
    error = torch.from_numpy(np.concatenate([one.error_prob for one in seen])).unsqueeze(0)
    trained = torch.tensor([[one.trained for one in seen]])
    column = {name: torch.tensor([[getattr(one, name) for one in seen]], dtype=torch.float64) for name in _COLUMNS}
    return Slot(
        channel_level=channel_level,
        weather=weather,
        scheduled=trained,
        error_prob=error,
        delivered=torch.from_numpy(np.concatenate([one.delivered for one in seen])).unsqueeze(0),
        update_loss=update_loss(problem, error, trained),
        dark=problem.battery.dark(column["battery_joule"]),
        **column,
    )
