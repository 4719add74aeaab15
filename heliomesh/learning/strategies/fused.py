"""All layers of all devices in kernels of our own, with the SGD step in the backward pass; see `learning/cuda`."""

import importlib.util
import os

import torch
from torch import nn

from heliomesh.learning.cuda.fusion import fuse
from heliomesh.learning.precision import Precision, check_precision
from heliomesh.learning.stacked import Strategy, layout_of
from heliomesh.learning.stacked_graph import FIELD, refuse, trace
from heliomesh.scenario.errors import ScenarioError


def build(model: nn.Module, precision: Precision = "fp32", compiled: bool = True) -> Strategy:
    """The strategy for a model of dense layers, plain convolutions and GroupNorm; ``compiled`` captures graphs."""
    check_precision(precision)
    program = fuse(trace(model, "fused"))
    if importlib.util.find_spec("triton") is None:
        raise ScenarioError(FIELD, "Triton is not installed, and 'fused' needs it. Choose another strategy.")
    if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
        raise ScenarioError(FIELD, "This machine has no CUDA device, and 'fused' needs one. Choose another strategy.")
    layout = layout_of(model)
    if layout.frozen:
        raise refuse("fused", f"has the frozen parameter {min(layout.frozen)!r}, which its kernels would move")
    from heliomesh.learning.cuda.graphs import Fused  # needs Triton

    return Fused(program, layout, precision, compiled)
