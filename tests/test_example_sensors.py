"""The sensors of examples/sensors: recorded and measured energies reach the device as they are."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heliomesh.common import catalog
from heliomesh.common.mistakes import MistakeError
from heliomesh.scenario.errors import ScenarioError
from heliomesh.simulation.trace import TraceError, simulate
from tests.agents.network import READY, deployed, planned, share_of_equal_slots, small

from heliomesh.field.agents.agent import run_agent  # isort: skip
from heliomesh.field.agents.folder import AgentFolder, ClockSettings, SensorSettings
from heliomesh.field.agents.sensor import sensor_of
from heliomesh.field.fleet.world import World
from tests.agents.lines import read_journal

sys.path.append(str(Path(__file__).parents[1] / "examples" / "sensors"))

from ina219.chips import EnergySum, Ina219Pair, voltages
from ina219.measured import Measured
from ina219.settings import Settings
from ina219.state_of_charge import StateOfCharge, VoltageCurve
from recorded import Replayed

SENSORS = Path(__file__).parents[1] / "examples" / "sensors"


@pytest.fixture(autouse=True)
def _trusted() -> None:
    catalog.vouch(["ina219:sensor", "recorded:sensor"])


def test_a_sensor_of_ones_own_runs_only_where_it_is_trusted(tmp_path: Path) -> None:
    problem = small(**{"network.devices": 3, "slots": 3})
    folder = deployed(problem, planned(problem, hops=0), tmp_path / "net")[0]
    sensor = SensorSettings(kind="ina219.chips:Ina219Pair")
    folder.write_settings(folder.settings.model_copy(update={"sensor": sensor}))
    with pytest.raises(MistakeError, match="to run code named in a file, actual value 'ina219"):
        sensor_of(AgentFolder(folder.path), print)


def test_a_trace_is_replayed_by_agents(tmp_path: Path) -> None:
    problem = small(**{"network.devices": 3, "slots": 6})
    plan = planned(problem)
    trace = simulate(problem, plan, 2, 5)
    folders = deployed(problem, plan, tmp_path / "net")
    for folder in folders:
        trace.save(folder.path / "trace.npz")
        sensor = SensorSettings(kind="recorded:sensor", options={"file": "trace.npz", "episode": 1})
        AgentFolder(folder.path).write_settings(folder.settings.model_copy(update={"sensor": sensor}))
    words = [sys.executable, "-m", "heliomesh", "--trust", "device", "run", "--quiet"]
    environment = {**os.environ, "PYTHONPATH": str(SENSORS), "OMP_NUM_THREADS": "1"}
    with ExitStack() as ending:
        agents = [subprocess.Popen([*words, str(folder.path)], env=environment) for folder in folders]  # noqa: S603
        for agent in agents:
            ending.callback(agent.kill)
        assert [agent.wait(240) for agent in agents] == [0, 0, 0]
    assert share_of_equal_slots(folders, trace.episode(1)) == 1.0


def test_a_trace_of_another_network_is_refused() -> None:
    problem, other = small(**{"network.devices": 3, "slots": 6}), small(**{"network.devices": 4, "slots": 6})
    trace = simulate(other, planned(other, hops=0), 1, 0)
    with pytest.raises(TraceError, match=r"sensor\.options\.file: expected a trace of 3 devices and 6 slots"):
        Replayed(problem, 0, trace, 0)


class _Bus:
    """Two INA219 chips on a simulated bus, and a clock that tests turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.second, self.broken = 0.0, False
        self.panel_watt, self.load_watt, self.battery_volt = 0.0, 0.0, 4.0
        monkeypatch.setattr("ina219.chips._opened", lambda bus, address: self._reader(address))
        monkeypatch.setattr(Ina219Pair, "_watch", lambda pair: None)  # samples are taken when the clock is turned
        for module in ("chips", "state_of_charge"):
            monkeypatch.setattr(f"ina219.{module}.time", self)
        self._pairs: list[Ina219Pair] = []

    def monotonic(self) -> float:
        return self.second

    time = monotonic

    def pass_second(self, second: float) -> None:
        self.second += second
        for pair in self._pairs:
            pair._sample()

    def started(self, folder: Path, capacity_joule: float = 100.0, **settings: Any) -> Ina219Pair:
        """A pair of chips as a device finds it after power came back."""
        chosen = Settings(**settings)
        curve = VoltageCurve.of(chosen)
        state = StateOfCharge(capacity_joule, folder / "battery.json", curve, chosen.correction_second)
        self._pairs = [Ina219Pair(chosen, state, 1.0, lambda sentence: None)]
        return self._pairs[0]

    def _reader(self, address: int) -> Callable[[int], int]:
        def read(register: int) -> int:
            if self.broken:
                raise OSError("no answer")
            watt = self.panel_watt if address == 0x40 else self.load_watt
            shunt = round(watt / self.battery_volt * 0.1 / 10e-6)
            return shunt & 0xFFFF if register == 1 else round(self.battery_volt / 4e-3) << 3

        return read


