"""How good is the weight of bias that a pilot finds, and what do deadlines all along bring?

`ring10` on Fashion-MNIST, `contributions` with constant weights of a grid, with the pilot's, and with the guess by
label counts. The pilot's are what `heliomesh pilot ring10 --set learning.dataset=fashion_mnist` prints with these
partitions.
"""

from typing import Any

from heliomesh.scenario import Scenario
from heliomesh.studies.gain import COUPLED, SEPARATE
from heliomesh.studies.line import Line, Scheme
from heliomesh.studies.task import DIRICHLET, IID

TITLE = "Weights of bias and deadlines, Fashion-MNIST"
PLACE = None
AGAINST = "pilot"
NAME = __name__.rpartition(".")[2]
_GRID = (0.05, 0.2, 0.5, 1.0, 2.0, 4.0)
_PARTITIONS: dict[str, tuple[dict[str, Any], float]] = {  # and the unlikeness that the pilot finds
    "i.i.d.": (IID, 0.22),
    "Dir(0.8)": (DIRICHLET, 0.715),
    "Dir(0.1)": ({"learning.partition": "dirichlet", "learning.alpha": 0.1}, 2.66),
}


def _variants(pilot: float) -> dict[str, dict[str, Any]]:
    """Changes to the scenario by label; the first is the reference of the others."""
    return {
        "pilot": {"cost.unlikeness": pilot},
        **{f"weight {weight:g}": {"cost.unlikeness": weight} for weight in _GRID},
        "guess": {},
        "always": {"cost.unlikeness": pilot, "cost.deadline": "always"},
    }


def lines(quick: bool) -> list[Line]:
    """Every weight under every partition, and the coupled plan."""
    task: dict[str, Any] = (
        {"learning.dataset": "digits", "slots": 60} if quick else {"learning.dataset": "fashion_mnist"}
    )
    found = []
    for setting, (partition, pilot) in _PARTITIONS.items():
        world = Scenario.load("ring10").override({**task, **partition})
        schemes = [(Scheme("coupled", "receiver"), COUPLED)]
        schemes += [(Scheme(label, "contributions"), SEPARATE | own) for label, own in _variants(pilot).items()]
        found += [
            Line(NAME, scheme, world.override(changes), 3 if quick else 10, setting) for scheme, changes in schemes
        ]
    return found
