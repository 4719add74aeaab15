"""Rules of averaging, momentum, optimisers and schedules at equal joules: accuracy on digits under the same traces.

All candidates train under the same episodes of the planner `receiver`, with common partitions, first weights and
minibatches. So they spend the same joules and lose the same packets. The table has the mean accuracy of the devices
after the last slot, and its paired difference from the rule `model` ± 95 % (Student's t), in points.

Two candidates are not in the package and are written out here. The first does no better than `reassigned`, which
needs no estimates; the second lost.

- arrival-weighted: c_ij = a_ij / p_ij, with p_ij the share of earlier slots in which a packet of j reached i, scaled
  down where a device would keep less than a_ii of itself;
- missed slots: the rule `update`, with Δ_j times the slots that j has trained since its last packet reached i.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import t as student

import heliomesh as hm
from heliomesh.learning.members import Member
from heliomesh.learning.replay import Replay
from heliomesh.tasks.dataset import load_dataset

Floats = npt.NDArray[np.float64]

PARTITIONS: dict[str, dict[str, Any]] = {
    "iid": {"learning.partition": "iid"},
    "Dir(0.8)": {"learning.partition": "dirichlet", "learning.alpha": 0.8},
    "Dir(0.1)": {"learning.partition": "dirichlet", "learning.alpha": 0.1, "learning.min_samples": 1},
}


class ArrivalWeighted(Replay):
    """Models averaged as w_i½ + Σ_j c_ij (w_j½ − w_i½)."""

    def average(self, slot: int) -> None:
        """Average what was delivered in a slot whose training is done."""
        for member in self.members:
            topology, after = member.topology, self.weights[member.rows].clone()
            weight = torch.from_numpy(_arrival_weights(member, slot)).float().unsqueeze(1)
            difference = after[topology.edge_sender] - after[topology.edge_receiver]
            self.weights[member.rows].index_add_(0, torch.from_numpy(topology.edge_receiver), weight * difference)


def _arrival_weights(member: Member, slot: int) -> Floats:
    """c_ij of what arrived, zero elsewhere; (edge,)."""
    topology, delivered = member.topology, member.delivered
    share = (delivered[:slot].sum(0) + 1) / (slot + 1)  # as if one packet had arrived before the first slot
    wanted = np.where(delivered[slot], topology.edge_weight / share, 0.0)
    total = np.bincount(topology.edge_receiver, weights=wanted, minlength=topology.num_devices)
    room = (1 - topology.self_weight) / np.maximum(total, 1e-12)
    return np.asarray(wanted * np.minimum(room, 1)[topology.edge_receiver])


class MissedSlots(Replay):
    """Updates averaged as w_i + a_ii Δ_i + Σ_j s_ij a_ij Δ_j, with s_ij the slots trained since the last arrival."""

    def average(self, slot: int) -> None:
        """Average what was delivered in a slot whose training is done."""
        for member in self.members:
            topology, before = member.topology, self._before[member.rows]  # type: ignore[index]
            update = self.weights[member.rows] - before
            own, scaled = topology.self_weight, np.where(member.delivered[slot], topology.edge_weight, 0.0)
            weight = torch.from_numpy(scaled * _slots_trained(member, slot)).float().unsqueeze(1)
            self.weights[member.rows] = before + update * torch.from_numpy(own).float().unsqueeze(1)
            receiver = torch.from_numpy(topology.edge_receiver)
            self.weights[member.rows].index_add_(0, receiver, weight * update[topology.edge_sender])


def _slots_trained(member: Member, slot: int) -> Floats:
    """Slots in which an edge's sender has trained since its last packet arrived, this one included; (edge,)."""
    earlier = member.delivered[:slot]
    last = np.where(earlier.any(0), slot - 1 - earlier[::-1].argmax(0), -1) if slot else -1
    since = np.arange(slot + 1)[:, None] > last
    return np.asarray((member.scheduled[: slot + 1, member.topology.edge_sender] & since).sum(0), np.float64)


