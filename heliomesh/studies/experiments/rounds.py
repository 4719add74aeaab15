"""Accuracy against the number of improvement rounds R, none included."""

from heliomesh.studies.line import FORMS, Line, Scheme
from heliomesh.studies.task import DIRICHLET, FASHION_MNIST

TITLE = "Accuracy over rounds, Fashion-MNIST, Dir(0.8)"
OF_PAPER = "Fig. 5"
PLACE = "rounds R"
AGAINST = 0
NAME = __name__.rpartition(".")[2]
_ROUNDS = (0, 1, 2, 5, 10, 20)


def lines(quick: bool) -> list[Line]:
    """Both forms of the proposal with two hops at every R."""
    scenario, seeds = FASHION_MNIST.scenario(quick, DIRICHLET), FASHION_MNIST.seeds(quick)
    return [
        Line(
            NAME, Scheme(label, "decentralized", form | {"hops": 2, "rounds": rounds}), scenario, seeds, place=rounds
        )
        for rounds in (_ROUNDS[:4:2] if quick else _ROUNDS)
        for label, form in FORMS.items()
    ]
