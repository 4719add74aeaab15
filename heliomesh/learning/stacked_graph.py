"""A network as a list of layers, so that a strategy may execute each layer for all devices at once.

`trace` turns a module into instructions. Three kinds of layers have parameters: `Dense`, `Convolution`, `GroupNorm`.
Everything else must treat samples one by one (`PerSample`), and then runs unchanged on the devices' batches folded
into one: activations are (row · batch, …) in whichever order the strategy folds. What cannot be expressed so is
refused with the reason.
"""

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from heliomesh.scenario.errors import ScenarioError

FIELD = "learning.strategy"


@dataclass(frozen=True)
class Dense:
    """y = x wᵀ + b; parameters by name."""

    weight: str
    bias: str | None


@dataclass(frozen=True)
class Convolution:
    """A two-dimensional convolution with zero padding."""

    weight: str
    bias: str | None
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int


@dataclass(frozen=True)
class GroupNorm:
    """Normalisation over groups of channels, then scale and shift by channel (None: neither)."""

    weight: str | None
    bias: str | None
    groups: int
    channels: int
    epsilon: float


@dataclass(frozen=True)
class PerSample:
    """A function without parameters of one or more activations; ``kind`` names those that may be fused."""

    call: Callable[..., Tensor]
    kind: str = ""
    window: int = 0  # of a pooling without overlap


@dataclass(frozen=True)
class FusedPool:
    """max(0, ·) and maximum over windows without overlap."""

    window: int


Operation = Dense | Convolution | GroupNorm | PerSample


@dataclass(frozen=True)
class Instruction:
    """``output`` = operation(inputs); names of activations."""

    output: str
    operation: Any
    inputs: tuple[str, ...]

    def is_kind(self, kind: str | type) -> bool:
        """Whether it executes an operation of this type, or a function without parameters of this kind."""
        if isinstance(kind, type):
            return isinstance(self.operation, kind)
        return isinstance(self.operation, PerSample) and self.operation.kind == kind


Merged = tuple[Any, tuple[str, ...], tuple[Instruction, ...]]  # an operation, its inputs, and what it has taken in
Executors = Mapping[Any, Callable[..., Tensor]]  # by type of operation: f(operation, activations…)


@dataclass(frozen=True)
class Program:
    """Instructions in order; from the activation ``source`` to the activation ``result``."""

    source: str
    instructions: tuple[Instruction, ...]
    result: str

    def run(self, layers: Executors, inputs: Tensor) -> Tensor:
        """Outputs for inputs (row · batch, …); ``layers`` executes the operations with parameters."""
        last_use = {name: index for index, step in enumerate(self.instructions) for name in step.inputs}
        held = {self.source: inputs}
        for index, step in enumerate(self.instructions):
            arguments = [held[name] for name in step.inputs]
            for name in step.inputs:
                if last_use[name] == index and name != self.result:
                    held.pop(name, None)  # memory of the forward pass ends here
            execute = layers.get(type(step.operation))
            held[step.output] = execute(step.operation, *arguments) if execute else step.operation.call(*arguments)
        return held[self.result]

    def only_producer(self, name: str, kind: str | type) -> Instruction | None:
        """The instruction of a kind that makes an activation which one other instruction uses."""
        uses = sum(step.inputs.count(name) for step in self.instructions) + (name == self.result)
        makers = [step for step in self.instructions if step.output == name and step.is_kind(kind)]
        return makers[0] if makers and uses == 1 else None

    def merged(self, rule: Callable[["Program", Instruction], Merged | None]) -> "Program":
        """The program with instructions merged with those before them, each in turn, as a rule has it."""
        program = self
        for step in self.instructions:
            found = rule(program, step)
            if found is not None:
                operation, inputs, taken = found
                new = replace(step, operation=operation, inputs=inputs)
                left = tuple(new if one is step else one for one in program.instructions if one not in taken)
                program = replace(program, instructions=left)
        return program


def refuse(strategy: str, reason: str) -> ScenarioError:
    """The error with which a strategy declines a model or an option."""
    return ScenarioError(FIELD, f"expected a model and options that {strategy!r} can execute, actual value {reason}")


def refuse_repeated_layers(program: Program, strategy: str) -> None:
    """For a strategy that moves a layer's weights as soon as it knows their gradient."""
    owners = _weights(program.instructions)
    if len(set(owners)) < len(owners):
        raise refuse(strategy, "uses a layer twice, whose weights would move between its two gradients")


def with_fused_pools(program: Program) -> Program:
    """The program with every ReLU before a pooling without overlap merged into it."""

    def rule(program: Program, pool: Instruction) -> Merged | None:
        known = pool.is_kind("max_pool") and pool.operation.window
        relu = program.only_producer(pool.inputs[0], "relu") if known else None
        return None if relu is None else (FusedPool(pool.operation.window), relu.inputs, (relu,))

    return program.merged(rule)


# Modules and functions that treat samples one by one, whatever their arguments.
_RECTIFIERS = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus)
_BOUNDED = (nn.Tanh, nn.Sigmoid, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid)
_SPATIAL = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.ZeroPad2d)
_MODULES = (*_RECTIFIERS, *_BOUNDED, *_SPATIAL, nn.Identity)
_SUMS = (torch.add, torch.mul, torch.sub, operator.add, operator.iadd, operator.mul, operator.sub, operator.neg)
_ACTIVATIONS = (functional.relu, functional.gelu, functional.silu, functional.leaky_relu, functional.elu)
_SIGMOIDS = (functional.tanh, functional.sigmoid, torch.tanh, torch.sigmoid)
_POOLINGS = (functional.max_pool2d, functional.avg_pool2d, functional.adaptive_avg_pool2d)
_FUNCTIONS = frozenset((*_SUMS, *_ACTIVATIONS, *_SIGMOIDS, *_POOLINGS, torch.relu))
_METHODS = ("relu", "tanh", "sigmoid", "add", "mul", "sub")
_ADDITIONS = (torch.add, operator.add, operator.iadd, "add")


