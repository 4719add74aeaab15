"""Exported plans act as the plans do: in Python, from files, and in C."""

import json
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import heliomesh as hm
from heliomesh.cli import app
from heliomesh.interop import export_tables
from heliomesh.interop.c_header import Header, write_headers
from heliomesh.interop.export_tables import Tabulated, read_tables, tabulate, write_tables
from heliomesh.planners.uncoordinated import Greedy
from heliomesh.problem.policy import Observation
from tests.interop.conftest import DRAINED, WEATHER

STATES = 100_000
SEPARATE = {"energy.actions": "separate", "energy.compute_joule": 1.5}  # a battery of 1 J pays for sending only
PLANS = {
    "uncoordinated": ({}, "uncoordinated", {}),
    "uncoordinated, uneven": (
        {"energy.compute_joule": 0.77, "energy.capacity_joule": 3.3, "energy.initial": "uniform"},
        "uncoordinated",
        {},
    ),
    "uncoordinated, separate": ({**SEPARATE, "energy.initial": "uniform"}, "uncoordinated", {}),
    "battery_threshold": ({"harvest.scale": [0.3, 0.6, 1.0, 1.5, 2.0]}, "battery_threshold", {}),
    "turns, separate": ({"energy.actions": "separate"}, "turns", {"last_slots": 3}),
    "uncoordinated, drained": (DRAINED, "uncoordinated", {}),
    "turns, drained": ({**DRAINED, "energy.actions": "separate"}, "turns", {}),
    "battery_threshold, drained": (DRAINED, "battery_threshold", {}),
    "one hop, drained": ({**DRAINED, "slots": 4}, "decentralized", {"hops": 1}),
    "prices alone": ({}, "prices", {"coordinate": False, "interpolate": False}),
    "prices alone, weather": (WEATHER, "prices", {"coordinate": False, "interpolate": False}),
    "zero hops": ({}, "decentralized", {"hops": 0}),
    "one hop, links": ({"channel.state": "link"}, "decentralized", {"hops": 1}),
    "one hop, reciprocal": ({"channel.state": "reciprocal"}, "decentralized", {"hops": 1}),
    "two hops of seven": ({"network.devices": 7, "slots": 6}, "decentralized", {"hops": 2}),
    "train only, half duplex": (
        {"energy.train_only": True, "link.half_duplex": True, "slots": 4},
        "decentralized",
        {"hops": 1},
    ),
    "one hop, separate": ({**SEPARATE, "slots": 4}, "decentralized", {"hops": 1}),
    "centralized, weather": ({**WEATHER, "network.devices": 2, "slots": 3}, "centralized", {}),
}
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")


def planned(changes, planner, options):
    problem = hm.build(hm.Scenario.load("tiny").override(changes))
    return problem, hm.plan(problem, planner, bound=False, **options)


def random_states(problem, count, seed=0):
    """Observations with batteries of whole microjoules, some of them right at the cuts, and slots."""
    rng = np.random.default_rng(seed)
    devices = problem.num_devices
    capacity = problem.battery.capacity_joule.numpy()
    micro = rng.integers(0, np.floor(capacity * 1e6).astype(int) + 1, size=(count, devices))
    energies = (problem.actions.spent_joule.numpy(), problem.actions.needed_joule.numpy())
    special = np.concatenate([*energies, np.outer(capacity, np.linspace(0, 1, 13))], 1)
    chosen = special[np.arange(devices), rng.integers(special.shape[1], size=(count, devices))]
    near = np.rint(chosen * 1e6).astype(int) + rng.integers(-1, 2, size=(count, devices))
    micro = np.where(rng.random((count, devices)) < 0.3, near.clip(0, np.floor(capacity * 1e6).astype(int)), micro)
    seen = Observation(
        channel_level=torch.from_numpy(rng.integers(problem.channel.levels, size=(count, problem.channel.num_sites))),
        battery_joule=torch.from_numpy(micro / 1e6),
        weather=torch.from_numpy(rng.integers(problem.harvest.law.num_weather, size=(count, devices))),
        uniform=torch.zeros(count, devices, dtype=torch.float64),
    )
    return seen, micro, rng.integers(problem.slots, size=count)


def actions_in_python(problem, policy, seen, slots):
    actions = np.empty((len(slots), problem.num_devices), dtype=np.int64)
    for slot in range(problem.slots):
        here = torch.from_numpy(slots == slot)
        part = Observation(
            *(getattr(seen, n)[here] for n in ("channel_level", "battery_joule", "weather", "uniform"))
        )
        actions[slots == slot] = policy.action(slot, part).numpy()
    return actions


