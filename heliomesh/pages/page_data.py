"""What the report page knows: runs, schemes with their headline numbers, networks and scenarios, as plain data.

A scheme is a planner with its options on one scenario; runs of a scheme with different seeds are averaged. A run that
is not finished is a scheme of its own, so that it does not blur the others.
"""

import math
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

from heliomesh import catalog
from heliomesh.durable import without_nan
from heliomesh.learning.dataset import DATASET_CATALOG, Dataset, DatasetError, load_dataset
from heliomesh.learning.partition import split
from heliomesh.learning.retrieval.search import is_cached
from heliomesh.learning.run import TrainingError
from heliomesh.pages.colours import class_colours, scheme_colour
from heliomesh.pages.packing import Blobs, estimated_characters
from heliomesh.pages.run_folder import Curves, RunFolder, read_run
from heliomesh.pages.seed_by_seed import differences
from heliomesh.planning import lower_bound
from heliomesh.problem.dual import is_quick
from heliomesh.problem.problem import action_set, build
from heliomesh.problem.size import TooLargeError, readable
from heliomesh.scenario import Learning, Scenario, ScenarioError
from heliomesh.simulation.diagnostics import interval
from heliomesh.simulation.ledger import energy_ledger
from heliomesh.simulation.trace import Trace
from heliomesh.streams import stream
from heliomesh.studies.gap_ledger import GapLedger, joined

LIMIT_MIB = 16  # of slot data in one page
_WINDOW = 10  # slots of a moving mean
_POWERS = 127  # most powers a page tells apart; one bit of a byte says whether the device trained
_TRAINED = 128
_LONGEST_DIFFERENCE = 48  # characters in which a label tells two scenarios apart
_PROVENANCE = (
    "trace",
    "simulation_seed",
    "dataset",
    "strategy",
    "precision",
    "device",
    "duration_second",
    "versions",
)

Facts = dict[str, Any]
Floats = npt.NDArray[np.float64]


class SchemeRuns(NamedTuple):
    """Runs that differ by seed only."""

    label: str
    runs: tuple[int, ...]


def page_data(folders: Sequence[str | Path], title: str | None = None, every: int = 1) -> Facts:
    """Read run folders and describe them; raises TrainingError, TraceError or TooLargeError.

    ``every`` keeps every such slot in the player; sums and means count all slots.
    """
    if every < 1:
        raise TrainingError(f"every: expected at least 1, actual value {every}")
    _check_distinct(folders)
    runs = [read_run(folder) for folder in folders]
    _check_size(runs, every)
    blobs = Blobs()
    names = _scenario_names(runs)
    schemes = _schemes(runs, names)
    bounds = _bounds(runs)
    scenarios: dict[str, Facts] = {}
    networks: dict[str, Facts] = {}
    for index, run in enumerate(runs):
        own = scenarios.setdefault(
            _hash(run), {"name": names[_hash(run)], "toml": run.scenario.to_toml(), "runs": []}
        )
        own["runs"].append(index)
        networks.setdefault(_hash(run), _network(run, blobs))
    order = list(scenarios)
    data: Facts = {
        "title": title or _title(runs),
        "every": every,
        "window": _WINDOW,
        "schemes": [_scheme_facts(scheme, runs, bounds, schemes) for scheme in schemes],
        "differences": differences([[runs[index] for index in scheme.runs] for scheme in schemes]),
        "runs": [_run_facts(run, order.index(_hash(run)), every, blobs) for run in runs],
        "scenarios": [scenarios[key] | {"hash": key, "network": networks[key]} for key in order],
    }
    for number, scheme in enumerate(schemes):
        for index in scheme.runs:
            data["runs"][index]["scheme"] = number
    return without_nan(data | {"blobs": blobs.texts})  # type: ignore[no-any-return]


def _check_distinct(folders: Sequence[str | Path]) -> None:
    if not folders:
        raise TrainingError("runs: expected at least one folder, actual number 0")
    resolved = Counter(Path(folder).resolve() for folder in folders)
    repeated = next((path for path, times in resolved.items() if times > 1), None)
    if repeated is not None:
        raise TrainingError(f"{repeated}: expected every run's folder once, actual number {resolved[repeated]}")