def trace(model: nn.Module, strategy: str) -> Program:
    """The model's program; raises ScenarioError in the name of ``strategy``."""
    modes = {module: module.training for module in model.modules()}
    try:
        evaluated = fx.symbolic_trace(model.eval())
        graph = fx.symbolic_trace(model.train())
    except Exception as error:  # tracing runs the user's code, which may raise anything
        raise refuse(strategy, f"cannot be traced: {error}") from error
    finally:
        for module, training in modes.items():
            module.training = training
    if graph.code != evaluated.code:
        raise refuse(strategy, "computes otherwise in evaluation than in training")
    source, result, steps = "", "", []
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            if source:
                raise refuse(strategy, f"has a second input {node.name!r}")
            source = node.name
        elif node.op == "output":
            if not isinstance(node.args[0], fx.Node):
                raise refuse(strategy, "returns something other than one tensor")
            result = node.args[0].name
        else:
            steps.append(_instruction(node, dict(graph.named_modules()), strategy))
    known = dict(model.named_parameters())
    for name in _weights(steps):
        if name not in known:  # what two layers share has the name of the first only, and rows hold it once
            raise refuse(strategy, f"shares the parameter {name!r} between layers")
    return Program(source, tuple(steps), result)


def _weights(steps: Iterable[Instruction]) -> list[str]:
    """Names of the layers' weights."""
    names = [getattr(step.operation, "weight", None) for step in steps]
    return [name for name in names if name is not None]


def _instruction(node: fx.Node, modules: Mapping[str, nn.Module], strategy: str) -> Instruction:
    inputs = tuple(argument.name for argument in node.all_input_nodes)
    if node.op == "call_module":
        layer = modules[str(node.target)]
        return Instruction(node.name, _layer(layer, f"{node.target}.", strategy), inputs)
    if node.op == "get_attr":
        raise refuse(strategy, f"uses {node.target!r} outside a layer")
    known = _FUNCTIONS if node.op == "call_function" else _METHODS
    if node.target not in known and not _flattens_samples(node):
        name = getattr(node.target, "__name__", node.target)
        raise refuse(strategy, f"calls {name!r}, which is not known to treat samples one by one")
    return Instruction(node.name, _function(node), inputs)


def _layer(layer: nn.Module, prefix: str, strategy: str) -> Operation:
    """The operation of a module whose parameters' names start with ``prefix``."""

    def name(parameter: str) -> str | None:
        return None if getattr(layer, parameter) is None else prefix + parameter

    match layer:
        case nn.Linear():
            return Dense(prefix + "weight", name("bias"))
        case nn.Conv2d() if layer.padding_mode == "zeros" and not isinstance(layer.padding, str):
            kernel, stride = _pair(layer.kernel_size), _pair(layer.stride)
            padding, dilation = _pair(layer.padding), _pair(layer.dilation)
            return Convolution(prefix + "weight", name("bias"), kernel, stride, padding, dilation, layer.groups)
        case nn.GroupNorm():
            return GroupNorm(name("weight"), name("bias"), layer.num_groups, layer.num_channels, layer.eps)
        case nn.ReLU():
            return PerSample(functional.relu, "relu")
        case nn.MaxPool2d():
            return PerSample(layer, "max_pool", _window(layer))
        case nn.Flatten(start_dim=1, end_dim=-1):
            return PerSample(layer, "flatten")
        case nn.Flatten(start_dim=1) | nn.Dropout(p=0.0):
            return PerSample(layer)
    if isinstance(layer, _MODULES):
        return PerSample(layer)
    raise refuse(strategy, f"has the layer {prefix[:-1]!r} of type {type(layer).__name__}")


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _window(pool: nn.MaxPool2d) -> int:
    """The side of square windows without overlap, padding or a partial window; 0 for all others."""
    side, stride = _pair(pool.kernel_size), _pair(pool.stride)
    plain = pool.padding == 0 and pool.dilation == 1 and not pool.ceil_mode and not pool.return_indices
    return side[0] if plain and side == stride and side[0] == side[1] else 0


def _flattens_samples(node: fx.Node) -> bool:
    """Whether the node is ``flatten(x, 1)``, written in one of PyTorch's ways."""
    if node.target not in (torch.flatten, "flatten"):
        return False
    return bool((node.args[1] if len(node.args) > 1 else node.kwargs.get("start_dim", 0)) == 1)


def _function(node: fx.Node) -> PerSample:
    """A call with its constants in place, as a function of its tensors."""
    order = {argument: index for index, argument in enumerate(node.all_input_nodes)}
    target = operator.add if node.target is operator.iadd else node.target  # others may still need the operand

    def call(*tensors: Tensor) -> Tensor:
        arguments = fx.map_arg(node.args, lambda argument: tensors[order[argument]])
        options = fx.map_arg(node.kwargs, lambda argument: tensors[order[argument]])
        if isinstance(target, str):
            return getattr(arguments[0], target)(*arguments[1:], **options)  # type: ignore[no-any-return]
        return target(*arguments, **options)  # type: ignore[no-any-return]

    if node.target in (torch.relu, functional.relu, "relu"):
        return PerSample(functional.relu, "relu")
    if node.target in (torch.flatten, "flatten"):
        return PerSample(call, "flatten")
    adds = node.target in _ADDITIONS and len(node.args) == 2 == len(order) and not node.kwargs
    return PerSample(call, "add" if adds else "")
