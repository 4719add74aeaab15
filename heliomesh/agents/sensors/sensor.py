"""The one interface of all sensors, and how settings name one."""

from typing import Protocol

from heliomesh.agents.folder import AgentFolder
from heliomesh.agents.sensors.ina219 import Ina219Pair
from heliomesh.agents.sensors.measured import Measured
from heliomesh.agents.sensors.power_supply import PowerSupply
from heliomesh.agents.sensors.replayed import Replayed
from heliomesh.agents.sensors.simulated import Simulated
from heliomesh.engine.fleet.device import Fate, Sensed
from heliomesh.simulation.trace import Trace, TraceError


class Sensor(Protocol):
    """Slots are asked for in rising order, each once, also those that the device misses."""

    first_battery_joule: float  # of a device that starts for the first time

    def open(self, slot: int) -> Sensed:
        """Channel, weather and battery at the start of a slot."""

    def close(self, slot: int) -> Fate:
        """The harvest of a slot, and which of its packets are lost."""

    def spent_joule(self, power_watt: float, trained: bool) -> float | None:
        """What a meter says was spent in the slot that was closed last [J]; None where there is no meter.

        ``power_watt`` and ``trained`` say what the device did in it.
        """


def sensor_of(folder: AgentFolder) -> Sensor:
    """The sensor that the settings name; raises a user's mistake where it cannot be had."""
    settings, problem, device = folder.settings.sensor, folder.problem, folder.settings.device
    if settings.kind == "simulated":
        factors = (settings.harvest_factor, settings.spending_factor)
        return Simulated(problem, device, settings.episode, settings.seed, *factors)
    if settings.kind == "trace":
        if settings.file is None:
            raise TraceError("sensor.file: expected the file of a trace, actual: none")
        return Replayed(problem, device, Trace.load(folder.path / settings.file), settings.episode)
    capacity_joule = float(problem.battery.capacity_joule[device])
    if settings.kind == "power-supply":
        return Measured(problem, device, PowerSupply(settings.supply, capacity_joule))
    return Measured(problem, device, Ina219Pair(settings, capacity_joule))
