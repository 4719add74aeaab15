"""The firmware kit: its example decides as the plan does, tools find nothing, and three architectures agree."""

import re
import shutil
import struct
import subprocess
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
import pytest

import heliomesh as hm
from heliomesh.interop.c_header import write_headers
from heliomesh.interop.c_kit import Constants, Head, table_text
from heliomesh.interop.c_rounds import collecting_tree, write_round_headers
from heliomesh.interop.export_tables import tabulate
from heliomesh.interop.rounded import RoundedTables
from heliomesh.problem.policy import Observation
from tests.interop.c_network import (
    ATMEGA328P,
    ATMEGA2560,
    CORTEX_M0,
    HOST,
    RISCV32,
    SOURCES,
    actions_in_python,
    compiled,
    hash_in_c,
    hash_of,
    needs_gcc,
    random_states,
)

STATES = 100_000
HALF_DUPLEX = {"link.half_duplex": True, "slots": 5}
SEVEN = {
    "network.topology": "edges",
    "network.devices": 7,
    "network.edges": [[0, 1], [0, 2], [0, 3], [0, 4], [1, 2], [2, 5], [5, 6]],
}
PLANS = {
    "no message": ({}, "uncoordinated", {}),
    "one hop": ({}, "decentralized", {"hops": 1}),
    "two hops of seven": ({"network.devices": 7, "slots": 6}, "decentralized", {"hops": 2}),
    "receiver": ({}, "receiver", {}),
    "receiver of three": ({"network.devices": 3}, "receiver", {}),
    "receiver, irregular links of six slots": ({**SEVEN, "channel.state": "link", "slots": 6}, "receiver", {}),
    "receiver, half duplex": (HALF_DUPLEX, "receiver", {}),
    "prices": ({}, "prices", {}),
}


def exported(name, folder, width=16):
    """A kit: its problem, its policy in Python, and the policy once more where it has message rounds."""
    changes, planner, options = PLANS[name]
    problem = hm.build(hm.Scenario.load("tiny").override(changes))
    if planner not in ("prices", "receiver"):
        plan = hm.plan(problem, planner, bound=False, **options)
        write_headers(tabulate(plan), folder)
        return problem, plan.policy, None
    plan = hm.plan(problem, planner, bound=False, interpolate=False, **options)
    problem = plan.policy.problem
    write_round_headers(problem, plan.policy, planner, folder, width)
    rounded = RoundedTables(problem, plan.policy, width)
    return problem, rounded, rounded


@dataclass
class Process:
    """A device as a process, and the packets that are on their way to it."""

    process: subprocess.Popen
    inbox: deque = field(default_factory=deque)
    waits_for: str = ""
    action: int | None = None

    def run(self):
        """Let it work until it waits for a packet or a slot; what it sent meanwhile."""
        sent = []
        while (order := self._read(1)) not in (b"R", b"S"):
            if order == b"P":
                sent.append(self._read(*struct.unpack("<H", self._read(2))))
            else:
                assert order == b"A"
                self.action = self._read(1)[0]
        self.waits_for = order.decode()
        return sent

    def give(self, data):
        """Answer."""
        self.process.stdin.write(data)
        self.process.stdin.flush()
        self.waits_for = ""

    def _read(self, num_bytes):
        data = self.process.stdout.read(num_bytes)
        assert len(data) == num_bytes, "the process ended"
        return data


def play_slot(devices, neighbours, measured, on_air=lambda packet: [packet]):
    """One slot of a network of processes: everybody measures, packets reach all neighbours; the actions.

    ``on_air`` says what arrives of a packet at one neighbour.
    """
    for device, data in zip(devices, measured, strict=True):
        device.give(b"\1" + data)
    while any(device.waits_for != "S" for device in devices):
        for number, device in enumerate(devices):
            if device.waits_for == "R" and device.inbox:
                packet = device.inbox.popleft()
                device.give(struct.pack("<H", len(packet)) + packet)
            if not device.waits_for:
                for packet in device.run():
                    for other in neighbours[number]:
                        devices[other].inbox.extend(on_air(packet))
        if all(device.waits_for == "R" and not device.inbox for device in devices):
            for device in devices:
                device.give(b"\0\0")  # the phase is over
    return [device.action for device in devices]


def started(folder, problem, stack):
    """A process per device, each waiting for its first slot."""
    devices = []
    for number in range(problem.num_devices):
        program, sources = folder / f"program_{number}", ("example_main.c", "heliomesh_device.c")
        board = SOURCES / "board_pipe.c"
        compiled(folder, HOST, f"-DHELIOMESH_DEVICE={number}", *sources, board, "-o", program)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        devices.append(Process(stack.enter_context(subprocess.Popen([program], **pipes))))  # noqa: S603
        assert devices[-1].run() == []
    return devices


def one_of(states, row):
    """One state of a batch."""
    names = ("channel_level", "battery_joule", "weather", "uniform")
    return Observation(*(getattr(states, name)[row : row + 1] for name in names))


