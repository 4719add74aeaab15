"""How long a slot's work takes, an update on air and the training before it, and the energy of that training.

A model's bits and operations are counted in `tasks/footprint.py`, and only where a scenario asks for them.
"""

import math

import numpy as np

from heliomesh.scenario.errors import ScenarioError, refuse
from heliomesh.scenario.scenario import Scenario
from heliomesh.scenario.section import MOST_JOULE, per_device
from heliomesh.tasks import footprint


def transmit_second(scenario: Scenario) -> float:
    """τ: given, or bits · (1 + overhead) / rate [s]; raises ScenarioError where the band's duty cycle is less."""
    energy = scenario.energy
    if energy.transmit_second == "bits":
        bits, rate = footprint.update_bits(scenario.learning), energy.bit_per_second or math.nan
        second: float = bits * (1 + energy.packet_overhead) / rate
        most = f"at most energy.slot_second = {energy.slot_second:g} s"
        expected = f"a rate at which {bits} bits of an update take {most}"
        actual = f"value {rate:g} takes {second:.4g} s"
        refuse(not second <= energy.slot_second, "energy.bit_per_second", expected, actual)
    else:
        second = energy.transmit_second
    check_duty_cycle(scenario, second, "an update is")
    return second


def check_duty_cycle(scenario: Scenario, second: float, what: str) -> None:
    """Refuse what is longer on air than the band's duty cycle allows."""
    share, slot_second = scenario.energy.duty_cycle, scenario.energy.slot_second
    if share is not None and not second <= share * slot_second * (1 + _DUST):
        expected = f"at least the share of a slot that {what} on air, {second:.4g} s of {slot_second:g} s"
        raise ScenarioError("energy.duty_cycle", expected, f"value {share:g}")


def compute_second(scenario: Scenario) -> list[float]:
    """Time of a slot's training per device: given, or K |ξ| operations per sample / rate [s]; 0 where unknown."""
    energy, learning, devices = scenario.energy, scenario.learning, scenario.network.devices
    if energy.compute_second is None:
        return [0.0] * devices
    if energy.compute_second != "flop":
        return per_device(energy.compute_second, devices)
    flop = learning.local_steps * learning.batch * footprint.sample_flop(learning)
    return [flop / rate for rate in per_device(energy.flop_per_second or math.nan, devices)]


def check_slot(scenario: Scenario, sending_second: float) -> None:
    """Refuse training and sending that do not fit into a slot one after the other."""
    training, slot = max(compute_second(scenario)), scenario.energy.slot_second
    expected = f"room for training and sending, {training:.4g} s + {sending_second:.4g} s"
    refuse(not training + sending_second <= slot * (1 + _DUST), "energy.slot_second", expected, f"value {slot:g}")


def compute_joule(scenario: Scenario) -> list[float]:
    """Energy of K local steps per device [J]: given, power times time, or e_cmp = κ K I² c |ξ|."""
    settings, devices = scenario.energy, scenario.network.devices
    if settings.compute_joule is not None:
        return per_device(settings.compute_joule, devices)
    if settings.compute_watt is not None:
        watts = per_device(settings.compute_watt, devices)
        return [watt * second for watt, second in zip(watts, compute_second(scenario), strict=True)]
    samples = scenario.learning.local_steps * scenario.learning.batch
    frequency = np.array(per_device(settings.cpu_hz, devices))
    cycles = np.array(per_device(settings.cycles_per_sample, devices))
    with np.errstate(over="ignore"):
        joule = settings.capacitance * samples * frequency**2 * cycles
    if not joule.max() <= MOST_JOULE:
        raise ScenarioError("energy.cpu_hz", f"κ K I² c |ξ| of at most {MOST_JOULE:g} J", f"value {joule.max():g}")
    energies: list[float] = joule.tolist()
    return energies


_DUST = 1e-9  # of a slot, for rounded sums
