"""What the lines of the benchmark say together: gaps, paired differences and ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from heliomesh.simulation.diagnostics import Interval, columns, interval
from heliomesh.studies.bench.line import BenchLine, Bound, Entry
from heliomesh.studies.bench.scenarios import Bench, BenchScenario

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Placement:
    """One planner on one scenario, against the best there."""

    label: str
    entry: Entry
    cost: Interval | None = None  # updates lost per slot; None where the planner refused
    behind: Interval | None = None  # cost above that of the cheapest planner, paired by episode
    gap: Interval | None = None  # cost over the bound, less 1; None without a bound or where it does not speak of it
    accuracy: Interval | None = None  # share of test samples
    behind_accuracy: Interval | None = None  # accuracy less that of the most accurate planner, paired by seed
    joule: float | None = None  # per device and slot
    rank: float = 0.0  # by cost, from 1; planners that refused share the places behind all others
    accuracy_rank: float | None = None


@dataclass(frozen=True)
class Leaderboard:
    """All lines of a folder."""

    bench: Bench
    lines: tuple[BenchLine, ...]
    bounds: Mapping[str, Bound]

    def standings(self, one: BenchScenario) -> list[Placement]:
        """Planners on one scenario, the cheapest first and those that refused last."""
        import pandas as pd

        entries = {line.label: line.entries[one.name] for line in self.lines if one.name in line.entries}
        costs, hits = (
            pd.Series({label: fmean(own) for label, entry in entries.items() if (own := getattr(entry, name))})
            for name in ("cost", "accuracy")
        )
        # equal scores share their places, and those that refused share the places behind
        ranks, accuracy_ranks = (scores.reindex(list(entries)).rank(na_option="bottom") for scores in (costs, -hits))
        cheapest = entries[str(costs.idxmin())].cost if len(costs) else 0.0
        sharpest = entries[str(hits.idxmax())].accuracy if len(hits) else 0.0
        found = [
            Placement(
                label,
                entry,
                cost=_interval(entry.cost),
                behind=_interval(entry.cost, cheapest),
                gap=_gap(entry, self.bounds.get(one.name)),
                accuracy=_interval(entry.accuracy),
                behind_accuracy=_interval(entry.accuracy, sharpest),
                joule=fmean(entry.spent_joule) / one.scenario.slots / one.scenario.network.devices
                if entry.spent_joule
                else None,
                rank=ranks[label],
                accuracy_rank=accuracy_ranks[label] if len(hits) else None,
            )
            for label, entry in entries.items()
        ]
        return sorted(found, key=lambda own: (own.rank, own.label))

    def overall(self) -> "pd.DataFrame":
        """One row per planner over its scenarios, the one with the best mean rank by cost first.

        How many were measured, how many of these refused, and means of the ranks and of the gap where it has some.
        """
        table = self.table()
        if table.empty:
            return table
        by_planner = table.astype({"gap": float, "accuracy_rank": float}).groupby("planner")
        found = by_planner[["rank", "gap", "accuracy_rank"]].mean()
        found = found.assign(measured=by_planner.size(), refused=by_planner["refusal"].count()).reset_index()
        return found.sort_values(["measured", "rank", "planner"], ascending=[False, True, True])

    def missing(self, one: BenchScenario) -> list[str]:
        """Labels of lines that were not run on a scenario."""
        return [line.label for line in self.lines if one.name not in line.entries]

    def table(self) -> "pd.DataFrame":
        """One row per scenario and planner."""
        import pandas as pd

        return pd.DataFrame([_row(one.name, own) for one in self.bench.scenarios for own in self.standings(one)])


def _interval(numbers: Sequence[float], of_best: Sequence[float] | float = 0.0) -> Interval | None:
    """Above the best, paired by episode or seed; None without numbers."""
    return interval(np.array(numbers) - np.array(of_best)) if numbers else None


def _gap(entry: Entry, bound: Bound | None) -> Interval | None:
    if bound is None or entry.refusal or not entry.picks_actions or bound.per_slot <= 0:
        return None
    return interval(np.array(entry.cost) / bound.per_slot - 1)


def _row(scenario: str, own: Placement) -> dict[str, Any]:
    row: dict[str, Any] = {"scenario": scenario, "planner": own.label, "refusal": own.entry.refusal or None}
    row |= columns(cost=own.cost, behind=own.behind, gap=own.gap)
    row |= columns(accuracy=own.accuracy, behind_accuracy=own.behind_accuracy)
    row |= {"joule_per_device_and_slot": own.joule, "rank": own.rank, "accuracy_rank": own.accuracy_rank}
    names = ("process_seconds", "offline_bytes", "online_bytes_per_slot")
    return row | {name: None if own.entry.refusal else getattr(own.entry, name) for name in names}