def measurements(problem, states, row):
    """What every device measures in one state, as its board tells it: levels, weather, battery."""
    told = []
    for device in range(problem.num_devices):
        levels = states.channel_level[row, list(problem.sites_into(device))].tolist()
        micro = round(float(states.battery_joule[row, device]) * 1e6)
        told.append(bytes([*levels, int(states.weather[row, device])]) + struct.pack("<I", micro))
    return told


@needs_gcc
@pytest.mark.parametrize("name", PLANS)
def test_the_example_decides_as_the_plan(name, tmp_path):
    problem, policy, _ = exported(name, tmp_path)
    states, _ = random_states(problem, problem.slots)
    with ExitStack() as stack:
        devices = started(tmp_path, problem, stack)
        for slot in range(problem.slots):
            actions = play_slot(devices, problem.topology.neighbours, measurements(problem, states, slot))
            assert actions == policy.action(slot, one_of(states, slot))[0].tolist()
        for device in devices:
            device.give(b"\0")  # no more slots
    assert [device.process.returncode for device in devices] == [0] * len(devices)


@needs_gcc
@pytest.mark.parametrize("name", ["one hop", "receiver", "receiver, half duplex"])
def test_lost_and_damaged_packets_never_overdraw_a_battery(name, tmp_path):
    problem, _, _ = exported(name, tmp_path)
    rng = np.random.default_rng(0)

    def on_air(packet):
        if rng.random() < 0.3:
            return []
        return [packet if rng.random() < 0.7 else packet[:1] + rng.bytes(rng.integers(len(packet)))]

    states, _ = random_states(problem, problem.slots)
    energy = states.energy_state(problem)
    with ExitStack() as stack:
        devices = started(tmp_path, problem, stack)
        for slot in range(problem.slots):
            measured = measurements(problem, states, slot)
            for number, action in enumerate(play_slot(devices, problem.topology.neighbours, measured, on_air)):
                assert bool(problem.feasible[number, energy[slot, number], action])
        for device in devices:
            device.give(b"\0")


@needs_gcc
@pytest.mark.parametrize("name", ["one hop", "receiver", "receiver, half duplex", "no message"])
def test_the_example_compiles_for_every_device(name, tmp_path):
    problem, _, _ = exported(name, tmp_path)
    sources = ("example_main.c", "example_board.c", "heliomesh_device.c")
    for number in range(problem.num_devices):
        compiled(tmp_path, HOST, f"-DHELIOMESH_DEVICE={number}", *sources, "-o", "example")
        assert subprocess.run([tmp_path / "example"], check=False).returncode == 0  # noqa: S603
    command = ["gcc", f"-DHELIOMESH_DEVICE={problem.num_devices}", "-c", "heliomesh_device.c"]
    refused = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, encoding="utf-8")  # noqa: S603
    assert f"HELIOMESH_DEVICE: expected a number from 0 to {problem.num_devices - 1}" in refused.stderr


@needs_gcc
def test_tables_that_exceed_the_flash_are_refused(tmp_path):
    exported("receiver", tmp_path)
    command = ["gcc", "-DHELIOMESH_DEVICE=0", "-DHELIOMESH_FLASH_LIMIT=500", "-c", "heliomesh_device.c"]
    refused = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, encoding="utf-8")  # noqa: S603
    assert "The plan's tables are larger than the flash" in refused.stderr


@dataclass(frozen=True)
class Tables:
    """A table file with constants only."""

    constants: list
    number: int = 0
    ram_bytes: int = 0
    code_bytes: int = 0
    macros: dict = field(default_factory=dict)


