"""Accuracy against the waterfall φ of the packet errors: how much does a worse radio cost each planner?"""

from heliomesh.engine.arm import OURS, Arm, Scheme
from heliomesh.engine.task import DIRICHLET, FASHION_MNIST

TITLE = "Accuracy over the waterfall of packet errors, Fashion-MNIST, Dir(0.8)"
PLACE = "waterfall φ"
AGAINST = "uncoordinated"
NAME = __name__.rpartition(".")[2]
_WATERFALL = (0.3, 1.0, 3.0)


def arms(quick: bool) -> list[Arm]:
    """Two planners and the greedy baseline at every φ."""
    return [
        Arm(
            NAME,
            scheme,
            FASHION_MNIST.scenario(quick, DIRICHLET, {"link.waterfall": waterfall}),
            FASHION_MNIST.seeds(quick),
            place=waterfall,
        )
        for waterfall in (_WATERFALL[::2] if quick else _WATERFALL)
        for scheme in (*OURS, Scheme("uncoordinated", "uncoordinated"))
    ]
