"""Checks of what a policy returns: anybody's code may decide, and nothing that it returns is taken on trust.

Each check is a few reductions over the batch; the sentence of a refusal is put together only where one fails.
"""

import torch
from torch import Tensor

from heliomesh.model.problem import Problem
from heliomesh.physics.battery import pays
from heliomesh.scenario.errors import ScenarioError

_WEIGHT_DUST = 1e-9  # by which rounded mixing weights may exceed 1
_LAW_TOLERANCE = 1e-6


def check_actions(where: str, chosen: object, shape: tuple[int, ...], count: int) -> None:
    """Refuse anything but integers from 0 to ``count`` − 1 of the given shape."""
    indices = _tensor(where, chosen, shape)
    if indices.is_floating_point() or indices.is_complex() or indices.dtype == torch.bool:
        raise ScenarioError(where, "integers", f"type {indices.dtype}")
    if not indices.numel():
        return
    lowest, highest = map(int, indices.aminmax())
    if lowest < 0 or highest >= count:
        actual = lowest if lowest < 0 else highest
        raise ScenarioError(where, f"0 to {count - 1}", f"value {actual}")


def check_law(where: str, prob: object, shape: tuple[int, ...]) -> None:
    """Refuse anything but laws of actions (batch, device, action)."""
    law = _tensor(where, prob, shape)
    if not law.is_floating_point():
        raise ScenarioError(where, "probabilities", f"type {law.dtype}")
    if law.numel() and not bool((law >= 0).all() & ((law.sum(-1) - 1).abs() <= _LAW_TOLERANCE).all()):
        sums = law.sum(-1)
        actual = f"lowest value {float(law.min()):g} and sums from {float(sums.min()):g} to {float(sums.max()):g}"
        raise ScenarioError(where, "probabilities of at least 0 that add up to 1", actual)


def check_powers(where: str, problem: Problem, power_watt: object, batch: int, continuous: bool) -> None:
    """Refuse powers [W] that are not the scenario's or, where any are allowed, not between 0 and its largest."""
    power = _tensor(where, power_watt, (batch, problem.num_devices))
    known = problem.actions.power_watt
    if power.dtype != known.dtype:
        raise ScenarioError(where, f"numbers of type {known.dtype}", f"type {power.dtype}")
    allowed = (power >= 0) & (power <= known.max()) if continuous else torch.isin(power, known)
    if not bool(allowed.all()):
        listed = ", ".join(f"{watt:g}" for watt in dict.fromkeys(known.tolist()))
        expected = f"from 0 to {float(known.max()):g}" if continuous else f"one of {listed}"
        raise ScenarioError(where, f"{expected} [W]", f"value {float(power[~allowed][0]):g}")


def check_trained(where: str, problem: Problem, trained: object, batch: int) -> None:
    """Refuse anything but booleans (batch, device)."""
    flags = _tensor(where, trained, (batch, problem.num_devices))
    if flags.dtype != torch.bool:
        raise ScenarioError(where, "type torch.bool", f"type {flags.dtype}")


def check_weights(where: str, weights: object, batch: int, columns: int) -> None:
    """Refuse anything but mixing weights, (batch, column) numbers from 0 to 1."""
    share = _tensor(where, weights, (batch, columns))
    if not share.is_floating_point():
        raise ScenarioError(where, "numbers", f"type {share.dtype}")
    outside = ~((share >= 0) & (share <= 1 + _WEIGHT_DUST))
    if bool(outside.any()):
        raise ScenarioError(where, "weights from 0 to 1", f"value {float(share[outside][0]):g}")


def check_spending(where: str, spent_joule: Tensor, battery_joule: Tensor) -> None:
    """Refuse decisions that cost more than batteries hold, but for rounding; (..., device) each [J]."""
    paid = pays(battery_joule, spent_joule)
    if not bool(paid.all()):
        spent, held = float(spent_joule[~paid][0]), float(battery_joule[~paid][0])
        raise ScenarioError(where, f"to spend at most the {held:g} J that a battery holds", f"spending {spent:g} J")


def _tensor(where: str, found: object, shape: tuple[int, ...]) -> Tensor:
    if not isinstance(found, Tensor):
        raise ScenarioError(where, f"a tensor of shape {shape}", f"type {type(found).__name__}")
    if found.shape != shape:
        raise ScenarioError(where, f"the shape {shape}", f"shape {tuple(found.shape)}")
    return found
