"""What the report page knows: runs, schemes with their headline numbers, networks and scenarios, as plain data.

Runs of a scheme with different seeds are averaged.
"""

import math
import os
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from heliomesh.common import catalog
from heliomesh.common.durable import without_nan
from heliomesh.common.memory_limit import TooLargeError, readable
from heliomesh.common.streams import stream
from heliomesh.learning.run import TrainingError
from heliomesh.pages.headline import certified_bounds, ledger_totals, scheme_facts
from heliomesh.pages.intervals import LEAST_PAIRS
from heliomesh.pages.packing import Blobs, estimated_characters
from heliomesh.pages.run_folder import RunFolder, read_run
from heliomesh.pages.schemes import grouped, scenario_hash, scenario_names, short_title
from heliomesh.pages.seed_by_seed import differences, seeds_of
from heliomesh.pages.verdict import answer
from heliomesh.scenario.errors import ScenarioError
from heliomesh.scenario.schema import Learning
from heliomesh.simulation.trace import Trace
from heliomesh.tasks.dataset import DATASET_CATALOG, Dataset, DatasetError, load_dataset
from heliomesh.tasks.partition import split
from heliomesh.tasks.retrieval.search import is_cached

LIMIT_MIB = 16  # of slot data in one page
_WINDOW = 10  # slots of a moving mean
_POWERS = 127  # most powers a page tells apart; one bit of a byte says whether the device trained
_TRAINED = 128
_CURVES = "slot accuracy_mean accuracy_min accuracy_max average_accuracy consensus_distance train_loss loss_mean"
_PROVENANCE = "trace simulation_seed dataset strategy precision device duration_second versions"

Facts = dict[str, Any]
Floats = npt.NDArray[np.float64]


def page_data(folders: Sequence[str | Path], title: str | None = None, every: int = 1) -> Facts:
    """Read run folders and describe them; raises TrainingError, TraceError or TooLargeError.

    ``every`` keeps every such slot in the player; sums and means count all slots.
    """
    TrainingError.when(every < 1, "every", "at least 1", f"value {every}")
    _check_distinct(folders)
    return described([read_run(folder) for folder in folders], title, every)


def described(runs: Sequence[RunFolder], title: str | None = None, every: int = 1) -> Facts:
    """The same of runs that were read; raises TooLargeError."""
    _check_size(runs, every)
    blobs = Blobs()
    names = scenario_names(runs)
    schemes = grouped(runs, names)
    bounds = certified_bounds(runs)
    scenarios: dict[str, Facts] = {}
    for index, run in enumerate(runs):
        key = scenario_hash(run)
        if key not in scenarios:
            scenarios[key] = {"name": names[key], "toml": run.scenario.to_toml(), "runs": [], "hash": key}
            scenarios[key]["network"] = _network(run, blobs)
        scenarios[key]["runs"].append(index)
    order = list(scenarios)
    facts = [scheme_facts(scheme, runs, bounds, schemes) for scheme in schemes]
    paired = differences([[runs[index] for index in scheme.runs] for scheme in schemes])
    most_runs = max(len(scheme.runs) for scheme in schemes)
    data: Facts = {
        "title": title or short_title(runs),
        "answer": answer(facts, paired)._asdict(),
        "every": every,
        "window": _WINDOW,
        "least_pairs": LEAST_PAIRS,
        # Student's quantile of 95 % intervals, by the number of samples, from 0
        "student": [None, None, *(float(stdtrit(count - 1, 0.975)) for count in range(2, most_runs + 1))],
        "schemes": facts,
        "differences": paired,
        "runs": [_run_facts(run, order.index(scenario_hash(run)), every, blobs) for run in runs],
        "scenarios": list(scenarios.values()),
    }
    common = list(dict.fromkeys(map(seeds_of, runs)))
    for number, scheme in enumerate(schemes):
        for index in scheme.runs:
            data["runs"][index] |= {"scheme": number, "seeds": common.index(seeds_of(runs[index]))}
    return without_nan(data | {"blobs": blobs.texts})  # type: ignore[no-any-return]


def _check_distinct(folders: Sequence[str | Path]) -> None:
    TrainingError.when(not folders, "runs", "at least one folder", "number 0")
    for path, times in Counter(map(os.path.realpath, folders)).items():
        TrainingError.when(times > 1, path, "every run's folder once", f"number {times}")


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
        actual = f"estimate {readable(size)}; every = {enough} keeps one slot in {enough}, or name fewer runs"
        raise TooLargeError("report", f"at most {LIMIT_MIB} MiB of slot data", actual)


# Runs


