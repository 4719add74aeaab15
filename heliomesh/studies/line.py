"""One line of a figure: a scheme on a scenario, over paired seeds.

The number of a seed is the episode that is simulated and the seed of the training (partition, first weights,
minibatches), so that all schemes of a figure have common random numbers: weather, packet losses and data.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from heliomesh.jobs.job import IDEAL, Job
from heliomesh.jobs.scheme import Scheme
from heliomesh.jobs.store import Store
from heliomesh.learning.run import Run
from heliomesh.learning.settings import TrainSettings
from heliomesh.learning.trainer import Execution
from heliomesh.scenario.scenario import Scenario

FORMS: dict[str, dict[str, Any]] = {"proposal": {}, "proposal, literal": {"form": "literal"}}
# the literal form at a γ of its own for every scenario, R and k
SEARCHED = "proposal, literal, γ searched"
BY_SCENARIO: dict[str, dict[str, Any]] = {"proposal": {}, SEARCHED: {"form": "literal", "gamma": "searched"}}
PAPER = (
    Scheme("centralized", "centralized"),
    *(Scheme(label, "decentralized", form | {"hops": 2}) for label, form in FORMS.items()),
    Scheme("myopic (SCA)", "myopic"),
    Scheme("uncoordinated", "uncoordinated"),
)
OURS = (Scheme("receiver", "receiver"), Scheme("prices", "prices"))
# what figures compare, the one that should be better first: the paper's order, and what we add to it
PAIRS = (
    ("centralized", "proposal"),
    ("proposal", "myopic (SCA)"),
    ("myopic (SCA)", "uncoordinated"),
    ("centralized", "myopic (SCA)"),
    ("proposal", "uncoordinated"),
    ("proposal", "proposal, literal"),
    ("proposal, literal", "myopic (SCA)"),
    (SEARCHED, "myopic (SCA)"),
    ("proposal", SEARCHED),
    ("receiver", "myopic (SCA)"),
)
LOSSLESS = Scheme(IDEAL, IDEAL)
BASELINE = "uncoordinated"  # over which figures draw the others' gain


@dataclass(frozen=True)
class Line:
    """A scheme on a scenario; ``place`` is its value on the figure's horizontal axis, if that is not time."""

    figure: str
    scheme: Scheme
    scenario: Scenario
    num_seeds: int
    setting: str = ""  # what distinguishes panels, such as the partition
    place: float | None = None

    def jobs(self, training: TrainSettings) -> list[Job]:
        """One job per seed."""
        return by_episode(self.scheme.job(Job(self.scenario, training=training)), self.num_seeds)

    @property
    def name(self) -> str:
        """A readable name."""
        words = [self.figure, self.setting, self.scheme.label, "" if self.place is None else f"{self.place:g}"]
        return ", ".join(word for word in words if word)


def by_episode(base: Job, count: int) -> list[Job]:
    """The job under the first episodes: episode e is trained with its seed + e."""
    return [replace(base, episode=e, training_seed=base.seed + e) for e in range(count)]


def grouped_runs(store: Store, groups: Sequence[Sequence[Job]], work: Execution) -> list[tuple[Run, ...]]:
    """The runs of every group of jobs, all trained together."""
    runs = iter(store.runs([job for jobs in groups for job in jobs], work))
    return [tuple(next(runs) for _ in jobs) for jobs in groups]
