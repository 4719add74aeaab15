"""The paper's order of schemes with the paper's own panel of 25 cm², at the usual and at a low waterfall threshold.

`ring10` halves the panel, so that batteries rarely hold enough for the larger power and every scheme sends at the
smaller one. With the whole panel a scheme can waste energy on power that others save for more slots of training.
"""

from heliomesh.engine.arm import OURS, PAIRS, PAPER, Arm
from heliomesh.engine.task import FASHION_MNIST, PARTITIONS

TITLE = "Accuracy over slots with the paper's panel, Fashion-MNIST"
PLACE = None
AGAINST = PAIRS
NAME = __name__.rpartition(".")[2]
_PANEL_CM2 = 25.0
_WATERFALLS = (1.0, 0.3)
_SEEDS_FACTOR = 4


def arms(quick: bool) -> list[Arm]:
    """The paper's schemes and `receiver` under every partition."""
    seeds = FASHION_MNIST.seeds(quick) * (1 if quick else _SEEDS_FACTOR)
    return [
        Arm(
            NAME,
            scheme,
            FASHION_MNIST.scenario(quick, {"harvest.panel_cm2": _PANEL_CM2, "link.waterfall": waterfall}, partition),
            seeds,
            f"{setting}, φ = {waterfall:g}",
        )
        for waterfall in _WATERFALLS
        for setting, partition in PARTITIONS.items()
        for scheme in (*PAPER, OURS[0])
    ]
