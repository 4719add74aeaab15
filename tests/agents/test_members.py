"""Keys that are made on devices, certificates that end and are renewed, and members that are revoked."""

import shutil
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.agents.network import READY, deployed, planned, running, small, told
from tests.conftest import Call

from heliomesh.field.agents.admission import Admission  # isort: skip
from heliomesh.common.mistakes import MistakeError
from heliomesh.field.agents.agent import run_agent
from heliomesh.field.agents.folder import AgentFolder
from heliomesh.field.agents.identity import Roster, signed_by
from heliomesh.field.agents.link import Link, Overlook
from heliomesh.scenario.errors import ScenarioError
from tests.agents.lines import read_journal


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def network(slots: int = 4, **more: Any) -> list[AgentFolder]:
    """Folders in net/, each with a copy in field/ where its device works: nothing reaches it but over the network."""
    problem = small(**{"network.devices": 3, "slots": slots})
    written = deployed(problem, planned(problem, hops=0), Path("net"), **more)
    return [AgentFolder(Path(shutil.copytree(one.path, Path("field") / one.path.name))) for one in written]


def until(reached: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_keys_that_are_made_on_devices(call: Call) -> None:
    devices = network(keys_on_device=True)
    assert not list(Path("net").glob("device-*/own.*"))
    with pytest.raises(ScenarioError, match=r"own\.key: expected a readable file, actual: No such file"):
        run_agent(devices[0], print)
    keys = []
    for device in devices:
        code, said, _ = call("device", "members", "request", device.path)
        assert code == 0
        keys.append(said.split("the key ")[1][:16])
        assert device.new_key.stat().st_mode & 0o077 == 0
    code, said, _ = call(
        "device", "members", "sign", "net", *(f"field/device-{i}/own.csr" for i in range(3)), "--wait", 0
    )
    assert code == 0
    assert [f"device {i} has the key {key}" in said for i, key in enumerate(keys)] == [True] * 3
    for i, device in enumerate(devices):
        code, said, _ = call(
            "device", "members", "install", device.path, f"net/device-{i}/own.pem", f"net/device-{i}/roster.txt"
        )
        assert (code, said.count("installed")) == (0, 2)
        assert not device.new_key.exists()
    assert len(list(Path().rglob("*.key"))) == 5  # of the authority, the watcher and three devices
    assert list(Path("net").rglob("*.key")) == [Path("net/authority.key"), Path("net/watch/own.key")]
    with running(devices) as agents:
        agents.wait()
    assert [read_journal(device)[-1]["slot"] for device in devices] == [3, 3, 3]


def test_requests_that_are_not_signed(call: Call) -> None:
    devices = network(keys_on_device=True)
    call("device", "members", "request", devices[1].path)
    request = devices[1].path / "own.csr"
    lie = devices[1].settings.model_copy(update={"network": "another"})
    AgentFolder(devices[0].path).write_settings(lie)
    call("device", "members", "request", devices[0].path)
    Path("text").write_text("no request")
    for wrong, sentence in (
        ("text", "text: expected a request for a certificate, actual: something else"),
        (devices[0].path / "own.csr", "expected a request of a device of "),
    ):
        code, _, said = call("device", "members", "sign", "net", wrong)
        assert (code, sentence in said, said.count("\n")) == (2, True, 1)
    assert call("device", "members", "sign", "net", request, "--wait", 0)[0] == 0
    assert call("device", "members", "revoke", "net", 1, "--wait", 0)[0] == 0
    code, _, said = call("device", "members", "sign", "net", request)
    assert (code, "expected a key that was not revoked" in said) == (2, True)
    code, _, said = call("device", "members", "revoke", "net", 1)
    assert (code, said) == (2, "error: devices: expected members of the network, actual value 1\n")


def test_a_device_gets_a_new_key(call: Call) -> None:
    devices = network()
    before = devices[2].identity()
    call("device", "members", "request", devices[2].path)
    assert devices[2].identity().certificate == before.certificate  # it works on meanwhile
    with closing(Link(devices[0], 1)) as zero, closing(Link(devices[2], 1)) as two:
        until(lambda: zero.alive(2))
        code, said, _ = call("device", "members", "sign", "net", devices[2].path / "own.csr", "--wait", 3)
        assert (code, "told: 0, 2\n" in said, "not reached: 1;" in said) == (0, True, True)
        assert zero.renew()
        assert two.renew()
        until(lambda: zero.alive(2))
    assert devices[2].identity().public_key != before.public_key
    assert devices[0].roster().revoked == (before.public_key,)
    assert not signed_by(devices[0].members(), 2, b"x", before.sign(b"x"))
    assert signed_by(devices[0].members(), 2, b"x", devices[2].identity().sign(b"x"))


def test_a_revoked_device_is_not_heard_and_hears_nothing(call: Call) -> None:
    devices = network()
    thief = AgentFolder(Path(shutil.copytree(devices[2].path, "thief")))
    old = devices[0].roster_file.read_bytes()
    with closing(Link(devices[0], 1)) as zero, closing(Link(thief, 1)) as stolen:
        until(lambda: zero.alive(2) and stolen.alive(0))
        code, said, _ = call("device", "members", "revoke", "net", 2, "--wait", 3)
        assert code == 0
        assert "list of members 2 is without 2\n" in said
        assert "at work, and told: 0\n" in said
        assert "not reached: 1;" in said
        assert zero.renew()
        with closing(Link(devices[1], 1)) as one:  # it was off, and a neighbour tells it
            until(one.renew)
            until(lambda: zero.alive(1) and one.alive(0))
            until(lambda: stolen._session.info.links())
            stolen.send(0, [b"from a thief"])
            zero.send(2, [b"to a thief"])
            one.send(0, [b"from a member"])
            until(lambda: zero.num_waiting())
            assert [arrived.frame for arrived in iter(lambda: zero.received(0.0), None)] == [b"from a member"]
            assert stolen.received(0.0) is None
            assert not zero.alive(2)
            assert not one.alive(2)
    assert devices[1].roster().number == 2
    assert not devices[1].install(old)  # an older list
    assert devices[1].roster().number == 2
    with closing(Link(devices[0], 2)) as zero, closing(Link(thief, 2)), closing(Link(devices[1], 2)):
        until(lambda: zero.alive(1))
        assert not zero.alive(2)
    shutil.copy("net/roster.txt", devices[2].roster_file)
    with pytest.raises(MistakeError, match=r"own\.pem: expected a member's certificate, actual: 2 was revoked"):
        Link(devices[2], 3)


def test_only_the_authority_signs_lists() -> None:
    devices = network()
    forged = Roster(number=9, keys=devices[0].roster().keys)
    for signer in (devices[1], AgentFolder(Path("net/watch"))):
        with pytest.raises(ScenarioError, match=r"roster\.txt: expected a list that authority\.pem signed"):
            devices[0].install(forged.signed(signer.identity()))
    for wrong in (b"", b"\xff", b"00\n{}", b"zz\n{}", b"-----BEGIN"):
        with pytest.raises(ScenarioError):
            devices[0].install(wrong)
    with pytest.raises(ScenarioError, match=r"certificate: expected one for the key in .*, actual: for another key"):
        devices[0].install(devices[1].certificate.read_bytes())
    assert devices[0].roster().number == 1


def test_agents_at_work_go_on_without_a_revoked_one() -> None:
    devices = network(slots=200)
    with running(devices) as agents:
        agents.wait_for_slot(0, 2)
        admission = Admission(Path("net"))
        admission.revoke([2])
        shutil.copy("net/roster.txt", devices[2].roster_file)  # it is found at work, many slots before the last
        assert admission.hand_out(60)[0] == ["0", "1"]
        agents.wait()
    assert [agents.processes[device].exitcode for device in range(3)] == [0, 0, 2]
    assert "error: own.pem: expected a member's certificate, actual: 2 was revoked or replaced\n" in told(devices[2])
    for device in devices[:2]:
        last = read_journal(device)[-1]
        assert last["slot"] == 199
        assert last["away"] == [2]
        assert device.roster().number == 2


def test_certificates_last_a_season_and_are_renewed(call: Call) -> None:
    alone = READY.model_copy(update={"patience_second": 0.2})
    devices = network(clock=alone, valid_days=5)
    said: list[str] = []
    run_agent(devices[0], said.append, stop_after=2)
    sentence = "own.pem: expected 14 days or more until it ends, actual 4; "
    assert [text for text in said if text.startswith("own.pem")] == [
        sentence + "the operator renews it by heliomesh device members renew"
    ]
    before = devices[0].certificate.read_bytes()
    with closing(Link(devices[0], 1)) as link:
        code, out, _ = call("device", "members", "renew", "net", "--wait", 3)
        assert (code, "4 certificates end in 180 days\nat work, and told: 0\n" in out) == (0, True)
        assert link.renew()
        assert not link.renew()
    assert devices[0].identity().days_left == 179
    assert not devices[0].install(before)
    assert devices[0].identity().days_left == 179
    said.clear()
    run_agent(AgentFolder(devices[0].path), said.append, stop_after=1)
    assert not [text for text in said if text.startswith("own.pem")]
    assert told(devices[0]) == ""


def test_an_ended_certificate_is_refused() -> None:
    devices = network(valid_days=-1)  # a day less than its first day
    fresh = Admission(Path("net"))
    fresh.renew(1)
    devices[0].install(Path("net/device-0/own.pem").read_bytes())
    with closing(Link(devices[0], 1)) as link, closing(Link(devices[1], 1)) as ended:
        time.sleep(1.0)
        assert not link.alive(1)
        assert not ended.alive(0)
    devices[1].install(Path("net/device-1/own.pem").read_bytes())
    with closing(Link(devices[0], 1)) as link, closing(Link(devices[1], 1)):
        until(lambda: link.alive(1))


def test_a_watcher_at_work_hears_a_revoked_device_no_more(call: Call) -> None:
    devices = network()
    heard: list[int] = []
    places = {str(i): device.settings.listen for i, device in enumerate(devices)}
    with closing(Link(devices[0], 1)) as zero, closing(Link(devices[2], 1)) as two:
        watcher = Overlook(AgentFolder(Path("net/watch")), zero._folder.settings.network, places, _noted(heard))
        with closing(watcher):

            def last_told_by(*expected: int) -> bool:
                for link in (two, zero):
                    link.tell_watchers({})
                return len(heard) > 20 and set(heard[-20:]) == set(expected)

            until(lambda: last_told_by(0, 2))
            call("device", "members", "revoke", "net", 2, "--wait", 0)
            assert watcher.renew()
            until(lambda: last_told_by(0))


def _noted(heard: list[int]) -> Callable[[int, bytes], None]:
    return lambda device, _: heard.append(device)
