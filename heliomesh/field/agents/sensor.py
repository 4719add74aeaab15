"""What measures a device's battery, harvest and channel: by simulation, or by code of one's own."""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from heliomesh.common.catalog import load
from heliomesh.field.agents.folder import AgentFolder
from heliomesh.field.fleet.device import Fate, Sensed
from heliomesh.field.fleet.world import World


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
    own: Sensor = load(settings.sensor.kind)(folder, notify)
    return own
