"""Gossip of models against the paper's rule of adding updates, i.i.d. and Dir(0.8)."""

from heliomesh.studies.line import Line, Scheme
from heliomesh.studies.task import FASHION_MNIST, PARTITIONS

TITLE = "Aggregation rules, Fashion-MNIST"
OF_PAPER = "Section II, the rule of aggregation"
PLACE = None
AGAINST = "model gossip"
NAME = __name__.rpartition(".")[2]
# the paper's rule diverges unless the mixing matrix has no negative eigenvalue, so it comes with lazy weights
_RULES = {
    "model gossip": {"learning.aggregation": "model", "network.mixing": "metropolis"},
    "model gossip, lazy": {"learning.aggregation": "model", "network.mixing": "lazy-metropolis"},
    "update rule, lazy": {"learning.aggregation": "update", "network.mixing": "lazy-metropolis"},
    "renormalized": {"learning.aggregation": "renormalized", "network.mixing": "metropolis"},
}


def lines(quick: bool) -> list[Line]:
    """Every rule under every partition, by the planner `receiver`."""
    return [
        Line(
            NAME,
            Scheme(label, "receiver"),
            FASHION_MNIST.scenario(quick, partition, rule),
            FASHION_MNIST.seeds(quick),
            setting,
        )
        for setting, partition in PARTITIONS.items()
        for label, rule in _RULES.items()
    ]
