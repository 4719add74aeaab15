"""Storage in plain numbers, one device at a time: what the package computes with tensors, written down again."""

import tomllib
from itertools import pairwise
from pathlib import Path

import heliomesh as hm

FOLDER = Path(hm.__file__).parent / "scenario" / "storages"
IDEAL = {"charge_efficiency": 1.0, "leak_per_day": 0.0, "converter_efficiency": 1.0}


class PlainStorage:
    """What every device draws, keeps and loses."""

    def __init__(self, scenario):
        self.energy, self.scenario = scenario.energy, scenario
        name = scenario.energy.storage
        self.published = IDEAL if name == "ideal" else tomllib.loads((FOLDER / f"{name}.toml").read_text())

    def _own(self, field, device):
        value = getattr(self.energy, field)
        value = self.published[field] if value is None else value
        return value[device] if isinstance(value, tuple) else value

    def per_joule(self, load):
        """Joules drawn per joule delivered at a load [W]."""
        table = self.energy.converter_efficiency or self.published["converter_efficiency"]
        if isinstance(table, float):
            return 1 / table
        if load <= table[0][0]:
            return 1 / table[0][1]
        for (low, share), (high, next_share) in pairwise(table):
            if load <= high:
                drawn = low / share + (load - low) / (high - low) * (high / next_share - low / share)
                return drawn / load
        return 1 / table[-1][1]

    def training(self, device, joule):
        """Drawn for so much training [J]."""
        load = (
            joule / self.energy.slot_second if self.energy.compute_watt is None else self._own("compute_watt", device)
        )
        return joule * self.per_joule(load)

    def sending(self, device, power):
        """Drawn for sending [J]."""
        if power == 0:
            return 0.0
        wakes = self._own("listen_second", device) == 0
        joule = power * self.energy.transmit_second + wakes * self._own("wake_joule", device)
        return joule * self.per_joule(power)

    def drain(self, device):
        """Drawn in every slot [J]."""
        receive, listen = self._own("receive_watt", device), self._own("listen_second", device)
        sleep = self._own("sleep_watt", device)
        listening = receive * listen + (listen > 0) * self._own("wake_joule", device)
        sleeping = sleep * (self.energy.slot_second - listen)
        return listening * self.per_joule(receive) + sleeping * self.per_joule(sleep)

    def after(self, device, left, harvested, capacity):
        """Next battery, overflow, what leaked and what charging lost [J], from what spending and drain left."""
        kept = left * (1 - self._own("leak_per_day", device)) ** (self.energy.slot_second / 86400)
        efficiency = self._own("charge_efficiency", device)
        taken = min(harvested, (capacity - kept) / efficiency)
        return kept + efficiency * taken, harvested - taken, left - kept, (1 - efficiency) * taken
