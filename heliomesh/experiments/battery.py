"""Accuracy against battery capacity: does the gain over the baselines widen?"""

from heliomesh.engine.arm import OURS, PAPER, Arm
from heliomesh.engine.task import DIRICHLET, FASHION_MNIST

TITLE = "Accuracy over battery capacity, Fashion-MNIST, Dir(0.8)"
PLACE = "battery capacity [J]"
NAME = __name__.rpartition(".")[2]
_CAPACITY_JOULE = (2, 3, 4, 6, 8)


def arms(quick: bool) -> list[Arm]:
    """Every scheme at every capacity; the planning grid keeps its step of one joule."""
    return [
        Arm(
            NAME,
            scheme,
            FASHION_MNIST.scenario(
                quick,
                DIRICHLET,
                {"energy.capacity_joule": float(capacity), "energy.battery_levels": capacity + 1},
            ),
            FASHION_MNIST.seeds(quick),
            place=capacity,
        )
        for capacity in (_CAPACITY_JOULE[:4:2] if quick else _CAPACITY_JOULE)
        for scheme in (*PAPER, *OURS)
    ]