def program(headers):
    """A C program in which every device measures, hears all messages and acts, state after state."""
    numbers = [header.device.device for header in headers]
    lines = ["#include <stdio.h>", *(f'#include "device_{i}.h"' for i in numbers), "int main(void)", "{"]
    lines += ["    uint32_t slot, battery;", "    uint8_t weather, action;"]
    for i in numbers:
        lines += [f"    uint8_t level{i}[HM{i}_SITES + 1], message{i}[HM{i}_MESSAGE_BYTES];"]
        lines += [f"    hm{i}_view view{i} = {{{{0}}}};"]
        lines += [f"    if (hm{i}_flash_bytes() != HM{i}_FLASH_BYTES) return 3;"]
    lines += ["    while (fread(&slot, 4, 1, stdin) == 1) {"]
    for i in numbers:
        lines += [f"        if (fread(level{i}, 1, HM{i}_SITES, stdin) != HM{i}_SITES) return 1;"]
        lines += ["        if (fread(&weather, 1, 1, stdin) != 1 || fread(&battery, 4, 1, stdin) != 1) return 1;"]
        lines += [f"        hm{i}_message(level{i}, battery, weather, message{i});"]
    lines += [f"        (void)hm{i}_hear(&view{i}, {j}, message{j});" for i in numbers for j in numbers]
    for i in numbers:
        lines += [f"        action = hm{i}_action(slot, &view{i});", "        (void)fwrite(&action, 1, 1, stdout);"]
    return "\n".join([*lines, "    }", "    return 0;", "}"]) + "\n"


def actions_in_c(folder, problem, source, seen, micro, slots):
    """Compile a program and let it act on states; (state, device)."""
    (folder / "main.c").write_text(source, encoding="utf-8")
    compiled(folder, "main.c", "-o", str(folder / "main"))
    fields = [("slot", "<u4")]
    for device in range(problem.num_devices):
        fields += [(f"level{device}", "u1", (len(problem.sites_into(device)),))]
        fields += [(f"weather{device}", "u1"), (f"battery{device}", "<u4")]
    records = np.zeros(len(slots), dtype=fields)
    records["slot"] = slots
    for device in range(problem.num_devices):
        records[f"level{device}"] = seen.channel_level[:, list(problem.sites_into(device))].numpy()
        records[f"weather{device}"] = seen.weather[:, device].numpy()
        records[f"battery{device}"] = micro[:, device]
    done = subprocess.run([folder / "main"], input=records.tobytes(), capture_output=True, check=True)  # noqa: S603
    return np.frombuffer(done.stdout, dtype=np.uint8).reshape(len(slots), -1)


def compiled(folder, *arguments):
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O1"]
    command = ["gcc", *flags, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False, encoding="utf-8")  # noqa: S603
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("changes", "planner", "options"), PLANS.values(), ids=PLANS)
def test_tables_and_files_are_the_policy(changes, planner, options, tmp_path):
    problem, plan = planned(changes, planner, options)
    tables = tabulate(plan)
    for kind in ("json", "npz"):
        assert read_tables(write_tables(tables, tmp_path, kind)[0]) == tables
    one, other = (
        hm.simulate(problem, p, 16, seed=2) for p in (plan, replace(plan, policy=Tabulated(problem, tables)))
    )
    np.testing.assert_array_equal(one.power_watt, other.power_watt)
    np.testing.assert_array_equal(one.scheduled, other.scheduled)
    np.testing.assert_array_equal(one.cost, other.cost)


@needs_gcc
@pytest.mark.parametrize(("changes", "planner", "options"), PLANS.values(), ids=PLANS)
def test_c_is_python_on_random_states(changes, planner, options, tmp_path):
    problem, plan = planned(changes, planner, options)
    headers = write_headers(tabulate(plan), tmp_path)
    seen, micro, slots = random_states(problem, STATES)
    expected = actions_in_python(problem, plan.policy, seen, slots)
    np.testing.assert_array_equal(actions_in_c(tmp_path, problem, program(headers), seen, micro, slots), expected)


def check_constant_memory(folder, headers):
    """No library function, no writable data, no unbounded stack: nothing can grow."""
    for header in headers:
        i = header.device.device
        functions = (
            f"uint8_t act(uint32_t slot, const hm{i}_view *view) {{ return hm{i}_action(slot, view); }}\n"
            f"int hear(hm{i}_view *v, uint16_t from, const uint8_t *m) {{ return hm{i}_hear(v, from, m); }}\n"
            f"void say(const uint8_t *l, uint32_t b, uint8_t w, uint8_t *m) {{ hm{i}_message(l, b, w, m); }}\n"
        )
        check_object(folder, i, functions, header)


