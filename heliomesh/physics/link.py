"""From powers and gains to packet errors: q_ij = 1 − exp(−φ (interference + noise) / signal), or from a table."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from heliomesh.common.delimited import TableError, table_rows
from heliomesh.physics.piecewise import linear
from heliomesh.physics.reach import path_gain
from heliomesh.physics.topology import Topology
from heliomesh.scenario.errors import ScenarioError, refuse
from heliomesh.scenario.files import read_text
from heliomesh.scenario.scenario import Scenario
from heliomesh.scenario.section import per_device


@dataclass(frozen=True)
class ErrorTable:
    """Packet error rates by the SINR, between its points linear in dB; 1 below the first, then as the last."""

    sinr_db: Tensor  # (point,) rising
    error: Tensor  # (point,) falling, or level

    def __call__(self, sinr: Tensor) -> Tensor:
        """Packet error rates of SINRs (as ratios, at least 0) of any shape."""
        points, at_db = self.sinr_db.to(sinr), 10 * torch.log10(sinr)
        return torch.where(at_db < points[0], 1.0, linear(at_db, points, self.error.to(sinr)))


@dataclass(frozen=True)
class Radio:
    """Radio constants of the network."""

    waterfall: float
    noise_watt: Tensor  # (device,)
    path_gain: Tensor  # (edge,) mean power gain; fading multiplies it
    half_duplex: bool
    table: ErrorTable | None = None  # None: the waterfall

    def packet_error(self, signal_watt: Tensor, disturbance_watt: Tensor) -> Tensor:
        """Packet error rate of a signal against interference plus noise [W]; 1 where there is no signal."""
        if self.table is None:
            return waterfall_error(signal_watt, disturbance_watt, self.waterfall)
        return torch.where(signal_watt > 0, self.table(signal_watt / disturbance_watt), 1.0)


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
        table=None if settings.table is None else read_table(settings.table),
    )


def read_table(path: str) -> ErrorTable:
    """A CSV file of SINR [dB] and packet error rate, after a line of headings or none; raises ScenarioError."""
    try:
        lines = table_rows(read_text("link.table", path))
    except TableError as problem:
        raise ScenarioError("link.table", str(problem)) from None
    first = min(lines, default=0)
    try:
        float(lines[first][0])
    except (KeyError, ValueError):  # nothing, or headings
        lines.pop(first, None)
    rows = [_numbers(line, row) for line, row in lines.items()]
    refuse(len(rows) < _LEAST_POINTS, "link.table", f"at least {_LEAST_POINTS} points", f"number {len(rows)}")
    for (low, above), (high, below) in pairwise(rows):
        actual = f"{above:g} at {low:g} dB before {below:g} at {high:g} dB"
        refuse(low >= high or above < below, "link.table", "rising SINRs and falling error rates", actual)
    sinr_db, error = torch.tensor(rows, dtype=torch.float64).T.contiguous()
    return ErrorTable(sinr_db, error)


_LEAST_POINTS = 2
_MOST_DB = 300.0  # either way: a ratio of powers stays a number, in float32 too


def _numbers(line: int, row: list[str]) -> tuple[float, float]:
    """The SINR and the error rate of a row."""
    try:
        sinr_db, error = map(float, row)
    except ValueError:
        expected = f"a SINR [dB] and an error rate in line {line}"
        raise ScenarioError("link.table", expected, f"{','.join(row)!r:.60}") from None
    expected = f"at most {_MOST_DB:g} dB either way and an error rate from 0 to 1 in line {line}"
    refuse(not (abs(sinr_db) <= _MOST_DB and 0 <= error <= 1), "link.table", expected, f"{sinr_db:g} and {error:g}")
    return sinr_db, error


def waterfall_error(signal_watt: Tensor, disturbance_watt: Tensor, waterfall: float) -> Tensor:
    """Packet error rate of a signal against interference plus noise [W]; 1 where there is no signal."""
    sent = signal_watt > 0
    exponent = waterfall * disturbance_watt / torch.where(sent, signal_watt, 1.0)
    return torch.where(sent, -torch.expm1(-exponent), 1.0)


def error_prob(
    link: Radio, topology: Topology, power_watt: Tensor, fading: Tensor, dark: Tensor | None = None
) -> Tensor:
    """Packet error rates of all edges; a dark receiver loses every packet.

    power_watt and dark (..., device), fading (..., edge) → (..., edge).
    """
    receiver, sender = torch.from_numpy(topology.edge_receiver), torch.from_numpy(topology.edge_sender)
    receiver, sender = receiver.to(power_watt.device), sender.to(power_watt.device)
    received = power_watt[..., sender] * fading * link.path_gain
    total = torch.zeros_like(power_watt).index_add_(-1, receiver, received)
    interference = (total[..., receiver] - received).clamp_min(0)
    error = link.packet_error(received, interference + link.noise_watt[receiver])
    if link.half_duplex:
        error = torch.where(power_watt[..., receiver] > 0, 1.0, error)
    if dark is not None:
        error = torch.where(dark[..., receiver], 1.0, error)
    return error
