"""A sensor of one's own: two INA219 chips, at the panel and between battery and load.

    PYTHONPATH=examples/sensors heliomesh --trust device run net/device-0

with this in the device's agent.toml:

    [sensor]
    kind = "ina219:sensor"
    [sensor.options]
    voltage_curve = [[3.0, 0.0], [3.6, 0.2], [4.2, 1.0]]  # volts, share of the energy

No INA219 was at hand: the driver follows the data sheet and is tested on a simulated bus only.
"""

from collections.abc import Callable

import torch

from heliomesh.field.agents.folder import AgentFolder
from heliomesh.scenario.section import validated
from ina219.chips import Ina219Pair
from ina219.measured import Measured
from ina219.settings import Settings
from ina219.state_of_charge import StateOfCharge, VoltageCurve

_STATE_FILE = "battery.json"  # in the agent's folder


def sensor(folder: AgentFolder, notify: Callable[[str], None]) -> Measured:
    """The chips of a device; ``notify`` gets a sentence on what the battery starts from."""
    settings = validated(Settings, folder.settings.sensor.options, "sensor.options")
    problem, device = folder.problem, folder.settings.device
    battery = problem.battery.of(torch.tensor([device]))
    curve, file = VoltageCurve.of(settings), folder.path / _STATE_FILE
    state = StateOfCharge(float(battery.capacity_joule), file, curve, settings.correction_second)
    pair = Ina219Pair(settings, state, float(battery.losses.charge_efficiency), notify)
    return Measured(problem, device, pair, folder.settings.clock.slot_second)
