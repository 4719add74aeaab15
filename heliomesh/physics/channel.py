"""Fading: a finite-state Markov chain per site, and which site each radio link listens to.

A *site* carries one chain. ``state = "receiver"`` has one site per device, which scales all its incoming links;
``"link"`` one per directed edge; ``"reciprocal"`` one per undirected link.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heliomesh.physics.chain import draw, stationary_law
from heliomesh.physics.topology import Topology
from heliomesh.scenario import RayleighChannel, Scenario, ScenarioError, TableChannel


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

    def initial(self, uniform: Tensor) -> Tensor:
        """Draw stationary levels from uniform numbers of any shape."""
        return draw(self.stationary.expand(*uniform.shape, -1), uniform)

    def step(self, level: Tensor, uniform: Tensor) -> Tensor:
        """Draw the next levels from the current ones and uniform numbers of the same shape."""
        return draw(self.kernel[level], uniform)


def build_channel(scenario: Scenario, topology: Topology) -> Channel:
    """The scenario's chain and its sites on the graph."""
    settings = scenario.channel
    if isinstance(settings, TableChannel):
        gain, kernel = np.array(settings.gains), np.array(settings.kernel)
    else:
        gain, kernel = rayleigh_chain(settings)
    sites = _sites(settings.state, topology)
    return Channel(
        gain=torch.from_numpy(gain),
        kernel=torch.from_numpy(kernel),
        stationary=torch.from_numpy(stationary_law(kernel)),
        num_sites=topology.num_devices if settings.state == "receiver" else int(sites.max(initial=-1)) + 1,
        site_of_edge=torch.from_numpy(sites),
    )


def rayleigh_chain(settings: RayleighChannel) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Gains (level,) and kernel (level, level) of unit-mean Rayleigh fading with equally likely levels.

    Thresholds Γ_k = −ln(1 − k/N); P(k → k±1) = Z(Γ)·T_slot / P_k with the level-crossing rate
    Z(Γ) = √(2πΓ)·f_d·e^{−Γ}; each level is represented by its conditional mean gain.
    """
    n = settings.levels
    threshold = -np.log1p(-np.arange(n) / n)  # Γ_1 … Γ_N; Γ_{N+1} = ∞
    rate = np.sqrt(2 * np.pi * threshold) * np.exp(-threshold)  # Z(Γ) / f_d
    # a level is left by its lower and its upper threshold, with a probability proportional to the Doppler
    fastest = 1 / max(float((rate + np.append(rate[1:], 0.0)).max()) * n, 1e-300)
    if settings.doppler_slot > fastest:
        raise ScenarioError(
            "channel.doppler_slot",
            f"expected at most {math.floor(fastest * 1000) / 1000:g} for {n} levels "
            f"(every row must stay a distribution), actual value {settings.doppler_slot:g}",
        )
    crossing = rate * settings.doppler_slot * n
    kernel = np.diag(crossing[1:], k=-1) + np.diag(crossing[1:], k=1)
    stay = np.maximum(1 - kernel.sum(axis=1), 0.0)  # rounding dust at the fastest
    # E[g; g > Γ] = (1 + Γ) e^{−Γ} for unit-mean exponential power
    tail = np.append((1 + threshold) * np.exp(-threshold), 0.0)
    return n * (tail[:-1] - tail[1:]), kernel + np.diag(stay)


def _sites(state: str, topology: Topology) -> npt.NDArray[np.int64]:
    if state == "receiver":
        return topology.edge_receiver
    edges = np.arange(topology.num_edges)
    if state == "link":
        return edges
    representative = np.minimum(edges, topology.reverse_edge)
    return np.unique(representative, return_inverse=True)[1].astype(np.int64)
