"""Find, build and check the model of a scenario: what cannot be averaged or replayed is refused with its reason."""

import functools
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Literal

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy

from heliomesh.common import catalog
from heliomesh.common.streams import stream
from heliomesh.scenario.errors import ScenarioError, refuse
from heliomesh.scenario.schema import variant

MODEL_CATALOG = "heliomesh.tasks.models"

InputShape = tuple[int, ...]  # (channel, height, width) of an image, or (feature,) of a vector
Factory = Callable[[InputShape, int], nn.Module]

_FIELD = "learning.model"
_AUTO = {(): "mlp", (8, 8): "mlp", (28, 28): "cnn", (32, 32): "resnet18"}  # by height and width; vectors have none
_PROBE_BATCH = 2


def build_model(
    name: str, input_shape: InputShape, num_classes: int, seed: int, buffers: Literal["refuse", "drop"] = "refuse"
) -> nn.Module:
    """The model that every device starts from, on the CPU; raises ScenarioError.

    ``name`` is "auto" (chosen by the input's size), a name of the catalog, or ``module:factory``, where
    ``factory(input_shape, num_classes)`` returns a module from (batch, *input_shape) to (batch, class). Its module is
    imported, which runs its code; the command line does so with --trust only.
    Parameters are drawn from ``stream(seed, "init")``; the global generator is left as it was.
    ``buffers = "drop"`` lets BatchNorm normalise each batch by itself, in evaluation too, instead of refusing it.
    """
    factory = _factory(name, input_shape)
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would reseed accelerators too
        torch.default_generator.manual_seed(int(stream(seed, "init").integers(2**63)))
        model = _called(factory, name, input_shape, num_classes, buffers)
        if ":" in name or any(is_lazy(parameter) for parameter in model.parameters()):
            _check(model, input_shape, num_classes)
        else:
            _check_once(factory, name, input_shape, num_classes, buffers)
    return model


@functools.cache
def _check_once(factory: Factory, name: str, input_shape: InputShape, num_classes: int, buffers: str) -> None:
    """Check a model of the catalog, which is the same for every seed: a stack of runs builds it many times."""
    _check(_called(factory, name, input_shape, num_classes, buffers), input_shape, num_classes)


def _refuse(wrong: object, expected: str, actual: str) -> None:
    refuse(wrong, _FIELD, expected, actual)


def _factory(name: str, input_shape: InputShape) -> Factory:
    known, size = catalog.names(MODEL_CATALOG), input_shape[1:]
    if name == "auto":
        wanted = f"one of {', '.join(known)} or module:factory for inputs of {'×'.join(map(str, size))}"
        _refuse(size not in _AUTO, f"{wanted}, which 'auto' has no model for", "value 'auto'")
        name = _AUTO[size]
    wrong, hint = name not in known and ":" not in name, catalog.nearest(name, known)
    _refuse(wrong, f"auto, {', '.join(known)} or module:factory", f"value {name!r}{hint}")
    factory = catalog.function(variant(MODEL_CATALOG, name, _FIELD), "build")
    _refuse(not callable(factory), "a function or class", f"value {name!r} names {_kind(factory)}")
    return factory  # type: ignore[no-any-return]


def is_perceptron(name: str, input_shape: InputShape | None) -> bool:
    """Whether a scenario's model is `mlp`, by its name or by the shape of inputs; None: a shape that is not known."""
    if name != "auto" or input_shape is None:
        return name == "mlp"
    return _AUTO.get(input_shape[1:]) == "mlp"


def _called(factory: Factory, name: str, input_shape: InputShape, num_classes: int, buffers: str) -> nn.Module:
    try:
        model = factory(input_shape, num_classes)
    except Exception as error:  # the user's code, or a shape too small for the layers
        wanted = f"a model for inputs {list(input_shape)} and {num_classes} classes"
        raise ScenarioError(_FIELD, wanted, f"value {name!r} raised {type(error).__name__}: {error}") from error
    _refuse(not isinstance(model, nn.Module), f"a torch.nn.Module from {name!r}", f"value {_kind(model)}")
    for layer in model.modules() if buffers == "drop" else ():
        if isinstance(layer, _NormBase):  # it uses the statistics of the batch at hand from now on, always
            layer.track_running_stats = False
            layer.running_mean = layer.running_var = layer.num_batches_tracked = None
    return model


