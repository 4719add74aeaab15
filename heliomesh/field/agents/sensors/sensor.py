"""The one interface of all sensors, and how settings name one."""

from collections.abc import Callable
from typing import Protocol

import torch

from heliomesh.field.agents.folder import AgentFolder
from heliomesh.field.agents.sensors.ina219 import Ina219Pair
from heliomesh.field.agents.sensors.measured import Measured, Meter
from heliomesh.field.agents.sensors.power_supply import PowerSupply
from heliomesh.field.agents.sensors.replayed import Replayed
from heliomesh.field.agents.sensors.simulated import Simulated
from heliomesh.field.agents.sensors.state_of_charge import StateOfCharge, VoltageCurve
from heliomesh.field.fleet.device import Fate, Sensed
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
        """What a meter says was spent in the slot that was closed last [J]; None where there is no meter.

        ``power_watt`` and ``trained`` say what the device did in it.
        """


def sensor_of(folder: AgentFolder, notify: Callable[[str], None]) -> Sensor:
    """The sensor that the settings name; raises a user's mistake where it cannot be had.

    ``notify`` gets a sentence on what a meter starts from.
    """
    settings, problem, device = folder.settings.sensor, folder.problem, folder.settings.device
    if settings.kind == "simulated":
        factors = (settings.harvest_factor, settings.spending_factor)
        return Simulated(problem, device, settings.episode, settings.seed, *factors)
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
    return Measured(problem, device, _meter(folder, notify), slot_second)


def _meter(folder: AgentFolder, notify: Callable[[str], None]) -> Meter:
    settings, battery = folder.settings.sensor, folder.problem.battery.of(torch.tensor([folder.settings.device]))
    capacity_joule = float(battery.capacity_joule)
    if settings.kind == "power-supply":
        return PowerSupply(settings.supply, capacity_joule)
    state = StateOfCharge(
        capacity_joule, folder.path / _STATE_FILE, VoltageCurve.of(settings), settings.correction_second
    )
    return Ina219Pair(settings, state, float(battery.losses.charge_efficiency), notify)
