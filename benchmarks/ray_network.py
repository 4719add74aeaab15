"""One large network by the local engine and by Ray actors: what the cut saves, and what it costs in time.

Both train the same geometric network on digits under the same trace, with the same threads per process. Prints the
links that the cut goes through, the bytes that travel between actors in a slot, beside those of sending every trained
row to every actor, whether the results are equal, and the times; last the ratio of the times of the slots, Ray's over
the local engine's. With one thread (OMP_NUM_THREADS=1) and as many cores as actors it can fall below one.
"""

import argparse
import time
from collections.abc import Iterable, Iterator
from typing import Any

import heliomesh as hm  # before torch: the package sets how threads wait
from heliomesh.engine.graph_cut import num_cut_links
from heliomesh.learning.replay import Replay
from heliomesh.learning.trainer import MakeStack
from heliomesh.physics.topology import build_topology

import numpy as np  # isort: skip
import torch  # isort: skip

from heliomesh.engine import ray  # isort: skip
from heliomesh.engine.ray_network import over_actors  # isort: skip


class Clock:
    """Times the slots of a run, evaluations among them, without what comes before the first."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def track(self, items: Iterable[Any], description: str, total: int) -> Iterator[Any]:
        """Take the time from the first slot to the end of the last."""
        started = time.perf_counter()
        yield from items
        self.seconds = time.perf_counter() - started


def trained(job: hm.TrainJob, make_stack: MakeStack) -> tuple[hm.Run, float, float]:
    """The run, and the seconds of all of it and of its slots."""
    clock, started = Clock(), time.perf_counter()
    run = hm.train(job.scenario, job.trace, strategy="loop", track=clock.track, make_stack=make_stack)
    return run, time.perf_counter() - started, clock.seconds


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--slots", type=int, default=10)
    parser.add_argument("--actors", type=int, default=2)
    options = parser.parse_args()
    geometric = {"network.topology": "geometric", "network.mean_degree": 8.0, "network.placement": "jittered"}
    scenario = hm.Scenario.load("ring10").override(
        geometric | {"network.devices": options.devices, "slots": options.slots, "learning.dataset": "digits"}
    )
    problem = hm.build(scenario)
    job = hm.TrainJob(scenario, hm.simulate(problem, hm.plan(problem, "uncoordinated"), 1))
    alone, alone_second, alone_slots_second = trained(job, Replay)
    started = time.perf_counter()
    ray.start()
    start_second = time.perf_counter() - started
    spread, spread_second, spread_slots_second = trained(job, over_actors(options.actors))
    ray.stop()

    facts, row_bytes = spread.provenance, 4 * spread.weights.shape[1]
    by_number = np.arange(options.devices) * options.actors // options.devices
    everything = int(job.trace.scheduled.sum()) * (options.actors - 1) * row_bytes
    equal = torch.equal(alone.weights, spread.weights) and all(
        np.array_equal(alone.metrics[name], spread.metrics[name], equal_nan=True) for name in alone.metrics
    )
    print(f"{options.devices} devices, {options.slots} slots, {options.actors} actors")
    print(f"threads of a process: {torch.get_num_threads()}; rows of {row_bytes} bytes")
    print(f"links: {facts['links']}, cut {facts['cut_links']}")
    print(f"cut where devices are split by their numbers: {num_cut_links(build_topology(scenario), by_number)}")
    print(f"bytes a slot between actors: {facts['bytes_between_actors'] / options.slots:.0f}")
    print(f"bytes a slot if every trained row went to every actor: {everything / options.slots:.0f}")
    print(f"bytes gathered by the driver in the whole run: {facts['bytes_gathered']}")
    print(f"metrics and weights equal bit for bit: {equal}")
    print(f"local engine: {alone_second:.1f} s, of which slots {alone_slots_second:.1f} s")
    print(f"actors: {spread_second:.1f} s, of which slots {spread_slots_second:.1f} s")
    print(f"start of Ray: {start_second:.1f} s")
    print(f"ratio with all starts: {(start_second + spread_second) / alone_second:.3f}")
    print(f"ratio of the slots: {spread_slots_second / alone_slots_second:.3f}")


if __name__ == "__main__":
    main()
