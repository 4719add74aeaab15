"""Change detection from what devices notice: their harvests, their channels' levels, and who has fallen silent.

Each quantity is compared with what the plan in force expects and summed up as long as it stays strange (CUSUM):

    S ← max(0, S + increment),   an alarm where S exceeds its threshold

- *harvest*: ±z − k with z = (u − E u) / σ, for each device and, pooled, for Σ_j z_j / √m: a change of all devices
  shows in the pool first, a change of one in its own sum. Under a common sky one cloud is over all devices: the
  median z̃ is the pool, and a device counts with z_j − z̃.
- *channel*: the same with a level's move, its direction and whether it moved at all, given the level it left.
- *silence*: for a link, −ln P(nothing arrives) of each direction, given whether the sender was heard elsewhere in the
  slot; an arrival ends the silence.

Thresholds come from simulated episodes of the plan in the world it believes in. One number λ bounds all sums, each
divided by its median largest value; λ is the ⌈(n + 1)(1 − α)⌉-th smallest of the n episodes' largest ratios. An
episode without change is exchangeable with those n, so it raises an alarm with probability at most α over the whole
horizon, whatever the correlations.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from heliomesh.field.living.conditions import Conditions, links, pairs_of_edges, world_under
from heliomesh.model.policy import Noticed, Policy
from heliomesh.model.problem import Problem
from heliomesh.simulation.slot_loop import run_slots

USUAL_FALSE_ALARM_PROB = 0.05
_SLACK = 0.5  # k: half of a shift worth noticing, in standard deviations
_LARGEST_SHOCK = 6.0  # one strange slot alone proves little
_FIRST_CALIBRATION = 1_000_000  # episode numbers that no measurement uses
_RATE_SHARE = 4  # one in so many calibration episodes sets rates and scales, the others the threshold


@dataclass(frozen=True)
class Glimpse:
    """What devices noticed during one slot, with the state they knew at its beginning and its end."""

    slot: int
    weather: Tensor  # (batch, device)
    level: Tensor  # (batch, site), negative where nobody knows
    next_level: Tensor  # (batch, site)
    noticed: Noticed

    @property
    def sites_known(self) -> Tensor:
        """Sites whose level is known at both ends of the slot; (batch, site)."""
        return (self.level >= 0) & (self.next_level >= 0)

    def of(self, episodes: Tensor) -> "Glimpse":
        """The same of some episodes."""
        noticed = self.noticed.of(episodes)
        return Glimpse(self.slot, self.weather[episodes], self.level[episodes], self.next_level[episodes], noticed)


@dataclass(frozen=True)
class Sums:
    """CUSUM statistics of one kind, and the slot after which each was last zero; (batch, member) each."""

    value: Tensor
    since: Tensor

    def of(self, episodes: Tensor) -> "Sums":
        """The same of some episodes."""
        return Sums(self.value[episodes], self.since[episodes])

    def add(self, episodes: Tensor, increment: Tensor, slot: int) -> None:
        """The increments of one slot, in some episodes."""
        value = (self.value[episodes] + increment).clamp_min(0)
        self.since[episodes] = torch.where(value > 0, self.since[episodes], slot + 1)
        self.value[episodes] = value


@dataclass(frozen=True)
class Expectation:
    """What devices expect to notice under a belief, before thresholds are known."""

    problem: Problem  # of the scenario: all edges
    world: Problem  # under the belief
    silence: Tensor  # (edge, 2): −ln P(nothing arrives), given that the sender was not / was heard elsewhere

    def increments(self, seen: Glimpse) -> dict[str, Tensor]:
        """Increment of every sum, by kind; (batch, member)."""
        everywhere, own = self._harvest_shocks(seen)
        direction, moved = self._channel_shocks(seen)
        return {
            "harvest": _two_sided(everywhere),
            "harvest of a device": _two_sided(own),
            "channel": _two_sided(torch.cat([_pooled(direction), _pooled(moved)], -1)),
            "channel of a site": _two_sided(direction),
            "silence": self._silence(seen.noticed.arrived),
        }

    def _harvest_shocks(self, seen: Glimpse) -> tuple[Tensor, Tensor]:
        """(u − E u) / σ given the weather, of all devices together and of each; (batch, 1), (batch, device).

        Under a common sky the median device shows the weather. What a device harvests beside that is its own.
        """
        mean, deviation = harvest_moments(self.world, seen.slot, seen.weather)
        usual = harvest_moments(self.problem, seen.slot, seen.weather)[0]
        # a law without spread must not turn rounding into a shock
        floor = 1e-6 * usual + 1e-300
        shock = (seen.noticed.harvested_joule - mean) / torch.maximum(deviation, floor)
        shock = shock.nan_to_num(0.0).clamp(-_LARGEST_SHOCK, _LARGEST_SHOCK)
        if self.problem.harvest.law.sky != "common":
            return _pooled(shock), shock
        everywhere = shock.median(-1, keepdim=True).values
        return everywhere, shock - everywhere

    def _channel_shocks(self, seen: Glimpse) -> tuple[Tensor, Tensor]:
        """Standardised next level and standardised moving, given the level left; (batch, site) each."""
        kernel = self.world.channel.kernel
        level = torch.arange(len(kernel), dtype=kernel.dtype, device=kernel.device)
        mean = kernel @ level
        variance = (kernel @ level**2 - mean**2).clamp_min(0)
        stay = kernel.diagonal()
        direction = _standardised(seen.next_level, mean[seen.level], variance[seen.level])
        moved = _standardised(seen.next_level != seen.level, 1 - stay[seen.level], (stay * (1 - stay))[seen.level])
        known = seen.sites_known
        return torch.where(known, direction, 0.0), torch.where(known, moved, 0.0)

    def _silence(self, arrived: Tensor) -> Tensor:
        """Evidence that a link is gone, both directions together; −∞ where a packet came; (batch, link)."""
        elsewhere = heard_elsewhere(self.problem, arrived).long()
        evidence = self.silence[torch.arange(self.silence.shape[0], device=arrived.device), elsewhere]
        evidence = torch.where(arrived, -torch.inf, evidence)
        total = evidence.new_zeros(len(arrived), self.problem.topology.num_edges // 2)
        return total.index_add_(1, self._link_of_edge, evidence)

    @cached_property
    def _link_of_edge(self) -> Tensor:
        """Undirected link of every directed edge; (edge,)."""
        number = {pair: index for index, pair in enumerate(links(self.problem.topology))}
        found = [number[pair] for pair in pairs_of_edges(self.problem.topology)]
        return torch.tensor(found, dtype=torch.long, device=self.problem.device)


@dataclass(frozen=True)
class Detector:
    """An expectation with thresholds."""

    expectation: Expectation
    scale: dict[str, float]  # by kind: median over episodes of the largest sum
    threshold: float  # λ, on sums over scales

    def ratios(self, sums: dict[str, Sums]) -> dict[str, Tensor]:
        """Every sum in units of its alarm level: an alarm where one exceeds 1; (batch, member) by kind."""
        return {kind: one.value / (self.scale[kind] * self.threshold) for kind, one in sums.items()}


@dataclass(frozen=True)
class Watch:
    """How a policy watches for changes."""

    false_alarm_prob: float = USUAL_FALSE_ALARM_PROB  # over the horizon, if nothing changes
    calibration_episodes: int = 200
    seed: int = 0


def calibrated(problem: Problem, belief: Conditions, policy: Policy, watch: Watch) -> Detector:
    """Detector for a plan in the world it believes in."""
    world, episodes = world_under(problem, belief), watch.calibration_episodes
    numbers = list(range(_FIRST_CALIBRATION, _FIRST_CALIBRATION + episodes))
    slots = run_slots(problem, policy, numbers, watch.seed, {0: world})
    glimpses = []
    for number, (now, after) in enumerate(pairwise(slots)):
        noticed = Noticed(now.harvested_joule, now.delivered, now.scheduled, now.power_watt)
        glimpses.append(Glimpse(number, now.weather, now.channel_level, after.channel_level, noticed))
    first = torch.arange(episodes // _RATE_SHARE, device=problem.device)
    rest = torch.arange(episodes // _RATE_SHARE, episodes, device=problem.device)
    silence = _silence_evidence(problem, [g.noticed.arrived[first] for g in glimpses])
    expectation = Expectation(problem, world, silence)
    scale = {
        kind: max(float(largest.median()), 1e-9)
        for kind, largest in _largest(expectation, (g.of(first) for g in glimpses)).items()
    }
    ratios = _largest(expectation, (g.of(rest) for g in glimpses))
    ratio = torch.stack([largest / scale[kind] for kind, largest in ratios.items()]).amax(0)
    rank = min(math.ceil((len(rest) + 1) * (1 - watch.false_alarm_prob)), len(rest))
    return Detector(expectation, scale, max(float(ratio.sort().values[rank - 1]), 1e-9))


def harvest_moments(problem: Problem, slot: int, weather: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the slot's harvest [J] given the weather; (batch, device) each."""
    law = problem.harvest.law
    phase = int(law.phase_of_slot[slot])
    joule, prob = law.joule[phase], law.prob[phase]
    mean = (joule * prob).sum(-1)
    deviation = ((joule - mean.unsqueeze(-1)) ** 2 * prob).sum(-1).sqrt()
    return law.scale * mean[weather], law.scale * deviation[weather]


