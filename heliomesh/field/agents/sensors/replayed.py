"""Harvests, channels and lost packets of a recorded trace."""

import numpy as np

from heliomesh.field.fleet.device import Fate, Sensed
from heliomesh.model.problem import Problem
from heliomesh.simulation.trace import Trace, TraceError


class Replayed:
    """One device of one episode of a trace."""

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

    def spent_joule(self, power_watt: float, trained: bool) -> float | None:
        """The device's books are right."""
        return None
