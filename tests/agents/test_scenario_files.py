"""What a scenario names goes with it to the devices."""

from pathlib import Path

import heliomesh as hm
from heliomesh.field.agents.deploy import write_scenario

WEATHER = "0.5\n1.0\n0.0\n0.25\n"
ERRORS = "SNR, Eb/N0 [dB];Packet error\n-10;0.9\n0;0.5\n10;0.1\n"


def test_two_files_of_one_name_stay_two_files(tmp_path: Path) -> None:
    named = {"harvest.file": WEATHER, "link.table": ERRORS}
    for field, text in named.items():
        (tmp_path / field).mkdir()
        (tmp_path / field / "data.csv").write_text(text, encoding="utf-8")
    changes = {"harvest.source": "trace", "link.error": "table"} | {
        field: str(tmp_path / field / "data.csv") for field in named
    }
    scenario = hm.Scenario.load("tiny").override(changes)
    (tmp_path / "device").mkdir()
    write_scenario(scenario, tmp_path / "device")
    copied = hm.Scenario.load(tmp_path / "device" / "scenario.toml")
    assert copied.content_hash == scenario.content_hash
    assert Path(copied.harvest.file).read_text(encoding="utf-8") == WEATHER  # type: ignore[attr-defined]
    assert Path(str(copied.link.table)).read_text(encoding="utf-8") == ERRORS
