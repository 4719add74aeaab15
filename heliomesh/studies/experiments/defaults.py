"""Does it matter what the literal form takes a device out of sight to be and to do? The paper says it does not."""

from typing import Any

from heliomesh.studies.line import FORMS, Line, Scheme
from heliomesh.studies.task import DIRICHLET, FASHION_MNIST

TITLE = "Default state and action of the literal form, Fashion-MNIST, Dir(0.8)"
OF_PAPER = "Section IV, the default state and action"
PLACE = None
AGAINST = "idle, full battery"
NAME = __name__.rpartition(".")[2]
_ROUNDS = 5  # after many rounds the literal policy is nearly uniform whatever the default
_DEFAULTS: dict[str, dict[str, Any]] = {
    "idle, full battery": {},
    "idle, empty battery": {"default_battery": "empty"},
    "idle, worst gain": {"default_gain": "worst"},
    "idle, best gain": {"default_gain": "best"},
    "low power, full battery": {"default_action": 1},
    "high power, full battery": {"default_action": 2},
}


def lines(quick: bool) -> list[Line]:
    """The literal form with two hops under every default."""
    scenario, seeds = FASHION_MNIST.scenario(quick, DIRICHLET), FASHION_MNIST.seeds(quick)
    shared = FORMS["proposal, literal"] | {"hops": 2, "rounds": _ROUNDS}
    return [
        Line(NAME, Scheme(label, "decentralized", shared | default), scenario, seeds)
        for label, default in _DEFAULTS.items()
    ]
