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

    def bytes_of(self, array: npt.ArrayLike, top: float) -> dict[str, Any]:
        """Numbers in 0 … ``top`` in steps of ``top / 255``."""
        return self._quantised(array, top, "u1")

    def words_of(self, array: npt.ArrayLike, top: float) -> dict[str, Any]:
        """Numbers in 0 … ``top`` in steps of ``top / 65535``."""
        return self._quantised(array, top, "u2")

    def floats_of(self, array: npt.ArrayLike) -> dict[str, Any]:
        """Any numbers, NaN included, to seven digits."""
        return self._stored(np.asarray(array, "<f4"), "f4", 1.0)

    def integers_of(self, array: npt.ArrayLike) -> dict[str, Any]:
        """Whole numbers below 2³²."""
        return self._stored(np.asarray(array).astype("<u4"), "u4", 1.0)

    def codes_of(self, array: npt.NDArray[np.uint8]) -> dict[str, Any]:
        """Bytes as they are."""
        return self._stored(array, "u1", 1.0)

    def bits_of(self, array: npt.NDArray[np.bool_]) -> dict[str, Any]:
        """Truth values, eight in a byte, the first in the lowest bit."""
        packed = np.packbits(array.ravel(), bitorder="little")
        return self._stored(packed, "bits", 1.0) | {"shape": list(array.shape)}

    def _quantised(self, array: npt.ArrayLike, top: float, kind: str) -> dict[str, Any]:
        largest = np.iinfo(kind).max
        scale = top / largest if top > 0 else 1.0
        raw = np.clip(np.rint(np.asarray(array, np.float64) / scale), 0, largest)
        return self._stored(raw.astype(f"<{kind}"), kind, scale)

    def _stored(self, array: npt.NDArray[Any], kind: str, scale: float) -> dict[str, Any]:
        content = np.ascontiguousarray(array).tobytes()
        index = self._index.setdefault(content, len(self.texts))
        if index == len(self.texts):
            self.texts.append(base64.b64encode(content).decode("ascii"))
        return {"kind": kind, "shape": list(array.shape), "scale": scale, "blob": index}


def estimated_characters(frames: int, devices: int, edges: int) -> float:
    """Size of what the player needs of one run: five bytes per device, a bit per edge, and sums."""
    return _BASE64 * frames * (5 * devices + edges / 8 + 6 * 4)
