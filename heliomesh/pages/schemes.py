"""Which runs belong together: a scheme is a planner with its options on one scenario, whatever the seeds.

A run that is not finished is a scheme of its own, so that it does not blur the others.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from heliomesh.pages.run_folder import RunFolder
from heliomesh.planning import find_planner, planner_names

_LONGEST_DIFFERENCE = 48  # characters in which a label tells two scenarios apart
_MOST_NAMED = 3  # planners in a title; more are counted


class SchemeRuns(NamedTuple):
    """Runs that differ by seed only."""

    label: str
    runs: tuple[int, ...]


def grouped(runs: Sequence[RunFolder], names: Mapping[str, str]) -> list[SchemeRuns]:
    """Group runs; those that cannot be averaged stand alone under their folder's name."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, run in enumerate(runs):
        key = (run.scenario.override({"seed": 0}).content_hash, run.planner, repr(dict(run.options)))
        groups.setdefault((*key, run.trace is None, "" if run.finished else run.path), []).append(index)
    several = len({key[0] for key in groups}) > 1
    schemes = []
    for indices in groups.values():
        first = runs[indices[0]]
        label = scheme_label(first, f"on {names[scenario_hash(first)]}" if several else "")
        seeds = [(runs[index].scenario.seed, runs[index].seed, runs[index].episode) for index in indices]
        if len(set(seeds)) == len(seeds):
            schemes.append(SchemeRuns(label, tuple(indices)))
        else:  # the same seeds twice would make intervals too narrow
            schemes += [SchemeRuns(f"{label} ({runs[index].path.name})", (index,)) for index in indices]
    times = Counter(scheme.label for scheme in schemes)
    return [
        one if times[one.label] == 1 else one._replace(label=f"{one.label}, {runs[one.runs[0]].path.name}")
        for one in schemes
    ]


def scheme_label(run: RunFolder, where: str) -> str:
    """The planner, its options, and what else must be known."""
    name, *words = run.planner.split()
    # the name of a plan may say options already: "decentralized literal" needs no form=literal
    variants = find_planner(name).variants if words and name in planner_names() else ()
    said = [item for options in variants for item in options.items()]
    options = [f"{item[0]}={item[1]}" for item in run.options.items() if item not in said]
    state = ["(unfinished)"] * (not run.finished) + ["(no trace)"] * (run.trace is None)
    return " ".join([run.planner, *options, *([where] if where else []), *state])


def scenario_hash(run: RunFolder) -> str:
    """Of the scenario with its seed."""
    return str(run.provenance.get("scenario") or run.scenario.content_hash)


def scenario_names(runs: Sequence[RunFolder]) -> dict[str, str]:
    """Names of scenarios by hash; namesakes are told apart by the settings in which they differ."""
    settings = {scenario_hash(run): dict(_settings(run.scenario.as_dict())) for run in runs}
    names = {}
    for run in runs:
        name, own = run.scenario.name, settings[scenario_hash(run)]
        others = [settings[scenario_hash(other)] for other in runs if other.scenario.name == name]
        paths = dict.fromkeys(path for one in (own, *others) for path in one if path != "seed")
        differing = [path for path in paths if any(one.get(path) != own.get(path) for one in others)]
        text = ", ".join(f"{path}={own.get(path, 'unset')}" for path in differing)
        text = text if len(text) <= _LONGEST_DIFFERENCE else scenario_hash(run)[:12]
        names[scenario_hash(run)] = f"{name} ({text})" if differing else name
    return names


def _settings(values: Mapping[str, Any], section: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted paths of a scenario and their values, as ``--set`` takes them."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _settings(value, f"{section}{name}.")
        else:
            yield f"{section}{name}", value


def short_title(runs: Sequence[RunFolder]) -> str:
    """Scenarios and planners, counted where their names would fill the page's first lines."""
    names = _named([run.scenario.name for run in runs], "scenarios")
    return f"{names}: {_named([run.planner for run in runs], 'planners')}"


def _named(values: Sequence[str], noun: str) -> str:
    distinct = list(dict.fromkeys(values))
    return ", ".join(distinct) if len(distinct) <= _MOST_NAMED else f"{len(distinct)} {noun}"
