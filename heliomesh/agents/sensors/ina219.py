"""INA219 current sensors on an I²C bus: one at the panel, one at the load (Texas Instruments, SBOS448G).

A register has 16 bits, the first byte is the higher one. Register 1 is the shunt's voltage in 10 µV, signed;
register 2 the bus voltage, whose upper 13 bits count 4 mV. Power is bus voltage times shunt voltage over the shunt's
resistance. A thread samples it and sums energies up.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from heliomesh.agents.folder import SensorSettings
from heliomesh.scenario import ScenarioError

if sys.platform != "win32":
    import fcntl

_SELECT_DEVICE = 0x0703  # I2C_SLAVE of linux/i2c-dev.h
_SHUNT, _BUS = 1, 2
_SHUNT_VOLT, _BUS_VOLT = 10e-6, 4e-3
_SAMPLE_SECOND = 0.05

ReadRegister = Callable[[int], int]


def power_watt(read: ReadRegister, shunt_ohm: float) -> float:
    """Power through one chip [W]."""
    shunt = read(_SHUNT)
    signed = shunt - 0x10000 if shunt & 0x8000 else shunt
    return (read(_BUS) >> 3) * _BUS_VOLT * signed * _SHUNT_VOLT / shunt_ohm


@dataclass
class EnergySum:
    """Energy through one chip since it was last asked."""

    read: ReadRegister
    shunt_ohm: float
    _joule: float = 0.0
    _last_second: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def sample(self, now_second: float) -> None:
        """Add the power of this moment, times the time since the last."""
        with self._lock:
            self._joule += power_watt(self.read, self.shunt_ohm) * (now_second - self._last_second)
            self._last_second = now_second

    def taken(self) -> float:
        """The sum [J], which starts again at zero."""
        with self._lock:
            joule, self._joule = self._joule, 0.0
        return joule


class Ina219Pair:
    """A chip at the panel and one at the load; the battery is what the two leave, from a full one on."""

    def __init__(self, settings: SensorSettings, capacity_joule: float) -> None:
        self._sums = [
            EnergySum(_opened(settings.bus, address), settings.shunt_ohm)
            for address in (settings.panel_address, settings.load_address)
        ]
        self._capacity_joule = self._battery_joule = capacity_joule
        self._harvested_joule, self._spent_joule = 0.0, 0.0
        threading.Thread(target=self._watch, daemon=True).start()

    def battery_joule(self) -> float:
        """By counting what came and went [J]."""
        harvested, spent = (one.taken() for one in self._sums)
        self._harvested_joule += harvested
        self._spent_joule += spent
        self._battery_joule = min(max(self._battery_joule + harvested - spent, 0.0), self._capacity_joule)
        return self._battery_joule

    def harvested_joule(self) -> float | None:
        """Through the panel's chip."""
        self.battery_joule()
        found, self._harvested_joule = self._harvested_joule, 0.0
        return found

    def spent_joule(self) -> float | None:
        """Through the load's chip."""
        self.battery_joule()
        found, self._spent_joule = self._spent_joule, 0.0
        return found

    def _watch(self) -> None:
        while True:
            for one in self._sums:
                one.sample(time.monotonic())
            time.sleep(_SAMPLE_SECOND)


def _opened(bus: int, address: int) -> ReadRegister:
    """How to read a chip's registers; raises ScenarioError where there is no chip."""
    place = f"/dev/i2c-{bus}"

    def read(register: int) -> int:
        os.write(descriptor, bytes([register]))
        high, low = os.read(descriptor, 2)
        return high << 8 | low

    try:
        descriptor = os.open(place, os.O_RDWR)
        fcntl.ioctl(descriptor, _SELECT_DEVICE, address)
        read(_BUS)
    except OSError as error:
        raise ScenarioError(
            "sensor.bus", f"expected an INA219 at address {address:#x} of {place}, actual: {error.strerror}"
        ) from None
    return read