@pytest.fixture
def bus(monkeypatch: pytest.MonkeyPatch) -> _Bus:
    return _Bus(monkeypatch)


def test_ina219_registers() -> None:
    # 100 mV over 0.1 Ω is 1 A; 5 V are 1250 steps of 4 mV, above three flags
    registers = {1: 10_000, 2: 1250 << 3}
    assert voltages(registers.__getitem__) == pytest.approx((0.1, 5.0))
    counted = EnergySum(registers.__getitem__, 0.1, _last_second=0.0)
    counted.sample(2.0)
    assert counted.source_volt == pytest.approx(5.1)  # before the shunt
    assert counted.taken() == pytest.approx(10.0)
    registers[1] = 0x10000 - 10_000
    assert voltages(registers.__getitem__) == pytest.approx((-0.1, 5.0))
    counted.sample(4.0)
    assert counted.taken() == 0.0


def test_no_ina219_is_one_sentence(tmp_path: Path) -> None:
    state = StateOfCharge(1.0, tmp_path / "battery.json", None, 1.0)
    with pytest.raises(
        ScenarioError, match=r"sensor\.options\.bus: expected an INA219 at address 0x40 of /dev/i2c-250"
    ):
        Ina219Pair(Settings(bus=250), state, 1.0, print)


def test_a_battery_is_counted_on_after_a_restart(bus: _Bus, tmp_path: Path) -> None:
    meter = bus.started(tmp_path)
    assert meter.battery_joule() == 100.0
    bus.load_watt = 4.0
    bus.pass_second(10.0)
    assert meter.battery_joule() == pytest.approx(60.0)
    meter.keep()
    bus.second += 1000.0  # without power nobody counts
    assert bus.started(tmp_path).battery_joule() == pytest.approx(60.0)


def test_a_battery_begins_at_its_voltage_and_is_corrected_by_it(bus: _Bus, tmp_path: Path) -> None:
    curve = {"voltage_curve": ((3.0, 0.0), (3.6, 0.2), (4.0, 1.0)), "correction_second": 3600.0}
    bus.battery_volt = 3.8
    meter = bus.started(tmp_path, **curve)
    assert meter.battery_joule() == pytest.approx(60.0)
    meter.keep()
    bus.battery_volt = 3.6  # it leaks, which no chip sees
    bus.pass_second(36.0)
    assert meter.battery_joule() == pytest.approx(20 + 40 * np.exp(-0.01))  # slowly
    bus.pass_second(3600.0)
    assert meter.battery_joule() == pytest.approx(20 + 40 * np.exp(-1.01))
    meter.keep()
    bus.battery_volt = 4.0  # the sun charged it while the device was off
    bus.second += 36_000.0
    assert bus.started(tmp_path, **curve).battery_joule() == pytest.approx(100.0, rel=1e-3)


def test_a_damaged_state_of_charge_and_a_silent_bus_end_nothing(bus: _Bus, tmp_path: Path) -> None:
    (tmp_path / "battery.json").write_text('{"joule": 3')
    meter = bus.started(tmp_path, voltage_curve=((3.0, 0.0), (5.0, 1.0)))
    assert meter.battery_joule() == pytest.approx(50.0)
    bus.load_watt, bus.broken = 2.0, True
    bus.pass_second(5.0)
    bus.broken = False
    bus.pass_second(1.0)
    assert meter.spent_joule() == pytest.approx(12.0)  # the seconds without an answer are counted by the next


@pytest.mark.parametrize("points", [(), ((3.0, 0.0),), ((4.0, 0.0), (3.0, 1.0)), ((3.0, 0.1), (4.0, 1.0))])
def test_a_wrong_voltage_curve_is_one_sentence(points: tuple[tuple[float, float], ...]) -> None:
    settings = Settings(voltage_curve=points)
    with pytest.raises(
        ScenarioError, match=r"sensor\.options\.voltage_curve: expected rising voltages .* actual value \["
    ):
        VoltageCurve.of(settings)


