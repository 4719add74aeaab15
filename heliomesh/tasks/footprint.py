"""What a scenario's model costs a device: bits of an update on air, operations of training on a sample.

Both are numbers of `[learning]` where it has them, and are counted from the model otherwise. A dataset that says its
SHAPE and CLASSES is not loaded for that.
"""

import math
from functools import lru_cache
from typing import Literal

import torch
from torch.utils.flop_counter import FlopCounterMode

from heliomesh.scenario import on_air
from heliomesh.scenario.schema import Learning
from heliomesh.tasks.dataset import find_dataset, load_dataset
from heliomesh.tasks.model import InputShape, build_model


def update_bits(learning: Learning) -> int:
    """Bits of one update on air, without headers."""
    if learning.update_bits is not None:
        return learning.update_bits
    return on_air.update_bits(_counted(learning)[0], learning.on_air, learning.top_k_share)


def sample_flop(learning: Learning) -> float:
    """Floating-point operations of training on one sample, forwards and backwards."""
    return learning.sample_flop or _counted(learning)[1]


def _counted(learning: Learning) -> tuple[int, float]:
    source = find_dataset(learning)
    shape, classes = getattr(source, "SHAPE", None), getattr(source, "CLASSES", None)
    if shape is None or classes is None:
        dataset = load_dataset(learning)
        shape, classes = dataset.input_shape, dataset.num_classes
    return _of_model(learning.model, shape, classes, learning.buffers)


_SAMPLES = 2  # some layers refuse a single one


@lru_cache
def _of_model(
    name: str, input_shape: InputShape, num_classes: int, buffers: Literal["refuse", "drop"]
) -> tuple[int, float]:
    """Parameters, and operations per sample: additions and multiplications of matrix products and convolutions."""
    model = build_model(name, input_shape, num_classes, 0, buffers)
    inputs = torch.zeros(_SAMPLES, *input_shape)
    with FlopCounterMode(display=False) as counter:
        torch.nn.functional.cross_entropy(model(inputs), torch.zeros(_SAMPLES, dtype=torch.long)).backward()  # type: ignore[no-untyped-call]
    parameters = sum(math.prod(parameter.shape) for parameter in model.parameters())
    return parameters, counter.get_total_flops() / _SAMPLES
