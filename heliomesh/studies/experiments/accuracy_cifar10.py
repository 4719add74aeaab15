"""Accuracy against slots on CIFAR-10 with ResNet-18, i.i.d. and Dir(0.8), all schemes.

The quick version trains a small network on synthetic clusters instead: the real task needs a GPU.
"""

from heliomesh.studies.line import LOSSLESS, OURS, PAIRS, PAPER, Line
from heliomesh.studies.task import CIFAR10, PARTITIONS

TITLE = "Accuracy over slots, CIFAR-10"
OF_PAPER = "Fig. 3"
PLACE = None
AGAINST = PAIRS
NAME = __name__.rpartition(".")[2]


def lines(quick: bool) -> list[Line]:
    """Every scheme under every partition."""
    return [
        Line(NAME, scheme, CIFAR10.scenario(quick, partition), CIFAR10.seeds(quick), setting)
        for setting, partition in PARTITIONS.items()
        for scheme in (*PAPER, *OURS, LOSSLESS)
    ]