def _kind(value: object) -> str:
    return "nothing" if value is None else f"an object of type {type(value).__name__}"


def _check(model: nn.Module, input_shape: InputShape, num_classes: int) -> None:
    """Refuse what stacked training cannot represent; tries the model on a batch of two."""
    kept = {name: buffer.clone() for name, buffer in model.named_buffers() if not is_lazy(buffer)}
    _probe(model.train(), input_shape, num_classes)  # lazy layers and caches are there from now on
    _check_buffers(model, kept)
    _check_parameters(model)
    for mode in (model.eval, model.train):
        first = _probe(mode(), input_shape, num_classes)
        generator = torch.default_generator.get_state()
        second = _probe(model, input_shape, num_classes)
        _check_repeatable(model, first.equal(second) and generator.equal(torch.default_generator.get_state()))
    _check_buffers(model, kept)


def _probe(model: nn.Module, input_shape: InputShape, num_classes: int) -> torch.Tensor:
    """The output for a fixed batch, checked to be (batch, class)."""
    batch = torch.linspace(-1, 1, _PROBE_BATCH * math.prod(input_shape))
    try:
        with torch.no_grad():
            output = model(batch.reshape(_PROBE_BATCH, *input_shape))
    except Exception as error:  # the user's code may raise anything
        wanted = f"a model that takes inputs {[_PROBE_BATCH, *input_shape]} (batch, …)"
        raise ScenarioError(_FIELD, wanted, f"result {type(error).__name__}: {error}") from error
    actual = list(output.shape) if isinstance(output, torch.Tensor) else _kind(output)
    shape = [_PROBE_BATCH, num_classes]
    _refuse(actual != shape, f"outputs of shape {shape} (batch, class)", f"result {actual}")
    return output  # type: ignore[no-any-return]


def _check_buffers(model: nn.Module, kept: dict[str, torch.Tensor]) -> None:
    buffers = model.named_buffers()
    changed = [repr(name) for name, buffer in buffers if name not in kept or not buffer.equal(kept[name])]
    reason = "averaging weights does not average running statistics"
    remedy = "use GroupNorm, or learning.buffers = 'drop' for BatchNorm without them"
    expected = f"a model without state besides its parameters, because {reason} ({remedy})"
    _refuse(changed, expected, f"value changes {', '.join(changed[:1])} in training")


def _check_parameters(model: nn.Module) -> None:
    kinds = {parameter.dtype for parameter in model.parameters()}
    actual = ", ".join(sorted(map(str, kinds))) or "no parameters"
    _refuse(kinds != {torch.float32}, "a model with parameters of type float32", f"value has {actual}")
    trains = any(parameter.requires_grad for parameter in model.parameters())
    _refuse(not trains, "a model with parameters to train", "value has frozen ones only")
    # rows hold every parameter once: two that share memory would come apart
    named = model.named_parameters()
    spans = sorted((value.data_ptr(), value.data_ptr() + value.nbytes, name) for name, value in named)
    for (_, end, name), (start, _, other) in pairwise(spans):
        expected = "parameters with memory of their own (to share one, assign the Parameter itself, not its data)"
        _refuse(start < end, expected, f"value has {name!r} and {other!r} in the same memory")


def _check_repeatable(model: nn.Module, repeats: bool) -> None:
    """Random layers draw from one global generator: who draws what would depend on how devices are stacked."""
    dropout = [name for name, layer in model.named_modules() if isinstance(layer, _DropoutNd) and layer.p > 0]
    reason = "a device's draws would depend on which devices train beside it (leave dropout out or set p = 0)"
    expected = f"a model without randomness or memory in its forward pass, because {reason}"
    _refuse(dropout or not repeats, expected, f"value is random{f' in {dropout[0]!r}' if dropout else ''}")