@dataclass(frozen=True)
class Candidate:
    """A way to train: settings of the scenario's ``[learning]``, and who holds the weights."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    replay: type[Replay] = Replay


_UPDATE = {"aggregation": "update", "allow_divergence": True}
CANDIDATES = (
    Candidate("model", {"aggregation": "model"}),  # what all others are compared with
    Candidate("renormalized", {"aggregation": "renormalized"}),
    Candidate("reassigned", {"aggregation": "reassigned"}),
    Candidate("arrival-weighted", {"aggregation": "model"}, ArrivalWeighted),
    Candidate("update", _UPDATE),
    Candidate("update, missed slots", _UPDATE, MissedSlots),
    Candidate("model, quasi-global 0.9", {"aggregation": "model", "quasi_global": 0.9}),
    Candidate("renormalized, quasi-global 0.9", {"aggregation": "renormalized", "quasi_global": 0.9}),
    Candidate("reassigned, quasi-global 0.9", {"aggregation": "reassigned", "quasi_global": 0.9}),
    Candidate("model, momentum 0.9", {"aggregation": "model", "optimizer": "momentum"}),
    Candidate("model, adam at 0.001", {"aggregation": "model", "optimizer": "adam", "learning_rate": 0.001}),
    Candidate("model, cosine", {"aggregation": "model", "schedule": "cosine"}),
    Candidate("model, inverse", {"aggregation": "model", "schedule": "inverse"}),
    Candidate("model, step", {"aggregation": "model", "schedule": "step"}),
)


def accuracies(scenario: hm.Scenario, trace: hm.Trace, candidate: Candidate, seeds: Sequence[int]) -> Floats:
    """Mean accuracy of the devices after the last slot, by seed; NaN where training diverges."""
    own = scenario.override({f"learning.{name}": value for name, value in candidate.settings.items()})
    jobs = [hm.TrainJob(own, trace, episode, seed) for episode, seed in enumerate(seeds)]
    try:
        runs = hm.train_many(jobs, dataset=load_dataset(own.learning), make_stack=candidate.replay)
    except hm.TrainingError:
        return np.full(len(jobs), np.nan)
    return np.array([run.final["accuracy_mean"] for run in runs])


def interval(differences: Floats) -> str:
    """Mean ± 95 % in points."""
    half = student.ppf(0.975, len(differences) - 1) * differences.std(ddof=1) / len(differences) ** 0.5
    return f"{100 * differences.mean():+.2f} ± {100 * half:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", default="ring10")
    parser.add_argument("--topology", help="another one for the scenario")
    parser.add_argument("--slots", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.01])
    parser.add_argument("--only", nargs="+", help="parts of candidates' names; the first candidate is always there")
    options = parser.parse_args()
    changes = {"slots": options.slots} | ({"network.topology": options.topology} if options.topology else {})
    base = hm.Scenario.load(options.scenario).override(changes)
    problem = hm.build(base)
    trace = hm.simulate(problem, hm.plan(problem, "receiver", bound=False), episodes=options.seeds)
    active, arrived = trace.scheduled.mean(), trace.delivered.mean()
    print(f"{base.name}: devices train in {active:.1%} of the slots, a link delivers in {arrived:.1%}")
    chosen = [one for one in CANDIDATES[1:] if not options.only or any(part in one.name for part in options.only)]
    for rate in options.rates:
        for partition, split in PARTITIONS.items():
            scenario, seeds = base.override({**split, "learning.learning_rate": rate}), range(options.seeds)
            first = accuracies(scenario, trace, CANDIDATES[0], seeds)
            print(f"η = {rate:g}, {partition}: model {100 * first.mean():.2f} %", flush=True)
            for candidate in chosen:
                found = accuracies(scenario, trace, candidate, seeds)
                print(f"  {candidate.name:31} {100 * found.mean():6.2f} %  {interval(found - first)}", flush=True)


if __name__ == "__main__":
    main()
