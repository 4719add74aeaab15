"""What the experiments train: the paper's tasks, and a small version of each for two cores."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from heliomesh.scenario import Scenario
from heliomesh.studies.line import OURS, PAPER, Line


@dataclass(frozen=True)
class Task:
    """Learning settings of a full and of a quick experiment."""

    full: dict[str, Any]
    quick: dict[str, Any]
    full_seeds: int
    quick_seeds: int = 3

    def scenario(self, quick: bool, *changes: dict[str, Any]) -> Scenario:
        """`ring10` (scarce energy, diameter five, an exact optimum) with this task and further changes."""
        overrides = _PAPER | (self.quick if quick else self.full)
        for more in changes:
            overrides |= more
        return Scenario.load("ring10").override(overrides)

    def seeds(self, quick: bool) -> int:
        """Number of paired seeds."""
        return self.quick_seeds if quick else self.full_seeds


FASHION_MNIST = Task(
    full={"learning.dataset": "fashion_mnist", "slots": 200},
    quick={"learning.dataset": "digits", "slots": 60},
    full_seeds=10,
)
# The larger batch does not raise the energy of training, which is that of Fashion-MNIST: the same planning problem.
CIFAR10 = Task(
    full={
        "learning.dataset": "cifar10",
        "learning.learning_rate": 0.05,
        "learning.batch": 64,
        "energy.compute_joule": 0.72,
        "slots": 300,
    },
    quick={"learning.dataset": "synthetic", "learning.model": "mlp", "learning.learning_rate": 0.05, "slots": 60},
    full_seeds=5,
)

# gossip that keeps the weight of lost packets, and one grid for all schemes, on which the exact optimum is quick
_PAPER: dict[str, Any] = {"learning.aggregation": "model", "energy.battery_levels": 5}

IID: dict[str, Any] = {"learning.partition": "iid"}
DIRICHLET: dict[str, Any] = {"learning.partition": "dirichlet", "learning.alpha": 0.8}
PARTITIONS = {"i.i.d.": IID, "Dir(0.8)": DIRICHLET}
_SEEDS_FACTOR = 4  # schemes of one order lie closer together than the usual seeds can show


def order_of_schemes(figure: str, quick: bool, variants: Mapping[str, dict[str, Any]]) -> list[Line]:
    """The paper's schemes and `receiver` on Fashion-MNIST, under every variant of `ring10` and every partition."""
    seeds = FASHION_MNIST.seeds(quick) * (1 if quick else _SEEDS_FACTOR)
    return [
        Line(figure, scheme, FASHION_MNIST.scenario(quick, changes, partition), seeds, f"{setting}, {variant}")
        for variant, changes in variants.items()
        for setting, partition in PARTITIONS.items()
        for scheme in (*PAPER, OURS[0])
    ]
