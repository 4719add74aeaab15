"""Who moves at once, and which packets a move concerns.

Devices of one colour neither hear each other nor share a receiver. So every receiver near them hears one mover only,
and a mover's action changes nothing but the packets into its receivers and into itself.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heliomesh.physics.topology import Topology


@dataclass(frozen=True)
class Edges:
    """Some directed edges in the network's order, so that sums over them keep their bits."""

    number: Tensor  # (edge,) in the network
    receiver: Tensor  # (edge,)
    sender: Tensor  # (edge,)
    place: Tensor  # (edge,) where sums over edges put it


@dataclass(frozen=True)
class Turn:
    """Devices that move at once, and the edges which their moves concern."""

    mover: Tensor  # (mover,) devices
    out: Edges  # from movers, by mover; each ends at a receiver of its own
    into: Edges  # into movers, by mover
    near: Edges  # into the receivers of movers from anyone, by out edge
    concerned: Edges  # near ones, then those into movers, by receiver
    out_near: Tensor  # (out,) positions of edges from movers in ``near``


def turn_of(topology: Topology, movers: list[int], device: torch.device) -> Turn:
    """The turn of some devices in rising order, which neither hear each other nor share a receiver."""
    receiver, sender = topology.edge_receiver, topology.edge_sender
    position = _positions(np.array(movers), topology.num_devices)
    out, into = np.flatnonzero(position[sender] >= 0), np.flatnonzero(position[receiver] >= 0)
    out_of_receiver = _positions(receiver[out], topology.num_devices)
    near = np.flatnonzero(out_of_receiver[receiver] >= 0)
    concerned = np.concatenate([near, into])

    def edges(number: npt.NDArray[np.int64], place: npt.NDArray[np.int64]) -> Edges:
        parts = (number, receiver[number], sender[number], place)
        return Edges(*(torch.from_numpy(part).to(device) for part in parts))

    return Turn(
        torch.tensor(movers, device=device),
        edges(out, position[sender[out]]),
        edges(into, position[receiver[into]]),
        edges(near, out_of_receiver[receiver[near]]),
        edges(concerned, receiver[concerned]),
        torch.from_numpy(np.flatnonzero(position[sender[near]] >= 0)).to(device),
    )


def _positions(chosen: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    """Where each of ``count`` numbers stands among the chosen, −1 where it is none of them."""
    position = np.full(count, -1, dtype=np.int64)
    position[chosen] = np.arange(len(chosen))
    return position
