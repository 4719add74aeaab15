"""Arrays as a page carries them: base64 of little-endian typed arrays, equal contents stored once.

A battery needs no more than a byte, since nobody sees a 255th of its capacity; accuracies get two bytes, sums floats
of four. The page reads ``value = raw · scale``.
"""

import base64
from typing import Any

import numpy as np
import numpy.typing as npt

_BASE64 = 4 / 3  # characters per byte


class Blobs:
    """The stored contents, and what refers to them."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._index: dict[bytes, int] = {}

    def steps_of(self, array: npt.ArrayLike, top: float, kind: str = "u1") -> dict[str, Any]:
        """Numbers in 0 … ``top``, in 255 steps or, of kind ``u2``, in 65535."""
        largest = np.iinfo(kind).max
        scale = top / largest if top > 0 else 1.0
        raw = np.clip(np.rint(np.asarray(array, np.float64) / scale), 0, largest)
        return self._stored(raw.astype(f"<{kind}"), kind, scale)

    def numbers_of(self, array: npt.ArrayLike, kind: str = "f4") -> dict[str, Any]:
        """Any numbers to seven digits, NaN included; of kind ``u4`` whole ones below 2³², of ``u1`` below 2⁸."""
        return self._stored(np.asarray(array).astype(f"<{kind}"), kind, 1.0)

    def bits_of(self, array: npt.NDArray[np.bool_]) -> dict[str, Any]:
        """Truth values, eight in a byte, the first in the lowest bit."""
        packed = np.packbits(array.ravel(), bitorder="little")
        return self._stored(packed, "bits", 1.0) | {"shape": list(array.shape)}

    def _stored(self, array: npt.NDArray[Any], kind: str, scale: float) -> dict[str, Any]:
        content = np.ascontiguousarray(array).tobytes()
        index = self._index.setdefault(content, len(self.texts))
        if index == len(self.texts):
            self.texts.append(base64.b64encode(content).decode("ascii"))
        return {"kind": kind, "shape": list(array.shape), "scale": scale, "blob": index}


def estimated_characters(frames: int, devices: int, edges: int) -> float:
    """Size of what the player needs of one run: five bytes per device, a bit per edge, and sums."""
    return _BASE64 * frames * (5 * devices + edges / 8 + 6 * 4)
