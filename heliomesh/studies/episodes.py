"""All episodes that a plan was simulated under, noted beside a trained run, which knows only one of them."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import Field

from heliomesh.common.durable import Sealed, without_nan
from heliomesh.jobs.job import Job
from heliomesh.learning.run import TrainingError
from heliomesh.scenario.section import Section, Vector, validated
from heliomesh.simulation.diagnostics import Summary

EPISODES = "episodes.json"  # beside a run's manifest
_FILE = Sealed("the episodes of a comparison", 1, (("key", str), ("seed", int), ("cost", list), ("shares", dict)))


class EpisodeCosts(Section):
    """Costs per slot by episode, and shares over all of them."""

    seed: int = Field(description="of the simulation")
    cost: Vector = Field(description="(episode,), from episode 0 on")
    participation: float = Field(description="share of device-slots that train")
    sending: float = Field(description="share of device-slots that send")
    delivery: float | None = Field(None, description="share of sent packets that arrive; None where nothing is sent")
    lower_bound: float | None = Field(None, description="certified, per slot, where one holds for the plan's actions")


def write_episodes(
    folder: Path, job: Job, cost: npt.NDArray[np.float64], summary: Summary, lower_bound: float | None
) -> None:
    """Keep those of the job's plan in the folder of its run; ``cost`` is (episode,)."""
    shares = {name: getattr(summary, name) for name in ("participation", "sending", "delivery")}
    content = {"key": job.key(), "seed": job.seed, "cost": cost.tolist()}
    _FILE.write(folder / EPISODES, content | {"shares": without_nan(shares | {"lower_bound": lower_bound})})


def read_episodes(folder: Path, key: str) -> EpisodeCosts | None:
    """Those noted beside the run; None where there are none. Raises MistakeError for a damaged or foreign file."""
    place = folder / EPISODES
    if not place.exists():
        return None
    content = _FILE.read(place, TrainingError)
    TrainingError.when(content["key"] != key, place, f"the episodes of run {key}", f"{content['key']}")
    told = {"seed": content["seed"], "cost": content["cost"], **content["shares"]}
    return validated(EpisodeCosts, told, str(place))
