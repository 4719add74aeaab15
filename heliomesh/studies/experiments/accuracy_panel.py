"""The paper's order of schemes with the paper's own panel of 25 cm², at the usual and at a low waterfall threshold.

`ring10` halves the panel, so that batteries rarely hold enough for the larger power and every scheme sends at the
smaller one. With the whole panel a scheme can waste energy on power that others save for more slots of training.
"""

from typing import Any

from heliomesh.studies.line import PAIRS, Line
from heliomesh.studies.task import order_of_schemes

TITLE = "Accuracy over slots with the paper's panel, Fashion-MNIST"
OF_PAPER = "Fig. 2, with the paper's panel"
PLACE = None
AGAINST = PAIRS
NAME = __name__.rpartition(".")[2]
_VARIANTS: dict[str, dict[str, Any]] = {
    f"φ = {waterfall:g}": {"harvest.panel_cm2": 25.0, "link.waterfall": waterfall} for waterfall in (1.0, 0.3)
}


def lines(quick: bool) -> list[Line]:
    """The paper's schemes and `receiver` at both thresholds."""
    return order_of_schemes(NAME, quick, _VARIANTS)
