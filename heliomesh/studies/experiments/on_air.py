"""Formats on the air at equal harvests: a packet of fewer bits takes less time, so its joules serve something else.

The paper's two seconds send a model in float32. Other formats take their share of them, bits over bits, and every
plan is made for its own format. Two more lines send compressed models in the two seconds of float32, under its very
traces: what compression alone costs.
"""

from typing import Any

from heliomesh.learning.footprint import update_bits
from heliomesh.on_air import Format
from heliomesh.scenario import Learning, Scenario
from heliomesh.studies.gain import SEPARATE
from heliomesh.studies.line import Line, Scheme
from heliomesh.studies.task import DIRICHLET

TITLE = "Formats on the air, Fashion-MNIST"
PLACE = None
AGAINST = "float32"
RADIO = True
NAME = __name__.rpartition(".")[2]
_FLOAT32_SECOND = 2.0  # the paper's transmission time
_FORMATS: tuple[Format, ...] = ("float32", "float16", "int8", "top-k")


def transmit_second(dataset: str, on_air: Format) -> float:
    """Transmission time [s] of the dataset's model, in proportion to its bits."""
    sent, whole = (update_bits(Learning(dataset=dataset, on_air=one)) for one in (on_air, "float32"))
    return _FLOAT32_SECOND * sent / whole


def lines(quick: bool) -> list[Line]:
    """Every format in its own time, and two in the time of float32."""
    dataset = "digits" if quick else "fashion_mnist"
    world = Scenario.load("geometric30").override(
        {"learning.dataset": dataset, "slots": 60 if quick else 200, **SEPARATE, **DIRICHLET}
    )
    sent: dict[str, dict[str, Any]] = {
        on_air: {"learning.on_air": on_air, "energy.transmit_second": transmit_second(dataset, on_air)}
        for on_air in _FORMATS
    }
    sent |= {f"{on_air}, in 2 s": {"learning.on_air": on_air} for on_air in ("int8", "top-k")}
    seeds, setting = 3 if quick else 10, "geometric30, Dir(0.8)"
    return [
        Line(NAME, Scheme(label, "contributions"), world.override(changes), seeds, setting)
        for label, changes in sent.items()
    ]
