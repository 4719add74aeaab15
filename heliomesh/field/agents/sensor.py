"""What measures a device's battery, harvest and channel: by simulation, by Linux, or by code of one's own."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np

from heliomesh.common.catalog import load
from heliomesh.field.agents.folder import AgentFolder
from heliomesh.field.fleet.device import Fate, Sensed
from heliomesh.field.fleet.world import World
from heliomesh.scenario.errors import ScenarioError

_JOULE_PER_MICRO_WATT_HOUR = 3600e-6
_POWER_SUPPLIES = Path("/sys/class/power_supply")


class Sensor(Protocol):
    """Slots are asked for in rising order, each once, also those that the device misses.

    One of your own is a function ``(folder, notify)`` that returns a sensor. ``folder.settings.sensor.options`` are
    its settings, and ``notify`` takes a sentence for the user.
    """

    first_battery_joule: float  # of a device that starts for the first time

    def open(self, slot: int) -> Sensed:
        """Channel, weather and battery at the start of a slot."""

    def close(self, slot: int) -> Fate:
        """The harvest of a slot, and which of its packets are lost."""

    def spent_joule(self) -> float | None:
        """What a meter says was spent in the slot that was closed last [J]; None where the books are right."""
        return None


class Simulated(Sensor):
    """By the simulator's own random numbers: a device's column of the fleet's world."""

    def __init__(self, folder: AgentFolder) -> None:
        self._problem, self._device, self._settings = folder.problem, folder.settings.device, folder.settings.sensor
        self._world = World(self._problem, self._settings.episode, self._settings.seed)
        self.first_battery_joule = float(self._world.first_battery_joule[self._device])

    def open(self, slot: int) -> Sensed:
        """The device's own column."""
        return self._world.open()[self._device]

    def close(self, slot: int) -> Fate:
        """The device's own column."""
        fate = self._world.close(slot)[self._device]
        return replace(fate, harvested_joule=self._settings.harvest_factor * fate.harvested_joule)


class PowerSupply(Sensor):
    """A battery of Linux' power-supply class (Documentation/ABI/testing/sysfs-class-power), and no other meter.

    What the battery gains in a slot is its harvest. Channels and weather are at their most frequent levels, and a
    packet that came is delivered.
    """

    def __init__(self, folder: AgentFolder, root: Path = _POWER_SUPPLIES) -> None:
        self._supply, self._problem = root / folder.settings.sensor.supply, folder.problem
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
            raise ScenarioError("sensor.supply", f"{expected}, actual: none of them")
        return min(found, self._capacity_joule)

    def _number(self, name: str) -> float | None:
        try:
            return float((self._supply / name).read_text())
        except (OSError, ValueError):
            return None


def sensor_of(folder: AgentFolder, notify: Callable[[str], None]) -> Sensor:
    """The sensor that the settings name; raises a user's mistake where it cannot be had."""
    settings = folder.settings
    settings.sensor.check()
    if settings.sensor.kind == "simulated":
        return Simulated(folder)
    slot_second, counted_second = settings.clock.slot_second, folder.problem.scenario.energy.slot_second
    if slot_second != counted_second:
        notify(
            f"clock.slot_second: expected energy.slot_second = {counted_second:g}, for which the plan counts joules, "
            f"actual value {slot_second:g}"
        )
    if settings.sensor.kind == "power-supply":
        return PowerSupply(folder)
    own: Sensor = load(settings.sensor.kind)(folder, notify)
    return own
