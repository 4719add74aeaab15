"""Accuracy against the number of hops that a device sees, k = 0 to 3, on a ring of diameter five."""

from heliomesh.engine.arm import FORMS, Arm, Scheme
from heliomesh.engine.task import DIRICHLET, FASHION_MNIST

TITLE = "Accuracy over hops, Fashion-MNIST, Dir(0.8)"
PLACE = "hops k"
NAME = __name__.rpartition(".")[2]


def arms(quick: bool) -> list[Arm]:
    """Both forms of the proposal at every k."""
    scenario, seeds = FASHION_MNIST.scenario(quick, DIRICHLET), FASHION_MNIST.seeds(quick)
    return [
        Arm(NAME, Scheme(label, "decentralized", form | {"hops": hops}), scenario, seeds, place=hops)
        for hops in range(4)
        for label, form in FORMS.items()
    ]
