"""The one loop: the world moves, the policy acts, packets and energy follow.

Order within a slot: see (h_t, b_t) → pay for messages → choose p_t → spend → leak → harvest u_t → b_{t+1}. A device
whose battery does not pay for the slot's drain is dark: it does nothing and hears nothing. All random numbers of a
slot are drawn before the policy acts and in fixed shapes, so every planner meets the same weather.
"""

import math
from collections.abc import Container, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heliomesh.common.streams import Purpose, stream
from heliomesh.model import policy_checks as guard
from heliomesh.model.cost import update_loss
from heliomesh.model.endless import check_size
from heliomesh.model.overhead import Talk, paid_talk, talk_joule
from heliomesh.model.policy import Decision, Noticed, Observation, Policy, decided
from heliomesh.model.problem import Problem
from heliomesh.physics.battery import initial_battery, pays
from heliomesh.physics.link import error_prob
from heliomesh.scenario.errors import ScenarioError, refuse

Worlds = Mapping[int, Problem]  # what the world is from a slot on
STEADY: Worlds = MappingProxyType({})
MESSAGES = 2  # that a device broadcasts a slot: a bid and a grant
_BLOCK_SLOTS = 64  # most slots of random numbers drawn at a time; the numbers do not depend on it
_BLOCK_NUMBERS = 1 << 25  # most numbers drawn at a time


@dataclass(frozen=True)
class Slot:
    """What happened in one slot; tensors have a leading episode axis, and before it a slot axis in a block."""

    channel_level: Tensor  # (episode, site)
    weather: Tensor  # (episode, device)
    battery_joule: Tensor  # (episode, device) at the start of the slot
    power_watt: Tensor  # (episode, device)
    scheduled: Tensor  # (episode, device) trained in this slot
    error_prob: Tensor  # (episode, edge)
    delivered: Tensor  # (episode, edge), of no edge where packets are not drawn
    update_loss: Tensor  # (episode, device) x_j
    spent_joule: Tensor  # (episode, device) drawn from storage
    harvested_joule: Tensor  # (episode, device)
    overflow_joule: Tensor  # (episode, device)
    battery_after_joule: Tensor  # (episode, device) at the start of the next slot
    dark: Tensor  # (episode, device) the battery did not pay for the drain
    edge_weight: Tensor | None = None  # (episode, edge) a_ij in force, where the policy has weights of its own
    control_joule: Tensor | None = None  # (episode, device) drawn for messages, part of the spending; None: free