def heard_elsewhere(problem: Problem, arrived: Tensor) -> Tensor:
    """Whether an edge's sender was heard by another receiver in the slot; (batch, edge)."""
    sender = torch.from_numpy(problem.topology.edge_sender).to(arrived.device)
    count = arrived.new_zeros(len(arrived), problem.num_devices, dtype=torch.long)
    count = count.index_add_(1, sender, arrived.long())
    return count[:, sender] > arrived.long()


def _silence_evidence(problem: Problem, arrivals: list[Tensor]) -> Tensor:
    """−ln P(nothing arrives) per edge, by whether the sender was heard elsewhere; (edge, 2)."""
    arrived = torch.cat(arrivals)  # (slot and episode, edge)
    elsewhere = heard_elsewhere(problem, arrived)
    given = torch.stack([~elsewhere, elsewhere], -1)
    silent = (given & ~arrived.unsqueeze(-1)).sum(0)
    # one half more on both sides: a rare case proves little
    return -torch.log((silent + 0.5) / (given.sum(0) + 0.5)).double()


def _largest(expectation: Expectation, glimpses: Iterable[Glimpse]) -> dict[str, Tensor]:
    """Largest sum of each kind over an episode; (episode,) by kind."""
    sums, largest = dict[str, Tensor](), dict[str, Tensor]()
    for seen in glimpses:
        for kind, increment in expectation.increments(seen).items():
            sums[kind] = (sums.get(kind, 0.0) + increment.double()).clamp_min(0)
            most = sums[kind].amax(-1) if increment.shape[-1] else increment.new_zeros(len(increment))
            largest[kind] = torch.maximum(largest.get(kind, most), most)
    return largest


def _two_sided(shock: Tensor) -> Tensor:
    """Increments for rises and falls side by side; (batch, member) → (batch, 2 · member)."""
    return torch.cat([shock, -shock], -1) - _SLACK


def _pooled(shock: Tensor) -> Tensor:
    """Σ_j z_j / √m, of unit variance too where members are independent; (batch, 1)."""
    return shock.sum(-1, keepdim=True) / math.sqrt(max(shock.shape[-1], 1))


def _standardised(value: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    deviation = variance.sqrt().clamp_min(1e-6)
    return ((value.to(mean) - mean) / deviation).clamp(-_LARGEST_SHOCK, _LARGEST_SHOCK)
