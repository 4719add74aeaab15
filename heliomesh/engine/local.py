"""Run arms on this machine: plan and simulate what has no trace, train what has no result."""

import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd
import torch

from heliomesh.engine.arm import Arm, Prepared, prepare
from heliomesh.engine.store import Store
from heliomesh.learning.precision import Precision
from heliomesh.learning.replay import TrainJob
from heliomesh.learning.run import Run
from heliomesh.learning.trainer import TrainSettings, train_many
from heliomesh.problem.policy import ParallelMap, Track, untracked

parallel_map: ParallelMap = map  # what engines offer to planners


@dataclass(frozen=True)
class Hardware:
    """Where to train and how."""

    device: str = "cpu"
    precision: Precision = "fp32"
    strategy: str = "auto"
    arms_at_once: int = 1  # trained in one stack

    def settings(self) -> TrainSettings:
        """The same for the trainer."""
        return TrainSettings(device=self.device, precision=self.precision, strategy=self.strategy)

    def facts(self) -> dict[str, Any]:
        """What the machine is."""
        gpu = torch.cuda.get_device_name(self.device) if self.device.startswith("cuda") else None
        return {
            "device": self.device,
            "gpu": gpu,
            "cores": os.cpu_count(),
            "machine": platform.machine(),
            "precision": self.precision,
        }


def prepare_all(arms: Sequence[Arm], store: Store, track: Track = untracked, parallel_map: ParallelMap = map) -> None:
    """Plan and simulate every arm that has neither a result nor a trace.

    ``parallel_map`` may give results in any order: each is stored when it comes.
    """
    _share(arms, store)
    absent = [arm for arm in arms if not store.has(arm) and not store.has_trace(arm)]
    waiting = list({arm.trace_key: arm for arm in reversed(absent)}.values())[::-1]  # figures share traces
    for arm, prepared in track(parallel_map(_prepare, waiting), "plan and simulate", len(waiting)):
        store.put_trace(arm, prepared)


def train_all(
    arms: Sequence[Arm],
    store: Store,
    hardware: Hardware,
    track: Track = untracked,
    parallel_map: ParallelMap = map,
) -> None:
    """Train every arm that has no result, arms of one dataset and model together; see `prepare_all`."""
    _share(arms, store)
    waiting = list({arm.key: arm for arm in reversed(arms) if not store.has(arm)}.values())[::-1]
    stacks: list[list[Arm]] = []
    for _, alike in groupby(sorted(waiting, key=_kind), key=_kind):
        members = list(alike)
        step = hardware.arms_at_once
        stacks += [members[start : start + step] for start in range(0, len(members), step)]
    ready = ([(arm, store.get_trace(arm)) for arm in stack] for stack in stacks)
    for trained in track(parallel_map(partial(_train, hardware), ready), "train", len(stacks)):
        for arm, curves, facts in trained:
            store.put(arm, curves, facts)
    _share(arms, store)


def _share(arms: Sequence[Arm], store: Store) -> None:
    """Figures have arms in common: what one of them has, its equals get too, under their own labels."""
    known = {arm.key: arm for arm in arms if store.has(arm)}
    for arm in arms:
        if not store.has(arm) and arm.key in known:
            result = store.get(known[arm.key])
            store.put(arm, result.curves, result.manifest | _labels(arm))


def _prepare(arm: Arm) -> tuple[Arm, Prepared]:
    return arm, prepare(arm)


def _kind(arm: Arm) -> str:
    """Arms that may train in one stack."""
    learning, slots = arm.scenario.learning, arm.scenario.slots
    return f"{learning.dataset} {learning.model} {learning.local_steps} {learning.batch} {slots}"


def _train(
    hardware: Hardware, stack: Sequence[tuple[Arm, Prepared]]
) -> list[tuple[Arm, pd.DataFrame, dict[str, Any]]]:
    """Curves and facts of arms trained together."""
    jobs = [
        TrainJob(arm.scenario, ready.trace, episode=seed, seed=seed)
        for arm, ready in stack
        for seed in range(arm.num_seeds)
    ]
    started = time.perf_counter()
    runs = iter(train_many(jobs, hardware.settings()))
    seconds = time.perf_counter() - started
    trained = []
    for arm, ready in stack:
        own = [next(runs) for _ in range(arm.num_seeds)]
        facts = _facts(arm, ready, own[0], hardware) | {"train_second": seconds, "trained_together": len(jobs)}
        trained.append((arm, _curves(own), facts))
    return trained


def _curves(runs: Sequence[Run]) -> pd.DataFrame:
    """Metrics of all seeds, one row per seed and evaluated slot."""
    return pd.concat(
        [pd.DataFrame({"seed": seed, **run.metrics}) for seed, run in enumerate(runs)], ignore_index=True
    )


def _labels(arm: Arm) -> dict[str, Any]:
    """Where an arm stands in its figure."""
    return {"figure": arm.figure, "scheme": arm.scheme.label, "setting": arm.setting, "place": arm.place}


def _facts(arm: Arm, ready: Prepared, run: Run, hardware: Hardware) -> dict[str, Any]:
    trace = ready.trace
    sent = np.take(trace.power_watt > 0, trace.edge_sender, axis=2)
    return _labels(arm) | {
        "options": dict(arm.scheme.options),
        "scenario": arm.scenario.content_hash,
        "scenario_toml": arm.scenario.to_toml(),
        "seeds": list(range(arm.num_seeds)),
        "cost": trace.cost.tolist(),
        "participation": float(trace.scheduled.mean()),
        "delivery": float(trace.delivered.sum() / max(sent.sum(), 1)),
        "plan": ready.facts,
        "strategy": run.provenance["strategy"],
        "versions": run.provenance["versions"],
        "hardware": hardware.facts(),
    }
