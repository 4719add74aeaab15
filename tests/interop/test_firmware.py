"""The firmware kit: its example decides as the plan does, tools find nothing, and three architectures agree."""

import re
import shutil
import struct
import subprocess
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

import heliomesh as hm
from heliomesh.interop.c_bids import write_bid_headers
from heliomesh.interop.c_header import write_headers
from heliomesh.interop.c_kit import Constants, Head, table_text
from heliomesh.interop.c_levels import Measuring
from heliomesh.interop.export_tables import tabulate
from heliomesh.model.policy import ActionPolicy, Noticed, Observation
from tests.interop.c_network import (
    ATMEGA328P,
    ATMEGA2560,
    CORTEX_M0,
    HOST,
    RISCV32,
    SOURCES,
    actions_in_python,
    bids_in_python,
    compiled,
    emulated,
    hash_in_c,
    hash_of,
    needs_gcc,
    random_states,
    units_per_joule,
)

STATES = 100_000
BIDS = {"energy.actions": "separate", "learning.dataset": "digits"}
QUICK = {"practice": 2, "passes": 1}
# every energy of `tiny` times 10,000: in microjoules they do not fit 32 bits
HUGE = {
    "energy.capacity_joule": 30_000.0,
    "energy.compute_joule": 10_000.0,
    "energy.transmit_second": 10_000.0,
    "energy.slot_second": 10_000.0,
    "harvest.scale": 10_000.0,
}
MARKOV = {
    "harvest.source": "markov",
    "harvest.joule": [[0.0, 0.3], [0.9, 1.7]],
    "harvest.prob": [[0.5, 0.5], [0.4, 0.6]],
    "harvest.kernel": [[0.8, 0.2], [0.3, 0.7]],
}
PLANS = {
    "no message": ({}, "uncoordinated", {}),
    "weather": (MARKOV, "uncoordinated", {}),
    "batteries of 30 kJ": (HUGE, "decentralized", {"hops": 1}),
    "one hop": ({}, "decentralized", {"hops": 1}),
    "two hops of seven": ({"network.devices": 7, "slots": 6}, "decentralized", {"hops": 2}),
    "bids": (BIDS, "bids", QUICK),
    "bids of three": ({**BIDS, "network.devices": 3, "slots": 6}, "bids", QUICK),
    "bids, half duplex": ({**BIDS, "link.half_duplex": True, "energy.sleep_watt": 0.1}, "bids", QUICK),
}


def exported(name, folder):
    """A kit: its problem, its policy in Python, and the policy once more where it bids."""
    changes, planner, options = PLANS[name]
    problem = hm.build(hm.Scenario.load("tiny").override(changes))
    plan = hm.plan(problem, planner, bound=False, **options)
    if planner == "bids":
        write_bid_headers(plan.policy, folder)
        return problem, plan.policy, plan.policy
    write_headers(tabulate(plan), plan.policy.problem, folder)
    return problem, plan.policy, None


@dataclass
class Following:
    """A policy that goes along slot by slot where every packet that is sent arrives."""

    policy: ActionPolicy
    memory: tuple = ()
    noticed: Noticed | None = None

    def actions(self, slot, seen):
        """What all devices do in one state."""
        actions, sender = self.policy.problem.actions, self.policy.problem.topology.edge_sender
        now = replace(seen, memory=self.memory, noticed=self.noticed).recalled_by(self.policy)
        chosen = self.policy.action(slot, now)
        awake = ~self.policy.problem.battery.dark(seen.battery_joule)[:, self.policy.problem.topology.edge_receiver]
        arrived = (actions.power_watt[chosen] > 0)[:, sender] & awake
        self.memory, self.noticed = (
            now.memory,
            Noticed(seen.uniform, arrived, actions.trained[chosen], actions.power_watt[chosen]),
        )
        return chosen[0].tolist()


@dataclass
class Process:
    """A device as a process, and the packets that are on their way to it."""

    process: subprocess.Popen
    inbox: deque = field(default_factory=deque)
    waits_for: str = ""
    action: int | None = None

    def run(self):
        """Let it work until it waits for its first slot, a packet or a slot; what it sent meanwhile."""
        sent = []
        while (order := self._read(1)) not in (b"F", b"R", b"S"):
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


