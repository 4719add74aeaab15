"""The sensor of Linux' power supplies in examples/sensors, and kinds that are no sensors."""

import sys
from pathlib import Path
from typing import Any

import pytest

from heliomesh.common import catalog
from heliomesh.scenario.errors import ScenarioError
from tests.agents.network import deployed, planned, small

from heliomesh.field.agents.folder import AgentFolder, SensorSettings  # isort: skip
from heliomesh.field.agents.sensor import sensor_of

sys.path.append(str(Path(__file__).parents[2] / "examples" / "sensors"))

from power_supply import PowerSupply

KIND = "power_supply:sensor"


@pytest.fixture(autouse=True)
def _trusted() -> None:
    catalog.vouch(KIND)


def folder_of(root: Path, **sensor: Any) -> AgentFolder:
    """Device 0 of three, whose batteries hold 50 J, with a sensor."""
    law = {"kernel": [[0.8, 0.2], [0.1, 0.9]], "joule": [[2.0], [0.0]], "prob": [[1.0], [1.0]]}
    own = {"network.devices": 3, "slots": 5, "energy.capacity_joule": 50_000.0, "energy.battery_levels": 3}
    problem = small(**own, harvest={"source": "markov", **law})
    found = deployed(problem, planned(problem, hops=0), root)[0]
    found.write_settings(found.settings.model_copy(update={"sensor": SensorSettings(**sensor)}))  # type: ignore[arg-type]
    return AgentFolder(found.path)


@pytest.mark.parametrize(
    ("files", "joule"),
    [
        ({"energy_now": "1000000"}, 3600.0),
        ({"charge_now": "1000000", "voltage_now": "3700000"}, 3.7 * 3600),
        ({"capacity": "40"}, 20_000.0),
        ({"energy_now": "100000000"}, 50_000.0),  # no more than the scenario's battery holds
    ],
)
def test_the_power_supply_class(tmp_path: Path, files: dict[str, str], joule: float) -> None:
    (tmp_path / "BAT0").mkdir()
    for name, text in files.items():
        (tmp_path / "BAT0" / name).write_text(text + "\n")
    sensor = PowerSupply(folder_of(tmp_path / "net", kind=KIND, options={"supply": "BAT0"}), tmp_path)
    assert sensor.first_battery_joule == pytest.approx(joule)
    for slot in range(5):
        seen = sensor.open(slot)
        assert (seen.weather, seen.battery_joule) == (1, pytest.approx(joule))  # the most frequent level
        assert sensor.close(slot).harvested_joule == 0.0
    assert sensor.spent_joule() is None


def test_a_rising_battery_is_a_harvest(tmp_path: Path) -> None:
    (tmp_path / "BAT0").mkdir()
    level = tmp_path / "BAT0" / "capacity"
    level.write_text("40")
    sensor = PowerSupply(folder_of(tmp_path / "net", kind=KIND, options={"supply": "BAT0"}), tmp_path)
    sensor.open(0)
    level.write_text("41")
    assert sensor.close(0).harvested_joule == pytest.approx(500.0)


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (KIND, r"sensor\.options\.supply: expected energy_now"),
        ("eye", r"sensor\.kind: expected simulated or module:name, actual value 'eye'"),
    ],
)
def test_no_sensor_is_one_sentence(tmp_path: Path, kind: str, sentence: str) -> None:
    with pytest.raises(ScenarioError, match=sentence):
        sensor_of(folder_of(tmp_path / "net", kind=kind, options={"supply": "none"}), print)
