"""Accuracy and energy of `bids` beside plans for learning that talk more, and beside plans for packets.

Trains all schemes under common random numbers: the same weather, packet losses and data by seed. Plans and
simulations share the processors; then all runs of a network and partition train in one stack. Lost messages are
shares of bids and grants. The last line is the mean difference between `bids` and `contributions`, in points.

    python benchmarks/bids.py --dataset digits --seeds 3 --networks ring10 --partitions shards --processes 2
    python benchmarks/bids.py --device cuda --loss 0.2 --out kept
"""

import argparse
from typing import Any

import numpy as np

import heliomesh as hm
from heliomesh.engine.processes import work_fields
from heliomesh.jobs.job import Job
from heliomesh.jobs.scheme import scheme_of
from heliomesh.jobs.store import opened
from heliomesh.jobs.training import split_settings
from heliomesh.pages.intervals import interval_text
from heliomesh.simulation.diagnostics import interval
from heliomesh.studies.line import by_episode, grouped_runs

NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "ring10": ("ring10", {}),
    "regular16": ("ring10", {"network.topology": "regular", "network.devices": 16, "network.degree": 4}),
    "geometric30": ("geometric30", {}),
}
PARTITIONS: dict[str, dict[str, Any]] = {
    "iid": {"learning.partition": "iid"},
    "dir": {"learning.partition": "dirichlet", "learning.alpha": 0.3},
    "shards": {"learning.partition": "shards", "learning.shards_per_device": 2},
}
APART = "+actions=separate+rule=reassigned"
OWN = f"bids{APART}"
REFERENCE = f"contributions{APART}"
SCHEMES = (
    OWN,
    REFERENCE,
    f"contributions leans=labels{APART}",
    f"bids leans=devices{APART}",
    f"news{APART}",
    "receiver+agree=6+rule=reassigned",
)


def main() -> None:
    """Print a table with a row per network, partition and scheme."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--partitions", nargs="+", choices=PARTITIONS, default=list(PARTITIONS))
    parser.add_argument("--schemes", nargs="+", default=list(SCHEMES), help="beside bids and contributions")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--slots", type=int, default=200)
    parser.add_argument("--dataset", default="fashion_mnist")
    parser.add_argument("--loss", nargs="*", type=float, default=[], help="shares of bids and grants that are lost")
    parser.add_argument("--device", default="cpu", help="where models are trained")
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--out", help="folder that keeps plans, traces and runs")
    asked = parser.parse_args()
    lossy = [f"{OWN}+energy.control_loss={share:g}" for share in asked.loss]
    schemes = list(dict.fromkeys([REFERENCE, OWN, *lossy, *asked.schemes]))
    behind = []
    print("| setting | scheme | accuracy % | points | joule | more joule % |\n|---|---|---|---|---|---|")
    with opened(asked.out) as store:
        for network in asked.networks:
            for partition in asked.partitions:
                jobs = [scheme_of(text).job(base(asked, network, partition)) for text in schemes]
                groups = [by_episode(job, asked.seeds) for job in jobs]
                own: dict[str, Any] = {"keep_weights": False, "runs_at_once": len(schemes) * asked.seeds}
                _, work = split_settings({**own, **work_fields(asked.processes, asked.device)})
                arms = dict(zip(schemes, grouped_runs(store, groups, work), strict=True))
                behind.append(printed(f"{network}, {partition}", arms))
    print(f"bids against contributions: {np.mean(behind):+.2f} points")


def base(asked: argparse.Namespace, network: str, partition: str) -> Job:
    """A scenario without a scheme."""
    name, changes = NETWORKS[network]
    common = {"slots": asked.slots, "learning.dataset": asked.dataset, **changes, **PARTITIONS[partition]}
    training, _ = split_settings({"device": asked.device, "evaluate_every": asked.slots})
    return Job(hm.Scenario.load(name).override(common), training=training)


def printed(setting: str, arms: dict[str, tuple[hm.Run, ...]]) -> float:
    """Print the lines of a setting; the mean difference of bids [points]."""
    accuracy = {name: 100 * np.array([run.final["accuracy_mean"] for run in runs]) for name, runs in arms.items()}
    joule = {name: np.array([run.final["spent_joule"] for run in runs]) for name, runs in arms.items()}
    for name in arms:
        points, energy = accuracy[name] - accuracy[REFERENCE], 100 * (joule[name] / joule[REFERENCE] - 1)
        label = name.removesuffix(APART).replace(APART, "")
        gained, spent = interval_text(interval(points), "+.2f"), interval_text(interval(energy), "+.1f")
        cells = (setting, label, f"{accuracy[name].mean():.2f}", gained, f"{joule[name].mean():.0f}", spent)
        print(f"| {' | '.join(cells)} |", flush=True)
    return float((accuracy[OWN] - accuracy[REFERENCE]).mean())


if __name__ == "__main__":
    main()