def check_object(folder, i, functions, header):
    """Compile functions that use a device's header: nothing is wanted, and constants are as large as stated."""
    (folder / f"unit{i}.c").write_text(f'#include "device_{i}.h"\n{functions}', encoding="utf-8")
    # -O0, since short arrays become part of the code otherwise
    compiled(folder, "-O0", "-Wvla", "-Wstack-usage=256", "-c", f"unit{i}.c", "-o", f"unit{i}.o")
    command = ["nm", "--undefined-only", f"unit{i}.o"]
    wanted = subprocess.run(command, cwd=folder, capture_output=True, check=True, encoding="utf-8")  # noqa: S603
    assert wanted.stdout == ""
    command = ["size", "--format=sysv", f"unit{i}.o"]
    parts = subprocess.run(command, cwd=folder, capture_output=True, check=True, encoding="utf-8").stdout  # noqa: S603
    size = {line.split()[0]: int(line.split()[1]) for line in parts.splitlines() if line.startswith(".")}
    assert size.get(".data", 0) == size.get(".bss", 0) == 0
    constants = sum(value for name, value in size.items() if name.startswith(".rodata"))
    assert header.flash_bytes <= constants <= header.flash_bytes + 64 * len(header.constants)  # alignment


@needs_gcc
@pytest.mark.parametrize("slots", [12, pytest.param(200, marks=pytest.mark.slow)])
def test_two_hops_on_a_ring_of_ten_in_constant_memory(slots, tmp_path):
    problem = hm.build(hm.Scenario.load("ring10").override({"slots": slots}))
    plan = hm.plan(problem, "decentralized", bound=False, hops=2)
    headers = write_headers(tabulate(plan), tmp_path)
    assert {header.hops for header in headers} == {2}
    check_constant_memory(tmp_path, headers)
    seen, micro, at = random_states(problem, STATES)
    expected = actions_in_python(problem, plan.policy, seen, at)
    np.testing.assert_array_equal(actions_in_c(tmp_path, problem, program(headers), seen, micro, at), expected)


@needs_gcc
def test_damaged_and_foreign_messages_change_nothing(tmp_path):
    _, plan = planned({}, "decentralized", {"hops": 1})
    headers = write_headers(tabulate(plan), tmp_path)
    assert headers[1].device.scope[0].variable == ("site", 0)
    (tmp_path / "main.c").write_text(
        '#include "device_1.h"\n'
        "int main(void)\n{\n"
        "    hm1_view view = {{1, 1, 2}};\n"
        "    const uint8_t wrong[2] = {9, 0}, fine[2] = {0, 0};\n"
        "    if (hm1_hear(&view, 0, wrong) || view.value[0] != 1) return 1;\n"
        "    if (hm1_hear(&view, 3, fine) || view.value[0] != 1) return 2;\n"
        "    if (!hm1_hear(&view, 0, fine) || view.value[0] != 0 || view.value[2] != 2) return 3;\n"
        "    return hm1_action(4000000000u, &view) != hm1_action(HM1_SLOTS - 1, &view);\n"
        "}\n",
        encoding="utf-8",
    )
    compiled(tmp_path, "main.c", "-o", str(tmp_path / "main"))
    assert subprocess.run([tmp_path / "main"], check=False).returncode == 0  # noqa: S603


@needs_gcc
def test_names_cannot_leave_their_comment(tmp_path):
    _, plan = planned({"name": '*/ int x; /* "\n#error'}, "uncoordinated", {})
    write_headers(tabulate(plan), tmp_path)
    (tmp_path / "main.c").write_text('#include "device_0.h"\nint main(void) { return 0; }\n', encoding="utf-8")
    compiled(tmp_path, "main.c", "-o", str(tmp_path / "main"))


def test_a_header_names_all_kinds_of_actions():
    _, plan = planned(SEPARATE, "uncoordinated", {})
    tables = tabulate(plan)
    text = Header(tables, tables.devices[0]).text(0)
    kinds = ("0: idle", "2: send only at 2 W", "3: train only", "5: train and send at 2 W")
    assert all(kind in text for kind in kinds)


