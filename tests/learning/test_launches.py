"""Every launch of a Triton kernel gives it what its signature asks for; neither Triton nor a GPU is needed."""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from heliomesh.learning import cuda
from heliomesh.learning.cuda.fusion import fuse
from heliomesh.learning.stacked import Samples, flat_weights, layout_of
from heliomesh.learning.stacked_graph import trace
from heliomesh.tasks.model import build_model

ROWS, POSITIONS = 3, 2
KERNELS = ("convolution_kernels", "dense_kernels", "vector_kernels", "mixing")
# parameters that are neither tensors nor compiled in
NUMBERS = {
    *("images", "positions", "splits", "steps", "earlier", "inputs", "outputs", "length", "distance", "epsilon"),
    *("width", "weights_stride", "split_stride", "position_stride", "source_stride", "target_stride"),
}


class Kernel:
    """Takes a launch as a compiled kernel does, checks it, and computes nothing."""

    launched: set[str]

    def __init__(self, fn: Callable[..., None]) -> None:
        self.fn, self.signature = fn, inspect.signature(fn)
        self.arg_names = list(self.signature.parameters)

    def __getitem__(self, grid: tuple[int, int]) -> Callable[..., None]:
        assert len(grid) == 2
        assert all(type(number) is int and number > 0 for number in grid)

        def launch(*arguments: object, num_warps: int = 4, num_stages: int = 3, **named: object) -> None:
            assert {num_warps, num_stages} <= {1, 2, 3, 4, 8, 16}
            given = self.signature.bind(*arguments, **named).arguments
            assert list(given) == self.arg_names
            for name, value in given.items():
                if self.signature.parameters[name].annotation is not inspect.Parameter.empty:
                    assert isinstance(value, int | str), (self.fn.__name__, name)
                    assert not name.startswith("BLOCK") or value.bit_count() == 1, (self.fn.__name__, name)
                else:
                    kind = int | float if name in NUMBERS else torch.Tensor
                    assert isinstance(value, kind), (self.fn.__name__, name)
            Kernel.launched.add(self.fn.__name__)

        return launch


def _without_triton() -> dict[str, ModuleType]:
    """As much of Triton as the files need that are imported."""
    triton, language = ModuleType("triton"), ModuleType("triton.language")
    triton.jit = lambda fn=None, **options: Kernel(fn) if fn else Kernel  # type: ignore[attr-defined]
    triton.cdiv = lambda number, size: -(-number // size)  # type: ignore[attr-defined]
    triton.language, language.constexpr = language, "constexpr"  # type: ignore[attr-defined]
    return {"triton": triton, "triton.language": language}


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The files of `learning/cuda` by name, whose kernels only check what they are given."""
    Kernel.launched = set()
    monkeypatch.setattr("torch.cuda.device", lambda device: nullcontext())
    before = set(sys.modules)
    if importlib.util.find_spec("triton") is None:
        for name, module in _without_triton().items():
            monkeypatch.setitem(sys.modules, name, module)
    found = {name: importlib.import_module(f"{cuda.__name__}.{name}") for name in (*KERNELS, "graphs")}
    for name in KERNELS:
        for kernel, value in list(vars(found[name]).items()):
            if hasattr(value, "fn") and not isinstance(value, Kernel):
                monkeypatch.setattr(found[name], kernel, Kernel(value.fn))
    yield found
    for name in [name for name in sys.modules if name.startswith(f"{cuda.__name__}.") and name not in before]:
        delattr(cuda, name.rpartition(".")[2])
        del sys.modules[name]


def _wide() -> nn.Module:
    """Its layers are written once a slot."""
    layers = nn.Linear(300, 280), nn.ReLU(), nn.Linear(280, 270, bias=False), nn.ReLU(), nn.Linear(270, 10)
    return nn.Sequential(nn.Flatten(), *layers)


MODELS = {
    "mlp": lambda: (build_model("mlp", (1, 8, 8), 10, 0), (1, 8, 8)),
    "cnn": lambda: (build_model("cnn", (1, 28, 28), 10, 0), (1, 28, 28)),
    "resnet18": lambda: (build_model("resnet18", (3, 32, 32), 10, 0), (3, 32, 32)),
    "wide": lambda: (_wide(), (300,)),
}


def _train(graphs: Any, kind: str, precision: str) -> None:
    """Two steps of two devices, and an evaluation; numbers come out of memory that nobody has written."""
    model, shape = MODELS[kind]()
    strategy = graphs.Fused(fuse(trace(model, "fused")), layout_of(model), precision, compiled=False)
    samples = Samples(torch.zeros(40, *shape), torch.zeros(40, dtype=torch.int64))
    weights = flat_weights(model).repeat(ROWS, 1)
    rows, batches = torch.tensor([2, 0]), torch.arange(2 * POSITIONS * 32).view(POSITIONS, 2, 32) % 40
    assert strategy.train(weights, rows, batches, samples, 0.1).shape == (POSITIONS,)
    assert strategy.evaluate(weights, rows, samples).loss.shape == (POSITIONS,)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize("kind", MODELS)
def test_a_launch_gives_a_kernel_what_it_asks_for(files: dict[str, Any], kind: str, precision: str) -> None:
    _train(files["graphs"], kind, precision)
    expected = {"mlp": "linear_backward", "wide": "rank_update", "cnn": "spread_windows"}
    assert expected.get(kind, "group_norm_backward") in Kernel.launched


def test_every_kernel_is_launched(files: dict[str, Any]) -> None:
    for kind in MODELS:
        _train(files["graphs"], kind, "bf16")
    terms, stack = [np.zeros(4, np.int64)] * 4, torch.zeros(3, 50)
    mix = files["mixing"].kernel_mix(terms, np.zeros(4), stack, partial=True)
    mix(stack, stack, stack, np.arange(4))
    found = [value for name in KERNELS for value in vars(files[name]).values() if isinstance(value, Kernel)]
    called_by_kernels = {"_and_unless", "_within", "_place", "_over_groups", "_gated"}
    assert Kernel.launched == {kernel.fn.__name__ for kernel in found} - called_by_kernels
