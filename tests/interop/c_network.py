"""A whole network in one C program, on this computer or in an emulator, and its random states in Python.

The program draws its states itself, by the generator that `draws` is in Python. On this computer it writes all
actions; a microcontroller writes their hash.
"""

import re
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from heliomesh.interop.c_kit import flash_bytes
from heliomesh.interop.c_levels import Measuring
from heliomesh.model.overhead import is_paid, talk_joule
from heliomesh.model.policy import Noticed, Observation
from heliomesh.physics.battery import pays

SOURCES = Path(__file__).with_name("firmware")
STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic")
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")


@dataclass(frozen=True)
class Target:
    """A processor: how to compile for it and how to run a program."""

    name: str
    prefix: str  # of compiler and binary tools
    flags: tuple[str, ...]
    source: str  # output and, where needed, start-up code
    script: str | None  # of the linker
    emulator: tuple[str, ...]

    @property
    def missing(self) -> list[str]:
        """Tools that are not installed."""
        tools = (f"{self.prefix}gcc", f"{self.prefix}objcopy", *self.emulator[:1])
        return [tool for tool in tools if shutil.which(tool) is None]

    @property
    def linking(self) -> tuple[str, ...]:
        """Flags of the linker."""
        return () if self.script is None else ("-nostartfiles", "-nostdlib", "-T", str(SOURCES / self.script))

    @property
    def libraries(self) -> tuple[str, ...]:
        """Behind all objects: what a C library has, and arithmetic that the processor does not have."""
        return () if self.script is None else (str(SOURCES / "memory.c"), "-lgcc")


HOST = Target("host", "", ("-O1",), "result_host.c", None, ())
CORTEX_M0 = Target(
    "Cortex-M0",
    "arm-none-eabi-",
    ("-mcpu=cortex-m0", "-mthumb", "-Os", "-ffreestanding"),
    "target_cortex_m0.c",
    "target_cortex_m0.ld",
    ("qemu-system-arm", "-M", "microbit", "-nographic", "-semihosting-config", "enable=on,target=native", "-kernel"),
)
RISCV32 = Target(
    "RISC-V rv32imac",
    "riscv64-unknown-elf-",
    ("-march=rv32imac", "-mabi=ilp32", "-mcmodel=medany", "-Os", "-ffreestanding"),
    "target_riscv32.c",
    "target_riscv32.ld",
    ("qemu-system-riscv32", "-M", "virt", "-bios", "none", "-nographic", "-kernel"),
)
ATMEGA328P, ATMEGA2560 = (
    Target(name, "avr-", (f"-mmcu={chip}", "-O2"), "target_avr.c", None, ("simavr", "-m", chip, "-f", "16000000"))
    for name, chip in (("AVR ATmega328P", "atmega328p"), ("AVR ATmega2560", "atmega2560"))
)


def compiled(folder, target, *arguments):
    """Run a target's compiler, which must not even warn."""
    command = [f"{target.prefix}gcc", *STRICT, *target.flags, "-I", str(folder), *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False, encoding="utf-8")  # noqa: S603
    assert done.returncode == 0, done.stderr


def check_constant_memory(folder, tables):
    """No library function, no writable data, no unbounded stack: nothing can grow. Constants have the size stated."""
    device, unit = f"-DHELIOMESH_DEVICE={tables.number}", f"unit{tables.number}.o"
    # -O0, since short arrays become part of the code otherwise; some compilers guard stacks by a library function
    strict, constants = ("-O0", "-fno-stack-protector", "-Wvla", "-Wstack-usage=256"), 0
    for source in ("heliomesh_device.c", "heliomesh_levels.c"):
        compiled(folder, HOST, *strict, device, "-c", source, "-o", unit)
        assert _told(folder, "nm", "--undefined-only", unit) == ""
        parts = _told(folder, "size", "--format=sysv", unit)
        size = {line.split()[0]: int(line.split()[1]) for line in parts.splitlines() if line.startswith(".")}
        assert size.get(".data", 0) == size.get(".bss", 0) == 0
        constants += sum(value for name, value in size.items() if name.startswith(".rodata"))
    stated, arrays = flash_bytes(tables), len(tables.constants) + len(tables.measuring.constants)
    assert stated <= constants <= stated + 64 * arrays  # alignment


def _told(folder, *command):
    return subprocess.run(command, cwd=folder, capture_output=True, check=True, encoding="utf-8").stdout  # noqa: S603


def draws(count):
    """Draws of the program's generator: 16 bits of x ← 1664525 x + 1013904223 modulo 2³², from 1."""
    values, factor, term = np.array([1], dtype=np.uint64), 1664525, 1013904223
    while len(values) <= count:  # the second half follows from the first by as many steps at once
        values = np.concatenate([values, (values * np.uint64(factor) + np.uint64(term)) & np.uint64(0xFFFFFFFF)])
        factor, term = factor * factor % 2**32, (factor * term + term) % 2**32
    return (values[1 : count + 1] >> np.uint64(16)).astype(np.int64)


