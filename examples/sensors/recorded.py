"""A sensor of one's own in one file: harvests, channels and lost packets of an episode of a recorded trace.

    PYTHONPATH=examples/sensors heliomesh --trust device run net/device-0

with this in the device's agent.toml; the file is looked for in the device's folder:

    [sensor]
    kind = "recorded:sensor"
    options = {file = "trace.npz", episode = 0}
"""

from collections.abc import Callable

import numpy as np

from heliomesh.field.agents.folder import AgentFolder
from heliomesh.field.agents.sensor import Sensor
from heliomesh.field.fleet.device import Fate, Sensed
from heliomesh.model.problem import Problem
from heliomesh.simulation.trace import Trace, TraceError


class Replayed(Sensor):
    """Harvests, channels and lost packets of one episode of a trace."""

    def __init__(self, problem: Problem, device: int, trace: Trace, episode: int) -> None:
        episodes, slots, devices = trace.scheduled.shape
        if episode >= episodes or slots < problem.slots or devices != problem.num_devices:
            raise TraceError(
                f"sensor.options.file: expected a trace of {problem.num_devices} devices and {problem.slots} slots "
                f"with episode {episode}, actual: {devices} devices, {slots} slots, {episodes} episodes"
            )
        if problem.harvest.law.num_weather > 1:
            raise TraceError(
                "sensor.options.file: expected a scenario without weather, since traces do not record it"
            )
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


def sensor(folder: AgentFolder, notify: Callable[[str], None]) -> Replayed:
    """The recording that agent.toml names."""
    options = folder.settings.sensor.options
    trace = Trace.load(folder.path / str(options["file"]))
    return Replayed(folder.problem, folder.settings.device, trace, int(options.get("episode", 0)))
