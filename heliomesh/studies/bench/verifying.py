"""Verify lines of the benchmark: plan again, simulate a few episodes, and compare costs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from heliomesh.common.catalog import check_trusted
from heliomesh.jobs.scheme import Scheme
from heliomesh.learning.trainer import ALONE, Execution
from heliomesh.model.problem import Problem, build
from heliomesh.studies.bench.line import BenchError, BenchLine
from heliomesh.studies.bench.scenarios import Bench, BenchScenario
from heliomesh.studies.compare import Asked, Comparing

TOLERANCE = 1e-3  # of the mean cost: another processor rounds differently, and may settle a tie differently


@dataclass(frozen=True)
class CostCheck:
    """A stored cost beside the one found now, both per slot and over the same few episodes."""

    label: str
    scenario: str
    stored: float
    found: float

    @property
    def agrees(self) -> bool:
        """Whether the two differ by rounding only."""
        return abs(self.found - self.stored) <= TOLERANCE * abs(self.stored)


def verify(
    lines: Sequence[BenchLine],
    bench: Bench,
    only: Sequence[str] | None = None,
    episodes: int = 4,
    work: Execution = ALONE,
) -> Iterator[CostCheck]:
    """Every entry with a cost; raises MistakeError where a planner is not installed or refuses now."""
    for one in bench.named(only):
        claimed = [line for line in lines if one.name in line.entries and not line.entries[one.name].refusal]
        if claimed:
            problem = build(one.scenario)
            yield from (_verdict(one, problem, line, min(episodes, one.episodes), work) for line in claimed)


def _verdict(one: BenchScenario, problem: Problem, line: BenchLine, episodes: int, work: Execution) -> CostCheck:
    check_trusted(line.planner)
    *_, row = Asked(problem, Comparing(episodes, line.seed), work, None).rows(
        Scheme(str(line.planner), line.planner, line.options)
    )
    if row.cost is None:
        raise BenchError(line.label, f"a plan for {one.name}", f": refused. {row.refusal}")
    stored = fmean(line.entries[one.name].cost[:episodes])
    return CostCheck(line.label, one.name, stored, float(row.cost.mean()))