class Episodes:
    """Episodes under way: batteries, channels and weather between slots; ``episodes`` are their numbers.

    The world is ``problem`` until a slot that ``truth`` names, from which on it is the one given there. Such worlds
    have the same devices, edges, sites and levels, so batteries, channels and random numbers carry over. A copy or
    a pickle made between two slots goes on as the original does. Costs need no ``packets``, only their error rates.
    Batteries pay for the messages of ``talk`` first, except in ``quiet`` slots. A device that cannot is silent: it
    idles, and is not heard.
    """

    def __init__(
        self,
        problem: Problem,
        episodes: list[int],
        seed: int,
        truth: Worlds = STEADY,
        packets: bool = True,
        talk: Talk | None = None,
        quiet: Container[int] = (),
    ) -> None:
        self.problem, self.slot, self._talk, self._quiet = problem, 0, talk, quiet
        self._paid: tuple[Tensor, Tensor] | None = None  # for messages, once the slot has begun
        self._world, self._truth = problem, dict(truth)
        for world in truth.values():
            if world.num_devices != problem.num_devices or world.topology.num_edges != problem.topology.num_edges:
                expected = f"worlds of {problem.num_devices} devices and {problem.topology.num_edges} edges"
                raise ScenarioError("truth", expected, f"value {world.num_devices} and {world.topology.num_edges}")
        self._numbers = RandomNumbers(problem, episodes, seed, packets)
        first = self._numbers.first()
        self.channel_level = problem.channel.initial(first.channel)  # (episode, site)
        self._hidden = problem.harvest.start(first.harvest[..., 0])
        self.battery_joule = initial_battery(problem.scenario, problem.battery, first.harvest[..., 1])
        self._noticed: Noticed | None = None
        self._now: SlotNumbers | None = None  # once the slot has begun

    @property
    def weather(self) -> Tensor:
        """Weather levels that devices see; (episode, device)."""
        return self._world.harvest.weather(self._hidden)

    def see(self) -> Observation:
        """Begin the slot with its random numbers, before anyone acts; returns what can be seen."""
        now, battery = self._begun(), self.battery_joule
        lost = self.problem.scenario.energy.control_loss
        heard = now.control >= lost if lost else None
        if self._paid is not None:
            control, talks = self._paid
            battery = ((battery - control) * talks).clamp_min(0)  # who is silent has nothing to offer
            topology = self.problem.topology
            between = talks[:, topology.edge_sender] & talks[:, topology.edge_receiver]
            told = between.unsqueeze(-1).expand(-1, -1, MESSAGES)
            heard = told if heard is None else told & heard
        return Observation(self.channel_level, battery, self.weather, now.policy, self._noticed, heard=heard)

    def _bill(self) -> tuple[Tensor, Tensor] | None:
        """What batteries pay for the slot's messages, and who can (episode, device); None where they are free."""
        if self._talk is None:
            return None
        joule, drain = talk_joule(self._world, self._talk), self._world.battery.losses.drain_joule
        if self.slot in self._quiet:
            return joule.new_zeros(self.battery_joule.shape), torch.ones_like(self.battery_joule, dtype=torch.bool)
        talks = pays(self.battery_joule, joule + drain)
        return joule * talks, talks

    def advance(self, decision: Decision, decider: str) -> Slot:
        """Packets and energy of the slot; refuses, and changes nothing, where ``decider`` overdraws a battery."""
        seen, now, world = self.see(), self._begun(), self._world
        harvested, hidden = world.harvest.step(self.slot, self._hidden, now.harvest)
        if self._paid is not None:
            talks = self._paid[1]
            seen = replace(seen, battery_joule=self.battery_joule)
            decision = replace(decision, power_watt=decision.power_watt * talks, trained=decision.trained & talks)
        happened = self._settled(seen, decision, decider, now.link, harvested, self._paid and self._paid[0])
        self._noticed = Noticed(harvested, happened.delivered, happened.scheduled, happened.power_watt)
        self._now = None
        self.battery_joule, self._hidden = happened.battery_after_joule, hidden
        self.channel_level = world.channel.step(self.channel_level, now.channel)
        self.slot += 1
        return happened

    def _settled(
        self,
        seen: Observation,
        decision: Decision,
        decider: str,
        uniform: Tensor,
        harvested_joule: Tensor,
        control_joule: Tensor | None = None,
    ) -> Slot:
        """Packets and energy of a slot, or of several; uniform numbers (..., edge) decide which packets arrive."""
        world, problem, battery = self._world, self.problem, seen.battery_joule
        left = battery if control_joule is None else (battery - control_joule).clamp_min(0)
        trained = decision.trained & world.battery.present  # who is away trains not even for free
        drawn = world.consumption.slot_joule(decision.power_watt, trained)
        active = trained | (decision.power_watt > 0)
        guard.check_spending(decider, drawn * active, left)
        # packets
        fading, dark = world.channel.fading(seen.channel_level), world.battery.dark(battery)
        error = error_prob(world.link, problem.topology, decision.power_watt, fading, dark)
        # energy
        spent, after, overflow = world.battery.step(battery, drawn, harvested_joule, control_joule)
        return Slot(
            channel_level=seen.channel_level,
            weather=seen.weather,
            battery_joule=battery,
            power_watt=decision.power_watt,
            scheduled=trained,
            error_prob=error,
            delivered=uniform >= error[..., : uniform.shape[-1]],
            update_loss=update_loss(problem, error, trained, decision.weights),
            spent_joule=spent,
            harvested_joule=harvested_joule,
            overflow_joule=overflow,
            battery_after_joule=after,
            dark=dark,
            edge_weight=None if decision.weights is None else decision.weights.edge,
            control_joule=control_joule,
        )

    def _begun(self) -> "SlotNumbers":
        """Random numbers of the slot, drawn once, in the world that is true from it on."""
        if self._now is None:
            if self.slot in self._truth:
                self._world = self._truth[self.slot]
                self.battery_joule = torch.minimum(self.battery_joule, self._world.battery.capacity_joule)
            self._now, self._paid = self._numbers.next(), self._bill()
        return self._now