def _check_size(runs: Sequence[RunFolder], every: int) -> None:
    """Refuse a page that a browser would choke on, before anything is encoded."""
    size = sum(
        estimated_characters(-(-run.scenario.slots // every), run.topology.num_devices, run.topology.num_edges)
        for run in runs
        if run.trace is not None
    )
    limit = LIMIT_MIB * 2**20
    if size > limit:
        enough = math.ceil(every * size / limit)
        raise TooLargeError(
            f"report: expected at most {LIMIT_MIB} MiB of slot data, actual estimate {readable(size)}; "
            f"every = {enough} keeps one slot in {enough}, or name fewer runs"
        )


def _hash(run: RunFolder) -> str:
    return str(run.provenance.get("scenario") or run.scenario.content_hash)


def _title(runs: Sequence[RunFolder]) -> str:
    names = list(dict.fromkeys(run.scenario.name for run in runs))
    planners = list(dict.fromkeys(run.planner for run in runs))
    return f"{', '.join(names)}: {', '.join(planners)}"


def _scenario_names(runs: Sequence[RunFolder]) -> dict[str, str]:
    """Names of scenarios by hash; namesakes are told apart by the settings in which they differ."""
    settings = {_hash(run): dict(_settings(run.scenario.as_dict())) for run in runs}
    names = {}
    for run in runs:
        name, own = run.scenario.name, settings[_hash(run)]
        others = [settings[_hash(other)] for other in runs if other.scenario.name == name]
        paths = dict.fromkeys(path for one in (own, *others) for path in one if path != "seed")
        differing = [path for path in paths if any(one.get(path) != own.get(path) for one in others)]
        text = ", ".join(f"{path}={own.get(path, 'unset')}" for path in differing)
        text = text if len(text) <= _LONGEST_DIFFERENCE else _hash(run)[:12]
        names[_hash(run)] = f"{name} ({text})" if differing else name
    return names


def _settings(values: Mapping[str, Any], section: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted paths of a scenario and their values, as ``--set`` takes them."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _settings(value, f"{section}{name}.")
        else:
            yield f"{section}{name}", value


# Schemes and their headline numbers


def _schemes(runs: Sequence[RunFolder], names: Mapping[str, str]) -> list[SchemeRuns]:
    """Group runs; those that cannot be averaged stand alone under their folder's name."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, run in enumerate(runs):
        key = (run.scenario.override({"seed": 0}).content_hash, run.planner, repr(dict(run.options)))
        groups.setdefault((*key, run.trace is None, "" if run.finished else run.path), []).append(index)
    several = len({key[0] for key in groups}) > 1
    schemes = []
    for indices in groups.values():
        first = runs[indices[0]]
        label = _label(first, f"on {names[_hash(first)]}" if several else "")
        seeds = [(runs[index].scenario.seed, runs[index].seed, runs[index].episode) for index in indices]
        if len(set(seeds)) == len(seeds):
            schemes.append(SchemeRuns(label, tuple(indices)))
        else:  # the same seeds twice would make intervals too narrow
            schemes += [SchemeRuns(f"{label} ({runs[index].path.name})", (index,)) for index in indices]
    return _told_apart(schemes, runs)


def _label(run: RunFolder, where: str) -> str:
    said = run.planner.split()  # "decentralized literal" needs no form=literal
    options = [f"{name}={value}" for name, value in run.options.items() if str(value) not in said]
    state = ["(unfinished)"] * (not run.finished) + ["(no trace)"] * (run.trace is None)
    return " ".join([run.planner, *options, *([where] if where else []), *state])


def _told_apart(schemes: list[SchemeRuns], runs: Sequence[RunFolder]) -> list[SchemeRuns]:
    """Add the first run's folder where labels are equal."""
    times = Counter(scheme.label for scheme in schemes)
    return [
        scheme._replace(label=f"{scheme.label}, {runs[scheme.runs[0]].path.name}")
        if times[scheme.label] > 1
        else scheme
        for scheme in schemes
    ]


def _scheme_facts(
    scheme: SchemeRuns, runs: Sequence[RunFolder], bounds: Mapping[str, float], schemes: Sequence[SchemeRuns]
) -> Facts:
    own = [runs[index] for index in scheme.runs]
    planner = own[0].planner
    namesakes = [other for other in schemes if runs[other.runs[0]].planner == planner]
    rows = [_headline(run, bounds) for run in own]
    return {
        "label": scheme.label,
        "planner": planner,
        "colour": scheme_colour(planner)._asdict(),
        "dash": namesakes.index(scheme),  # schemes of one planner share its colour
        "runs": list(scheme.runs),
        "finished": own[0].finished,
        "t": float(stats.t.ppf(0.975, len(own) - 1)) if len(own) > 1 else None,  # Student's quantile of 95 % bands
        "headline": {name: _interval([row[name] for row in rows]) for name in rows[0]},
        "gap_ledger": _gap_ledger([run.gap_ledger for run in own]),
    }


def _gap_ledger(ledgers: Sequence[GapLedger | None]) -> Facts | None:
    """The gap to the lossless ideal and its parts in points; None where some run has no ledger."""
    known = [ledger for ledger in ledgers if ledger is not None]
    if len(known) < len(ledgers):
        return None
    found = joined(known).intervals()
    return {name: {"mean": value.mean, "half": value.half_width} for name, value in found.items()}


def _interval(values: Sequence[float | None]) -> Facts | None:
    """Mean, 95 % half-width and range over runs; None where some run does not know."""
    known = np.array([value for value in values if value is not None and math.isfinite(value)])
    if len(known) < len(values):
        return None
    found = interval(known)
    return {"mean": found.mean, "half": found.half_width, "low": float(known.min()), "high": float(known.max())}


def _bounds(runs: Sequence[RunFolder]) -> dict[str, float]:
    """A certified bound on every planner that picks the scenario's actions, by scenario, where it takes seconds."""
    found = {_hash(run): _certified(run.scenario.to_toml()) for run in runs}
    return {name: bound for name, bound in found.items() if bound is not None}


@cache
def _certified(scenario: str) -> float | None:
    problem = build(Scenario.parse(tomllib.loads(scenario)))
    return lower_bound(problem) if is_quick(problem) else None


def _headline(run: RunFolder, bounds: Mapping[str, float]) -> dict[str, float | None]:
    rows = len(run.curves.metrics["slot"])
    names = ("accuracy_mean", "accuracy_min", "accuracy_max", "average_accuracy", "consensus_distance")
    facts: dict[str, float | None] = {name: float(run.curves.metrics[name][-1]) if rows else None for name in names}
    facts |= {"cost": None, "spent_joule": None, "harvested_joule": None, "overflow_joule": None}
    facts |= {"participation": None, "sending": None, "delivery": None}
    if run.trace is not None:
        facts |= _trace_headline(run.trace, run.episode)
    bound, cost = bounds.get(_hash(run)) if _picks_actions(run) else None, facts["cost"]
    facts["bound"] = bound
    facts["gap"] = cost / bound - 1 if cost is not None and bound is not None and bound > 0 else None
    return facts


def _picks_actions(run: RunFolder) -> bool:
    """Whether all powers seen, with and without training, are the scenario's: a bound speaks of no others."""
    if run.trace is None:
        return True
    powers, trained = action_set(run.scenario)
    seen, scheduled = run.trace.power_watt[run.episode], run.trace.scheduled[run.episode]
    known = [np.isin(seen, powers[trained == with_training].numpy()) for with_training in (False, True)]
    return bool(np.where(scheduled, known[1], known[0]).all())


def _trace_headline(trace: Trace, episode: int) -> dict[str, float | None]:
    sends = trace.power_watt[episode] > 0  # (slot, device)
    sent = sends[:, trace.edge_sender]
    joules = {name: float(getattr(trace, name)[episode].sum()) for name in ("spent_joule", "harvested_joule")}
    return {
        "cost": float(trace.cost[episode]),
        **joules,
        "overflow_joule": float(trace.overflow_joule[episode].sum()),
        "participation": float(trace.scheduled[episode].mean()),
        "sending": float(sends.mean()),
        "delivery": float(trace.delivered[episode][sent].mean()) if sent.any() else None,
    }


# Runs


def _run_facts(run: RunFolder, scenario: int, every: int, blobs: Blobs) -> Facts:
    mix, why_no_mix = _label_mix(run)
    return {
        "name": run.path.resolve().name.encode("utf-8", "replace").decode(),
        "planner": run.planner,
        "seed": run.seed,
        "scenario": scenario,
        "slots": run.scenario.slots,
        "finished": run.finished,
        "done": run.curves.done,
        "missing": list(run.missing),
        "curves": _curve_facts(run.curves, blobs),
        "trace": None if run.trace is None else _trace_facts(run.trace, run.episode, run, every, blobs),
        "labels": None if mix is None else {"counts": blobs.integers_of(mix), "colours": class_colours(mix.shape[1])},
        "why_no_labels": why_no_mix,
        "plan": {name: value for name, value in run.plan.items() if isinstance(value, str | int | float | None)},
        "provenance": {name: run.provenance[name] for name in _PROVENANCE if name in run.provenance},
    }


def _curve_facts(curves: Curves, blobs: Blobs) -> Facts:
    names = ("slot", "accuracy_mean", "accuracy_min", "accuracy_max", "average_accuracy", "consensus_distance")
    facts: Facts = {name: blobs.floats_of(curves.metrics[name]) for name in (*names, "train_loss", "loss_mean")}
    return facts | {"device_accuracy": blobs.words_of(curves.accuracy, 1.0)}


def _trace_facts(trace: Trace, episode: int, run: RunFolder, every: int, blobs: Blobs) -> Facts:
    """What the player shows of every kept slot, sums and means over all of them, and the ledger."""
    slots = run.scenario.slots
    kept = np.arange(0, slots, every)
    battery, spent = trace.battery_joule[episode], trace.spent_joule[episode]
    harvested, overflow = trace.harvested_joule[episode], trace.overflow_joule[episode]
    capacity = np.broadcast_to(np.asarray(run.scenario.energy.capacity_joule, np.float64), battery.shape[1:])
    full = max(float(capacity.max()), float(battery.max()))
    powers, action = _actions(trace.power_watt[episode], trace.scheduled[episode])
    cost = trace.update_loss[episode].sum(1)
    return {
        "slot": blobs.integers_of(kept),  # first of the slots a frame stands for
        "battery": blobs.bytes_of(battery[[*kept, slots]], full),
        "spent": blobs.bytes_of(spent[kept], float(spent.max())),
        "harvested": blobs.bytes_of(harvested[kept], float(harvested.max())),
        "update_loss": blobs.bytes_of(trace.update_loss[episode][kept], 1.0),
        "action": blobs.codes_of(action[kept]),
        "delivered": blobs.bits_of(trace.delivered[episode][kept]),
        "powers_watt": powers,
        "capacity_joule": capacity.tolist(),
        "cost_so_far": blobs.floats_of((np.cumsum(cost) / np.arange(1, slots + 1))[kept]),
        "cost_recent": blobs.floats_of(_moving_mean(cost)[kept]),
        "mean_battery": blobs.floats_of(battery.mean(1)[kept]),
        "spent_so_far": blobs.floats_of(np.cumsum(spent.sum(1))[kept]),
        "harvested_so_far": blobs.floats_of(np.cumsum(harvested.sum(1))[kept]),
        "overflow_so_far": blobs.floats_of(np.cumsum(overflow.sum(1))[kept]),
        "cost": float(cost.mean()),
        "ledger": _ledger(trace.episode(episode), run.scenario),
    }


def _actions(power_watt: Floats, trained: npt.NDArray[np.bool_]) -> tuple[list[float], npt.NDArray[np.uint8]]:
    """Powers in rising order, and by (slot, device) the index of one of them, plus 128 where the device trained.

    A planner may choose from a continuum; then powers are rounded to 127 steps.
    """
    if len(np.unique(power_watt)) > _POWERS:
        step = float(power_watt.max()) / (_POWERS - 1)
        power_watt = np.rint(power_watt / step) * step
    powers, index = np.unique(power_watt, return_inverse=True)
    return powers.tolist(), (index.reshape(power_watt.shape) + _TRAINED * trained).astype(np.uint8)


def _moving_mean(values: Floats) -> Floats:
    """Mean of the last ten slots, of fewer at the start."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    end = np.arange(1, len(values) + 1)
    start = np.maximum(end - _WINDOW, 0)
    mean: Floats = (sums[end] - sums[start]) / (end - start)
    return mean


def _ledger(trace: Trace, scenario: Scenario) -> dict[str, float]:
    """Joules of all devices together: initial + harvested = spent + charging + leaked + overflow + stored."""
    ledger = energy_ledger(trace, scenario)
    names = [field.name.removesuffix("_joule") for field in fields(ledger)]
    totals = {name: float(getattr(ledger, f"{name}_joule").sum()) for name in (*names, "imbalance")}
    return totals | {"ideal": ledger.is_ideal}


def _network(run: RunFolder, blobs: Blobs) -> Facts:
    topology = run.topology
    return {
        "devices": topology.num_devices,
        "names": list(run.scenario.network.names or ()),
        "position_metre": blobs.floats_of(topology.position_metre),
        "receiver": blobs.integers_of(topology.edge_receiver),
        "sender": blobs.integers_of(topology.edge_sender),
    }


def _label_mix(run: RunFolder) -> tuple[npt.NDArray[np.int64] | None, str | None]:
    """Samples by (device, class), dealt out again as the training did; or why that cannot be said."""
    learning, devices = run.scenario.learning, run.topology.num_devices
    trained_on = str(run.provenance.get("dataset", "")).rpartition(" ")[0]  # the name before the fingerprint
    try:
        dataset = _dataset(learning.dataset, learning.path)
        if trained_on and trained_on != dataset.name:
            return None, f"the run was trained on {trained_on}, which its scenario does not name"
        partition = split(dataset.train_labels, learning, devices, stream(run.seed, "partition"))
    except (DatasetError, ScenarioError, catalog.UnknownVariantError, OSError) as error:
        return None, " ".join(str(error).split())
    return partition.label_counts(dataset.train_labels, dataset.num_classes), None


@cache
def _dataset(name: str, path: str | None) -> Dataset:
    """A dataset that is here already: a report fetches nothing."""
    if ":" in name:
        raise DatasetError(f"the dataset is code of another module, {name}, which a report does not run")
    module = catalog.find(DATASET_CATALOG, name)
    source = getattr(module, "SOURCE", None)
    if source is not None and not is_cached(source):
        raise DatasetError(f"the dataset is not here; heliomesh data get {name} fetches it")
    return load_dataset(Learning(dataset=name, path=path))
