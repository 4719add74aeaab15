"""Devices' own dynamic programs with soft minima, and their gradient by prices.

    v_t(b) = −τ log Σ_a exp(−(price_t(a) + E[v_{t+1} | b − e(a)]) / τ)

The derivative by price_t(a) is the probability of action a in slot t, where a device picks actions by the softmax of
the same values. Laws of states carry it from slot to slot. That takes far fewer small operations than autograd does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heliomesh.grid.single_device import DevicePrograms
from heliomesh.model.problem import Problem
from heliomesh.model.threads import is_small


@dataclass(frozen=True)
class SoftPrograms(DevicePrograms):
    """Programs of some devices over their energies and the channels that their prices move with."""

    axes: int  # channels watched

    def values(
        self, paid: Tensor, value: Tensor, block_of_slot: Sequence[int], slots: range, temperature: float
    ) -> Tensor:
        """Values (device, channel state, energy) at the last of falling ``slots``, from those after the first.

        paid (block, device, channel state, sky, action). Hard minima at temperature 0.
        """
        blocks = [block_of_slot[slot] for slot in slots]
        found: Tensor = _Recursion.apply(paid, value, self, blocks, slots, temperature)  # type: ignore[no-untyped-call]
        return found

    def choices(self, price: Tensor, value: Tensor, slot: int) -> Tensor:
        """Price plus future of every action, +∞ where infeasible; (device, channel state, energy, action).

        price (device, channel state, sky, action), value after the slot (device, channel state, energy).
        """
        value = self.followed(value, slot) if self.goes_on(slot) else value
        reached = (value @ self.shares.transpose(1, 2)).reshape(*value.shape, price.shape[-1])
        reached.view(*price.shape[:3], -1, price.shape[3]).add_(price.unsqueeze(3))
        return reached.add_(self.barred.unsqueeze(1))

    def carried_back(self, taken: Tensor, slot: int) -> Tensor:
        """Derivative by the value after a slot, from that by its choices; the adjoint of `choices`."""
        left = taken.flatten(2) @ self.shares
        return self.led_back(left, slot) if self.goes_on(slot) else left

    def followed(self, value: Tensor, slot: int) -> Tensor:
        """E[value of the next slot | energy left, channels now]; (device, channel state, energy) likewise."""
        value = value @ self.kernels(slot).transpose(1, 2)
        return moved_channels(value, self.axes, self.problem.channel.kernel.to(value.dtype))

    def led_back(self, left: Tensor, slot: int) -> Tensor:
        """Its adjoint."""
        return moved_channels(left, self.axes, self.problem.channel.kernel.to(left.dtype).T) @ self.kernels(slot)


def moved_channels(value: Tensor, axes: int, kernel: Tensor) -> Tensor:
    """E[value | channels now]; (device, channel state, energy) likewise."""
    for axis in range(axes):
        apart = value.reshape(len(value) * len(kernel) ** axis, len(kernel), -1)
        value = (kernel @ apart).reshape(value.shape)
    return value


def mean_over_channels(problem: Problem, value: Tensor, axes: int) -> Tensor:
    """Mean over the stationary law of the channels watched; (device, channel states × rest) → (device, rest)."""
    law = problem.channel.stationary.to(value)
    for _ in range(axes):
        value = torch.einsum("dlr,l->dr", value.reshape(len(value), len(law), -1), law)
    return value


def log_sum(choices: Tensor) -> Tensor:
    """Logarithm of the sum of exponentials (...,) of choices (..., action), which become the softmax of themselves.

    Exponentials are taken once, and a softmax over few actions is slow.
    """
    highest = choices.amax(-1, keepdim=True)
    total = choices.sub_(highest).exp_().sum(-1, keepdim=True)
    choices.div_(total)
    return total.log_().add_(highest).squeeze(-1)


class _Recursion(torch.autograd.Function):
    """`SoftPrograms.values`; keeps a table of choices a slot for the gradient."""

    @staticmethod
    def forward(
        context: Any,
        paid: Tensor,
        value: Tensor,
        programs: SoftPrograms,
        blocks: list[int],
        slots: range,
        temperature: float,
    ) -> Tensor:
        """The value at the last slot."""
        kept, large = [], not is_small(programs.problem)
        for block, slot in zip(blocks, slots, strict=True):
            choices = programs.choices(paid[block], value, slot)
            if temperature == 0:
                value = choices.amin(-1)
                continue
            kept.append(choices.div_(-temperature))
            value = (log_sum(choices) if large else torch.logsumexp(choices, -1)).mul_(-temperature)
        context.programs, context.kept, context.shape, context.large = programs, kept, paid.shape, large
        context.blocks, context.slots = blocks, slots
        return value

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Derivatives by prices and by the first value."""
        (gradient,) = gradients
        programs, (devices, states, skies, actions) = context.programs, context.shape[1:]
        paid = gradient.new_zeros(context.shape)
        for block, slot in zip(reversed(context.blocks), reversed(context.slots), strict=True):
            choices = context.kept.pop()
            likely = choices if context.large else torch.softmax(choices, -1)
            taken = likely.mul_(gradient.unsqueeze(-1))
            paid[block].add_(taken.reshape(devices, states, skies, -1, actions).sum(3))
            gradient = programs.carried_back(taken, slot)
        return paid, gradient, None, None, None, None
