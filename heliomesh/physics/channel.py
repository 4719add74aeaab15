"""Fading: a finite-state Markov chain per site, and which site each radio link listens to.

A *site* carries one chain. ``state = "receiver"`` has one site per device, which scales all its incoming links;
``"link"`` one per directed edge; ``"reciprocal"`` one per undirected link. Where the chain comes from is a *source*,
one file of `physics/channels` each.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heliomesh.physics.chain import borders, draw, fading_chain, pick, stationary_law
from heliomesh.physics.topology import Topology
from heliomesh.scenario.scenario import Scenario


@dataclass(frozen=True)
class Channel:
    """One chain for every site: gains (level,), kernel [now, next], stationary law (level,)."""

    gain: Tensor
    kernel: Tensor
    stationary: Tensor
    num_sites: int
    site_of_edge: Tensor  # (edge,)

    @property
    def levels(self) -> int:
        """Number of channel levels."""
        return len(self.gain)

    def fading(self, level: Tensor) -> Tensor:
        """Gains of all links for the levels of all sites; (..., site) → (..., edge)."""
        return self.gain[level[..., self.site_of_edge]]

    def initial(self, uniform: Tensor) -> Tensor:
        """Draw stationary levels from uniform numbers of any shape."""
        return draw(self.stationary.expand(*uniform.shape, -1), uniform)

    def step(self, level: Tensor, uniform: Tensor) -> Tensor:
        """Draw the next levels from the current ones and uniform numbers of the same shape."""
        return pick(self._borders[level], uniform)

    @cached_property
    def _borders(self) -> Tensor:
        """Borders between the next levels' shares; (level, level − 1)."""
        return borders(self.kernel)


def build_channel(scenario: Scenario, topology: Topology) -> Channel:
    """The scenario's chain and its sites on the graph."""
    settings = scenario.channel
    gain, kernel = fading_chain(scenario)
    sites = _sites(settings.state, topology)
    return Channel(
        gain=torch.from_numpy(gain),
        kernel=torch.from_numpy(kernel),
        stationary=torch.from_numpy(stationary_law(kernel)),
        num_sites=topology.num_devices if settings.state == "receiver" else int(sites.max(initial=-1)) + 1,
        site_of_edge=torch.from_numpy(sites),
    )


def _sites(state: str, topology: Topology) -> npt.NDArray[np.int64]:
    if state == "receiver":
        return topology.edge_receiver
    edges = np.arange(topology.num_edges)
    if state == "link":
        return edges
    representative = np.minimum(edges, topology.reverse_edge)
    return np.unique(representative, return_inverse=True)[1].astype(np.int64)
