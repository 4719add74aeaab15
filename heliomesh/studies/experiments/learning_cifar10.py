"""Planning for learning against planning for packets on CIFAR-10 with ResNet-18, on `ring10`.

The objective and its constants are those of Fashion-MNIST. The quick version trains a small network on synthetic
clusters instead: the real task needs a GPU.
"""

from typing import Any

from heliomesh.scenario import Scenario
from heliomesh.studies.gain import RIVALS
from heliomesh.studies.line import LOSSLESS, Line, Scheme
from heliomesh.studies.task import CIFAR10, PARTITIONS

TITLE = "Planning for learning, CIFAR-10"
PLACE = None
AGAINST = "coupled"
NAME = __name__.rpartition(".")[2]
_SEEDS, _SEEDS_OF_BASELINES = 10, 5
_IN_FULL = {"coupled", "news", "contributions"}


def _num_seeds(label: str, quick: bool) -> int:
    """Fewer seeds for what lies far behind: a run takes ten seconds of a large GPU."""
    if quick:
        return CIFAR10.quick_seeds
    return _SEEDS if label in _IN_FULL else _SEEDS_OF_BASELINES


def _scenario(scheme: Scheme, quick: bool, changes: dict[str, Any]) -> Scenario:
    """Each planner chooses its own grid; the ideal, which has none, is that of `accuracy_cifar10`."""
    if scheme is LOSSLESS:
        return CIFAR10.scenario(quick, changes)
    return Scenario.load("ring10").override((CIFAR10.quick if quick else CIFAR10.full) | changes)


def lines(quick: bool) -> list[Line]:
    """Every scheme under every partition."""
    return [
        Line(
            NAME,
            scheme,
            _scenario(scheme, quick, {**partition, **actions}),
            _num_seeds(scheme.label, quick),
            setting,
        )
        for setting, partition in PARTITIONS.items()
        for scheme, actions in RIVALS
    ]
