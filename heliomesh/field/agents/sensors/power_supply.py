"""The battery as Linux shows it below /sys/class/power_supply (Documentation/ABI/testing/sysfs-class-power)."""

from dataclasses import dataclass
from pathlib import Path

from heliomesh.field.agents.sensors.measured import Meter
from heliomesh.scenario.errors import ScenarioError

_JOULE_PER_MICRO_WATT_HOUR = 3600e-6
_CLASS = Path("/sys/class/power_supply")


@dataclass(frozen=True)
class PowerSupply(Meter):
    """One battery of the power-supply class, which remembers by itself; no panel and no load is measured."""

    supply: str
    capacity_joule: float  # of a full battery, where it tells only a percentage
    root: Path = _CLASS

    def battery_joule(self) -> float:
        """From energy_now [µWh], else charge_now [µAh] × voltage_now [µV], else capacity [%]."""
        energy = self._number("energy_now")
        if energy is not None:
            return energy * _JOULE_PER_MICRO_WATT_HOUR
        charge, voltage = self._number("charge_now"), self._number("voltage_now")
        if charge is not None and voltage is not None:
            return charge * voltage * 1e-6 * _JOULE_PER_MICRO_WATT_HOUR
        percent = self._number("capacity")
        if percent is not None:
            return percent / 100 * self.capacity_joule
        raise ScenarioError(
            "sensor.supply",
            f"expected energy_now, charge_now with voltage_now, or capacity in {self.root / self.supply}, "
            "actual: none of them",
        )

    def _number(self, name: str) -> float | None:
        try:
            return float((self.root / self.supply / name).read_text())
        except (OSError, ValueError):
            return None
