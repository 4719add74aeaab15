"""Estimates before allocations: a table that does not fit is refused with its size, the limit and the remedies."""

import math
from collections.abc import Iterable

from heliomesh.common.mistakes import MistakeError

DEFAULT_LIMIT_GIB = 6.0


class TooLargeError(MistakeError, ValueError):
    """A plan would not fit into the memory allowed; the message says how large it is and what to change."""


def entries(sizes: Iterable[int]) -> int:
    """Number of entries of a table with these axes; exact, of any size."""
    return math.prod(sizes)


def at_most_a_float(count: int) -> float:
    """A count as a float; 1e290 stands for all that are larger, so that products with few bytes stay finite."""
    return float(min(count, 10**290))


def readable(num_bytes: float) -> str:
    """Bytes in binary units."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.3g} PiB"


def check_fits(what: str, num_bytes: float, limit_gib: float, remedy: str) -> None:
    """Refuse an allocation above the limit."""
    expected = f"at most {limit_gib:g} GiB (memory_gib)"
    TooLargeError.when(num_bytes > limit_gib * 2**30, what, expected, f"estimate {readable(num_bytes)}; {remedy}")
