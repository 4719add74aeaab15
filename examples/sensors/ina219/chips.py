"""INA219 current sensors on an I²C bus: one at the panel, one between battery and load (Texas Instruments, SBOS448G).

A register has 16 bits, the first byte is the higher one. Register 1 is the shunt's voltage in 10 µV, signed;
register 2 the bus voltage, whose upper 13 bits count 4 mV. The bus voltage is that behind the shunt. Power is bus
voltage times shunt voltage over the shunt's resistance. A thread samples both chips and sums energies up.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from heliomesh.scenario.errors import ScenarioError
from ina219.measured import Meter
from ina219.settings import Settings
from ina219.state_of_charge import StateOfCharge

if sys.platform != "win32":
    import fcntl

_SELECT_DEVICE = 0x0703  # I2C_SLAVE of linux/i2c-dev.h
_SHUNT, _BUS = 1, 2
_SHUNT_VOLT, _BUS_VOLT = 10e-6, 4e-3
_SAMPLE_SECOND = 0.05

ReadRegister = Callable[[int], int]


def voltages(read: ReadRegister) -> tuple[float, float]:
    """Voltage over the shunt and behind it [V]."""
    shunt = read(_SHUNT)
    signed = shunt - 0x10000 if shunt & 0x8000 else shunt
    return signed * _SHUNT_VOLT, (read(_BUS) >> 3) * _BUS_VOLT


@dataclass
class EnergySum:
    """Energy through one chip since it was last asked, and the voltage before its shunt."""

    read: ReadRegister
    shunt_ohm: float
    source_volt: float = 0.0  # at the last sample
    _joule: float = 0.0
    _last_second: float = field(default_factory=lambda: time.monotonic())
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def sample(self, now_second: float) -> None:
        """Add the power of this moment, times the time since the last; a read that fails leaves that to the next."""
        with self._lock, suppress(OSError):
            shunt_volt, bus_volt = voltages(self.read)
            self.source_volt = bus_volt + shunt_volt
            self._joule += bus_volt * shunt_volt / self.shunt_ohm * (now_second - self._last_second)
            self._last_second = now_second

    def taken(self) -> float:
        """The sum [J], which starts again at zero; currents that seem to flow backwards are a chip's offset."""
        with self._lock:
            joule, self._joule = self._joule, 0.0
        return max(joule, 0.0)


class Ina219Pair(Meter):
    """A chip at the panel and one at the load; the battery is what the two leave, corrected by its voltage."""

    def __init__(
        self,
        settings: Settings,
        state: StateOfCharge,
        charge_efficiency: float,
        notify: Callable[[str], None],
    ) -> None:
        self._panel, self._load = (
            EnergySum(_opened(settings.bus, address), settings.shunt_ohm)
            for address in (settings.panel_address, settings.load_address)
        )
        self._state, self._charge_efficiency = state, charge_efficiency
        self._harvested_joule, self._spent_joule = 0.0, 0.0
        self._counted_second = time.monotonic()
        self._sample()
        state.begin(self._load.source_volt, notify)
        threading.Thread(target=self._watch, daemon=True).start()

    def battery_joule(self) -> float:
        """By counting what came and went, and by the voltage [J]."""
        harvested, spent, now = self._panel.taken(), self._load.taken(), time.monotonic()
        self._harvested_joule += harvested
        self._spent_joule += spent
        self._state.count(self._charge_efficiency * harvested, spent)
        self._state.correct(self._load.source_volt, now - self._counted_second)
        self._counted_second = now
        return self._state.joule

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

    def keep(self) -> None:
        """The energy in the battery."""
        self._state.keep()

    def _watch(self) -> None:
        while True:
            self._sample()
            time.sleep(_SAMPLE_SECOND)

    def _sample(self) -> None:
        for one in (self._panel, self._load):
            one.sample(time.monotonic())


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
            "sensor.options.bus", f"expected an INA219 at address {address:#x} of {place}, actual: {error.strerror}"
        ) from None
    return read
