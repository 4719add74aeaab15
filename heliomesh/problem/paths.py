"""Sampled paths of what no action changes: the channels of all sites, and where replayed harvests begin."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from heliomesh.physics.harvesting import HarvestLaw, HarvestReplay, memoryless, under_known_clouds
from heliomesh.problem.problem import Problem
from heliomesh.streams import stream


@dataclass(frozen=True)
class Paths:
    """Paths of the channels, and the law of harvests along them."""

    problem: Problem  # its harvest law has a phase for each harvest that a path tells
    level: Tensor  # (path, slot, site)
    phase: Tensor  # (path, slot, device) phase of the harvest law

    def __len__(self) -> int:
        return len(self.level)


def drawn_paths(problem: Problem, numbers: Iterable[int], seed: int, purpose: int = 0) -> Paths:
    """Independent paths by their numbers; another ``purpose`` gives other paths."""
    numbers = list(numbers)
    slots, sites, devices = problem.slots, problem.channel.num_sites, problem.num_devices
    drawn = [stream(seed, "channel", purpose, number).random((slots, sites)) for number in numbers]
    uniform = torch.from_numpy(np.stack(drawn)).to(problem.device)
    levels = [problem.channel.initial(uniform[:, 0])]
    for slot in range(1, slots):
        levels.append(problem.channel.step(levels[-1], uniform[:, slot]))
    starts = [stream(seed, "harvest", purpose, number).random(devices) for number in numbers]
    return along(problem, torch.stack(levels, 1), torch.from_numpy(np.stack(starts)).to(problem.device))


def along(problem: Problem, level: Tensor, start: Tensor) -> Paths:
    """Paths with given channel levels (path, slot, site) and uniform numbers of replays' starts (path, device).

    Who knows where a replay begins knows all of its harvests. Clouds count as known too.
    """
    harvest, clouds = problem.harvest, problem.harvest.law.clouds
    if not isinstance(harvest, HarvestReplay):
        law = under_known_clouds(harvest.law)
        phase = torch.from_numpy(law.phase_of_slot).to(problem.device)
        told = replace(problem, harvest=law)
        return Paths(told, level, phase.reshape(1, -1, 1).expand(len(level), -1, problem.num_devices))
    slots = torch.arange(problem.slots, device=problem.device).reshape(1, -1, 1)
    position = (harvest.start(start).unsqueeze(1) + slots) % len(harvest.series_joule)
    joule = harvest.series_joule[position]  # (path, slot, device), before scaling
    if clouds is not None:
        joule = joule * torch.from_numpy(clouds).to(joule).reshape(1, -1, 1)
    values, phase = torch.unique(joule, return_inverse=True)
    return Paths(replace(problem, harvest=_certain(harvest.law, values)), level, phase)


def _certain(law: HarvestLaw, joule: Tensor) -> HarvestLaw:
    """A law with a phase for every certain harvest (phase,), before scaling."""
    values = joule.cpu().numpy()[:, None]
    first = np.zeros(len(law.phase_of_slot), dtype=np.int64)
    made = memoryless(values, np.ones_like(values), law.scale.tolist(), first)
    place = joule.device
    return replace(
        made,
        joule=made.joule.to(place),
        prob=made.prob.to(place),
        scale=law.scale,
        kernel=made.kernel.to(place),
        sky=law.sky,
    )
