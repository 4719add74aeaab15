"""Mistaken units that are valid numbers: each gets a note with the number that looks wrong, sound scenarios none."""

from pathlib import Path
from typing import Any

import pytest

import heliomesh as hm
from heliomesh.model.doubts import doubts, remarks
from heliomesh.scenario.files import shipped
from tests.conftest import Call


def of(name: str, **changes: Any) -> list[str]:
    """Remarks on a shipped scenario with changes."""
    return remarks(hm.build(hm.Scenario.load(name).override(changes)))


@pytest.mark.parametrize("name", shipped())
def test_shipped_scenarios_raise_no_doubt(name: str) -> None:
    assert doubts(hm.build(hm.Scenario.load(name))) == []


MISTAKES: dict[str, tuple[str, dict[str, Any], str]] = {
    "powers in mW": (
        "ring10",
        {"energy.powers_watt": [0.0, 100.0, 600.0]},
        "a device radiates 600 W, more than 10 W",
    ),
    "small powers in mW": (
        *("field40", {"energy.powers_watt": [0.0, 2.0, 5.0], "energy.consumed_watt": [0.0, 95.7, 396.0]}),
        "the harvest of a day pays for 0.1",
    ),
    "standby in mW": (
        *("field40", {"energy.sleep_watt": 5.0}),
        "a day of standing by takes 4.89e+05 J, and its harvest stores 617 J",
    ),
    "panel in m²": ("ring10", {"harvest.panel_cm2": 0.0025}, "an episode of 200 slots pays for 0.022 packets"),
    "panel in mm²": ("ring10", {"harvest.panel_cm2": 12500.0}, "of a slot pays for the dearest action 266 times"),
    "slots of days": ("ring10", {"energy.slot_second": 86400.0}, "energy.slot_second: a slot lasts 24 hours"),
    "polar night": (
        "ring10",
        {"harvest.data": "clear-sky", "harvest.latitude": -79.8, "harvest.longitude": 36.1},
        "at -79.8° north and 36.1° east the sun is up for 0.0 hours a day, and local time is UTC+2",
    ),
    "latitude for longitude": (
        "ring10",
        {"harvest.data": "clear-sky", "harvest.latitude": 11.6, "harvest.longitude": 48.1},
        "hours a day, and local time is UTC+3",  # Munich has UTC+1
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistaken_unit_is_noted_with_its_number(mistake: str) -> None:
    name, changes, words = MISTAKES[mistake]
    assert any(words in sentence for sentence in of(name, **changes)), of(name, **changes)


def irradiance(folder: Path, factor: float, zone: str = "") -> dict[str, Any]:
    """Settings of a made-up day of sun, times a factor."""
    hours = [max(0.0, 800 - 120 * abs(hour - 12)) * factor for hour in range(24)]
    lines = [f"2023-06-01T{hour:02d}:00:00{zone},{value}" for hour, value in enumerate(hours)]
    (folder / "sun.csv").write_text("\n".join(["time,GHI", *lines]), encoding="utf-8")
    return {"harvest.data": "file", "harvest.file": str(folder / "sun.csv")}


def test_kilowatts_per_square_metre_are_noted(tmp_path: Path) -> None:
    found = of("ring10", **irradiance(tmp_path, 1e-3, "-05:00"))
    assert (
        "harvest.file: the largest irradiance is 0.8 W/m², and a clear noon has 1000; the file may be in kW/m²"
        in found
    )
    assert any("an episode of 200 slots pays for 0." in sentence for sentence in found)
    assert of("ring10", **irradiance(tmp_path, 1.0, "-05:00")) == []


def test_a_missing_time_zone_is_noted(tmp_path: Path) -> None:
    noted = (
        "harvest.timezone: the file's times name no zone and count as local standard time; the middle of their days"
    )
    (found,) = of("ring10", **irradiance(tmp_path, 1.0))
    assert found == f"{noted} is 12:30"
    assert of("ring10", **irradiance(tmp_path, 1.0), **{"harvest.timezone": "America/New_York"}) == []


def test_validate_prints_notes_and_run_tells_doubts(call: Call, tmp_path: Path) -> None:
    wrong = ["--set", "energy.powers_watt=[0.0, 100.0, 600.0]"]
    code, printed, told = call("scenario", "validate", "ring10", *wrong)
    assert (code, told) == (0, "")
    assert "note: energy.powers_watt: a device radiates 600 W" in printed
    code, _, told = call("simulate", "ring10", "uncoordinated", "--episodes", 1, *wrong)
    assert code == 0
    assert "note: energy.powers_watt: a device radiates 600 W" in told
