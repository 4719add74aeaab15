"""A sensor of one's own in one file: a battery of Linux' power-supply class.

    PYTHONPATH=examples/sensors heliomesh --trust device run net/device-0

with this in the device's agent.toml:

    [sensor]
    kind = "power_supply:sensor"
    options = {supply = "BAT0"}  # below /sys/class/power_supply
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from heliomesh.field.agents.folder import AgentFolder
from heliomesh.field.agents.sensor import Sensor
from heliomesh.field.fleet.device import Fate, Sensed
from heliomesh.scenario.errors import ScenarioError

_JOULE_PER_MICRO_WATT_HOUR = 3600e-6
_POWER_SUPPLIES = Path("/sys/class/power_supply")


class PowerSupply(Sensor):
    """A battery of Linux' power-supply class (Documentation/ABI/testing/sysfs-class-power), and no other meter.

    What the battery gains in a slot is its harvest. Channels and weather are at their most frequent levels, and a
    packet that came is delivered.
    """

    def __init__(self, folder: AgentFolder, root: Path = _POWER_SUPPLIES) -> None:
        self._supply, self._problem = root / str(folder.settings.sensor.options["supply"]), folder.problem
        self._device = folder.settings.device
        self._capacity_joule = float(self._problem.battery.capacity_joule[self._device])
        self._before_joule = self.first_battery_joule = self.battery_joule()

    def open(self, slot: int) -> Sensed:
        """The battery as it is."""
        self._before_joule = self.battery_joule()
        channel, law = self._problem.channel, self._problem.harvest.law
        levels = dict.fromkeys(self._problem.sites_into(self._device), int(channel.stationary.argmax()))
        return Sensed(levels, int(law.stationary.argmax()), 0.0, self._before_joule)

    def close(self, slot: int) -> Fate:
        """The battery's rise."""
        num_edges = len(self._problem.topology.neighbours[self._device])
        return Fate(np.full(num_edges, np.inf), max(self.battery_joule() - self._before_joule, 0.0))

    def battery_joule(self) -> float:
        """From energy_now [µWh], else charge_now [µAh] × voltage_now [µV], else capacity [%].

        It is no more than the scenario's battery holds: plans know no more.
        """
        energy, percent = self._number("energy_now"), self._number("capacity")
        charge, voltage = self._number("charge_now"), self._number("voltage_now")
        if energy is not None:
            found = energy * _JOULE_PER_MICRO_WATT_HOUR
        elif charge is not None and voltage is not None:
            found = charge * voltage * 1e-6 * _JOULE_PER_MICRO_WATT_HOUR
        elif percent is not None:
            found = percent / 100 * self._capacity_joule
        else:
            expected = f"expected energy_now, charge_now with voltage_now, or capacity in {self._supply}"
            raise ScenarioError("sensor.options.supply", f"{expected}, actual: none of them")
        return min(found, self._capacity_joule)

    def _number(self, name: str) -> float | None:
        try:
            return float((self._supply / name).read_text())
        except (OSError, ValueError):
            return None


def sensor(folder: AgentFolder, notify: Callable[[str], None]) -> PowerSupply:
    """The battery that agent.toml names."""
    return PowerSupply(folder)
