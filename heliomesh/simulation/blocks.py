"""The slot loop in blocks of slots, for policies that look at nothing but the slot's state.

No decision changes channels, weather or harvests, and no packet changes a battery. So a block first draws channels
and harvests of all its slots. Decisions and batteries follow slot by slot, and last the packets of all slots at once.
Every number is that of `run_slots`, to the last bit.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import cast

import numpy as np
import torch
from torch import Tensor

from heliomesh.model import policy_checks as guard
from heliomesh.model.endless import check_size
from heliomesh.model.overhead import paid_talk
from heliomesh.model.policy import ActionPolicy, Ahead, Decision, Observation, Policy, check_sight, sees_present_only
from heliomesh.model.problem import Problem
from heliomesh.physics.harvesting import HarvestLaw, HarvestReplay
from heliomesh.simulation.slot_loop import STEADY, Episodes, Slot, Worlds, run_slots

Step = Callable[[Tensor, Tensor], Tensor]  # the next states, from states and uniform numbers
_BLOCK_SLOTS = 256  # most slots of a block
_BLOCK_NUMBERS = 1 << 16  # most numbers of a kind in a block: larger slots are worth their operations alone
_FEW_STEPS = 1 << 18  # of chains in a block, counted from all states, that are looked up


def block_slots(problem: Problem, policy: Policy, episodes: int, truth: Worlds = STEADY) -> int:
    """Slots of a block; 1 where they are simulated one by one."""
    if truth or not sees_present_only(problem, policy) or not isinstance(problem.harvest, HarvestLaw | HarvestReplay):
        return 1
    if paid_talk(problem, policy) is not None:
        return 1
    widest = max(problem.num_devices * 2, problem.topology.num_edges, problem.channel.num_sites)
    return max(1, min(_BLOCK_SLOTS, _BLOCK_NUMBERS // (episodes * widest)))


def run_blocks(
    problem: Problem, policy: Policy, episodes: list[int], seed: int, truth: Worlds = STEADY, packets: bool = True
) -> Iterator[Slot]:
    """What `run_slots` yields, in blocks of `block_slots` where they are more than one."""
    most = block_slots(problem, policy, len(episodes), truth)
    if most == 1:
        yield from run_slots(problem, policy, episodes, seed, truth, packets)
        return
    check_size(problem, policy)
    under_way = _Blocks(problem, cast(ActionPolicy, policy), episodes, seed, packets)
    for first in range(0, problem.slots, most):
        yield under_way.advance_block(range(first, min(first + most, problem.slots)))


def for_every_slot(blocks: Iterable[Slot]) -> Iterator[Slot | None]:
    """An item per slot, for those who show progress: the block with its first slot, then None."""
    for block in blocks:
        yield block
        yield from repeat(None, len(block.scheduled) - 1 if block.scheduled.ndim == 3 else 0)


def _chain(step: Step, states: int, state: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """A Markov chain's states in all slots (slot, …), and the one after them; ``uniform`` (slot, …) moves it."""
    if state.device.type != "cpu" or states * uniform.numel() > _FEW_STEPS:
        found = [state]
        for numbers in uniform:
            found.append(step(found[-1], numbers))
        return torch.stack(found[:-1]), found[-1]
    # what would follow each state, of which all but one are looked up in vain: sooner done for small tensors
    shape = (len(uniform), *state.shape)
    following = torch.stack([step(torch.full(shape, now), uniform) for now in range(states)], -1).numpy()
    first = (np.arange(state.numel()) * states).reshape(state.shape)
    path = [state.numpy()]
    for after in following:
        path.append(after.take(first + path[-1]))
    return torch.from_numpy(np.stack(path[:-1])), torch.from_numpy(path[-1])


class _Blocks(Episodes):
    """Episodes that go on by blocks; tensors of a block have the axes (slot, episode, ...)."""

    def __init__(self, problem: Problem, policy: ActionPolicy, episodes: list[int], seed: int, packets: bool) -> None:
        super().__init__(problem, episodes, seed, packets=packets)
        self._policy = policy
        actions = problem.actions
        trained = actions.trained.unsqueeze(1) & problem.battery.present  # (action, device)
        drawn = problem.consumption.slot_joule(actions.power_watt.unsqueeze(1), trained)
        self._drawn_joule = drawn.T.contiguous()  # (device, action)
        # of a device in such a table
        self._start = torch.arange(problem.num_devices, device=problem.device) * len(actions)

    def advance_block(self, slots: range) -> Slot:
        """What happens in the next slots."""
        problem, now = self.problem, self._numbers.block(len(slots))
        channel, harvest = problem.channel, problem.harvest
        channel_level, self.channel_level = _chain(channel.step, channel.levels, self.channel_level, now.channel)
        hidden, self._hidden = _chain(harvest.following, harvest.num_states, self._hidden, now.harvest)
        weather, harvested = harvest.weather(hidden), harvest.harvested(slots, hidden, now.harvest)
        if slots.start == 0:
            check_sight(self._policy, 0, Observation(channel_level[0], self.battery_joule, weather[0], now.policy[0]))
        ahead = self._policy.prepared(slots, channel_level, weather)
        if ahead is None:
            battery, chosen = self._decided(slots, channel_level, weather, now.policy, harvested)
        else:
            battery, chosen = self._decided_ahead(ahead, harvested)
        decision = Decision(problem.actions.power_watt[chosen], problem.actions.trained[chosen])
        seen = Observation(channel_level, battery, weather, now.policy)
        return self._settled(seen, decision, type(self._policy).__name__, now.link, harvested)

    def _decided(
        self, slots: range, channel_level: Tensor, weather: Tensor, uniform: Tensor, harvested_joule: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Batteries at the start of all slots and actions in them; (slot, episode, device) each."""
        batteries, actions = [], []
        by_slot = zip(slots, channel_level, weather, uniform, harvested_joule, strict=True)
        for slot, level, sky, numbers, harvested in by_slot:
            battery = self.battery_joule
            seen = Observation(level, battery, sky, numbers).copied()  # whoever gets them may write into them
            action = self._policy.checked_action(slot, seen).long()
            drawn = self._drawn_joule.take(action + self._start)
            _, self.battery_joule, _ = self.problem.battery.step(battery, drawn, harvested)
            batteries.append(battery)
            actions.append(action)
        return torch.stack(batteries), torch.stack(actions)

    def _decided_ahead(self, ahead: Ahead, harvested_joule: Tensor) -> tuple[Tensor, Tensor]:
        """The same by NumPy, where a policy has prepared its decisions."""
        battery, drawn, start = self.battery_joule.numpy(), self._drawn_joule.numpy(), self._start.numpy()
        batteries, actions = [], []
        for number, harvested in enumerate(harvested_joule.numpy()):
            action = ahead(number, battery)
            batteries.append(battery)
            actions.append(action)
            asked = drawn.take(action + start, mode="clip")  # checked below
            _, battery, _ = self.problem.battery.step(battery, asked, harvested)
        self.battery_joule, chosen = torch.from_numpy(battery), torch.from_numpy(np.stack(actions))
        where, count = f"{type(self._policy).__name__}.ahead", len(self.problem.actions)
        guard.check_actions(where, chosen, tuple(harvested_joule.shape), count)
        return torch.from_numpy(np.stack(batteries)), chosen