def play_slot(devices, neighbours, measured, on_air=lambda packet: [packet], deaf=()):
    """One slot of a network of processes: everybody measures, packets reach all neighbours; the actions.

    ``on_air`` says what arrives of a packet at one neighbour; the radio of ``deaf`` ones is off.
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
                    for other in set(neighbours[number]).difference(deaf):
                        devices[other].inbox.extend(on_air(packet))
        if all(device.waits_for == "R" and not device.inbox for device in devices):
            for device in devices:
                device.give(b"\0\0")  # the phase is over
    return [device.action for device in devices]


LOST = 255  # for a first slot: the clock was lost


def started(folder, problem, stack, first_slots=None):
    """A process per device, each waiting for its first slot, the one given or 0."""
    for number in range(problem.num_devices):
        sources = ("example_main.c", "heliomesh_device.c", SOURCES / "board_pipe.c")
        compiled(folder, HOST, f"-DHELIOMESH_DEVICE={number}", *sources, "-o", folder / f"program_{number}")
    firsts = first_slots or [0] * problem.num_devices
    return [started_one(folder, number, stack, first) for number, first in enumerate(firsts)]


def started_one(folder, number, stack, first_slot):
    """The process of one device after a reset."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    device = Process(stack.enter_context(subprocess.Popen([folder / f"program_{number}"], **pipes)))  # noqa: S603
    assert device.run() == []
    assert device.waits_for == "F"
    device.give(bytes([first_slot]))
    assert device.run() == []
    return device


def ended(devices):
    """Let all processes end."""
    for device in devices:
        device.give(b"\0")  # no more slots


def one_of(states, row):
    """One state of a batch."""
    names = ("channel_level", "battery_joule", "weather", "uniform")
    return Observation(*(getattr(states, name)[row : row + 1] for name in names))


def measurements(problem, states, row):
    """What every device measures in one state, as its board tells it: levels, weather, battery."""
    told = []
    for device in range(problem.num_devices):
        levels = states.channel_level[row, list(problem.sites_into(device))].tolist()
        units = round(float(states.battery_joule[row, device]) * units_per_joule(problem)[device, 0])
        told.append(bytes([*levels, int(states.weather[row, device])]) + struct.pack("<I", units))
    return told


@needs_gcc
@pytest.mark.parametrize("name", PLANS)
def test_the_example_decides_as_the_plan(name, tmp_path):
    problem, policy, _ = exported(name, tmp_path)
    states, _ = random_states(problem, problem.slots)
    following = Following(policy)
    with ExitStack() as stack:
        devices = started(tmp_path, problem, stack)
        for slot in range(problem.slots):
            deaf = problem.battery.dark(states.battery_joule[slot]).nonzero().flatten().tolist()
            measured = measurements(problem, states, slot)
            actions = play_slot(devices, problem.topology.neighbours, measured, deaf=deaf)
            assert actions == following.actions(slot, one_of(states, slot))
        ended(devices)
    assert [device.process.returncode for device in devices] == [0] * len(devices)


@needs_gcc
@pytest.mark.parametrize("name", ["one hop", "bids", "bids, half duplex"])
def test_lost_and_damaged_packets_never_overdraw_a_battery(name, tmp_path):
    problem, _, _ = exported(name, tmp_path)
    rng = np.random.default_rng(0)

    def on_air(packet):
        if rng.random() < 0.3:
            return []
        return [packet if rng.random() < 0.7 else packet[:1] + rng.bytes(rng.integers(len(packet)))]

    states, _ = random_states(problem, problem.slots)
    paid = problem.affordable(states.battery_joule)
    with ExitStack() as stack:
        devices = started(tmp_path, problem, stack)
        for slot in range(problem.slots):
            measured = measurements(problem, states, slot)
            for number, action in enumerate(play_slot(devices, problem.topology.neighbours, measured, on_air)):
                assert bool(paid[slot, number, action])
        ended(devices)


