"""Theorem 1 on a real run: estimates of the constants that it assumes, and its six terms beside the trivial bound G².

Every estimate is the largest over the visited points, here the first model and the final average w̄, and over devices
(at most 32, evenly spaced). So they are lower estimates of the suprema in the paper's assumptions:

- L: the largest absolute eigenvalue of the Hessian of F_i on at most 128 samples, by ten power iterations;
- σ_l²: the mean of ‖∇f_i(w; ξ) − ∇F_i(w)‖² over the first eight minibatches ξ of the device's walk;
- σ_g²: ‖∇F_i(w) − ∇F(w)‖² with ∇F the mean of the devices' ∇F_i;
- G²: the mean of ‖∇f_i(w; ξ)‖² over the same minibatches;
- F(w̄_1) − F(w*): F(w̄_1), since no loss is negative.

∇F_i is taken on at most 1,024 of the device's samples, evenly spaced.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.autograd.functional import vhp
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from heliomesh.common.arguments import checked
from heliomesh.common.streams import stream
from heliomesh.learning.minibatch import Minibatches
from heliomesh.learning.run import Run
from heliomesh.learning.settings import TrainJob
from heliomesh.learning.stacked import flat_weights, layout_of
from heliomesh.model.problem import build
from heliomesh.scenario.scenario import Scenario
from heliomesh.simulation.diagnostics import LearningConstants, theorem1_cost, theorem1_terms
from heliomesh.simulation.trace import Trace, TraceError
from heliomesh.tasks.dataset import Dataset, given_or_loaded
from heliomesh.tasks.model import build_model
from heliomesh.tasks.partition import Partition, split

_MOST_DEVICES = 32
_GRADIENT_SAMPLES = 1024
_HESSIAN_SAMPLES = 128
_POWER_ITERATIONS = 10
_MINIBATCHES = 8
_TINY = 1e-30  # instead of zero, where a loss is flat

Indices = npt.NDArray[np.int64]
Loss = Callable[[Tensor, Indices], Tensor]


@dataclass(frozen=True)
class Theorem1:
    """The bound on the mean squared gradient of F at w̄, as a diagnostic."""

    constants: LearningConstants
    terms: dict[str, float]
    learning_rate: float  # η = √m / (64 L K √T), which the theorem asks for

    @property
    def bound(self) -> float:
        """The sum of the six terms."""
        return sum(self.terms.values())

    @property
    def trivial_bound(self) -> float:
        """G²: what holds without any theorem."""
        return self.constants.gradient_bound**2

    def facts(self) -> dict[str, float]:
        """Everything by name, as commands print it."""
        constants = self.constants
        return {
            "L": constants.smoothness,
            "sigma_l^2": constants.local_variance,
            "sigma_g^2": constants.global_variance,
            "G^2, the trivial bound": self.trivial_bound,
            "Theorem 1's bound": self.bound,
            **{f"Theorem 1: {name}": value for name, value in self.terms.items()},
            "Theorem 1's learning rate": self.learning_rate,
        }


@checked
def diagnose(
    scenario: Scenario, trace: Trace, run: Run, episode: int = 0, *, dataset: Dataset | None = None
) -> Theorem1:
    """Estimate the constants of the paper's Theorem 1 around a finished run, and split its bound.

    Parameters
    ----------
    scenario
        Of the run.
    trace
        Under which the run was trained.
    run
        What `train` returned.
    episode
        Which episode of the trace.
    dataset
        Where the run had another one than the scenario names.

    Returns
    -------
    Theorem1
        The constants, and the terms of the bound for the episode.
    """
    TrainJob(scenario, trace, episode)  # refuses an episode that the trace does not have
    devices, actual = scenario.network.devices, trace.scheduled.shape[-1]
    TraceError.when(actual != devices, "trace", f"one of {devices} devices", f"number {actual}")
    dataset = given_or_loaded(dataset, scenario.learning)
    problem, settings, seed = build(scenario), scenario.learning, int(run.provenance["seed"])
    partition = split(dataset.train_labels, settings, problem.num_devices, stream(seed, "partition"))
    model = build_model(settings.model, dataset.input_shape, dataset.num_classes, seed, settings.buffers)
    points = [flat_weights(model), run.weights.mean(0).cpu()]
    minibatches = Minibatches(partition, seed, _MINIBATCHES, settings.batch)
    constants = estimate_constants(_loss_of(model, dataset), partition, minibatches, points)
    scale = 64 * max(constants.smoothness, _TINY) * settings.local_steps * problem.slots**0.5
    terms = theorem1_terms(problem, theorem1_cost(trace, episode), constants)
    return Theorem1(constants, terms, learning_rate=problem.num_devices**0.5 / scale)


def _loss_of(model: nn.Module, dataset: Dataset) -> Loss:
    """Mean cross-entropy of some training samples as a function of flat weights (parameter,)."""
    layout = layout_of(model)

    def loss(weights: Tensor, samples: Indices) -> Tensor:
        index, views = torch.from_numpy(samples), layout.views(weights)
        parameters = {name: value.detach() if name in layout.frozen else value for name, value in views.items()}
        return cross_entropy(
            functional_call(model, parameters, (dataset.train_inputs[index],)), dataset.train_labels[index]
        )

    return loss


def estimate_constants(
    loss: Loss, partition: Partition, minibatches: Minibatches, points: Sequence[Tensor]
) -> LearningConstants:
    """The constants by the estimators above; the first of ``points`` (parameter,) is w̄_1."""

    def gradient(point: Tensor, own: Indices) -> Tensor:
        moving = point.clone().requires_grad_()
        return torch.autograd.grad(loss(moving, own), moving)[0]

    devices = _spaced(np.arange(partition.num_devices), _MOST_DEVICES)
    batches = minibatches.of(devices, np.zeros_like(devices))  # (device, minibatch, batch)
    samples = [_spaced(partition.of(device), _GRADIENT_SAMPLES) for device in devices.tolist()]
    smoothness, local, dissimilarity, squared = [], [], [], []
    for point in points:
        full = torch.stack([gradient(point, own) for own in samples])  # ∇F_i; (device, parameter)
        dissimilarity.append((full - full.mean(0)).square().sum(1).max())
        for exact, own, drawn in zip(full, samples, batches, strict=True):
            noisy = [gradient(point, batch) for batch in drawn]
            local.append(torch.stack([(one - exact).square().sum() for one in noisy]).mean())
            squared.append(torch.stack([one.square().sum() for one in noisy]).mean())
            smoothness.append(_largest_curvature(loss, point, _spaced(own, _HESSIAN_SAMPLES)))
    with torch.no_grad():
        first = [float(loss(points[0], own)) for own in samples]
    return LearningConstants(
        smoothness=max(smoothness),
        gradient_bound=float(max(squared)) ** 0.5,
        local_variance=float(max(local)),
        global_variance=float(max(dissimilarity)),
        initial_gap=float(np.mean(first)),
    )


def _largest_curvature(loss: Loss, point: Tensor, samples: Indices) -> float:
    """Power iteration from a fixed direction."""
    direction = torch.cos(torch.arange(len(point), dtype=torch.float32) ** 2)  # any that is the same every time
    for _ in range(_POWER_ITERATIONS):
        unit = direction / direction.norm().clamp_min(_TINY)
        direction = vhp(lambda weights: loss(weights, samples), point, unit)[1]  # type: ignore[no-untyped-call]
    return float(direction.norm())


def _spaced(values: Indices, most: int) -> Indices:
    """At most ``most`` of the values, evenly spaced."""
    return values[:: -(-len(values) // most)]