def test_a_table_that_never_changes_has_no_slots():
    _, plan = planned({}, "battery_threshold", {})
    for device in tabulate(plan).devices:
        header = Header(tabulate(plan), device)
        assert device.table_of_slot == (0,)
        assert "table_of_slot" not in header.text(0)


@pytest.mark.parametrize(
    ("planner", "options", "reason"),
    [
        ("prices", {}, "decides for several devices together"),
        ("receiver", {}, "decides for several devices together"),
        ("skiptrain", {}, "draws actions at random"),
        ("decentralized", {"form": "literal", "hops": 1}, "draws actions at random"),
    ],
)
def test_plans_without_tables_are_refused(planner, options, reason):
    _, plan = planned({}, planner, options)
    with pytest.raises(hm.ScenarioError, match=reason):
        tabulate(plan)


class Peeking(Greedy):
    """Looks at a battery more closely than tables can."""

    def action(self, slot, seen):
        return super().action(slot, seen) * (seen.battery_joule % 0.5 > 0.25)


def test_a_policy_that_looks_closer_is_refused():
    problem, plan = planned({}, "uncoordinated", {})
    with pytest.raises(hm.ScenarioError, match="looks at more than tables hold"):
        tabulate(replace(plan, policy=Peeking(problem)))


def test_too_large_tables_and_numbers_are_refused(tmp_path):
    _, plan = planned({}, "decentralized", {"hops": 1})
    with pytest.raises(hm.TooLargeError, match="export"):
        tabulate(plan, memory_gib=1e-8)
    _, plan = planned({"energy.capacity_joule": 5000.0}, "uncoordinated", {})
    with pytest.raises(hm.ScenarioError, match=r"energy.capacity_joule: expected at most 4294.97 in a C header"):
        write_headers(tabulate(plan), tmp_path)


def test_damaged_files_are_refused(tmp_path):
    _, plan = planned({}, "uncoordinated", {})
    tables = tabulate(plan)
    target = write_tables(tables, tmp_path, "json")[0]
    other = json.loads(target.read_text(encoding="utf-8")) | {"version": 2}
    (tmp_path / "new.json").write_text(json.dumps(other), encoding="utf-8")
    with pytest.raises(hm.ScenarioError, match="expected a plan of format heliomesh-plan 1, version"):
        read_tables(tmp_path / "new.json")
    whole = write_tables(tables, tmp_path, "npz")[0].read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(hm.ScenarioError, match="expected a complete plan file"):
        read_tables(tmp_path / "cut.npz")


def test_tables_that_would_unpack_to_too_much_are_refused(tmp_path, monkeypatch):
    _, plan = planned({}, "uncoordinated", {})
    target = write_tables(tabulate(plan), tmp_path, "npz")[0]
    monkeypatch.setattr(export_tables, "DEFAULT_LIMIT_GIB", 1e-7)
    with pytest.raises(hm.TooLargeError, match=r"plan.npz: expected at most 1e-07 GiB .* actual estimate"):
        read_tables(target)


def test_schema_describes_the_file(tmp_path):
    _, plan = planned({}, "uncoordinated", {})
    target, schema = write_tables(tabulate(plan), tmp_path, "json")
    described, written = (
        json.loads(schema.read_text(encoding="utf-8")),
        json.loads(target.read_text(encoding="utf-8")),
    )
    assert set(described["properties"]) == set(written)
    assert described["properties"]["version"]["const"] == written["version"] == 1


@pytest.mark.parametrize("kind", ["json", "npz", "c", "flower"])
def test_the_command(kind, tmp_path):
    arguments = ["export", "tiny", "battery_threshold", "--out", str(tmp_path / "out"), "--format", kind, "--json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    facts = json.loads(done.output)
    assert facts["planner"] == "battery_threshold"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
        file.rpartition("/")[2] for file in facts["files"]
    )
    if kind == "c":
        assert f"Flash: {facts['flash bytes, largest device']} bytes" in (tmp_path / "out" / "device_0.h").read_text(
            encoding="utf-8"
        )


def test_the_command_refuses_in_a_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(hm.ScenarioError, match=r"--out: expected a folder"):
        CliRunner().invoke(
            app, ["export", "tiny", "uncoordinated", "--out", str(tmp_path / "file")], catch_exceptions=False
        )
    with pytest.raises(hm.ScenarioError, match="decides for several devices together"):
        CliRunner().invoke(
            app,
            ["export", "tiny", "receiver", "--out", str(tmp_path / "out"), "--format", "json"],
            catch_exceptions=False,
        )
    assert not (tmp_path / "out").exists()
