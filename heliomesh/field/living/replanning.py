"""A policy for a world that changes, which has to find out.

`Replanning` watches what devices notice. On an alarm it estimates what the alarm speaks of, plans for it, starting
from its first plan, and watches on with new expectations.

An alarm and the readings that are pooled ride on the planners' own messages, which travel several hops a slot: the
new plan is in force once the alarm has crossed the network. Estimates use all that was noticed from the estimated
change to that slot; a harvest is estimated again each time the window has doubled, for early estimates are rough.
Estimates are rounded (harvests to sixths of an octave, kernels to twentieths), so that episodes of equal belief share
a plan.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from heliomesh.field.living.conditional_plan import Answering, ConditionalPlan, Switching
from heliomesh.field.living.conditions import Conditions, Kernel, Pair, links, pairs_of_edges, world_under
from heliomesh.field.living.detector import Detector, Glimpse, Sums, Watch, calibrated, harvest_moments
from heliomesh.model.policy import Decision, Observation, Weights
from heliomesh.model.problem import Problem

_HOPS_PER_SLOT = 8  # of an alarm: `prices` and `receiver` exchange messages in up to eight rounds a slot
_PER_OCTAVE = 6  # steps of estimated harvest factors per doubling
_LEAST_FACTOR = 0.05  # below it a device is taken to harvest nothing
_PER_UNIT = 20  # steps of estimated transition probabilities
_PRIOR_MOVES = 10.0  # weight of the old kernel's rows, in transitions
_SUSPECT = 0.5  # share of the alarm level at which a member is counted in when another one raises the alarm
_LIFE = "life"  # the cause where a packet came over a link that was thought lost


@dataclass(frozen=True)
class Alarm:
    """An alarm of one episode."""

    slot: int  # after which it was raised
    cause: str
    since: int  # estimated slot of the change
    members: tuple[int, ...]  # of the kind of sums that raised it: those that were strange
    silent: frozenset[Pair]  # links that were strangely silent by then
    in_force: int  # slot from which on the new plan was followed


@dataclass(frozen=True)
class Window:
    """Harvests of some devices from a slot on, to be estimated again in a later slot."""

    first_slot: int
    again: int
    devices: tuple[int, ...]  # each with a factor of its own; none: all with one


@dataclass
class Replanning:
    """Start with an answer, watch, and plan anew after an alarm; a batch's state is kept between slots."""

    answering: Answering
    first: ConditionalPlan
    watch: Watch
    alarms: list[list[Alarm]] = field(default_factory=list)  # by episode of the batch
    beliefs: list[Conditions] = field(default_factory=list)  # by episode of the batch
    _answers: dict[Conditions, ConditionalPlan] = field(default_factory=dict)
    _detectors: dict[Conditions, Detector] = field(default_factory=dict)
    _sums: dict[str, Sums] = field(default_factory=dict)
    _history: list[Glimpse] = field(default_factory=list)
    _windows: dict[int, Window] = field(default_factory=dict)  # of harvests being estimated, by episode
    _before: Observation | None = None

    @property
    def problem(self) -> Problem:
        """The problem of the network."""
        return self.answering.problem

    @property
    def continuous_powers(self) -> bool:
        """Whether the first plan has them; all plans are one planner's."""
        return bool(getattr(self.first.plan.policy, "continuous_powers", False))

    def answer_in(self, episode: int) -> ConditionalPlan:
        """The answer that an episode of the batch follows now."""
        return self._answers[self.beliefs[episode]]

    def recall(self, seen: Observation) -> tuple[Tensor, ...]:
        """What the plans remember, each of the episodes that followed it in the slot before."""
        if seen.noticed is None or not self.first.memory_axes:
            return self.first.recall(seen)
        memory = [part.clone() for part in seen.memory]
        for belief, episodes in self._groups():
            for whole, part in zip(memory, self._answers[belief].recall(seen.of(episodes)), strict=True):
                whole[episodes] = part
        return tuple(memory)

    def decide(self, slot: int, seen: Observation) -> Decision:
        """Look back on the slot before, then act by the plan of each episode's belief."""
        if slot == 0 or not self.beliefs:  # a watcher may come later than the first slot
            batch = len(seen.battery_joule)
            self._answers.setdefault(self.first.conditions, self.first)
            self.beliefs, self.alarms = [self.first.conditions] * batch, [[] for _ in range(batch)]
            self._sums, self._history, self._windows = {}, [], {}
        elif seen.noticed is not None and self._before is not None:
            before = self._before
            levels = before.channel_level, seen.channel_level
            self._watch(Glimpse(slot - 1, before.weather, *levels, seen.noticed))
            self._take_force(slot)
        self._before = seen
        return self._act(slot, seen)

    def _seen_since(self, slot: int) -> list[Glimpse]:
        """What was noticed from a slot on."""
        return [glimpse for glimpse in self._history if glimpse.slot >= slot]

    def _groups(self) -> list[tuple[Conditions, Tensor]]:
        """Episodes of equal belief."""
        groups: dict[Conditions, list[int]] = {}
        for episode, belief in enumerate(self.beliefs):
            groups.setdefault(belief, []).append(episode)
        return [(belief, torch.tensor(e, device=self.problem.device)) for belief, e in groups.items()]

    def _act(self, slot: int, seen: Observation) -> Decision:
        batch = seen.battery_joule
        power, trained = torch.zeros_like(batch), torch.zeros_like(batch, dtype=torch.bool)
        edge = batch.new_zeros(len(batch), self.problem.topology.num_edges)
        own = torch.zeros_like(batch)
        seen = replace(seen, channel_level=seen.channel_level.clamp_min(0))  # no table has a row for an unknown level
        for belief, episodes in self._groups():
            answer = self._answers[belief]
            followed = answer.decide(self.problem, slot, seen.of(episodes))
            power[episodes], trained[episodes] = followed.power_watt, followed.trained
            edge[episodes], own[episodes] = answer.weights.edge, answer.weights.own
        return Decision(power, trained, Weights(edge, own))

    def _watch(self, seen: Glimpse) -> None:
        """Update all sums with one slot, and raise alarms."""
        self._history.append(seen)
        for belief, episodes in self._groups():
            if belief not in self._detectors:
                policy = Switching(self.problem, ((0, self._answers[belief]),))
                self._detectors[belief] = calibrated(self.problem, belief, policy, self.watch)
            mine = seen.of(episodes)
            for kind, increment in self._detectors[belief].expectation.increments(mine).items():
                if kind not in self._sums:
                    nothing = increment.new_zeros(len(self.beliefs), increment.shape[-1], dtype=torch.float64)
                    self._sums[kind] = Sums(nothing, nothing.long())
                self._sums[kind].add(episodes, increment, seen.slot)
            self._raise_alarms(belief, episodes, mine)

    def _raise_alarms(self, belief: Conditions, episodes: Tensor, seen: Glimpse) -> None:
        """Alarms of the episodes of one belief after a slot."""
        sums = {kind: one.of(episodes) for kind, one in self._sums.items()}
        ratios = self._detectors[belief].ratios(sums)
        kinds = [kind for kind, ratio in ratios.items() if ratio.shape[-1]]
        largest = torch.stack([ratios[kind].amax(-1) for kind in kinds])  # (kind, episode)
        returned = (seen.noticed.arrived & self._answers[belief].edge_lost).any(-1)
        for place in ((largest.amax(0) > 1) | returned).nonzero().flatten().tolist():
            cause = _LIFE if bool(returned[place]) else kinds[int(largest[:, place].argmax())]
            ratio = ratios.get(cause, largest.new_ones(1, 0))[place if cause != _LIFE else 0]
            members = tuple((ratio > _SUSPECT).nonzero().flatten().tolist())
            since = int(sums[cause].since[place, members].min()) if members else seen.slot
            silent = (ratios["silence"][place] > _SUSPECT).nonzero().flatten().tolist()
            pairs = links(self.problem.topology)
            crossing = math.ceil(self.problem.topology.diameter / _HOPS_PER_SLOT)
            lost, in_force = frozenset(pairs[number] for number in silent), seen.slot + 1 + crossing
            known = self.alarms[int(episodes[place])]
            if not known or known[-1].in_force <= seen.slot:  # else an earlier one is still on its way
                known.append(Alarm(seen.slot, cause, since, members, lost, in_force))

    def _take_force(self, slot: int) -> None:
        """New beliefs of the episodes whose alarm has reached everybody, or whose window has doubled."""
        for episode, alarms in enumerate(self.alarms):
            if alarms and alarms[-1].in_force == slot:
                self._windows.pop(episode, None)
                self._believe(episode, self._estimate(episode, alarms[-1]), slot)
            elif episode in self._windows and self._windows[episode].again == slot:
                self._believe(episode, self._rescaled(episode, self._windows[episode], slot), slot)

    def _believe(self, episode: int, belief: Conditions, slot: int) -> None:
        """Follow another belief from now on, with sums that start anew."""
        if belief == self.beliefs[episode]:
            return
        if belief not in self._answers:
            # always from the first plan: the result must not depend on which episode asked first
            self._answers[belief] = self.answering.answer_to(belief, previous=self.first.plan)
        self.beliefs[episode] = belief
        for sums in self._sums.values():
            sums.value[episode], sums.since[episode] = 0.0, slot

    def revive(self, episode: int, devices: Collection[int], slot: int) -> None:
        """Count on devices again that are known to be back though no packet of theirs came."""
        belief = self.beliefs[episode]
        dark = {device: 1.0 for device, factor in belief.harvest if device in devices and factor == 0}
        self._believe(episode, replace(belief, away=belief.away.difference(devices)).with_harvest(dark), slot)

    def _estimate(self, episode: int, alarm: Alarm) -> Conditions:
        """The belief after an alarm."""
        belief = self.beliefs[episode]
        some = tuple(sorted({member % self.problem.num_devices for member in alarm.members}))  # of devices
        match alarm.cause:
            case "life":
                return self._with_returned(episode, belief, alarm)
            case "harvest":
                belief = self._rescaled(episode, Window(alarm.since, 0, ()), alarm.in_force)
            case "harvest of a device":
                belief = self._rescaled(episode, Window(alarm.since, 0, some), alarm.in_force)
            case "channel" | "channel of a site":
                belief = replace(belief, kernel=self._kernel(episode, belief, alarm.since))
        silent = alarm.silent | self._dark_and_silent(episode, belief, alarm.since)
        return without_links(self.problem, belief, set(silent)) if silent else belief

    def _dark_and_silent(self, episode: int, belief: Conditions, since: int) -> frozenset[Pair]:
        """Links of devices that harvest nothing, where nothing has come since the change: such a device is dead."""
        dark = {device for device, factor in belief.harvest if factor == 0}
        arrived = torch.stack([seen.noticed.arrived[episode] for seen in self._seen_since(since)]).any(0)
        pairs = pairs_of_edges(self.problem.topology)
        heard = {device for edge in arrived.nonzero().flatten().tolist() for device in pairs[edge]}
        return frozenset(pair for pair in links(self.problem.topology) if (dark - heard).intersection(pair))

    def _rescaled(self, episode: int, window: Window, slot: int) -> Conditions:
        """Harvest factors from the joules of a window over those expected, and a later slot to look again."""
        belief = self.beliefs[episode]
        self._windows[episode] = replace(window, again=2 * slot - window.first_slot)
        old = belief.harvest_factor(self.problem.num_devices)
        seen = [glimpse.of(torch.tensor([episode])) for glimpse in self._seen_since(window.first_slot)]
        by_slot = torch.cat([g.noticed.harvested_joule for g in seen])
        expected = torch.cat([harvest_moments(self.problem, g.slot, g.weather)[0] for g in seen])
        harvested, usual = by_slot.nansum(0), torch.where(by_slot.isnan(), 0.0, expected).sum(0)
        if window.devices:
            return belief.with_harvest({d: rounded_factor(float(harvested[d] / usual[d])) for d in window.devices})
        if not any(old):  # after total darkness all devices start from the scenario's law
            old = [1.0] * len(old)
        ratio = float(harvested.sum() / (usual * torch.tensor(old).to(usual)).sum())
        return belief.with_harvest({d: rounded_factor(factor * ratio) for d, factor in enumerate(old)})

    def _kernel(self, episode: int, belief: Conditions, since: int) -> Kernel:
        """Counted transitions of all sites, with the old kernel as a weak prior, rounded."""
        old = world_under(self.problem, belief).channel.kernel
        counts = _PRIOR_MOVES * old
        for seen in self._seen_since(since):
            known = seen.sites_known[episode]
            moves = (seen.level[episode] * len(old) + seen.next_level[episode])[known]
            counts = counts + torch.bincount(moves, minlength=old.numel()).reshape(old.shape)
        prob = torch.round(counts / counts.sum(1, keepdim=True) * _PER_UNIT) / _PER_UNIT
        prob = (prob + torch.diag(1 - prob.sum(1))).clamp_min(0)
        return tuple(tuple(row) for row in (prob / prob.sum(1, keepdim=True)).tolist())

    def _with_returned(self, episode: int, belief: Conditions, alarm: Alarm) -> Conditions:
        """The belief with all links over which packets came since the alarm."""
        heard, pairs = set[Pair](), pairs_of_edges(self.problem.topology)
        for seen in self._seen_since(alarm.slot):
            back = seen.noticed.arrived[episode] & self._answers[belief].edge_lost
            heard |= {pairs[edge] for edge in back.nonzero().flatten().tolist()}
        lost = {pair for pair in links(self.problem.topology) if belief.is_lost(pair)} - heard
        return without_links(self.problem, replace(belief, links_off=frozenset(), away=frozenset()), lost)


def rounded_factor(factor: float) -> float:
    """A harvest factor on a grid of equal ratios; 0 where next to nothing is harvested."""
    if factor < _LEAST_FACTOR:
        return 0.0
    return float(2.0 ** (round(_PER_OCTAVE * math.log2(factor)) / _PER_OCTAVE))


def without_links(problem: Problem, belief: Conditions, pairs: set[Pair]) -> Conditions:
    """The belief without some links; a device with no link left is away, for nobody can tell the difference."""
    lost = {pair for pair in links(problem.topology) if belief.is_lost(pair)} | pairs
    away = frozenset(
        device
        for device, neighbours in enumerate(problem.topology.neighbours)
        if neighbours and all((min(device, n), max(device, n)) in lost for n in neighbours)
    )
    return replace(belief, links_off=frozenset(p for p in lost if not away.intersection(p)), away=away)
