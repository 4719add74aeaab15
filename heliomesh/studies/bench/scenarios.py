"""The scenarios of the benchmark, fixed under a version number, and how each is measured.

A line of results names the version and the sha256 of every scenario, so lines of different versions never mix.
Whoever changes a scenario or how it is measured makes a new version in a folder of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path

from heliomesh.common.catalog import nearest
from heliomesh.common.durable import json_sha256
from heliomesh.jobs.job import Job
from heliomesh.scenario.errors import refuse
from heliomesh.scenario.scenario import Scenario


@dataclass(frozen=True)
class BenchScenario:
    """One scenario, and how planners are measured on it.

    Attributes
    ----------
    file
        Of the scenario.
    episodes
        Simulated episodes; every planner meets the same.
    seeds
        Trained episodes, seed e under episode e; 0: nothing is trained.
    paths
        Sampled paths of the bound; 0: the bound is the certified one, `lower_bound`.
    """

    file: Path
    episodes: int
    seeds: int
    paths: int = 0

    @property
    def name(self) -> str:
        """Of the file."""
        return self.file.stem

    @property
    def description(self) -> str:
        """The first line of the file, a comment."""
        return self.file.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")

    @cached_property
    def scenario(self) -> Scenario:
        """Every input."""
        return Scenario.load(self.file)

    @cached_property
    def sha256(self) -> str:
        """Of all that the scenario says beside defaults, and of how it is measured."""
        said = Job(self.scenario).identity()
        parts = {name: said[name] for name in ("scenario", "learning")}
        return json_sha256(parts | {"episodes": self.episodes, "seeds": self.seeds, "paths": self.paths})


@dataclass(frozen=True)
class Bench:
    """A version of the benchmark."""

    version: int
    scenarios: tuple[BenchScenario, ...]  # from small to large

    def named(self, names: Sequence[str] | None) -> tuple[BenchScenario, ...]:
        """Some of the scenarios, in the benchmark's order; all for None. Raises ScenarioError for unknown names."""
        known = [one.name for one in self.scenarios]
        for name in names or ():
            actual = f"value {name!r}{nearest(name, known)}"
            refuse(name not in known, "only", f"some of {', '.join(known)}", actual)
        return tuple(one for one in self.scenarios if not names or one.name in names)


def _shipped(name: str, episodes: int, seeds: int, paths: int = 0) -> BenchScenario:
    return BenchScenario(
        Path(str(files("heliomesh"))) / "scenarios" / "bench1" / f"{name}.toml", episodes, seeds, paths
    )


# the newest version
BENCH = Bench(
    1,
    (
        _shipped("tiny5", episodes=64, seeds=8),
        _shipped("ring10", episodes=32, seeds=4),
        _shipped("ring10_skewed", episodes=32, seeds=4),
        _shipped("paper10", episodes=32, seeds=4),
        _shipped("grid25", episodes=16, seeds=4),
        _shipped("one_sky25", episodes=32, seeds=4),
        _shipped("geometric30", episodes=16, seeds=4),
        _shipped("half_duplex30", episodes=16, seeds=4, paths=8),
        _shipped("field40", episodes=8, seeds=4),
        _shipped("geometric10000", episodes=4, seeds=0),
    ),
)
