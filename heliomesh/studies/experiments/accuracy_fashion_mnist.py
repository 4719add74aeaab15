"""Accuracy against slots on Fashion-MNIST, i.i.d. and Dir(0.8), all schemes."""

from heliomesh.studies.line import LOSSLESS, OURS, PAIRS, PAPER, Line
from heliomesh.studies.task import FASHION_MNIST, PARTITIONS

TITLE = "Accuracy over slots, Fashion-MNIST"
OF_PAPER = "Fig. 2"
PLACE = None
AGAINST = PAIRS
NAME = __name__.rpartition(".")[2]


def lines(quick: bool) -> list[Line]:
    """Every scheme under every partition."""
    task, seeds = FASHION_MNIST, FASHION_MNIST.seeds(quick)
    return [
        Line(NAME, scheme, task.scenario(quick, partition), seeds, setting)
        for setting, partition in PARTITIONS.items()
        for scheme in (*PAPER, *OURS, LOSSLESS)
    ]