def run_slots(
    problem: Problem, policy: Policy, episodes: list[int], seed: int, truth: Worlds = STEADY, packets: bool = True
) -> Iterator[Slot]:
    """Simulate the scenario's horizon slot by slot for the given episode numbers.

    ``truth`` and ``packets`` as in `Episodes`.
    """
    check_size(problem, policy)
    memory = tuple[Tensor, ...]()
    quiet = getattr(policy, "quiet", ())
    under_way = Episodes(problem, episodes, seed, truth, packets, paid_talk(problem, policy), quiet)
    for slot in range(problem.slots):
        seen = replace(under_way.see(), memory=memory).recalled_by(policy)
        memory = seen.memory
        yield under_way.advance(decided(problem, policy, slot, seen), type(policy).__name__)


class SlotNumbers(NamedTuple):
    """Uniform numbers of one slot, or of several on a leading axis."""

    channel: Tensor  # (episode, site)
    harvest: Tensor  # (episode, device, 2)
    link: Tensor  # (episode, edge), of no edge where packets are not drawn
    policy: Tensor  # (episode, device)
    control: Tensor  # (episode, edge, message), of no edge where no message is lost


class RandomNumbers:
    """Uniform numbers of all episodes, slot by slot, from one stream per purpose and episode."""

    def __init__(self, problem: Problem, episodes: list[int], seed: int, packets: bool = True) -> None:
        refuse(seed < 0, "seed", "at least 0", f"value {seed}")
        devices = problem.num_devices
        self._device = problem.device
        self._shapes: dict[Purpose, tuple[int, ...]] = {
            "channel": (problem.channel.num_sites,),
            "harvest": (devices, 2),
            "link": (problem.topology.num_edges if packets else 0,),
            "policy": (devices,),
            "control": (problem.topology.num_edges if problem.scenario.energy.control_loss else 0, MESSAGES),
        }
        self._streams = {p: [stream(seed, p, episode) for episode in episodes] for p in self._shapes}
        largest = len(episodes) * max(1, *(math.prod(shape) for shape in self._shapes.values()))
        self._block_slots = max(1, min(_BLOCK_SLOTS, _BLOCK_NUMBERS // largest))
        self._slot = 0

    def first(self) -> SlotNumbers:
        """RandomNumbers of the first state."""
        return SlotNumbers(*(numbers[0] for numbers in self.block(1)))

    def next(self) -> SlotNumbers:
        """RandomNumbers of the next slot."""
        offset = self._slot % self._block_slots
        if offset == 0:
            self._ahead = self.block(self._block_slots)
        self._slot += 1
        return SlotNumbers(*(numbers[offset] for numbers in self._ahead))

    def block(self, slots: int) -> SlotNumbers:
        """RandomNumbers of the next slots, with a leading slot axis; not together with `next`, which draws ahead."""
        return SlotNumbers(*(self._draw(purpose, slots) for purpose in self._shapes))

    def _draw(self, purpose: Purpose, slots: int) -> Tensor:
        """Uniform numbers (slot, episode, ...)."""
        streams, shape = self._streams[purpose], (slots, *self._shapes[purpose])
        pinned = self._device.type == "cuda"  # such memory is copied many times faster
        drawn = torch.empty(len(streams), *shape, dtype=torch.float64, pin_memory=pinned)
        _fill(streams, drawn.numpy())
        return drawn.to(self._device).transpose(0, 1).contiguous()


def _fill(streams: list[np.random.Generator], numbers: npt.NDArray[np.float64]) -> None:
    """Fill a row per generator with uniform numbers, by as many threads as torch has where there are many."""
    threads = min(torch.get_num_threads(), len(streams)) if numbers.size >= _MANY_NUMBERS else 1
    if threads == 1:
        for generator, row in zip(streams, numbers, strict=True):
            generator.random(out=row)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda generator, row: generator.random(out=row), streams, numbers))


_MANY_NUMBERS = 1 << 20  # for which threads are worth starting