@needs_gcc
@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16, 32])
def test_tables_in_blocks_are_read_whole(bits, tmp_path):
    rng = np.random.default_rng(0)
    values = rng.integers(2**bits, size=70_000 * 8 // bits).tolist()  # three blocks
    array = Constants("some", bits, values, "numbers")
    assert array.num_bytes == 70_000
    head = Head("planner", "scenario", "", 1, [(0.0, False)], slots=1)
    (tmp_path / "tables.h").write_text(table_text(head, Tables([array])), encoding="utf-8")
    shutil.copy(SOURCES.parents[2] / "heliomesh/interop/firmware/common/heliomesh_flash.h", tmp_path)
    (tmp_path / "check.c").write_text(
        '#include <stdio.h>\n#define HELIOMESH_WITH_TABLES\n#include "tables.h"\nint main(void)\n{\n'
        f"    for (uint32_t entry = 0; entry < {len(values)}; entry++) {{\n"
        "        const uint32_t value = table_some(entry);\n        (void)fwrite(&value, 4, 1, stdout);\n    }\n"
        "    return 0;\n}\n",
        encoding="utf-8",
    )
    compiled(tmp_path, HOST, "check.c", "-o", "check")
    done = subprocess.run([tmp_path / "check"], capture_output=True, check=True)  # noqa: S603
    np.testing.assert_array_equal(np.frombuffer(done.stdout, dtype="<u4"), values)


def test_table_files_say_what_comes_after_the_horizon():
    for period, sentence, endless in (
        (None, "Beyond slot 11 it keeps that slot's table", "ENDLESS 0u"),
        (1, "It has no end: every slot is alike.", "ENDLESS 1u"),
        (24, "It has no end: it repeats after 24 slots.", "ENDLESS 1u"),
    ):
        text = table_text(Head("planner", "scenario", "", 1, [], 12, period), Tables([]))
        assert sentence in text
        assert f"#define HELIOMESH_{endless}\n" in text


@needs_gcc
@pytest.mark.parametrize("name", ["one hop", "receiver"])
def test_an_endless_plan_goes_around(name, tmp_path):
    """As exports of endless plans will have it: the macro says that slots count modulo the tables' length."""
    problem, policy, _ = exported(name, tmp_path)
    for number in range(problem.num_devices):
        path = tmp_path / f"device_{number}.h"
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace("HELIOMESH_ENDLESS 0u", "HELIOMESH_ENDLESS 1u"), encoding="utf-8")
    states, _ = random_states(problem, 100)
    first, last = (policy.action(slot, states) for slot in (0, problem.slots - 1))
    row = int((first != last).any(1).nonzero()[0])  # a state in which the slot matters
    with ExitStack() as stack:
        devices = started(tmp_path, problem, stack)
        for slot in range(problem.slots + 3):
            actions = play_slot(devices, problem.topology.neighbours, measurements(problem, states, row))
            assert actions == policy.action(slot % problem.slots, one_of(states, row))[0].tolist()
        for device in devices:
            device.give(b"\0")


def test_shares_reach_a_root_along_links():
    problem = hm.build(hm.Scenario.load("ring10"))
    tree = collecting_tree(problem)
    assert sorted(tree) == list(range(10))
    assert [device for device, branch in tree.items() if branch.depth == 0] == [0]
    assert max(branch.depth for branch in tree.values()) == 5
    for device, branch in tree.items():
        if branch.depth:
            assert branch.parent in problem.topology.neighbours[device]
            assert tree[branch.parent].depth == branch.depth - 1


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cppcheck") is None, reason="cppcheck is not installed")
@pytest.mark.parametrize("name", ["no message", "one hop", "receiver", "receiver, half duplex", "prices"])
def test_cppcheck_finds_no_breach_of_misra(name, tmp_path):
    exported(name, tmp_path)
    sources = sorted(path.name for path in tmp_path.glob("*.c"))
    options = ["--quiet", "--addon=misra", "--enable=style", "--language=c", "--std=c99", "-DHELIOMESH_DEVICE=0"]
    command = ["cppcheck", *options, *sources]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True, encoding="utf-8")  # noqa: S603
    assert re.findall(r"\[[\w.-]+\]", done.stdout + done.stderr) == []


CROSS = [
    (CORTEX_M0, "one hop", STATES),
    (CORTEX_M0, "receiver", STATES),
    (CORTEX_M0, "receiver, half duplex", 5000),
    (RISCV32, "one hop", STATES),
    (RISCV32, "receiver", STATES),
    (RISCV32, "receiver, half duplex", 5000),
    (ATMEGA328P, "one hop", STATES),
    (ATMEGA328P, "receiver of three", STATES),
    (ATMEGA328P, "receiver, half duplex", 100),
    (ATMEGA2560, "one hop", STATES),
    (ATMEGA2560, "receiver, irregular links of six slots", 500),  # tables above 64 KB
]


@pytest.mark.slow
@pytest.mark.parametrize(("target", "name", "states"), CROSS, ids=lambda value: getattr(value, "name", value))
def test_three_architectures_decide_as_python(target, name, states, tmp_path):
    if target.missing:
        pytest.skip(f"not installed: {', '.join(target.missing)}")
    problem, policy, rounds = exported(name, tmp_path, width=16 if target is ATMEGA328P else 32)
    expected = hash_of(actions_in_python(problem, policy, states))
    assert hash_in_c(tmp_path, target, problem, rounds, states) == expected


def test_a_plan_of_six_slots_has_far_tables(tmp_path):
    exported("receiver, irregular links of six slots", tmp_path, width=32)
    text = (tmp_path / "device_0.h").read_text(encoding="utf-8")
    assert int(re.search(r"FLASH_BYTES (\d+)u", text)[1]) > 2**16
    assert "block_3" in text
    assert "too large for ATmega328P (32 KB)." in text


@pytest.mark.slow
@pytest.mark.skipif(bool(ATMEGA328P.missing), reason="avr-gcc or simavr is not installed")
def test_avr_refuses_tables_larger_than_its_flash(tmp_path):
    exported("receiver, irregular links of six slots", tmp_path, width=32)
    with pytest.raises(AssertionError, match="The plan's tables are larger than the flash"):
        compiled(tmp_path, ATMEGA328P, "-DHELIOMESH_DEVICE=0", "-c", "heliomesh_device.c")