def _run_facts(run: RunFolder, scenario: int, every: int, blobs: Blobs) -> Facts:
    (mix, why_no_mix), live = _label_mix(run), run.live
    curves = {name: blobs.numbers_of(run.curves.metrics[name]) for name in _CURVES.split()}
    return {
        "name": run.path.resolve().name.encode("utf-8", "replace").decode(),
        "planner": run.planner,
        "seed": run.seed,
        "scenario": scenario,
        "slots": run.scenario.slots,
        "finished": run.finished,
        "done": run.curves.done,
        "missing": list(run.missing),
        "curves": curves | {"device_accuracy": blobs.steps_of(run.curves.accuracy, 1.0, "u2")},
        "trace": None if run.trace is None else _trace_facts(run.trace, run.episode, run, every, blobs),
        "live": live and {"slot": blobs.numbers_of(live.slots, "u4"), "heard": blobs.bits_of(live.heard)},
        "labels": None if mix is None else blobs.numbers_of(mix, "u4"),
        "why_no_labels": why_no_mix,
        "provenance": {name: run.provenance[name] for name in _PROVENANCE.split() if name in run.provenance},
    }


def _trace_facts(trace: Trace, episode: int, run: RunFolder, every: int, blobs: Blobs) -> Facts:
    """What the player shows of every kept slot, sums and means over all of them, and the ledger."""
    slots = run.scenario.slots
    kept = np.arange(0, slots, min(every, slots))
    battery, spent = trace.battery_joule[episode], trace.spent_joule[episode]
    harvested, overflow = trace.harvested_joule[episode], trace.overflow_joule[episode]
    capacity = np.broadcast_to(np.asarray(run.scenario.energy.capacity_joule, np.float64), battery.shape[1:])
    full = max(float(capacity.max()), float(battery.max()))
    powers, action = _actions(trace.power_watt[episode], trace.scheduled[episode])
    cost = trace.update_loss[episode].sum(1)
    return {
        "slot": blobs.numbers_of(kept, "u4"),  # first of the slots a frame stands for
        "battery": blobs.steps_of(battery[[*kept, slots]], full),
        "spent": blobs.steps_of(spent[kept], float(spent.max())),
        "harvested": blobs.steps_of(harvested[kept], float(harvested.max())),
        "update_loss": blobs.steps_of(trace.update_loss[episode][kept], 1.0),
        "action": blobs.numbers_of(action[kept], "u1"),
        "delivered": blobs.bits_of(trace.delivered[episode][kept]),
        "powers_watt": powers,
        "capacity_joule": capacity.tolist(),
        "cost_so_far": blobs.numbers_of((np.cumsum(cost) / np.arange(1, slots + 1))[kept]),
        "cost_recent": blobs.numbers_of(_moving_mean(cost)[kept]),
        "mean_battery": blobs.numbers_of(battery.mean(1)[kept]),
        "spent_so_far": blobs.numbers_of(np.cumsum(spent.sum(1))[kept]),
        "harvested_so_far": blobs.numbers_of(np.cumsum(harvested.sum(1))[kept]),
        "overflow_so_far": blobs.numbers_of(np.cumsum(overflow.sum(1))[kept]),
        "cost": float(cost.mean()),
        "ledger": ledger_totals(trace.episode(episode), run.scenario),
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
    sums = np.convolve(values, np.ones(_WINDOW))[: len(values)]
    return np.asarray(sums / np.minimum(np.arange(1, len(values) + 1), _WINDOW))


def _network(run: RunFolder, blobs: Blobs) -> Facts:
    topology = run.topology
    return {
        "devices": topology.num_devices,
        "names": list(run.scenario.network.names or ()),
        "position_metre": blobs.numbers_of(topology.position_metre),
        "receiver": blobs.numbers_of(topology.edge_receiver, "u4"),
        "sender": blobs.numbers_of(topology.edge_sender, "u4"),
    }


def _label_mix(run: RunFolder) -> tuple[npt.NDArray[np.int64] | None, str | None]:
    """Samples by (device, class), dealt out again as the training did; or why that cannot be said."""
    learning, devices = run.scenario.learning, run.topology.num_devices
    trained_on = str(run.provenance.get("dataset", "")).rpartition(" ")[0]  # the name before the fingerprint
    try:
        dataset = _dataset(learning.dataset, learning.path, learning.validation)
        if trained_on and trained_on != dataset.name:
            return None, f"the run was trained on {trained_on}, which its scenario does not name"
        partition = split(dataset.train_labels, learning, devices, stream(run.seed, "partition"))
    except (DatasetError, ScenarioError, catalog.UnknownVariantError, OSError) as error:
        return None, " ".join(str(error).split())
    return partition.label_counts(dataset.train_labels, dataset.num_classes), None


@cache
def _dataset(name: str, path: str | None, validation: float | None) -> Dataset:
    """A dataset that is here already: a report fetches nothing."""
    DatasetError.when(":" in name, f"a report does not run code, and the dataset is the code {name}", "")
    module = catalog.find(DATASET_CATALOG, name)
    source = getattr(module, "SOURCE", None)
    if source is not None and not is_cached(source):
        raise DatasetError(f"the dataset is not on this machine. Run `heliomesh data get {name}`.")
    return load_dataset(Learning(dataset=name, path=path, validation=validation))
