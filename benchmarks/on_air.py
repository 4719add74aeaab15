"""Formats on the air under the same traces: what compression alone costs, and what other ways of it would.

All candidates train on digits under the same episodes of the planner `contributions` on `ring10`, with common
partitions, first weights and minibatches. The table has the mean accuracy of the devices after the last slot, and its
paired difference from float32 ± 95 % (Student's t), in points.

Candidates that are not in the package are written out here:

- int8, nearest: levels rounded to the nearest, not at random;
- int8, one scale: a scale for the whole model in place of one per block of 256;
- top-k, largest weights: the entries of w½ with the largest size, without a memory;
- top-k, at random: any entries.
"""

import argparse
from collections.abc import Callable
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import t as student
from torch import Tensor

import heliomesh as hm
from heliomesh.common.streams import stream
from heliomesh.learning import packets
from heliomesh.scenario.on_air import BLOCK, num_sent
from heliomesh.scenario.schema import Learning
from heliomesh.tasks.dataset import load_dataset

Floats = npt.NDArray[np.float64]
Packet = Callable[[Learning, Tensor, Tensor | None, int, int, int], Tensor]


def nearest(learning: Learning, row: Tensor, feedback: Tensor | None, seed: int, slot: int, device: int) -> Tensor:
    """⌊x / s + ½⌋ in place of a random number."""
    return packets.as_int8(row, torch.full((-(-len(row) // BLOCK), BLOCK), 127.5))


def one_scale(learning: Learning, row: Tensor, feedback: Tensor | None, seed: int, slot: int, device: int) -> Tensor:
    """Random rounding to multiples of max |x| / 127 over the whole row."""
    scale = row.abs().max() / 127
    noise = packets.rounding_noise(seed, slot, device, -(-len(row) // BLOCK)).view(-1)[: len(row)]
    return torch.floor(row / scale + (noise + 0.5) / 256) * scale


def largest(learning: Learning, row: Tensor, feedback: Tensor | None, seed: int, slot: int, device: int) -> Tensor:
    """The largest weights, every time."""
    return packets.largest_changes(row, torch.zeros_like(row), num_sent(len(row), learning.top_k_share))


def at_random(learning: Learning, row: Tensor, feedback: Tensor | None, seed: int, slot: int, device: int) -> Tensor:
    """Entries drawn at random."""
    order = stream(seed, "rounding", slot, device).permutation(len(row))
    chosen = torch.from_numpy(order[: num_sent(len(row), learning.top_k_share)])
    return torch.full_like(row, torch.nan).index_copy_(0, chosen, row[chosen])


CANDIDATES: tuple[tuple[str, str, Packet], ...] = (
    ("float16", "float16", packets.packet),
    ("int8", "int8", packets.packet),
    ("int8, one scale", "int8", one_scale),
    ("int8, nearest", "int8", nearest),
    ("top-k", "top-k", packets.packet),
    ("top-k, largest weights", "top-k", largest),
    ("top-k, at random", "top-k", at_random),
)


def accuracies(scenario: hm.Scenario, trace: hm.Trace, seeds: int, make: Packet) -> Floats:
    """Mean accuracy of the devices after the last slot, by seed."""
    jobs = [hm.TrainJob(scenario, trace, seed, seed) for seed in range(seeds)]
    with patch("heliomesh.learning.replay.packet", make):
        runs = hm.train_many(jobs, dataset=load_dataset(scenario.learning))
    return np.array([run.final["accuracy_mean"] for run in runs])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", default="ring10")
    parser.add_argument("--slots", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.01, 0.001])
    options = parser.parse_args()
    changes = {"learning.partition": "dirichlet", "learning.aggregation": "reassigned", "energy.actions": "separate"}
    base = hm.Scenario.load(options.scenario).override({"slots": options.slots, **changes})
    problem = hm.build(base)
    trace = hm.simulate(problem, hm.plan(problem, "contributions", bound=False), episodes=options.seeds)
    wide = student.ppf(0.975, options.seeds - 1) / options.seeds**0.5
    for rate in options.rates:
        scenario = base.override({"learning.learning_rate": rate})
        exact = accuracies(scenario, trace, options.seeds, packets.packet)
        print(f"η = {rate:g}: float32 {100 * exact.mean():.2f} %", flush=True)
        for name, on_air, make in CANDIDATES:
            found = 100 * accuracies(scenario.override({"learning.on_air": on_air}), trace, options.seeds, make)
            points = found - 100 * exact
            print(f"  {name:23} {found.mean():6.2f} %  {points.mean():+.2f} ± {wide * points.std(ddof=1):.2f}")


if __name__ == "__main__":
    main()