@needs_gcc
@pytest.mark.parametrize("name", ["one hop", "bids", "bids, half duplex", "no message", "batteries of 30 kJ"])
def test_the_example_compiles_for_every_device(name, tmp_path):
    problem, _, _ = exported(name, tmp_path)
    sources = ("example_main.c", "example_board.c", "heliomesh_device.c", "heliomesh_levels.c")
    for number in range(problem.num_devices):
        compiled(tmp_path, HOST, f"-DHELIOMESH_DEVICE={number}", *sources, "-o", "example")
        assert subprocess.run([tmp_path / "example"], check=False).returncode == 0  # noqa: S603
    command = ["gcc", f"-DHELIOMESH_DEVICE={problem.num_devices}", "-c", "heliomesh_device.c"]
    refused = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, encoding="utf-8")  # noqa: S603
    assert f"HELIOMESH_DEVICE: expected a number from 0 to {problem.num_devices - 1}" in refused.stderr


@needs_gcc
def test_tables_that_exceed_the_flash_are_refused(tmp_path):
    exported("bids", tmp_path)
    command = ["gcc", "-DHELIOMESH_DEVICE=0", "-DHELIOMESH_FLASH_LIMIT=500", "-c", "heliomesh_device.c"]
    refused = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, encoding="utf-8")  # noqa: S603
    assert "The plan's tables are larger than the flash" in refused.stderr


@dataclass(frozen=True)
class NoThresholds:
    """Of a table file without channels and weather."""

    constants: list = field(default_factory=list)
    macros: dict = field(default_factory=dict)
    unit_joule: str = "1e-6"


@dataclass(frozen=True)
class Tables:
    """A table file with constants only."""

    constants: list
    number: int = 0
    measuring: NoThresholds = NoThresholds()
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
@pytest.mark.parametrize("name", ["one hop", "bids"])
def test_an_endless_plan_goes_around(name, tmp_path):
    """As exports of endless plans will have it: the macro says that slots count modulo the tables' length."""
    problem, policy, _ = exported(name, tmp_path)
    for number in range(problem.num_devices):
        path = tmp_path / f"device_{number}.h"
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace("HELIOMESH_ENDLESS 0u", "HELIOMESH_ENDLESS 1u"), encoding="utf-8")
    states, _ = random_states(problem, 100)
    following = Following(policy)
    first, last = (policy.action(slot, states.recalled_by(policy)) for slot in (0, problem.slots - 1))
    row = int((first != last).any(1).nonzero()[0])  # a state in which the slot matters
    with ExitStack() as stack:
        devices = started(tmp_path, problem, stack)
        for slot in range(problem.slots + 3):
            actions = play_slot(devices, problem.topology.neighbours, measurements(problem, states, row))
            assert actions == following.actions(slot % problem.slots, one_of(states, row))
        ended(devices)


@needs_gcc
def test_a_device_that_was_reset_counts_as_its_neighbours_at_once(tmp_path):
    """Its clock is lost, so it guesses 0; the first packet it hears says which slot it is, before it acts."""
    problem, policy, _ = exported("one hop", tmp_path)
    states, _ = random_states(problem, 100)
    first, late = (policy.action(slot, states) for slot in (0, problem.slots - 1))
    row = int((first != late)[:, 1].nonzero()[0])  # a state in which device 1 minds the slot
    with ExitStack() as stack:
        devices = started(tmp_path, problem, stack)
        for slot in range(problem.slots):
            if slot in (2, problem.slots - 1):
                devices[1].process.kill()
                devices[1] = started_one(tmp_path, 1, stack, LOST)
            actions = play_slot(devices, problem.topology.neighbours, measurements(problem, states, row))
            assert actions == policy.action(slot, one_of(states, row))[0].tolist()
        ended(devices)


