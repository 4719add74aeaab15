"""Sampled paths of what no action changes: the channels of all sites, what a shared sky does, where replays begin."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from heliomesh.common.streams import stream
from heliomesh.grid.shared_sky import certain
from heliomesh.model.problem import Problem
from heliomesh.physics.chain import draw
from heliomesh.physics.harvesting import HarvestLaw, HarvestReplay, under_known_clouds


@dataclass(frozen=True)
class Paths:
    """Paths of the channels and of a shared sky, and the law of harvests along them."""

    problem: Problem  # its harvest law has a phase for each harvest, or law of harvests, that a path tells
    level: Tensor  # (path, slot, site)
    phase: Tensor  # (path, slot, device) phase of that law
    weather: Tensor  # (path, slot) that all devices share; 0 where paths do not tell any
    skies: int | None = None  # number of weathers, where paths tell what a law of the sky draws

    @property
    def weathers(self) -> int:
        """Number of weathers that paths tell apart."""
        return self.skies or 1

    def __len__(self) -> int:
        return len(self.level)


class Sky(NamedTuple):
    """What all devices share."""

    weather: Tensor  # (path, slot)
    atom: Tensor  # (path, slot) which harvest of the law all draw under a common sky


def with_known_clouds(problem: Problem) -> Problem:
    """The problem whose harvest law has the clouds that plans do not know of; a replay has them along its paths."""
    harvest = problem.harvest
    if isinstance(harvest, HarvestReplay) or harvest.law.clouds is None:
        return problem
    return replace(problem, harvest=under_known_clouds(harvest.law))


def drawn_paths(problem: Problem, numbers: Iterable[int], seed: int, purpose: int = 0) -> Paths:
    """Independent paths by their numbers; another ``purpose`` gives other paths."""
    slots, numbers = problem.slots, list(numbers)

    def uniform(kind: Literal["channel", "harvest"], number: int, shape: tuple[int, ...]) -> Tensor:
        drawn = [stream(seed, kind, purpose, path, number).random(shape) for path in numbers]
        return torch.from_numpy(np.stack(drawn)).to(problem.device)

    fading = uniform("channel", 0, (slots, problem.channel.num_sites))
    levels = [problem.channel.initial(fading[:, 0])]
    for slot in range(1, slots):
        levels.append(problem.channel.step(levels[-1], fading[:, slot]))
    start = uniform("harvest", 0, (problem.num_devices,))
    return along(problem, torch.stack(levels, 1), start, _drawn_sky(problem, uniform("harvest", 1, (slots, 2))))


def _drawn_sky(problem: Problem, uniform: Tensor) -> Sky:
    """Weather and harvests from uniform numbers (path, slot, 2)."""
    law = problem.harvest.law
    weathers = [draw(law.stationary.expand(len(uniform), -1), uniform[:, 0, 0])]
    for slot in range(1, problem.slots):
        weathers.append(draw(law.kernel[weathers[-1]], uniform[:, slot, 0]))
    weather = torch.stack(weathers, 1)
    phase = torch.from_numpy(law.phase_of_slot).to(weather.device)
    return Sky(weather, draw(law.prob[phase, weather], uniform[..., 1]))


def along(problem: Problem, level: Tensor, start: Tensor, sky: Sky) -> Paths:
    """Paths with given channel levels (path, slot, site), starts of replays and sky.

    start: uniform numbers (path, device). Who knows where a replay begins knows all of its harvests. A sky is told
    where all devices share it.
    """
    harvest, law = problem.harvest, problem.harvest.law
    untold = torch.zeros_like(sky.weather)
    if isinstance(harvest, HarvestReplay):
        slots = torch.arange(problem.slots, device=problem.device).reshape(1, -1, 1)
        position = (harvest.start(start).unsqueeze(1) + slots) % len(harvest.series_joule)
        joule = harvest.series_joule[position]  # (path, slot, device), before scaling
        if law.clouds is not None:
            joule = joule * torch.from_numpy(law.clouds).to(joule).reshape(1, -1, 1)
        values, phase = torch.unique(joule, return_inverse=True)
        return Paths(replace(problem, harvest=certain(law, values)), level, phase, untold)
    by_slot = torch.from_numpy(law.phase_of_slot).to(problem.device).expand_as(untold)
    told, phase = law, by_slot
    if law.sky != "independent":
        told, phase = _under(law, by_slot, sky)
    every = phase.unsqueeze(-1).expand(-1, -1, problem.num_devices)
    if told is law:
        return Paths(problem, level, every, untold)
    return Paths(replace(problem, harvest=told), level, every, sky.weather, law.num_weather)


def _under(law: HarvestLaw, phase: Tensor, sky: Sky) -> tuple[HarvestLaw, Tensor]:
    """The law given a shared sky, and its phases (path, slot); under a common sky harvests are certain."""
    if law.sky == "common":
        values, told = torch.unique(law.joule[phase, sky.weather, sky.atom], return_inverse=True)
        return certain(law, values), told
    joule, prob = law.joule.flatten(0, 1).unsqueeze(1), law.prob.flatten(0, 1).unsqueeze(1)
    alone, first = torch.ones_like(law.kernel[:1, :1]), np.zeros_like(law.phase_of_slot)
    told_law = replace(law, joule=joule, prob=prob, kernel=alone, phase_of_slot=first)
    return told_law, phase * law.num_weather + sky.weather
