"""From powers and gains to packet errors: q_ij = 1 − exp(−φ (interference + noise) / signal)."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from heliomesh.physics.path_loss import path_gain
from heliomesh.physics.topology import Topology
from heliomesh.scenario import Scenario, per_device


@dataclass(frozen=True)
class Radio:
    """Radio constants of the network."""

    waterfall: float
    noise_watt: Tensor  # (device,)
    path_gain: Tensor  # (edge,) mean power gain; fading multiplies it
    half_duplex: bool


def build_link(scenario: Scenario, topology: Topology) -> Radio:
    """Noise and mean gains, less path loss where the scenario asks for it."""
    settings = scenario.link
    own_gain = getattr(scenario.channel, "gain", 1.0)  # a source may have none
    gain = np.array(per_device(own_gain, topology.num_devices))[topology.edge_receiver]
    gain = gain * path_gain(settings, topology.edge_metre)
    return Radio(
        waterfall=settings.waterfall,
        noise_watt=torch.tensor(per_device(settings.noise_watt, topology.num_devices), dtype=torch.float64),
        path_gain=torch.from_numpy(gain),
        half_duplex=settings.half_duplex,
    )


def waterfall_error(signal_watt: Tensor, disturbance_watt: Tensor, waterfall: float) -> Tensor:
    """Packet error rate of a signal against interference plus noise [W]; 1 where there is no signal."""
    sent = signal_watt > 0
    exponent = waterfall * disturbance_watt / torch.where(sent, signal_watt, 1.0)
    return torch.where(sent, -torch.expm1(-exponent), 1.0)


def error_prob(link: Radio, topology: Topology, power_watt: Tensor, fading: Tensor) -> Tensor:
    """Packet error rates of all edges.

    power_watt (..., device), fading (..., edge) → (..., edge).
    """
    receiver, sender = torch.from_numpy(topology.edge_receiver), torch.from_numpy(topology.edge_sender)
    receiver, sender = receiver.to(power_watt.device), sender.to(power_watt.device)
    received = power_watt[..., sender] * fading * link.path_gain
    total = torch.zeros_like(power_watt).index_add_(-1, receiver, received)
    interference = (total[..., receiver] - received).clamp_min(0)
    error = waterfall_error(received, interference + link.noise_watt[receiver], link.waterfall)
    if link.half_duplex:
        error = torch.where(power_watt[..., receiver] > 0, 1.0, error)
    return error