@needs_gcc
def test_the_stub_of_a_board_is_not_sure_of_slot_0_after_a_reset(tmp_path):
    """Else a device that starts again would never take its neighbours' count."""
    exported("one hop", tmp_path)
    asked = "uint32_t slot = 9u; return board_first_slot(&slot) ? 1 : (int)slot;"
    (tmp_path / "ask.c").write_text(f'#include "example_board.h"\nint main(void) {{ {asked} }}\n', encoding="utf-8")
    sources = ("ask.c", "example_board.c", "heliomesh_levels.c")
    compiled(tmp_path, HOST, "-DHELIOMESH_DEVICE=1", *sources, "-o", "ask")
    assert subprocess.run([tmp_path / "ask"], check=False).returncode == 0  # noqa: S603


@needs_gcc
@pytest.mark.parametrize("sure_slot", [None, 3])
def test_devices_that_lost_their_clocks_come_to_count_alike(sure_slot, tmp_path):
    """A guess follows any device that is sure; without one, the largest guess wins within a diameter of slots."""
    problem, policy, _ = exported("one hop", tmp_path)
    states, _ = random_states(problem, 100)
    neighbours = problem.topology.neighbours
    with ExitStack() as stack:
        firsts = [LOST] * problem.num_devices
        if sure_slot is not None:
            firsts[2] = sure_slot
        devices = started(tmp_path, problem, stack, firsts)
        count = sure_slot or 4
        if sure_slot is None:
            for _ in range(count):  # one of them is on before the others, and hears nobody
                for data in (b"\1" + measurements(problem, states, 0)[0], b"\0\0"):
                    devices[0].give(data)
                    devices[0].run()
        for late in range(problem.slots - count):
            found = play_slot(devices, neighbours, measurements(problem, states, late))
            if late >= problem.topology.diameter:
                assert found == policy.action(count + late, one_of(states, late))[0].tolist()
        ended(devices)


LEVELS = """
#include <stdio.h>
#include "heliomesh_levels.h"
int main(void)
{
    uint8_t level[HELIOMESH_SITES + 1u] = {0};
    unsigned from, slot, last;
    int loss;
    unsigned long harvest;
    char kind;
    while (scanf(" %c", &kind) == 1) {
        if (kind == 'l' && scanf("%u %d", &from, &loss) == 2) {
            heliomesh_note_loss(level, (uint16_t)from, (int16_t)loss);
            for (from = 0; from < HELIOMESH_SITES; from++) printf("%u ", level[from]);
            printf("\\n");
        } else if (kind == 'w' && scanf("%u %lu %u", &slot, &harvest, &last) == 3) {
            printf("%u\\n", heliomesh_weather(slot, (uint32_t)harvest, (uint8_t)last));
        }
    }
    return 0;
}
"""


def told_levels(folder, number, orders):
    """What the kit's thresholds make of measurements, a line each."""
    (folder / "levels.c").write_text(LEVELS, encoding="utf-8")
    compiled(folder, HOST, f"-DHELIOMESH_DEVICE={number}", "levels.c", "heliomesh_levels.c", "-o", "levels")
    done = subprocess.run([folder / "levels"], input="\n".join(orders), capture_output=True, check=True, text=True)  # noqa: S603
    return done.stdout.splitlines()


@needs_gcc
def test_a_measured_loss_tells_the_level_of_the_fading_gain(tmp_path):
    """Rayleigh fading of four equally likely levels, over the path losses of a ring with a long link."""
    changes = {"channel.source": "rayleigh", "channel.levels": 4, "channel.state": "link", "link.noise_watt": 1e-13}
    places = {"network.positions_metre": [[0, 0], [100, 0], [100, 140], [0, 150], [-60, 70]]}
    scenario = hm.Scenario.load("tiny").override(places | changes | {"link.path_loss": "log-distance"})
    problem = hm.build(scenario)
    plan = hm.plan(problem, "uncoordinated", bound=False)
    write_headers(tabulate(plan), problem, tmp_path)
    rng = np.random.default_rng(0)
    start, stop = problem.topology.edge_start[1:3]
    for edge in range(start, stop):
        gain, path = rng.exponential(size=200), float(problem.link.path_gain[edge])
        losses = np.rint(-1000 * np.log10(gain * path)).astype(int)
        gain = 10 ** (-losses / 1000) / path  # what such a loss means
        expected = np.searchsorted(-np.log1p(-np.arange(1, 4) / 4), gain, side="right")
        orders = [f"l {problem.topology.edge_sender[edge]} {loss}" for loss in losses]
        found = [int(line.split()[edge - start]) for line in told_levels(tmp_path, 1, orders)]
        assert found == expected.tolist()
        assert set(found) == {0, 1, 2, 3}
    stranger = told_levels(tmp_path, 1, ["l 99 0"])[0].split()
    assert set(stranger) == {"0"}


