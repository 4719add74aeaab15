"""The form of `bids` that talks: a bid and a grant of every device in every slot (`slot/bids.py`).

A neighbour whose bid is lost does not count in the slot, and a grant that is lost is worth nothing; a device that got
none decides alone.
"""

from dataclasses import dataclass

from torch import Tensor

from heliomesh.model.overhead import Talk, broadcast_talk
from heliomesh.model.policy import Observation
from heliomesh.planners.bids.accounts import Accountants
from heliomesh.slot import bids


@dataclass(frozen=True, kw_only=True)
class Bidders(Accountants):
    """Devices that bid, grant and choose."""

    @property
    def talk(self) -> Talk:
        """A bid and a grant, told to all neighbours."""
        sizes = bids.message_bytes(self.model.directions.shape[1], len(self.model.network.power_watt))
        return broadcast_talk(self.problem, sum(sizes), len(sizes))

    def _chosen(self, slot: int, seen: Observation) -> tuple[Tensor, Tensor]:
        terms, own, table, now = self.terms, self.own, self.table, bids.Account(*seen.memory[:2])
        prices = self.price(slot, seen)
        said, trains = bids.bid(terms, now, own.direction, prices)
        level = table.of_edges(seen.channel_level[:, self.problem.channel.site_of_edge])
        arrival = bids.arrival_at(own, level)
        listener = bids.Listener(now.progress, now.lean, trains, own.share, own.weight, arrival, own.hears)
        first, second = self._heard(seen)
        believed = bids.believable(terms, bids.Bid(*map(table.of_neighbours, said)), now.progress)
        granted = bids.grant(terms, listener, believed, first, self.bias_weight_in(slot))
        grants = bids.Grant(*map(table.of_neighbours, granted))
        return bids.choose(terms, prices, granted, grants, second, own.place)

    def _heard(self, seen: Observation) -> tuple[Tensor, Tensor]:
        """Which neighbours' bids and grants a device hears; (batch, device, neighbour) each."""
        awake = ~self.problem.battery.dark(seen.battery_joule)
        between = self.table.present & self.table.of_neighbours(awake) & awake.unsqueeze(-1)
        if seen.heard is None:
            return between, between
        first, second = (between & self.table.of_edges(told) for told in seen.heard.unbind(-1))
        return first, second
