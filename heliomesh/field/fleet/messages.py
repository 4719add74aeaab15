"""What devices tell each other, and how many bytes it takes on the air.

Tables travel as 32-bit numbers, as the overhead model counts (`planners/decentralized/planner.py`), and models as
`learning.on_air` says. In this program tables keep the type in which they were computed, so that results are those of
the library.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor

from heliomesh.model.factor import Factor, Variable
from heliomesh.planners.decentralized.planner import BYTES_ON_AIR

Kind = Literal["share", "policy", "state", "bid", "grant", "model"]
PLANNING: tuple[Kind, ...] = ("share", "policy")


@dataclass(frozen=True)
class Packet:
    """A transmission of a model: the signal, and what it carries if it can be decoded."""

    power_watt: float  # with which it was sent; a receiver's radio measures it, whether it decodes the rest or not
    row: Tensor  # (parameter,) w½, or Δ where updates are averaged, as it comes over the air
    scale: Tensor | None = None  # (block,) of an int8 packet, which travels too
    account: bytes = b""  # what `bids` counts of the model; its planner knows the format


Content = Factor | dict[Variable, int] | bytes | Packet  # a table, measured states, a bid or a grant, a model


@dataclass(frozen=True)
class Message:
    """One message on its way from its origin to its destination, passed on by neighbours."""

    origin: int
    destination: int
    kind: Kind
    slot: int
    content: Content
    num_bytes: int  # on the air, over each hop


Outgoing = dict[int, list[Message]]  # by the neighbour to whom they go next


def table_message(kind: Kind, origin: int, destination: int, slot: int, table: Factor, frame_entries: int) -> Message:
    """A table in a frame of fixed length."""
    if table.table.numel() > frame_entries:
        raise RuntimeError(f"a table of {table.table.numel()} entries has no room in its frame of {frame_entries}")
    return Message(origin, destination, kind, slot, table, frame_entries * BYTES_ON_AIR)


class Receipt(NamedTuple):
    """What distinguishes received messages in a logbook."""

    sender: int  # the neighbour from whom they came
    origin: int  # the device that made them
    kind: Kind
    slot: int


Logbook = dict[Receipt, tuple[int, int]]  # number and bytes of the messages that a device received
