"""What `bids` loses where messages, channel knowledge, clocks or a device fail.

Digits, Dirichlet 0.3; points are against undisturbed `bids`, paired by seed: the same weather, packet losses and
data. Accuracies are means over all devices but device 0, the one that lies.

- lost: that share of bids and grants does not arrive. Plans count on it.
- stale: devices decide by the channel levels of the slot before.
- late: each clock is off by up to a tenth of a slot, uniformly. Bids are said when a slot begins and grants an eighth
  later, by the sender's clock, and are missed by whoever's own eighth is over by then: both, on the same links for
  good. Models take the rest of the slot and arrive.
- liar: device 0 bids at the largest power, with progress 30 slots ahead of its own, and counts every grant as its
  own. Receivers believe leads up to twice the largest one in practice; *liar, believed*: any.

    python benchmarks/robustness.py --seeds 4
"""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

import heliomesh as hm
from heliomesh.common.streams import stream
from heliomesh.jobs.training import train_many
from heliomesh.learning.settings import TrainJob, TrainSettings
from heliomesh.model.policy import Decision, Observation
from heliomesh.pages.intervals import interval_text
from heliomesh.planners.bids import Bidders, messages
from heliomesh.simulation.diagnostics import interval
from heliomesh.slot.bids import PROGRESS_STEPS, Bid, Grant

SETTINGS = {"energy.actions": "separate", "learning.partition": "dirichlet", "learning.alpha": 0.3}
OFF_SLOTS, WINDOW_SLOTS = 0.1, 0.125  # by which a clock is off at most; how long devices listen for bids, or grants
AHEAD_SLOTS = 30  # by which the liar claims to be ahead


@dataclass(frozen=True)
class Disturbed:
    """A policy that is shown something else than there is."""

    policy: Bidders

    @property
    def problem(self) -> hm.Problem:
        """The policy's."""
        return self.policy.problem

    def recall(self, seen: Observation) -> tuple[Tensor, ...]:
        """The policy's memory."""
        return self.policy.recall(seen)

    def decide(self, slot: int, seen: Observation) -> Decision:
        """What the policy decides by what it is shown."""
        return self.policy.decide(slot, seen)


class Stale(Disturbed):
    """It is shown channels as they were a slot before; the memory begins with those of this slot and of that one."""

    def recall(self, seen: Observation) -> tuple[Tensor, ...]:
        """Both, and the policy's memory."""
        before = seen.memory[0] if seen.memory else seen.channel_level
        return seen.channel_level, before, *super().recall(replace(seen, memory=seen.memory[2:]))

    def decide(self, slot: int, seen: Observation) -> Decision:
        """By the channels of the slot before."""
        return super().decide(slot, replace(seen, channel_level=seen.memory[1], memory=seen.memory[2:]))


@dataclass(frozen=True)
class Late(Disturbed):
    """Messages do not arrive on links from devices whose clocks are too late."""

    seed: int

    def decide(self, slot: int, seen: Observation) -> Decision:
        """By the messages that come in time."""
        topology = self.problem.topology
        off = stream(self.seed, "control", 1).uniform(-OFF_SLOTS, OFF_SLOTS, self.problem.num_devices)
        in_time = off[topology.edge_sender] - off[topology.edge_receiver] <= WINDOW_SLOTS
        heard = torch.from_numpy(in_time).reshape(1, -1, 1).expand(len(seen.battery_joule), -1, 2)
        return super().decide(slot, replace(seen, heard=heard))


@contextmanager
def lying() -> Iterator[None]:
    """Device 0 lies in its bids, and takes all that is granted."""
    honest_bid, honest_choose = messages.bid, messages.choose

    def bid(*known: Any) -> tuple[Bid, Tensor]:
        said, trains = honest_bid(*known)
        progress, power = said.progress.clone(), said.power.clone()
        progress[:, 0] += AHEAD_SLOTS * PROGRESS_STEPS
        power[:, 0] = known[0].action_power.max()
        return said._replace(progress=progress, power=power), trains

    def choose(terms: Any, price: Tensor, granted: Grant, grants: Grant, *known: Tensor) -> tuple[Tensor, Tensor]:
        place = grants.place.clone()
        place[:, 0] = known[-1][0]
        return honest_choose(terms, price, granted, grants._replace(place=place), *known)

    with patch.object(messages, "bid", bid), patch.object(messages, "choose", choose):
        yield


@contextmanager
def believed() -> Iterator[None]:
    """It lies, and is believed."""
    with lying(), patch.object(messages, "believable", lambda _terms, bids, _progress: bids):
        yield


Settings = dict[str, Any]
UNDISTURBED: Settings = {}
ARMS: dict[
    str, tuple[Settings, Callable[[Bidders, int], Any], Callable[[], Any]]
] = {  # what acts, and in which context
    "undisturbed": (UNDISTURBED, lambda policy, _: policy, nullcontext),
    **{
        f"{share:.0%} lost": ({"energy.control_loss": share}, lambda policy, _: policy, nullcontext)
        for share in (0.1, 0.2, 0.3, 0.5)
    },
    "stale": (UNDISTURBED, lambda policy, _: Stale(policy), nullcontext),
    "late": (UNDISTURBED, Late, nullcontext),
    "liar": (UNDISTURBED, lambda policy, _: policy, lying),
    "liar, believed": (UNDISTURBED, lambda policy, _: policy, believed),
}


def main() -> None:
    """Print a row per network and disturbance."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=["ring10", "geometric30"])
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--slots", type=int, default=200)
    asked = parser.parse_args()
    print("| network | bids | accuracy % | points | joule |\n|---|---|---|---|---|")
    for network in asked.networks:
        jobs = [job for seed in range(asked.seeds) for job in jobs_of(network, seed, asked.slots)]
        runs = train_many(jobs, TrainSettings(evaluate_every=asked.slots))
        shape = (asked.seeds, len(ARMS))
        accuracy = np.array([100 * run.accuracy[-1, 1:].mean() for run in runs]).reshape(shape).T
        joule = np.array([run.final["spent_joule"] for run in runs]).reshape(shape).T
        for name, own, spent in zip(ARMS, accuracy, joule, strict=True):
            points = interval_text(interval(own - accuracy[0]), "+.2f")
            print(f"| {network} | {name} | {own.mean():.2f} | {points} | {spent.mean():.0f} |", flush=True)


def jobs_of(network: str, seed: int, slots: int) -> list[TrainJob]:
    """A run of each arm."""
    found, plans = [], dict[str, hm.Plan]()
    for changes, acting, context in ARMS.values():
        scenario = hm.Scenario.load(network).override({**SETTINGS, "slots": slots, **changes})
        problem, name = hm.build(scenario), scenario.content_hash
        if name not in plans:
            plans[name] = hm.plan(problem, "bids", partition_seed=seed)
        with context():
            trace = hm.simulate(problem, acting(plans[name].policy, seed), [seed])
        found.append(TrainJob(scenario, trace, 0, seed))
    return found


if __name__ == "__main__":
    main()
