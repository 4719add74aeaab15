"""The three commands: what they write, and one sentence for what they cannot do."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.agents.network import SMALL, free_ports  # it skips where Zenoh is not installed

from heliomesh.field.agents.folder import AgentFolder  # isort: skip
from tests.conftest import Call

_DEPLOY = ["device", "deploy", "tiny", "--out", "net", "--quiet"]
_WORDS = [*_DEPLOY, "--planner", "decentralized", "--finite", "-o", "hops=0", "-o", "rounds=1"]
_FEW = ["--set", "network.devices=3", "--set", "slots=3", *(f"--set={name}={value}" for name, value in SMALL.items())]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_deploy_writes_folders_that_tell_no_secrets(call: Call) -> None:
    code, said, told = call(*_WORDS, *_FEW, "--port", str(free_ports(3)), "--at", "2=station.example")
    assert (code, told) == (0, "")
    assert "heliomesh device run net/device-0" in said
    assert re.search(r"slot 0 begins +at 20\d\d-", said)
    found = AgentFolder(Path("net/device-0"))
    assert found.settings.neighbours["2"].startswith("station.example:")
    assert found.key.stat().st_mode & 0o077 == 0
    assert not list(Path("net").rglob("device-*/authority.key"))
    assert "device-0" in (found.path / "heliomesh-agent.service").read_text()
    assert found.identity().days_left == 179
    code, _, told = call(*_WORDS, *_FEW)
    assert (code, told) == (2, "error: --out: expected an empty folder, actual: net has files\n")


def test_deploy_writes_folders_without_keys(call: Call) -> None:
    code, said, told = call(*_WORDS, *_FEW, "--keys-on-device", "--days", 30)
    assert (code, told) == (0, "")
    assert "heliomesh device members request net/device-0" in said
    assert sorted(Path("net").rglob("*.key")) == [Path("net/authority.key"), Path("net/watch/own.key")]
    assert AgentFolder(Path("net/watch")).identity().days_left == 29


def test_slots_have_room_for_what_the_radio_says(call: Call) -> None:
    bids = [*_DEPLOY, *_FEW, "-o", "practice=1", "-o", "passes=1", "--json"]
    code, said, told = call(*bids)
    assert (code, told) == (0, "")
    assert (json.loads(said)["planner"], json.loads(said)["slot [s]"]) == ("bids", 10.0)
    plan = json.loads(Path("net/device-1/plan.json").read_text())
    assert (plan["format"], plan["device"]) == ("heliomesh-bids", 1)
    shutil.rmtree("net")
    slow = [*bids, "--set", "energy.control_bit_per_second=100"]
    code, said, told = call(*slow)
    assert (code, told) == (0, "")
    # three devices say a bid and a grant, of 16 bytes and two headers, in a quarter of what guard times leave
    assert json.loads(said)["slot [s]"] == pytest.approx(4 * 3 * 8 * (16 + 2 * 12) / 100 / 0.8)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            [*_WORDS, "--at", "two=host"],
            "--at: expected number=host, such as 2=192.168.0.12, actual value 'two=host'",
        ),
        ([*_WORDS, *_FEW, "--at", "9=host"], "--at: expected devices below 3, actual value 9"),
        ([*_WORDS, "--slot-second", "1", "--guard-second", "0.5"], "--guard-second: expected less than half of 1 s"),
        (
            [*_WORDS, "--sensor", "eye"],
            "sensor.kind: expected simulated or module:name, actual value",
        ),
        (["device", "run", "nowhere"], "folder: expected a device's folder, actual value 'nowhere'"),
        (["device", "run", "."], "agent.toml: expected a readable text file"),
        (["device", "watch", "."], "watch.toml: expected a readable text file"),
        (["device", "members", "request", "."], "agent.toml: expected a readable text file"),
        (["device", "members", "install", ".", "nothing"], "papers: expected a file, actual value 'nothing'"),
        (["device", "members", "renew", "."], "watch.toml: expected a readable text file"),
        (["device", "members", "revoke", ".", "1"], "watch.toml: expected a readable text file"),
    ],
)
def test_mistakes_are_one_sentence(call: Call, words: list[str], sentence: str) -> None:
    code, _, told = call(*words)
    assert code == 2
    assert told.startswith(f"error: {sentence}")
    assert told.count("\n") == 1
    assert not Path("net").exists()


@pytest.mark.parametrize(
    "words",
    [
        _WORDS,
        ["device", "run", "net/device-0"],
        ["device", "watch", "net/watch"],
        ["device", "members", "renew", "net"],
    ],
)
def test_without_zenoh_the_remedy_is_said(call: Call, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    monkeypatch.setattr("heliomesh.commands.agent.find_spec", lambda name: None)
    sentence = "error: agent: expected Zenoh to be installed (pip install heliomesh[agent]), actual: it is not\n"
    assert call(*words) == (2, "", sentence)
