"""Averaging with neighbours in one kernel: every program mixes one block of parameters of one row.

Only import this module where Triton is installed.
"""

# mypy: allow-untyped-decorators, allow-untyped-calls

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl

_BLOCK = 1024  # parameters of one program
LARGEST_WIDTH = 65_535 * _BLOCK  # parameters; the second axis of a grid is no longer

Indices = npt.NDArray[np.int64]


def kernel_mix(
    indices: Sequence[Indices], coefficient: npt.NDArray[np.float64], like: torch.Tensor, partial: bool
) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Indices], None]:
    """The `Mix` of `aggregation.py` on the device of ``like``; indices are the terms' rows, start, sender, anchor.

    With ``partial``, entries that are NaN were not sent, and their terms are zero.
    """
    device = like.device
    terms = [torch.from_numpy(array).to(device) for array in indices]
    terms.append(torch.from_numpy(coefficient).to(device, like.dtype))

    def mix(after: torch.Tensor, reference: torch.Tensor, target: torch.Tensor, landing: Indices) -> None:
        width, places = target.shape[1], torch.from_numpy(landing).to(device)
        strides = after.stride(0), target.stride(0)
        with torch.cuda.device(device):
            _mix_block[len(indices[0]), triton.cdiv(width, _BLOCK)](
                after, reference, target, places, *terms, *strides, width, BLOCK=_BLOCK, PARTIAL=partial
            )

    return mix


# Triton compiles annotations too, so this function has only the one that Triton asks for.
@triton.jit
def _mix_block(  # type: ignore[no-untyped-def]
    after,
    reference,
    target,
    landing,
    rows,
    start,
    sender,
    anchor,
    coefficient,
    source_stride,
    target_stride,
    width,
    BLOCK: tl.constexpr,
    PARTIAL: tl.constexpr,
):
    """One block of parameters of one mixed row; rows are the fast axis, so neighbours' blocks stay in the cache."""
    index = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    mixed = tl.load(reference + tl.load(rows + index) * source_stride + column, mask=inside)
    for term in range(tl.load(start + index), tl.load(start + index + 1)):
        sent = tl.load(after + tl.load(sender + term) * source_stride + column, mask=inside)
        held = tl.load(reference + tl.load(anchor + term) * source_stride + column, mask=inside)
        if PARTIAL:
            sent = tl.where(sent == sent, sent, held)  # only NaN differs from itself
        mixed += tl.load(coefficient + term) * (sent - held)
    tl.store(target + tl.load(landing + index) * target_stride + column, mixed, mask=inside)
