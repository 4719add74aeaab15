"""Accuracy against battery capacity: does the gain over the baselines widen?"""

from heliomesh.studies.line import OURS, PAIRS, PAPER, Line
from heliomesh.studies.task import FASHION_MNIST, PARTITIONS

TITLE = "Accuracy over battery capacity, Fashion-MNIST"
OF_PAPER = "Fig. 4"
PLACE = "battery capacity [J]"
AGAINST = PAIRS
NAME = __name__.rpartition(".")[2]
_CAPACITY_JOULE = (2, 3, 4, 6, 8)


def lines(quick: bool) -> list[Line]:
    """Every scheme at every capacity; the planning grid keeps its step of one joule."""
    return [
        Line(
            NAME,
            scheme,
            FASHION_MNIST.scenario(
                quick,
                partition,
                {"energy.capacity_joule": float(capacity), "energy.battery_levels": capacity + 1},
            ),
            FASHION_MNIST.seeds(quick),
            setting,
            place=capacity,
        )
        for setting, partition in PARTITIONS.items()
        for capacity in (_CAPACITY_JOULE[:4:2] if quick else _CAPACITY_JOULE)
        for scheme in (*PAPER, *OURS)
    ]