def units_per_joule(problem):
    """Of energies in a kit; (device, 1)."""
    exponents = [Measuring(problem, device).unit_exponent for device in range(problem.num_devices)]
    return np.array([[10.0**-exponent] for exponent in exponents])


def _special(problem):
    """Batteries, in units, at which something may change; (device, battery)."""
    capacity = problem.battery.capacity_joule.numpy()
    energies = (problem.actions.spent_joule.numpy(), problem.actions.needed_joule.numpy())
    joule = np.concatenate([*energies, np.outer(capacity, np.linspace(0, 1, 13))], 1)
    return np.rint(joule * units_per_joule(problem)).astype(np.int64)


def _capacity(problem):
    return np.floor(problem.battery.capacity_joule.numpy() * units_per_joule(problem)[:, 0]).astype(np.int64)


def random_states(problem, count, more=0):
    """The program's states: observations with batteries of whole units, some of them at the cuts, and slots.

    ``more`` numbers are drawn for each state after that, which come last.
    """
    devices, sites = problem.num_devices, problem.channel.num_sites
    drawn = draws(count * (1 + sites + 6 * devices + more)).reshape(count, -1)
    drawn, rest = np.split(drawn, [1 + sites + 6 * devices], axis=1)
    of_device = drawn[:, 1 + sites :].reshape(count, devices, 6)
    weather, nearby, which, offset, high, low = np.moveaxis(of_device, -1, 0)
    special, capacity = _special(problem), _capacity(problem)
    near = np.maximum(special[np.arange(devices), which % special.shape[1]] + offset % 3 - 1, 0)
    anywhere = (high << 16 | low) % (capacity + 1)
    units = np.minimum(np.where(nearby % 10 < 3, near, anywhere), capacity)
    seen = Observation(
        channel_level=torch.from_numpy(drawn[:, 1 : 1 + sites] % problem.channel.levels),
        battery_joule=torch.from_numpy(units / units_per_joule(problem)[:, 0]),
        weather=torch.from_numpy(weather % problem.harvest.law.num_weather),
        uniform=torch.zeros(count, devices, dtype=torch.float64),
    )
    slots = drawn[:, 0] % problem.slots
    return (seen, slots, rest) if more else (seen, slots)


def actions_in_python(problem, policy, count):
    """What a policy does in the program's states; (state, device)."""
    seen, slots = random_states(problem, count)
    actions = np.empty((count, problem.num_devices), dtype=np.int64)
    for slot in np.unique(slots).tolist():
        here = torch.from_numpy(slots == slot)
        part = Observation(
            *(getattr(seen, n)[here] for n in ("channel_level", "battery_joule", "weather", "uniform"))
        )
        actions[slots == slot] = policy.action(slot, part).numpy()
    return actions


def played(policy):
    """The problem whose slots the program draws: of a plan without an end, those of three cycles."""
    problem = policy.problem
    return replace(problem, cycle_slots=3 * problem.slots) if problem.endless else problem


def bids_in_python(policy, count):
    """What devices that bid do in the program's states, and their accounts after that; (state, device, byte)."""
    problem, (devices, directions) = played(policy), policy.model.directions.shape
    seen, slots, rest = random_states(problem, count, more=1 + devices * (1 + directions) + 3 * devices**2)
    base, own, lost = np.split(rest, [1, 1 + devices * (1 + directions)], axis=1)
    own = own.reshape(count, devices, -1)
    progress, lean = (base + own[..., 0] % 2048) % 2**16, own[..., 1:] % 255 - 127
    topology = problem.topology
    pairs = topology.edge_receiver * devices + topology.edge_sender
    arrives = torch.from_numpy(lost.reshape(count, 3, -1)[..., pairs] % 4 > 0).transpose(1, 2)
    memory = (torch.from_numpy(progress), torch.from_numpy(lean))
    seen = replace(seen, memory=memory, heard=arrives[..., :2])
    if is_paid(problem):
        seen = _after_talk(problem, policy, seen)
    found = np.empty((count, devices, 3 + directions), dtype=np.uint8)
    for slot in np.unique(slots).tolist():
        here = torch.from_numpy(np.flatnonzero(slots == slot))
        part = seen.of(here)
        action = policy.action(slot % policy.problem.slots, part)
        trained, sends = problem.actions.trained[action], problem.actions.power_watt[action] > 0
        arrived = arrives[here, :, 2] & sends[:, topology.edge_sender]
        noticed = Noticed(part.uniform, arrived, trained, problem.actions.power_watt[action])
        progress, lean = policy.recall(replace(part, noticed=noticed))
        parts = (action, progress & 255, (progress >> 8) & 255, *lean.unbind(-1))
        found[here] = torch.stack(parts, -1).numpy().astype(np.uint8)
    return found


