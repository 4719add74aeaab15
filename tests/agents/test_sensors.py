"""Sensors: recorded and measured energies reach the device as they are."""

from pathlib import Path

import numpy as np
import pytest

from heliomesh.scenario import ScenarioError
from heliomesh.simulation.trace import TraceError, simulate
from tests.agents.network import READY, deployed, planned, share_of_equal_slots, small

from heliomesh.agents.agent import run_agent  # isort: skip
from heliomesh.agents.folder import AgentFolder, SensorSettings
from heliomesh.agents.journal import read_journal
from heliomesh.agents.sensors.ina219 import EnergySum, Ina219Pair, power_watt
from heliomesh.agents.sensors.measured import Measured
from heliomesh.agents.sensors.power_supply import PowerSupply
from heliomesh.agents.sensors.replayed import Replayed
from tests.agents.network import running


def test_a_trace_is_replayed_by_agents(tmp_path: Path) -> None:
    problem = small(**{"network.devices": 3, "slots": 6})
    plan = planned(problem)
    trace = simulate(problem, plan, 2, 5)
    folders = deployed(problem, plan, tmp_path / "net")
    for folder in folders:
        trace.save(folder.path / "trace.npz")
        sensor = SensorSettings(kind="trace", file="trace.npz", episode=1)
        AgentFolder(folder.path).write_settings(folder.settings.model_copy(update={"sensor": sensor}))
    with running(folders) as network:
        network.wait()
    assert share_of_equal_slots(folders, trace.episode(1)) == 1.0


def test_a_trace_of_another_network_is_refused() -> None:
    problem, other = small(**{"network.devices": 3, "slots": 6}), small(**{"network.devices": 4, "slots": 6})
    trace = simulate(other, planned(other, hops=0), 1, 0)
    with pytest.raises(TraceError, match=r"sensor\.file: expected a trace of 3 devices and 6 slots"):
        Replayed(problem, 0, trace, 0)


@pytest.mark.parametrize(
    ("files", "joule"),
    [
        ({"energy_now": "1000000"}, 3600.0),
        ({"charge_now": "1000000", "voltage_now": "3700000"}, 3.7 * 3600),
        ({"capacity": "40"}, 20.0),
    ],
)
def test_the_power_supply_class(tmp_path: Path, files: dict[str, str], joule: float) -> None:
    (tmp_path / "BAT0").mkdir()
    for name, text in files.items():
        (tmp_path / "BAT0" / name).write_text(text + "\n")
    assert PowerSupply("BAT0", 50.0, tmp_path).battery_joule() == pytest.approx(joule)
    with pytest.raises(ScenarioError, match=r"sensor\.supply: expected energy_now"):
        PowerSupply("BAT1", 50.0, tmp_path).battery_joule()


def test_ina219_registers() -> None:
    # 100 mV over 0.1 Ω is 1 A; 5 V are 1250 steps of 4 mV, above three flags
    registers = {1: 10_000, 2: 1250 << 3}
    assert power_watt(registers.__getitem__, 0.1) == pytest.approx(5.0)
    registers[1] = 0x10000 - 10_000
    assert power_watt(registers.__getitem__, 0.1) == pytest.approx(-5.0)
    registers[1] = 10_000
    counted = EnergySum(registers.__getitem__, 0.1, _last_second=0.0)
    counted.sample(2.0)
    assert counted.taken() == pytest.approx(10.0)
    assert counted.taken() == 0.0


def test_no_ina219_is_one_sentence() -> None:
    with pytest.raises(ScenarioError, match=r"sensor\.bus: expected an INA219 at address 0x40 of /dev/i2c-250"):
        Ina219Pair(SensorSettings(kind="ina219", bus=250), 1.0)


class _Meter:
    """A battery that falls, a panel and a load."""

    joule = 2.0

    def battery_joule(self) -> float:
        return self.joule

    def harvested_joule(self) -> float | None:
        return 0.25

    def spent_joule(self) -> float | None:
        return 1.75


def test_a_measured_battery_decides_and_the_ledger_has_both_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = small(**{"network.devices": 3, "slots": 3})
    alone = READY.model_copy(update={"patience_second": 0.2})
    folder = deployed(problem, planned(problem, hops=0), tmp_path / "net", alone)[0]
    monkeypatch.setattr("heliomesh.agents.agent.sensor_of", lambda given: Measured(problem, 0, _Meter()))
    run_agent(folder, print)
    lines = read_journal(folder)
    assert [line["battery_joule"] for line in lines] == [2.0] * 3
    assert {line["measured_joule"] for line in lines} == {1.75}
    assert {line["harvested_joule"] for line in lines} == {0.25}
    assert np.isclose(lines[0]["expected_harvest_joule"], 0.8)
    assert all(line["planned_joule"] in (0.0, 2.0) for line in lines)
