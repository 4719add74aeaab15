"""Edges as a table with a row per device and a column per neighbour, shorter rows filled up."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from heliomesh.physics.topology import Topology


@dataclass(frozen=True)
class NeighbourTable:
    """Neighbours of every device in rising order; what fills rows up is not ``present``."""

    topology: Topology
    device: torch.device

    @cached_property
    def present(self) -> Tensor:
        """Whether a device has so many neighbours; (device, neighbour) bool."""
        start = torch.from_numpy(self.topology.edge_start).to(self.device)
        degree = start.diff()
        return torch.arange(int(degree.max()), device=self.device) < degree.unsqueeze(-1)

    @cached_property
    def edge(self) -> Tensor:
        """Edges into devices, 0 where there is none; (device, neighbour)."""
        return self._filled(np.arange(self.topology.num_edges))

    @cached_property
    def _neighbour(self) -> Tensor:
        return self._filled(self.topology.edge_sender)

    @cached_property
    def own_place(self) -> Tensor:
        """Which neighbour a device is to each of its neighbours; (device, neighbour)."""
        place = np.arange(self.topology.num_edges) - self.topology.edge_start[self.topology.edge_receiver]
        return self._filled(place[self.topology.reverse_edge])

    @cached_property
    def hears(self) -> Tensor:
        """Which neighbours of a device hear each other; (device, hearing neighbour, neighbour) bool."""
        own, topology = self._neighbour, self.topology
        pairs = torch.from_numpy(topology.edge_receiver * topology.num_devices + topology.edge_sender).to(self.device)
        asked = own.unsqueeze(-1) * topology.num_devices + own.unsqueeze(-2)
        return torch.isin(asked, pairs) & self.present.unsqueeze(-1) & self.present.unsqueeze(-2)

    def _filled(self, by_edge: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Tensor:
        found = torch.zeros(self.present.shape, dtype=torch.int64, device=self.device)
        found[self.present] = torch.from_numpy(by_edge).to(self.device)
        return found

    def of_edges(self, values: Tensor) -> Tensor:
        """Values of edges (..., edge) by receiver and neighbour; (..., device, neighbour)."""
        if not self.topology.num_edges:
            return values.new_zeros(*values.shape[:-1], *self.present.shape)
        return values[..., self.edge]

    def of_neighbours(self, values: Tensor) -> Tensor:
        """Values of devices (batch, device, ...) as each of them has them of its neighbours; (…, neighbour, …)."""
        return values[:, self._neighbour]
