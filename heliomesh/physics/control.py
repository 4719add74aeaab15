"""What messages cost: time on air t = 8 (bytes + header · messages) / rate, sent or listened to at the radio's power.

Joules are those drawn from storage, converter included. Listening comes on top of `energy.listen_second`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from heliomesh.physics.storage import Consumption
from heliomesh.scenario.schema import Energy
from heliomesh.scenario.section import per_device

_HEADER_BYTE = 12.0  # preamble, address and check sum: 10 bytes by Bluetooth LE, 14 by LoRa at SF7


@dataclass(frozen=True)
class Control:
    """The radio while it talks."""

    bit_per_second: float
    header_byte: float  # of every message
    send_watt: Tensor  # (device,) drawn from storage while sending
    listen_watt: Tensor  # (device,) drawn while listening to a neighbour's message

    def second(self, num_bytes: Tensor, messages: Tensor) -> Tensor:
        """Time of messages on air [s]; (..., device)."""
        return 8 * (num_bytes + self.header_byte * messages) / self.bit_per_second


def build_control(energy: Energy, consumption: Consumption) -> Control:
    """The scenario's radio, with what the converter and a device's own factor add."""
    factor, header = consumption.factor, energy.control_header_byte

    def drawn(watt: Tensor) -> Tensor:
        return watt * consumption.converter.per_joule(watt) * factor

    receive = torch.tensor(per_device(energy.receive_watt, len(factor)), dtype=torch.float64, device=factor.device)
    return Control(
        bit_per_second=energy.control_bit_per_second,
        header_byte=_HEADER_BYTE if header is None else header,
        send_watt=drawn(torch.full_like(factor, energy.control_watt)),
        listen_watt=drawn(receive),
    )
