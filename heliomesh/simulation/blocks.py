"""The slot loop in blocks of slots, for policies that look at nothing but the slot's state.

No decision changes channels, weather or harvests, and no packet changes a battery. So a block first draws channels
and harvests of all its slots. Decisions and batteries follow slot by slot, and last the packets of all slots at once.
Every number is that of `run_slots`, to the last bit.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise, repeat
from types import MappingProxyType
from typing import cast

import numpy as np
import torch
from torch import Tensor

from heliomesh.physics.battery import initial_battery
from heliomesh.physics.harvesting import HarvestLaw, HarvestReplay
from heliomesh.physics.link import error_prob
from heliomesh.problem import guard
from heliomesh.problem.cost import update_loss
from heliomesh.problem.policy import ActionPolicy, Observation, Policy, sees_present_only
from heliomesh.problem.problem import Problem
from heliomesh.simulation.slot_loop import RandomNumbers, Slot, check_size, run_slots

_BLOCK_SLOTS = 64  # most slots of a block
_BLOCK_NUMBERS = 1 << 20  # most numbers of a kind in a block: larger slots are worth their operations alone


def block_slots(
    problem: Problem, policy: Policy, episodes: int, truth: Mapping[int, Problem] = MappingProxyType({})
) -> int:
    """Slots of a block; 1 where they are simulated one by one."""
    if truth or not sees_present_only(problem, policy) or not isinstance(problem.harvest, HarvestLaw | HarvestReplay):
        return 1
    widest = max(problem.num_devices * 2, problem.topology.num_edges, problem.channel.num_sites)
    return max(1, min(_BLOCK_SLOTS, _BLOCK_NUMBERS // (episodes * widest)))


def run_blocks(
    problem: Problem,
    policy: Policy,
    episodes: list[int],
    seed: int,
    truth: Mapping[int, Problem] = MappingProxyType({}),
    packets: bool = True,
) -> Iterator[Slot]:
    """What `run_slots` yields, in blocks of `block_slots` where they are more than one."""
    most = block_slots(problem, policy, len(episodes), truth)
    if most == 1:
        yield from run_slots(problem, policy, episodes, seed, truth, packets)
        return
    check_size(problem, policy)
    under_way = _Blocks(problem, cast(ActionPolicy, policy), episodes, seed, packets)
    for first in range(0, problem.slots, most):
        yield under_way.advance(range(first, min(first + most, problem.slots)))


def for_every_slot(blocks: Iterable[Slot]) -> Iterator[Slot | None]:
    """An item per slot, for those who show progress: the block with its first slot, then None."""
    for block in blocks:
        yield block
        yield from repeat(None, len(block.scheduled) - 1 if block.scheduled.ndim == 3 else 0)


def _chain(step: Callable[[Tensor, Tensor], Tensor], state: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """A Markov chain's states in all slots (slot, …), and the one after them; ``uniform`` (slot, …) moves it."""
    found = [state]
    for numbers in uniform:
        found.append(step(found[-1], numbers))
    after = found.pop()
    return torch.stack(found), after


class _Blocks:
    """Episodes between blocks; tensors of a block have the axes (slot, episode, ...)."""

    def __init__(self, problem: Problem, policy: ActionPolicy, episodes: list[int], seed: int, packets: bool) -> None:
        self._problem, self._policy = problem, policy
        self._numbers = RandomNumbers(problem, episodes, seed, packets)
        first = self._numbers.first()
        self._channel_level = problem.channel.initial(first.channel)
        self._hidden = problem.harvest.start(first.harvest[..., 0])
        self._battery_joule = initial_battery(problem.scenario, problem.battery, first.harvest[..., 1])
        able = problem.battery.capacity_joule > 0  # who can store nothing trains not even for free
        used, actions = problem.consumption, problem.actions
        trained = actions.trained.unsqueeze(1) & able  # (action, device)
        drawn = used.drawn_joule(actions.power_watt.unsqueeze(1), trained) + used.drain_joule
        self._trained, self._drawn_joule = trained.T.contiguous(), drawn.T.contiguous()  # (device, action)
        # of a device in such a table
        self._start = torch.arange(problem.num_devices, device=problem.device) * len(actions)

    def advance(self, slots: range) -> Slot:
        """What happens in the next slots."""
        problem, now = self._problem, self._numbers.block(len(slots))
        channel_level, self._channel_level = _chain(problem.channel.step, self._channel_level, now.channel)
        hidden, self._hidden = _chain(problem.harvest.following, self._hidden, now.harvest)
        weather, harvested = problem.harvest.weather(hidden), problem.harvest.harvested(slots, hidden, now.harvest)
        battery, chosen = self._decided(slots, channel_level, weather, now.policy, harvested)
        power, trained = problem.actions.power_watt[chosen], self._trained.take(chosen + self._start)
        drawn = self._drawn_joule.take(chosen + self._start)
        self._check_spending(drawn * (trained | (power > 0)), battery)
        spent = torch.minimum(drawn, battery)
        after, overflow = problem.battery.step(battery, spent, harvested)
        fading, dark = problem.channel.fading(channel_level), problem.battery.dark(battery)
        error = error_prob(problem.link, problem.topology, power, fading, dark)
        return Slot(
            channel_level=channel_level,
            weather=weather,
            battery_joule=battery,
            power_watt=power,
            scheduled=trained,
            error_prob=error,
            delivered=now.delivered(error),
            update_loss=self._update_loss(slots, error, trained),
            spent_joule=spent,
            harvested_joule=harvested,
            overflow_joule=overflow,
            battery_after_joule=after,
        )

    def _decided(
        self, slots: range, channel_level: Tensor, weather: Tensor, uniform: Tensor, harvested_joule: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Batteries at the start of all slots and actions in them; (slot, episode, device) each."""
        batteries, actions = [], []
        by_slot = zip(slots, channel_level, weather, uniform, harvested_joule, strict=True)
        for slot, level, sky, numbers, harvested in by_slot:
            battery = self._battery_joule
            seen = Observation(level, battery, sky, numbers).copied()  # whoever gets them may write into them
            action = self._policy.checked_action(slot, seen).long()
            spent = torch.minimum(self._drawn_joule.take(action + self._start), battery)
            self._battery_joule, _ = self._problem.battery.step(battery, spent, harvested)
            batteries.append(battery)
            actions.append(action)
        return torch.stack(batteries), torch.stack(actions)

    def _check_spending(self, spent_joule: Tensor, battery_joule: Tensor) -> None:
        """Refuse the first slot that overdraws a battery."""
        dust = guard.DUST * self._problem.battery.capacity_joule
        if bool((spent_joule <= battery_joule + dust).all()):
            return
        for spent, battery in zip(spent_joule, battery_joule, strict=True):
            guard.check_spending(type(self._policy).__name__, spent, battery, dust)

    def _update_loss(self, slots: range, error: Tensor, trained: Tensor) -> Tensor:
        """x_j of all slots; those with the same weights of the cost at once."""
        phase = self._problem.weights.phase_of_slot[slots.start : slots.stop]
        borders = [0, *(1 + np.flatnonzero(np.diff(phase))).tolist(), len(slots)]
        return torch.cat(
            [
                update_loss(self._problem, slots[first], error[first:end], trained[first:end])
                for first, end in pairwise(borders)
            ]
        )
