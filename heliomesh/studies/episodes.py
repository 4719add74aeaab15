"""All episodes that a plan was simulated under, noted beside a trained run, which knows only one of them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from heliomesh.common.durable import Sealed, without_nan
from heliomesh.jobs.job import Job
from heliomesh.learning.run import TrainingError
from heliomesh.simulation.diagnostics import Summary

EPISODES = "episodes.json"  # beside a run's manifest
_FILE = Sealed("the episodes of a comparison", 1, (("key", str), ("seed", int), ("cost", list), ("shares", dict)))
_SHARES = ("participation", "sending", "delivery")


@dataclass(frozen=True)
class EpisodeCosts:
    """Costs per slot by episode, and shares over all of them."""

    seed: int  # of the simulation
    cost: tuple[float, ...]  # (episode,), from episode 0 on
    participation: float  # share of device-slots that train
    sending: float  # share of device-slots that send
    delivery: float | None  # share of sent packets that arrive; None where nothing is sent
    lower_bound: float | None  # certified, per slot, where the comparison has one for the plan's actions


def write_episodes(
    folder: Path, job: Job, cost: npt.NDArray[np.float64], summary: Summary, lower_bound: float | None
) -> None:
    """Keep those of the job's plan in the folder of its run; ``cost`` is (episode,)."""
    shares = {name: getattr(summary, name) for name in _SHARES}
    content = {"key": job.key(), "seed": job.seed, "cost": cost.tolist()}
    _FILE.write(folder / EPISODES, content | {"shares": without_nan(shares | {"lower_bound": lower_bound})})


def read_episodes(folder: Path, key: str) -> EpisodeCosts | None:
    """Those noted beside the run; None where there are none. Raises TrainingError for a damaged or foreign file."""
    place = folder / EPISODES
    if not place.exists():
        return None
    content = _FILE.read(place, TrainingError)
    TrainingError.when(content["key"] != key, place, f"the episodes of run {key}", f"{content['key']}")
    if not content["cost"] or not all(_is_number(cost) for cost in content["cost"]):
        raise TrainingError(place, "a cost of every episode", f"value {content['cost']!r:.40}")
    shares = {name: content["shares"].get(name) for name in (*_SHARES, "lower_bound")}
    for name, value in shares.items():
        optional = name in ("delivery", "lower_bound")
        if not (_is_number(value) or (optional and value is None)):
            raise TrainingError(place, f"a number for {name}", f"value {value!r:.40}")
    return EpisodeCosts(content["seed"], tuple(map(float, content["cost"])), **shares)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and bool(np.isfinite(value))
