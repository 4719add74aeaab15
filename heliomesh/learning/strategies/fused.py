"""All layers of all devices in kernels of our own, with the SGD step in the backward pass; see `learning/cuda`."""

import importlib.util
import os

import torch
from torch import nn

from heliomesh.learning.cuda.fusion import fuse
from heliomesh.learning.precision import Precision, check_precision
from heliomesh.learning.stacked import Strategy, layout_of
from heliomesh.learning.stacked_graph import refuse, trace


def build(model: nn.Module, precision: Precision = "fp32", compiled: bool = True) -> Strategy:
    """The strategy for a model of dense layers, plain convolutions and GroupNorm; ``compiled`` captures graphs."""
    check_precision(precision)
    program = fuse(trace(model, "fused"))
    if importlib.util.find_spec("triton") is None:
        raise refuse("fused", "has no Triton to compile its kernels with")
    if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
        raise refuse("fused", "has no CUDA device to run them on")
    layout = layout_of(model)
    if layout.frozen:
        raise refuse("fused", f"has the frozen parameter {min(layout.frozen)!r}, which its kernels would move")
    from heliomesh.learning.cuda.graphs import Fused  # needs Triton

    return Fused(program, layout, precision, compiled)
