"""The one interface of all sensors, those without meters, and how settings name one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch

from heliomesh.field.agents.folder import AgentFolder, SensorSettings
from heliomesh.field.agents.sensors.ina219 import Ina219Pair
from heliomesh.field.agents.sensors.measured import Measured, Meter
from heliomesh.field.agents.sensors.power_supply import PowerSupply
from heliomesh.field.agents.sensors.state_of_charge import StateOfCharge, VoltageCurve
from heliomesh.field.fleet.device import Fate, Sensed
from heliomesh.field.fleet.world import World
from heliomesh.model.problem import Problem
from heliomesh.simulation.trace import Trace, TraceError

_STATE_FILE = "battery.json"  # in the agent's folder


class Sensor(Protocol):
    """Slots are asked for in rising order, each once, also those that the device misses."""

    first_battery_joule: float  # of a device that starts for the first time

    def open(self, slot: int) -> Sensed:
        """Channel, weather and battery at the start of a slot."""

    def close(self, slot: int) -> Fate:
        """The harvest of a slot, and which of its packets are lost."""

    def spent_joule(self, power_watt: float, trained: bool) -> float | None:
        """What a meter says was spent in the slot that was closed last [J]; None where the device's books are right.

        ``power_watt`` and ``trained`` say what the device did in it.
        """
        return None


class Simulated(Sensor):
    """By the simulator's own random numbers: a device's column of the fleet's world."""

    def __init__(self, problem: Problem, device: int, settings: SensorSettings) -> None:
        self._problem, self._device, self._settings = problem, device, settings
        self._world = World(problem, settings.episode, settings.seed)
        self.first_battery_joule = float(self._world.first_battery_joule[device])

    def open(self, slot: int) -> Sensed:
        """The device's own column."""
        return self._world.open()[self._device]

    def close(self, slot: int) -> Fate:
        """The device's own column."""
        fate = self._world.close(slot)[self._device]
        return replace(fate, harvested_joule=self._settings.harvest_factor * fate.harvested_joule)

    def spent_joule(self, power_watt: float, trained: bool) -> float | None:
        """The device's books are right, or a meter says a multiple of what the scenario does."""
        if self._settings.spending_factor == 1:
            return None
        power = torch.tensor(power_watt, dtype=torch.float64)
        drawn = self._problem.consumption.slot_joule(power, torch.tensor(trained))
        return self._settings.spending_factor * float(drawn[self._device])


class Replayed(Sensor):
    """Harvests, channels and lost packets of one episode of a trace."""

    def __init__(self, problem: Problem, device: int, trace: Trace, episode: int) -> None:
        episodes, slots, devices = trace.scheduled.shape
        if episode >= episodes or slots < problem.slots or devices != problem.num_devices:
            raise TraceError(
                f"sensor.file: expected a trace of {problem.num_devices} devices and {problem.slots} slots with "
                f"episode {episode}, actual: {devices} devices, {slots} slots, {episodes} episodes"
            )
        if problem.harvest.law.num_weather > 1:
            raise TraceError("sensor.file: expected a scenario without weather, since traces do not record it")
        self._problem, self._device, self._trace, self._episode = problem, device, trace, episode
        self.first_battery_joule = float(trace.battery_joule[episode, 0, device])

    def open(self, slot: int) -> Sensed:
        """The recorded levels of its channels."""
        levels = self._trace.channel_level[self._episode, slot]
        return Sensed({site: int(levels[site]) for site in self._problem.sites_into(self._device)}, 0, 0.0)

    def close(self, slot: int) -> Fate:
        """The recorded harvest; what was delivered then is delivered now, if it was sent."""
        start, stop = self._problem.topology.edge_start[self._device : self._device + 2]
        delivered = self._trace.delivered[self._episode, slot, start:stop]
        harvested = float(self._trace.harvested_joule[self._episode, slot, self._device])
        return Fate(np.where(delivered, np.inf, -np.inf), harvested)


def sensor_of(folder: AgentFolder, notify: Callable[[str], None]) -> Sensor:
    """The sensor that the settings name; raises a user's mistake where it cannot be had.

    ``notify`` gets a sentence on what a meter starts from.
    """
    settings, problem, device = folder.settings.sensor, folder.problem, folder.settings.device
    if settings.kind == "simulated":
        return Simulated(problem, device, settings)
    if settings.kind == "trace":
        if settings.file is None:
            raise TraceError("sensor.file: expected the file of a trace, actual: none")
        return Replayed(problem, device, Trace.load(folder.path / settings.file), settings.episode)
    slot_second, counted_second = folder.settings.clock.slot_second, problem.scenario.energy.slot_second
    if slot_second != counted_second:
        notify(
            f"clock.slot_second: expected energy.slot_second = {counted_second:g}, for which the plan counts joules, "
            f"actual value {slot_second:g}"
        )
    battery = problem.battery.of(torch.tensor([device]))
    capacity_joule = float(battery.capacity_joule)
    meter: Meter = PowerSupply(settings.supply, capacity_joule)
    if settings.kind == "ina219":
        curve, file = VoltageCurve.of(settings), folder.path / _STATE_FILE
        state = StateOfCharge(capacity_joule, file, curve, settings.correction_second)
        meter = Ina219Pair(settings, state, float(battery.losses.charge_efficiency), notify)
    return Measured(problem, device, meter, slot_second)
