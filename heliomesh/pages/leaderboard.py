"""The leaderboard as a page of Markdown: who leads overall, every scenario in full, and where numbers come from."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from heliomesh.pages.intervals import cell, markdown_table
from heliomesh.studies.bench.bench import PLANNING_SECONDS
from heliomesh.studies.bench.board import Leaderboard, Placement
from heliomesh.studies.bench.line import BenchLine, label_of
from heliomesh.studies.bench.scenarios import BenchScenario

_ABOUT = """Ten fixed scenarios, every planner, common random numbers. `heliomesh bench` measures what is missing and
writes this page. [Add a planner](../../docs/extend.md#the-leaderboard) says how to add a line and to check others.
"""
_HOW = """- Costs are updates lost per slot. The gap is to a bound for all policies on the scenario's powers.
- Accuracies are means over devices after the last slot, on `digits`. Energies are what a device draws per slot.
- Intervals are 95 %. Differences are to the best planner of the column before, paired by episode or by seed.
- Seconds are of processors, so other work on the machine adds nothing. Bytes are control traffic of all devices.
- Ranks and gaps are means over the scenarios that a planner was run on. Where some are not run yet, means of
  different planners do not compare. A planner that refuses shares the places behind all others.
- A planner may take {limit:g} s of processors to plan and simulate, and the memory that it allows itself.
"""


def leaderboard_text(board: Leaderboard) -> str:
    """The whole page."""
    parts = [
        f"# Leaderboard: bench {board.bench.version}\n",
        _ABOUT,
        overall_text(board),
        _HOW.format(limit=PLANNING_SECONDS),
    ]
    parts += [_scenario(board, one) for one in board.bench.scenarios]
    return "\n".join([*parts, _origins(board.lines)])


def overall_text(board: Leaderboard) -> str:
    """One row per planner over all scenarios."""
    scenarios = len(board.bench.scenarios)
    head = "planner | mean rank by cost | mean gap % | mean rank by accuracy | scenarios"
    return _table(head, [_overall(own, scenarios) for own in board.overall().to_dict("records")])


def _overall(own: Mapping[Any, Any], scenarios: int) -> list[str]:
    absent = scenarios - own["measured"]
    notes = [f"{own['refused']} refused"] * (own["refused"] > 0) + [f"{absent} not run yet"] * (absent > 0)
    count = f"{own['measured'] - own['refused']}" + (f" ({', '.join(notes)})" if notes else "")
    rank, gap, accuracy_rank = cell(own["rank"], ".2f"), cell(own["gap"], ".2%"), cell(own["accuracy_rank"], ".2f")
    return [_code(own["planner"]), rank, gap, accuracy_rank, count]


def _scenario(board: Leaderboard, one: BenchScenario) -> str:
    standings, missing = board.standings(one), board.missing(one)
    lines = [f"## {one.name}\n", f"{one.description}\n", f"{_measures(board, one)}\n"]
    if standings:
        lines.append(_table(_HEAD if one.seeds else _UNTRAINED, [_row(own, bool(one.seeds)) for own in standings]))
        lines += [f"{sentence}\n" for sentence in _remarks(standings)]
    if missing or not standings:
        lines.append(f"Not run yet: {', '.join(_code(label) for label in missing) or 'every planner'}.\n")
    return "\n".join(lines)


def _measures(board: Leaderboard, one: BenchScenario) -> str:
    trained = f"{one.seeds} seeds trained" if one.seeds else "nothing trained"
    bound = board.bounds.get(one.name)
    if bound is None:
        below = "the bound is not computed yet"
    else:
        how = f"lower end of the 95 % interval over {bound.paths} sampled paths" if bound.paths else "certified"
        below = f"bound {bound.per_slot:.4f} ({how})"
    return f"{one.episodes} episodes, {trained}; {below}."


_UNTRAINED = "planner | cost | above the best | gap % | mJ per device and slot | CPU s | offline | online/slot"
_HEAD = _UNTRAINED.replace("gap %", "gap % | accuracy % | against the best")


def _row(own: Placement, trained: bool) -> list[str]:
    if own.entry.refusal:
        return [_code(own.label), f"refused: {own.entry.refused_for}", *[""] * (8 if trained else 6)]
    learned = [cell(own.accuracy, ".2%"), cell(own.behind_accuracy, "+.2%")] if trained else []
    return [
        _code(own.label) + ("" if own.entry.converged else " *"),
        cell(own.cost, ".3f"),
        cell(own.behind, "+.3f"),
        cell(own.gap, "+.2%"),
        *learned,
        cell(own.joule and 1000 * own.joule, ".0f"),
        cell(own.entry.process_seconds, ".1f"),
        cell(own.entry.offline_bytes, "B"),
        cell(own.entry.online_bytes_per_slot, "B"),
    ]


def _remarks(standings: Sequence[Placement]) -> Iterable[str]:
    """What planners fell back to, whose last round still changed something, and why some refused, once each."""
    for own in standings:
        if own.entry.fell_back_to:
            yield f"{_code(own.label)} did not fit, and fell back to {_code(label_of('', own.entry.fell_back_to))}."
    if any(not own.entry.converged for own in standings):
        yield "\\* The last round of planning still changed some of the policy."
    for own in standings:
        if own.entry.refusal:
            yield f"{_code(own.label)} refused. {_plain(own.entry.refusal)}"


def _origins(lines: Sequence[BenchLine]) -> str:
    """Where every line comes from: its package, its code and what measured it."""
    rows = []
    for line in lines:
        made = {_made(entry.made_with) for entry in line.entries.values()}
        versions = sorted({entry.results_version for entry in line.entries.values()})
        package = f"{line.package} {line.package_version or ''}".strip() if line.package else "no package"
        source = line.planner_source[:12] if line.planner_source else ""
        words = (package, source, ", ".join(map(str, versions)), "; ".join(sorted(made)))
        rows.append([_code(line.label), *map(_plain, words)])
    head = "planner | package | sha256 of code from outside | results version | measured with"
    about = "## Manifests\n\nThe files of lines hold the rest: hashes of scenarios, seeds and every episode.\n\n"
    return about + _table(head, rows)


def _made(with_: dict[str, object]) -> str:
    words = [f"{name} {with_.get(name)}" for name in ("heliomesh", "python", "torch")]
    return ", ".join([*words, f"{with_.get('processor')}, {with_.get('threads')} threads"])


def _code(text: str) -> str:
    """Text of a line, which may come from a stranger, as code that ends where it should."""
    return f"`{re.sub(r'[`|]|[^ -~]', '?', text.strip())}`"


def _plain(text: str) -> str:
    """The same as text that is no markup."""
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", " ".join(text.split()))


def _table(head: str, rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(markdown_table(head, rows, " --- "))
