"""Recursions around a cycle of slots: values and laws after which the next cycle changes nothing.

Let L map the values after the last slot of a cycle to those before its first. Values v have settled once L v differs
from v by a constant: that constant is the cost of a cycle, whatever follows later (relative value iteration). Laws
have settled once a cycle leads back to them. A chain that moves in step, such as a battery that sends in every third
slot, never settles by itself; then each round goes half of its way only, which has the same fixed points.
"""

from collections.abc import Callable

import torch
from torch import Tensor

_MOST_SLOTS = 20_000  # through which a recursion goes at most
_FEWEST_ROUNDS = 10
_WHOLE_ROUNDS = 40  # before they go half of their way
VALUE_TOLERANCE = 1e-7  # by which the rise of a row may vary
_LAW_TOLERANCE = 1e-9  # sum of a law's changes
_ROUNDING = 16  # last bits by which either may vary in any case: float32 comes no closer


def most_rounds(slots: int) -> int:
    """Rounds of a cycle of so many slots after which a recursion stops, settled or not."""
    return max(_MOST_SLOTS // slots, _FEWEST_ROUNDS)


def settle_values(
    around: Callable[[Tensor], Tensor], value: Tensor, slots: int, tolerance: float = VALUE_TOLERANCE
) -> tuple[bool, Tensor]:
    """Apply ``around`` until it raises every row (..., state) by a constant of its own.

    Returns whether it came to that, and the best least rise (...,) met on the way. Let a cycle raise any numbers by
    at least l. Then every further cycle does, so each cycle costs l at least in the long run.
    """
    best = torch.full_like(value[..., 0], -torch.inf)
    for number in range(most_rounds(slots)):
        after = around(value)
        rise = after - value
        best = torch.maximum(best, rise.amin(-1))
        rounding = _ROUNDING * torch.finfo(after.dtype).eps * float(after.abs().max())
        if float((rise.amax(-1) - rise.amin(-1)).max()) <= max(tolerance, rounding):
            return True, best
        value = after if number < _WHOLE_ROUNDS else (value + after) / 2
        value = value - value.amin(-1, keepdim=True)
    return False, best


def settle_laws(around: Callable[[Tensor], Tensor], law: Tensor, slots: int) -> None:
    """Apply ``around`` until laws (..., state) come back."""
    tolerance = max(_LAW_TOLERANCE, _ROUNDING * torch.finfo(law.dtype).eps)
    for number in range(most_rounds(slots)):
        after = around(law)
        if float((after - law).abs().sum(-1).max()) <= tolerance:
            return
        law = after if number < _WHOLE_ROUNDS else (law + after) / 2