def _after_talk(problem, policy, seen):
    """As the simulator's `Episodes.see`: devices pay for messages, and those that cannot are silent."""
    joule = talk_joule(problem, policy.talk)
    talks = pays(seen.battery_joule, joule + problem.battery.losses.drain_joule)
    between = talks[:, problem.topology.edge_sender] & talks[:, problem.topology.edge_receiver]
    battery = ((seen.battery_joule - joule) * talks).clamp_min(0)
    return replace(seen, battery_joule=battery, heard=seen.heard & between.unsqueeze(-1))


def bytes_in_c(folder, policy, count):
    """The same by a kit on this computer."""
    program = built(folder, HOST, played(policy), policy, count)
    done = subprocess.run([program], capture_output=True, check=True)  # noqa: S603
    return np.frombuffer(done.stdout, dtype=np.uint8).reshape(count, policy.problem.num_devices, -1)


def actions_in_c(folder, problem, policy, count):
    """What this computer does with a kit in the program's states; (state, device)."""
    done = subprocess.run([built(folder, HOST, problem, policy, count)], capture_output=True, check=True)  # noqa: S603
    return np.frombuffer(done.stdout, dtype=np.uint8).reshape(count, -1)


def hash_in_c(folder, target, problem, policy, count):
    """Hash of what an emulated processor does with a kit in the program's states."""
    return emulated(target, built(folder, target, problem, policy, count))


def emulated(target, program, limit_second=3600):
    """Run a program that writes eight hexadecimal digits."""
    done = subprocess.run(  # noqa: S603
        [*target.emulator, str(program)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        encoding="utf-8",
        timeout=limit_second,
    )
    (found,) = re.findall(r"(?<![0-9a-f])[0-9a-f]{8}(?![0-9a-f])", done.stdout + done.stderr)
    return found


def hash_of(actions):
    """FNV-1a."""
    value = 2166136261
    for action in actions.astype(np.uint8).tobytes():
        value = (value ^ action) * 16777619 & 0xFFFFFFFF
    return f"{value:08x}"


def built(folder, target, problem, policy, count):
    """The program of a whole network; ``policy`` bids, or is None where devices look up."""
    place = folder / f"build {target.name}"
    place.mkdir()
    kind = [] if policy is not None else ["-DLOOKUP"]
    (place / "numbers.h").write_text(_numbers(problem, policy, count), encoding="utf-8")
    units = []
    for number in range(problem.num_devices):
        unit, name = place / f"unit_{number}.o", f"device_{number}"
        names = [f"-DHELIOMESH_DEVICE={number}", f"-DUNIT={name}"]
        compiled(folder, target, *kind, *names, "-c", SOURCES / "unit.c", "-o", unit)
        subprocess.run([f"{target.prefix}objcopy", f"--keep-global-symbol={name}", unit], check=True)  # noqa: S603
        units.append(unit)
    sources = [SOURCES / "network.c", SOURCES / target.source]
    sources += [SOURCES / "result_target.c"] if target is not HOST else []
    program = place / "network.elf"
    compiled(folder, target, *kind, "-I", place, *target.linking, *sources, *units, *target.libraries, "-o", program)
    return program


def _numbers(problem, policy, count):
    """What the program has to know of the network."""
    devices = range(problem.num_devices)
    sites = [problem.sites_into(i) for i in devices]
    most = max(1, *map(len, sites))
    macros = {
        "DEVICES": len(devices),
        "NUM_SITES": problem.channel.num_sites,
        "MOST_SITES": most,
        "LEVELS": problem.channel.levels,
        "WEATHERS": problem.harvest.law.num_weather,
        "SLOTS": problem.slots,
        "STATES": count,
        "SPECIALS": _special(problem).shape[1],
        "ACTIONS": len(problem.actions),
    }
    if policy is not None:
        macros["DIRECTIONS"] = policy.model.directions.shape[1]
    padded = [[*own, *[0] * (most - len(own))] for own in sites]
    lines = [f"#define {name} {value}u" for name, value in macros.items()]
    lines += [f"static const uint32_t capacity[DEVICES] = {_braced(_capacity(problem))};"]
    lines += [f"static const uint32_t special[DEVICES][SPECIALS] = {_braced(_special(problem))};"]
    lines += [f"static const uint16_t sites[DEVICES] = {_braced([len(own) for own in sites])};"]
    lines += [f"static const uint16_t site_of[DEVICES][MOST_SITES] = {_braced(padded)};"]
    lines += [f"extern const device device_{i};" for i in devices]
    pointers = ", ".join(f"&device_{i}" for i in devices)
    return "\n".join([*lines, f"static const device *const all[DEVICES] = {{{pointers}}};"]) + "\n"


def _braced(values):
    """An array as C writes it."""
    return str(np.array(values).tolist()).replace("[", "{").replace("]", "}")
