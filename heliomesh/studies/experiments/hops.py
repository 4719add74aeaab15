"""Accuracy against the number of hops that a device sees, k = 0 to 3, on a ring of diameter five."""

from heliomesh.studies.line import FORMS, Line, Scheme
from heliomesh.studies.task import FASHION_MNIST, PARTITIONS

TITLE = "Accuracy over hops, Fashion-MNIST"
OF_PAPER = "Table I"
PLACE = "hops k"
AGAINST = 2
NAME = __name__.rpartition(".")[2]


def lines(quick: bool) -> list[Line]:
    """Both forms of the proposal at every k."""
    return [
        Line(
            NAME,
            Scheme(label, "decentralized", form | {"hops": hops}),
            FASHION_MNIST.scenario(quick, partition),
            FASHION_MNIST.seeds(quick),
            setting,
            place=hops,
        )
        for setting, partition in PARTITIONS.items()
        for hops in range(4)
        for label, form in FORMS.items()
    ]
