"""Fashion-MNIST on `ring10`, 200 slots: the time of one run, and with ``--table`` the accuracies over five seeds.

A run plans, simulates, trains the paper's CNN (η = 0.01, K = 5, batch 32) and evaluates every ten slots: the average
model on 10,000 test images, each device on 500 of them, and all on all at the end. The last line says how long it
took.

The table has mean device accuracy (and that of the average model) for i.i.d. and Dir(0.8) data, by gossip (`model`
with Metropolis weights) and by the paper's rule (`update` with lazy ones). Finished runs are stored as JSON in
``--store`` and not repeated. On a GPU many runs train in one stack.
"""

import argparse
import json
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import heliomesh as hm
from heliomesh.learning.dataset import load_dataset
from heliomesh.simulation.diagnostics import interval

PARTITIONS: dict[str, dict[str, Any]] = {
    "i.i.d.": {"learning.partition": "iid"},
    "Dir(0.8)": {"learning.partition": "dirichlet", "learning.alpha": 0.8},
}
RULES: dict[str, dict[str, Any]] = {
    "gossip": {"learning.aggregation": "model", "network.mixing": "metropolis"},
    "the paper's rule": {"learning.aggregation": "update", "network.mixing": "lazy-metropolis"},
}


def scenario_of(slots: int, *changes: dict[str, Any]) -> hm.Scenario:
    """`ring10` with the paper's first task."""
    overrides: dict[str, Any] = {"slots": slots, "learning.dataset": "fashion_mnist", "learning.model": "cnn"}
    for more in changes:
        overrides |= more
    return hm.Scenario.load("ring10").override(overrides)


def job_of(scenario: hm.Scenario, planner: str, seed: int) -> hm.TrainJob:
    """Plan and simulate the episode of a seed."""
    problem = hm.build(scenario)
    trace = hm.simulate(problem, hm.plan(problem, planner, bound=False), episodes=1, seed=seed)
    return hm.TrainJob(scenario, trace, seed=seed)


def timed_run(options: argparse.Namespace) -> None:
    """One run from the scenario to the final evaluation."""
    started = time.perf_counter()
    scenario = scenario_of(options.slots, PARTITIONS["i.i.d."], RULES["gossip"])
    job = job_of(scenario, options.planners[0], seed=0)
    planned = time.perf_counter() - started
    (run,) = hm.train_many([job], settings(options))
    seconds = time.perf_counter() - started
    print(f"{scenario.name}, {options.planners[0]}, {options.slots} slots, {job.trace.scheduled.mean():.1%} trained")
    for name in ("accuracy_mean", "accuracy_min", "accuracy_max", "average_accuracy", "consensus_distance"):
        print(f"{name} {run.final[name]:.4f}")
    print(f"planned and simulated in {planned:.1f} s; in all {seconds:.1f} s by {run.provenance['strategy']}")


def settings(options: argparse.Namespace) -> hm.TrainSettings:
    """How to train, from the command line."""
    return hm.TrainSettings(device=options.device, strategy=options.strategy, precision=options.precision)


def accuracy_table(options: argparse.Namespace) -> None:
    """Train what is missing, then print the table."""
    options.store.mkdir(parents=True, exist_ok=True)
    cells = list(product(options.planners, PARTITIONS, RULES, range(options.seeds)))
    scenarios = {
        (partition, rule): scenario_of(options.slots, PARTITIONS[partition], RULES[rule])
        for partition, rule in product(PARTITIONS, RULES)
    }
    missing = [cell for cell in cells if stored(options.store, cell, scenarios) is None]
    together = options.together or (len(missing) if options.device != "cpu" else 1)
    dataset = load_dataset(next(iter(scenarios.values())).learning) if missing else None
    for start in range(0, len(missing), max(together, 1)):
        stack = missing[start : start + together]
        jobs = [job_of(scenarios[partition, rule], planner, seed) for planner, partition, rule, seed in stack]
        started = time.perf_counter()
        for cell, run in zip(stack, hm.train_many(jobs, settings(options), dataset=dataset), strict=True):
            store(options.store, cell, run)
        done = min(start + together, len(missing))
        print(f"{done} of {len(missing)} runs, {time.perf_counter() - started:.1f} s for {len(stack)}", flush=True)
    print("| planner | " + " | ".join(f"{partition}, {rule}" for partition, rule in scenarios) + " |")
    print("|---" * (1 + len(scenarios)) + "|")
    for planner in options.planners:
        columns = []
        for partition, rule in scenarios:
            found = [stored(options.store, (planner, partition, rule, s), scenarios) for s in range(options.seeds)]
            columns.append(" ".join(cell_of([one for one in found if one is not None])))
        print(f"| {planner} | " + " | ".join(columns) + " |")


def cell_of(results: list[dict[str, Any]]) -> tuple[str, str]:
    """Mean device accuracy and, in brackets, that of the average model [%], with 95 % intervals over seeds."""
    texts = []
    for name in ("accuracy_mean", "average_accuracy"):
        found = interval(np.array([100 * one["final"][name] for one in results]))
        texts.append(f"{found.mean:.1f} ± {found.half_width:.1f}")
    return texts[0], f"({texts[1]})"


def path_of(folder: Path, cell: tuple[str, str, str, int]) -> Path:
    """Where a run's result is stored."""
    name = "-".join(map(str, cell))
    return folder / ("".join(letter if letter.isalnum() or letter == "-" else "_" for letter in name) + ".json")


def stored(
    folder: Path, cell: tuple[str, str, str, int], scenarios: dict[tuple[str, str], hm.Scenario]
) -> dict[str, Any] | None:
    """A finished run of this very scenario, or None."""
    path = path_of(folder, cell)
    if not path.exists():
        return None
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result if result["scenario"] == scenarios[cell[1:3]].content_hash else None


def store(folder: Path, cell: tuple[str, str, str, int], run: hm.Run) -> None:
    """Keep the final numbers and the curves."""
    path = path_of(folder, cell)
    curves = {name: run.metrics[name].tolist() for name in ("slot", "accuracy_mean", "average_accuracy")}
    kept = {name: run.provenance[name] for name in ("scenario", "strategy", "device", "duration_second", "versions")}
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(kept | {"final": run.final, "curves": curves}, indent=2), encoding="utf-8")
    temporary.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="accuracies over seeds instead of one timed run")
    parser.add_argument("--slots", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--planners", nargs="+", default=["receiver"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--together", type=int, default=0, help="runs in one stack; default: one on a CPU, else all")
    parser.add_argument("--store", type=Path, default=Path("build/real_data"))
    options = parser.parse_args()
    if options.table:
        accuracy_table(options)
    else:
        timed_run(options)


if __name__ == "__main__":
    main()
