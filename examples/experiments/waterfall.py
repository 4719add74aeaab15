"""Accuracy against the waterfall φ of the packet errors: how much does a worse radio cost each planner?

python waterfall.py --quick
"""

import sys

import heliomesh as hm
from heliomesh.studies.experiments import DIRICHLET, FASHION_MNIST, Experiment
from heliomesh.studies.line import OURS, Line, Scheme


def lines(quick: bool) -> list[Line]:
    """Two planners and the greedy baseline at every φ."""
    places = {waterfall: {"link.waterfall": waterfall} for waterfall in ((0.3, 3.0) if quick else (0.3, 1.0, 3.0))}
    schemes = (*OURS, Scheme("uncoordinated", "uncoordinated"))
    return FASHION_MNIST.grid(quick, schemes, {"": DIRICHLET}, places)


WATERFALL = Experiment(
    name="waterfall",
    question="How much does a worse radio cost each planner?",
    title="Accuracy over the waterfall of packet errors, Fashion-MNIST, Dir(0.8)",
    rows=lines,
    against="uncoordinated",
    place="waterfall φ",
)

if __name__ == "__main__":
    (figure,) = hm.reproduce([WATERFALL], "waterfall", quick="--quick" in sys.argv)
    print(figure.table().groupby(["scheme", "place"])["accuracy"].mean())
