"""Arithmetic of local steps: IEEE float32, TF32 products, or bfloat16 with float32 weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch
from torch import Tensor

from heliomesh.scenario.errors import refuse

Precision = Literal["fp32", "tf32", "bf16"]


def check_precision(precision: str) -> None:
    """Refuse an unknown precision."""
    known = get_args(Precision)
    refuse(precision not in known, "learning.precision", f"one of {', '.join(known)}", f"value {precision!r}")


def activation_type(precision: Precision, weights: torch.dtype = torch.float32) -> torch.dtype:
    """Type of activations and of the copies of weights they are multiplied with: the weights' own, or bfloat16."""
    return torch.bfloat16 if precision == "bf16" else weights


def widened(logits: Tensor) -> Tensor:
    """Logits as losses are computed from them: at least float32."""
    return logits.float() if logits.dtype is torch.bfloat16 else logits


@contextmanager
def arithmetic(precision: Precision, device: torch.device) -> Iterator[None]:
    """Let products of float32 be IEEE, or TF32 if that is the precision; PyTorch's own settings come back after it.

    They are left alone on a CPU, where float32 is IEEE anyway.
    """
    if device.type != "cuda":
        yield
        return
    matmul, convolution = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = convolution