def test_the_weather_is_measured_at_the_panel(bus: _Bus, tmp_path: Path) -> None:
    slots, slot_second, device = 200, 10.0, 1
    problem = small(
        **{
            "network.devices": 3,
            "slots": slots,
            "harvest": {
                "source": "markov",
                "kernel": [[0.9, 0.1, 0.0], [0.1, 0.8, 0.1], [0.0, 0.2, 0.8]],
                "joule": [[4.0, 3.0], [1.0], [0.1]],
                "prob": [[0.5, 0.5], [1.0], [1.0]],
                "scale": [1.0, 2.0, 1.0],
            },
        }
    )
    sensor = Measured(problem, device, bus.started(tmp_path), slot_second, bus.monotonic)
    world, rng = World(problem, 0, 0), np.random.default_rng(0)
    right = []
    for slot in range(slots):
        true = world.open()[device].weather
        joule = world.close(slot)[device].harvested_joule
        bus.panel_watt = float(rng.uniform(0.85, 1.15)) * joule / slot_second  # a real panel follows no law exactly
        bus.pass_second(0.1 * slot_second)
        right.append(sensor.open(slot).weather == true)
        bus.pass_second(0.9 * slot_second)
        assert sensor.close(slot).harvested_joule == pytest.approx(bus.panel_watt * slot_second, abs=0.004)
    assert np.mean(right) > 0.97


def test_slots_that_were_missed_say_nothing_of_the_weather(bus: _Bus, tmp_path: Path) -> None:
    harvest = {
        "source": "markov",
        "kernel": [[0.8, 0.2], [0.1, 0.9]],
        "joule": [[2.0], [0.0]],
        "prob": [[1.0], [1.0]],
    }
    problem = small(**{"network.devices": 3, "slots": 50, "harvest": harvest})
    sensor = Measured(problem, 0, bus.started(tmp_path), 10.0, bus.monotonic)
    assert sensor.open(0).weather == 1  # the more frequent level
    bus.panel_watt = 0.2
    bus.pass_second(10.0)
    sensor.close(0)
    assert sensor.open(1).weather == 0
    sensor.close(1)
    assert sensor.open(2).weather == 0
    for slot in range(2, 40):
        sensor.open(slot)
        sensor.close(slot)
    assert sensor.open(40).weather == 1


def test_a_metered_agent_goes_on_with_the_battery_it_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = small(**{"network.devices": 3, "slots": 400})
    clock = ClockSettings(start_second=time.time(), slot_second=0.3, guard_second=0.03)
    folder = deployed(problem, planned(problem, hops=0), tmp_path / "net", clock)[0]
    sensor = SensorSettings(kind="ina219:sensor")
    AgentFolder(folder.path).write_settings(folder.settings.model_copy(update={"sensor": sensor}))
    registers = {0x40: {1: 0, 2: 1000 << 3}, 0x41: {1: 125, 2: 1000 << 3}}  # the load draws 50 mW from 4 V
    monkeypatch.setattr("ina219.chips._opened", lambda bus, address: registers[address].__getitem__)
    said: list[str] = []
    for _ in range(2):
        run_agent(AgentFolder(folder.path), said.append, stop_after=2)
    batteries = [line["battery_joule"] for line in read_journal(folder)]
    assert len(batteries) == 4
    assert batteries[0] < 2.0
    assert all(before > after for before, after in pairwise(batteries))
    slot, first, _, again, _ = said
    assert slot.startswith("clock.slot_second: expected energy.slot_second = 1, for which the plan counts joules")
    assert first == "battery: taken for full, since sensor.options.voltage_curve is not set and nothing was kept"
    assert re.match(r"battery: 1\.\d+ J, from 1\.\d+ J kept \d+ s ago", again)


class _Meter:
    """A battery that falls, a panel and a load."""

    joule = 2.0

    def battery_joule(self) -> float:
        return self.joule

    def harvested_joule(self) -> float | None:
        return 0.125  # it is asked twice a slot

    def spent_joule(self) -> float | None:
        return 1.75

    def keep(self) -> None:
        pass


def test_a_measured_battery_decides_and_the_ledger_has_both_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = small(**{"network.devices": 3, "slots": 3})
    alone = READY.model_copy(update={"patience_second": 0.2})
    folder = deployed(problem, planned(problem, hops=0), tmp_path / "net", alone)[0]
    monkeypatch.setattr("heliomesh.field.agents.agent.sensor_of", lambda *given: Measured(problem, 0, _Meter(), 10.0))
    run_agent(folder, print)
    lines = read_journal(folder)
    assert [line["battery_joule"] for line in lines] == [2.0] * 3
    assert {line["measured_joule"] for line in lines} == {1.75}
    assert {line["harvested_joule"] for line in lines} == {0.25}
    assert np.isclose(lines[0]["expected_harvest_joule"], 0.8)
    assert all(line["planned_joule"] in (0.0, 2.0) for line in lines)
