"""Accuracy against the waterfall φ of the packet errors: how much does a worse radio cost each planner?"""

from heliomesh.studies.line import OURS, Line, Scheme
from heliomesh.studies.task import DIRICHLET, FASHION_MNIST

TITLE = "Accuracy over the waterfall of packet errors, Fashion-MNIST, Dir(0.8)"
PLACE = "waterfall φ"
AGAINST = "uncoordinated"
NAME = __name__.rpartition(".")[2]
_WATERFALL = (0.3, 1.0, 3.0)


def lines(quick: bool) -> list[Line]:
    """Two planners and the greedy baseline at every φ."""
    return [
        Line(
            NAME,
            scheme,
            FASHION_MNIST.scenario(quick, DIRICHLET, {"link.waterfall": waterfall}),
            FASHION_MNIST.seeds(quick),
            place=waterfall,
        )
        for waterfall in (_WATERFALL[::2] if quick else _WATERFALL)
        for scheme in (*OURS, Scheme("uncoordinated", "uncoordinated"))
    ]
