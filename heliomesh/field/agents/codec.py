"""A model's packet as bytes, in the format of `learning.on_air`: as many as `heliomesh/scenario/on_air.py` counts.

    float32   P numbers of 4 bytes
    float16   P numbers of 2 bytes
    int8      P levels of 1 byte, then a scale of 4 bytes for each block of 256
    top-k     k numbers of 4 bytes, then where they belong: k indices of ⌈log2 P⌉ bits, or one bit a parameter

All numbers are little-endian. What is decoded is bit for bit what the simulator's receivers get.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heliomesh.field.fleet.messages import Packet
from heliomesh.scenario.on_air import BLOCK, Format, num_sent, update_bits

Bytes = npt.NDArray[np.uint8]
_MOST = 1e6  # a weight or scale: averages and losses of larger ones leave float32


@dataclass(frozen=True)
class Codec:
    """How all devices of a network write and read packets."""

    num_parameters: int  # P
    on_air: Format = "float32"
    top_k_share: float = 0.1

    @property
    def num_bytes(self) -> int:
        """Of every packet."""
        return -(-update_bits(self.num_parameters, self.on_air, self.top_k_share) // 8)

    def encoded(self, packet: Packet) -> bytes:
        """What is sent of a packet."""
        row = packet.row.numpy()
        match self.on_air:
            case "float32":
                return row.astype("<f4").tobytes()
            case "float16":
                return row.astype("<f2").tobytes()
            case "int8":
                if packet.scale is None:
                    raise ValueError("scale: expected the blocks' scales, which int8 needs, actual: none")
                scale = packet.scale.numpy()
                levels = np.rint(row / self._by_parameter(scale)).astype(np.int8)
                return levels.tobytes() + scale.astype("<f4").tobytes()
            case "top-k":
                chosen = np.flatnonzero(~np.isnan(row))
                return row[chosen].astype("<f4").tobytes() + self._place_bytes(chosen)

    def decoded(self, content: bytes) -> Tensor:
        """What receivers get; (parameter,), NaN where an entry was not sent.

        Raises ValueError for bytes that no healthy device sends.
        """
        if len(content) != self.num_bytes:
            raise ValueError(f"{len(content)} bytes where a model takes {self.num_bytes}")
        match self.on_air:
            case "float32":
                row = _sound(np.frombuffer(content, "<f4"))
            case "float16":
                row = _sound(np.frombuffer(content, "<f2"))
            case "int8":
                scale = _sound(np.frombuffer(content, "<f4", offset=self.num_parameters))
                levels = np.frombuffer(content, np.int8, self.num_parameters)
                row = levels.astype(np.float32) * self._by_parameter(scale)
            case "top-k":
                row = self._from_top_k(content)
        return torch.from_numpy(row.astype(np.float32))

    def _by_parameter(self, scale: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return np.repeat(scale, BLOCK)[: self.num_parameters]

    def _from_top_k(self, content: bytes) -> npt.NDArray[np.float32]:
        count = num_sent(self.num_parameters, self.top_k_share)
        values = _sound(np.frombuffer(content, "<f4", count))
        chosen = self._places(np.frombuffer(content, np.uint8, offset=4 * count), count)
        if len(chosen) != count or chosen[-1] >= self.num_parameters or bool((np.diff(chosen) <= 0).any()):
            raise ValueError(f"entries that are not {count} different ones of {self.num_parameters}")
        row = np.full(self.num_parameters, np.nan, dtype=np.float32)
        row[chosen] = values
        return row

    @property
    def _index_bits(self) -> int:
        return (self.num_parameters - 1).bit_length()

    @property
    def _as_map(self) -> bool:
        """Whether one bit a parameter takes fewer bits than indices do."""
        return self.num_parameters <= num_sent(self.num_parameters, self.top_k_share) * self._index_bits

    def _place_bytes(self, chosen: npt.NDArray[np.int64]) -> bytes:
        if self._as_map:
            return np.packbits(np.isin(np.arange(self.num_parameters), chosen)).tobytes()
        shift = np.arange(self._index_bits)[::-1]
        return np.packbits((chosen[:, None] >> shift & 1).astype(np.uint8)).tobytes()

    def _places(self, packed: Bytes, count: int) -> npt.NDArray[np.int64]:
        """Numbers of the entries that were sent."""
        if self._as_map:
            return np.flatnonzero(np.unpackbits(packed)).astype(np.int64)
        bits = np.unpackbits(packed, count=count * self._index_bits).reshape(count, self._index_bits)
        return bits.astype(np.int64) @ (1 << np.arange(self._index_bits)[::-1])


def _sound(numbers: npt.NDArray[np.floating]) -> npt.NDArray[np.float32]:
    found = numbers.astype(np.float32)
    if not bool(np.isfinite(found).all()):
        raise ValueError("NaN or infinity among its weights")
    if bool((np.abs(found) > _MOST).any()):
        raise ValueError(f"a number above {_MOST:g} among its weights")
    return found
