"""Planning for learning against planning for packets, and against rules that others use.

All schemes meet the same weather, channels and data, and none spends more than the coupled plan does. The coupled
plan and the paper's proposal average as the paper's system does when packets are lost; all others train and send
apart, and average by the rule that gave the highest accuracy, `reassigned`.
"""

from typing import Any

from heliomesh.scenario import Scenario
from heliomesh.studies.gain import RIVALS
from heliomesh.studies.line import LOSSLESS, Line
from heliomesh.studies.task import DIRICHLET, IID

TITLE = "Planning for learning, Fashion-MNIST"
PLACE = None
AGAINST = "coupled"
NAME = __name__.rpartition(".")[2]
_NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "ring10": ("ring10", {}),
    "ring10, 25 cm²": ("ring10", {"harvest.panel_cm2": 25.0}),
    "grid25": ("grid25", {}),
    "geometric30": ("geometric30", {}),
}
_PARTITIONS: dict[str, dict[str, Any]] = {
    "i.i.d.": IID,
    "Dir(0.8)": DIRICHLET,
    "Dir(0.1)": {"learning.partition": "dirichlet", "learning.alpha": 0.1},
}


def lines(quick: bool) -> list[Line]:
    """Every scheme on every network under every partition."""
    task: dict[str, Any] = (
        {"learning.dataset": "digits", "slots": 60} if quick else {"learning.dataset": "fashion_mnist"}
    )
    networks = {"ring10": _NETWORKS["ring10"]} if quick else _NETWORKS
    return [
        Line(
            NAME,
            scheme,
            Scenario.load(name).override({**task, **changes, **partition, **actions}),
            3 if quick else 10,
            f"{network}, {setting}",
        )
        for network, (name, changes) in networks.items()
        for setting, partition in _PARTITIONS.items()
        for scheme, actions in RIVALS
        if scheme is not LOSSLESS or not changes  # the ideal does not ask how large panels are
    ]