@needs_gcc
def test_gains_of_a_table_are_told_apart_midway(tmp_path):
    exported("one hop", tmp_path)  # gains 0.3 and 1.5, no path loss
    losses = [round(-1000 * np.log10(gain)) for gain in (0.89, 0.91, 0.3, 1.5)]
    assert told_levels(tmp_path, 0, [f"l 1 {loss}" for loss in losses]) == ["0 ", "1 ", "0 ", "1 "]


@needs_gcc
def test_a_measured_harvest_tells_the_weather_and_the_night_tells_nothing(tmp_path):
    scenario = hm.Scenario.load("field40").override({"slots": 144, "network.devices": 40})
    problem = hm.build(scenario)
    plan = hm.plan(problem, "uncoordinated", bound=False)
    write_headers(tabulate(plan), problem, tmp_path)
    law, device = problem.harvest.law, 7
    mean = float(law.scale[device]) * (law.joule * law.prob).sum(-1).numpy()[law.phase_of_slot]  # (slot, weather)
    day = int(mean[:, 0].argmax())
    night = int((mean[:, 0] == 0).argmax())
    assert mean[day, 0] > mean[day, 1] > 0  # the first weather is the brightest
    units = mean * units_per_joule(problem)[device, 0]
    for slot in (day, day + 144, day + 10 * 144):
        orders = [f"w {slot} {round(value)} {last}" for value in units[day] for last in (0, 1)]
        assert told_levels(tmp_path, device, orders) == ["0", "0", "1", "1"]
    assert told_levels(tmp_path, device, [f"w {night} 0 {last}" for last in (0, 1)]) == ["0", "1"]


@needs_gcc
def test_a_forecast_is_added_to_the_weather_that_is_told(tmp_path):
    problem = hm.build(hm.Scenario.load("tiny").override(MARKOV | {"harvest.forecast": 0.8}))
    write_headers(tabulate(hm.plan(problem, "uncoordinated", bound=False)), problem, tmp_path)
    assert problem.harvest.law.num_weather == 4  # weather * 2 + forecast
    orders = [f"w 5 {harvest} {last}" for harvest in (0, 1_500_000) for last in range(4)]
    assert told_levels(tmp_path, 0, orders) == ["0"] * 4 + ["2"] * 4


def test_the_unit_of_energy_is_the_finest_that_fits():
    for capacity, exponent in ((4294.0, -6), (4296.0, -3), (4.2e6, -3), (5e6, 0), (1e12, 3)):
        problem = hm.build(hm.Scenario.load("tiny").override({"energy.capacity_joule": capacity}))
        measuring = Measuring(problem, 0)
        assert measuring.unit_exponent == exponent
        assert measuring.unit_joule == f"1e{exponent}"
        assert capacity / 10.0**exponent <= measuring.macros["CAPACITY"] <= 2**32 - 1
        assert measuring.units(0.0) == 0


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cppcheck") is None, reason="cppcheck is not installed")
@pytest.mark.parametrize("name", ["no message", "one hop", "bids", "bids, half duplex", "weather"])
def test_cppcheck_finds_no_breach_of_misra(name, tmp_path):
    exported(name, tmp_path)
    sources = sorted(path.name for path in tmp_path.glob("*.c"))
    options = ["--quiet", "--addon=misra", "--enable=style", "--language=c", "--std=c99", "-DHELIOMESH_DEVICE=0"]
    command = ["cppcheck", *options, *sources]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True, encoding="utf-8")  # noqa: S603
    assert re.findall(r"\[[\w.-]+\]", done.stdout + done.stderr) == []


