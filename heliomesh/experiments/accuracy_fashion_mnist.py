"""Accuracy against slots on Fashion-MNIST, i.i.d. and Dir(0.8), all schemes."""

from heliomesh.engine.arm import LOSSLESS, OURS, PAIRS, PAPER, Arm
from heliomesh.engine.task import FASHION_MNIST, PARTITIONS

TITLE = "Accuracy over slots, Fashion-MNIST"
PLACE = None
AGAINST = PAIRS
NAME = __name__.rpartition(".")[2]


def arms(quick: bool) -> list[Arm]:
    """Every scheme under every partition."""
    task, seeds = FASHION_MNIST, FASHION_MNIST.seeds(quick)
    return [
        Arm(NAME, scheme, task.scenario(quick, partition), seeds, setting)
        for setting, partition in PARTITIONS.items()
        for scheme in (*PAPER, *OURS, LOSSLESS)
    ]