CROSS = [
    (CORTEX_M0, "one hop", STATES),
    (CORTEX_M0, "bids", STATES),
    (CORTEX_M0, "bids, half duplex", 5000),
    (RISCV32, "one hop", STATES),
    (RISCV32, "bids", STATES),
    (RISCV32, "bids, half duplex", 5000),
    (ATMEGA328P, "one hop", STATES),
    (ATMEGA328P, "batteries of 30 kJ", 5000),
    (ATMEGA328P, "bids of three", STATES),
    (ATMEGA2560, "one hop", STATES),
    (ATMEGA2560, "bids, half duplex", 5000),
]


@pytest.mark.slow
@pytest.mark.parametrize(("target", "name", "states"), CROSS, ids=lambda value: getattr(value, "name", value))
def test_three_architectures_decide_as_python(target, name, states, tmp_path):
    if target.missing:
        pytest.skip(f"not installed: {', '.join(target.missing)}")
    problem, policy, bids = exported(name, tmp_path)
    found = bids_in_python(policy, states) if bids else actions_in_python(problem, policy, states)
    assert hash_in_c(tmp_path, target, problem, bids, states) == hash_of(found)


@pytest.mark.slow
@pytest.mark.skipif(bool(CORTEX_M0.missing), reason="arm-none-eabi-gcc or qemu is not installed")
def test_the_example_runs_in_an_emulator_as_the_docs_say(tmp_path):
    exported("bids", tmp_path)
    told = (SOURCES.parents[2] / "docs/firmware.md").read_text(encoding="utf-8")
    recipe = re.search(r"arm-none-eabi-gcc.*?device_3.elf\n.*?device_3.elf\n", told, re.S)[0]
    script = f"set -e\nkit={SOURCES}\n{recipe}"
    subprocess.run(["sh", "-c", script], cwd=tmp_path, stdin=subprocess.DEVNULL, check=True, timeout=300)  # noqa: S603, S607


def far_tables(folder):
    """A table file of 100,000 bytes; its values."""
    values = np.random.default_rng(0).integers(2**8, size=100_000).tolist()
    head = Head("planner", "scenario", "", 1, [(0.0, False)], slots=1)
    text = table_text(head, Tables([Constants("some", 8, values, "numbers")]))
    (folder / "tables.h").write_text(text, encoding="utf-8")
    shutil.copy(SOURCES.parents[2] / "heliomesh/interop/firmware/common/heliomesh_flash.h", folder)
    (folder / "read.c").write_text(
        "#define HELIOMESH_WITH_TABLES\n#define LOOKUP\n"
        '#include <stdbool.h>\n#include "tables.h"\n#include "network.h"\n'
        f"int main(void)\n{{\n    uint32_t entry;\n    for (entry = 0; entry < {len(values)}u; entry++) {{\n"
        "        result(table_some(entry));\n    }\n    finish();\n    return 0;\n}\n",
        encoding="utf-8",
    )
    return text, np.array(values)


def test_far_tables_have_blocks(tmp_path):
    text, _ = far_tables(tmp_path)
    assert int(re.search(r"FLASH_BYTES (\d+)u", text)[1]) > 2**16
    assert "block_3" in text
    assert "too large for ATmega328P (32 KB)." in text


@pytest.mark.slow
@pytest.mark.skipif(bool(ATMEGA2560.missing), reason="avr-gcc or simavr is not installed")
def test_avr_reads_tables_above_64_kilobytes(tmp_path):
    _, values = far_tables(tmp_path)
    program = tmp_path / "read.elf"
    sources = ("read.c", SOURCES / ATMEGA2560.source, SOURCES / "result_target.c")
    compiled(tmp_path, ATMEGA2560, "-I", SOURCES, *sources, "-o", program)
    assert emulated(ATMEGA2560, program) == hash_of(values)


@pytest.mark.slow
@pytest.mark.skipif(bool(ATMEGA328P.missing), reason="avr-gcc or simavr is not installed")
def test_avr_refuses_tables_larger_than_its_flash(tmp_path):
    far_tables(tmp_path)
    with pytest.raises(AssertionError, match="The plan's tables are larger than the flash"):
        compiled(tmp_path, ATMEGA328P, "-I", SOURCES, "-c", "read.c")
