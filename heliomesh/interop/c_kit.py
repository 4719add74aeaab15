"""What a firmware build gets: one C99 source for all devices, a table file per device, and an example program.

`firmware/` holds the sources: `lookup` for plans that look actions up, `bids` for plans by bids and grants, `common`
for both. A table file defines the same names for every device, numbers as macros and arrays as
functions ``table_...``. `heliomesh_tables.h` includes the one of ``HELIOMESH_DEVICE``.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Literal

import numpy as np

from heliomesh.common.durable import alone_in, write_set
from heliomesh.scenario.errors import refuse

if TYPE_CHECKING:
    from heliomesh.interop.c_bids import BidHeader
    from heliomesh.interop.c_header import Header


SOURCES = Path(__file__).with_name("firmware")
_LINE = re.compile(r"(.{1,109})(?: |$)")  # of an array's entries, so that no line has more than 118 letters
_BLOCK_BYTES = 32_000  # of an array; compilers for AVR refuse arrays above 32,767 bytes


@dataclass(frozen=True)
class Constants:
    """One array of a table file, read by the function ``table_<name>``."""

    name: str
    bits: int  # of an entry: 1, 2 or 4, several of them in a byte, or 8, 16, 32
    entries: Sequence[int]
    comment: str

    @property
    def num_bytes(self) -> int:
        """Bytes of flash; an empty array has one entry, since C knows no empty arrays."""
        return self._width // 8 * len(self._stored)

    @property
    def _width(self) -> int:
        """Bits of what is stored."""
        return max(self.bits, 8)

    @property
    def _per_byte(self) -> int:
        """Entries in a byte; 1 where each has bytes of its own."""
        return max(8 // self.bits, 1)

    @cached_property
    def _stored(self) -> list[int]:
        """Entries, or bytes with several of them, the first one in the lowest bits."""
        padded = [*self.entries, *[0] * (-len(self.entries) % self._per_byte)]
        shifts = self.bits * np.arange(self._per_byte)
        whole: list[int] = (np.reshape(padded, (-1, len(shifts))).astype(np.int64) << shifts).sum(1).tolist()
        return whole or [0]

    @property
    def declared(self) -> str:
        """The array, in blocks, and the function that finds the block of an entry and reads it."""
        width, per_byte, length = self._width, self._per_byte, _BLOCK_BYTES * 8 // self._width
        blocks = [self._stored[start : start + length] for start in range(0, len(self._stored), length)]
        lines = [f"/* {self.comment} */", f"static uint{width}_t table_{self.name}(uint32_t entry)", "{"]
        for number, values in enumerate(blocks):
            body = "\n        ".join(re.findall(_LINE, " ".join(f"{value}u," for value in values))).rstrip(",")
            kind = f"static const uint{width}_t block_{number}[{len(values)}]"
            lines.append(f"    {kind} HELIOMESH_FLASH = {{\n        {body}}};")
        place = "entry" if per_byte == 1 else f"(entry / {per_byte}u)"
        if len(blocks) == 1:
            lines.append(f"    const uint{width}_t found = HELIOMESH_READ_U{width}(block_0, {place});")
        else:
            lines += [f"    const uint32_t place = {place};", f"    uint{width}_t found;"]
            for number in range(len(blocks)):
                condition = f"if (place < {(number + 1) * length}u) " if number + 1 < len(blocks) else ""
                lines.append(f"    {'} else ' if number else ''}{condition}{{")
                lines.append(f"        found = HELIOMESH_READ_U{width}(block_{number}, place - {number * length}u);")
            lines.append("    }")
        mask = f"(uint8_t)((found >> ((entry % {per_byte}u) * {self.bits}u)) & {(1 << self.bits) - 1}u)"
        return "\n".join([*lines, f"    return {'found' if per_byte == 1 else mask};", "}"])


@dataclass(frozen=True)
class Head:
    """What all table files of a plan say."""

    planner: str
    scenario: str
    scenario_sha256: str
    num_devices: int
    actions: Sequence[tuple[float, bool]]  # power [W], trained
    slots: int
    period: int | None = None  # slots after which an endless plan repeats; None: beyond its slots the last one stays


def beyond(slots: int, period: int | None) -> str:
    """What a plan does after its last slot."""
    if period is None:
        return f"Beyond slot {slots - 1} it keeps that slot's table, in which energy has no future."
    return "It has no end: " + ("every slot is alike." if period == 1 else f"it repeats after {period} slots.")


def flash_bytes(tables: "Header | BidHeader") -> int:
    """Bytes of all constants of a device."""
    return sum(array.num_bytes for array in (*tables.constants, *tables.measuring.constants))


def table_text(head: Head, tables: "Header | BidHeader") -> str:
    """The table file of a device."""
    flash = flash_bytes(tables)
    own = {"NUMBER": tables.number, "FLASH_BYTES": flash, "ENDLESS": int(head.period is not None)}
    macros = {**own, **tables.measuring.macros, **tables.macros}
    defined = (f"#define HELIOMESH_{name} {value}{'u' * isinstance(value, int)}" for name, value in macros.items())
    return _TABLES.substitute(
        planner=_harmless(head.planner),
        scenario=_harmless(head.scenario),
        sha=head.scenario_sha256[:12],
        number=tables.number,
        devices=head.num_devices,
        beyond=beyond(head.slots, head.period),
        flash=flash,
        code=tables.code_bytes,
        fits=_fits(flash + tables.code_bytes),
        ram=tables.ram_bytes,
        actions="\n".join(f" *   {number}: {_in_words(*action)}" for number, action in enumerate(head.actions)),
        macros="\n".join(defined),
        constants="\n\n".join(array.declared for array in tables.constants),
        thresholds="\n\n".join(array.declared for array in tables.measuring.constants),
        unit=tables.measuring.unit_joule,
    )


def write_kit(
    folder: Path, kind: Literal["lookup", "bids"], head: Head, tables: "Sequence[Header | BidHeader]"
) -> list[Path]:
    """Write the table files, the sources and the example; returns all files.

    Nothing compiles without `heliomesh_tables.h`. It goes first and comes last, so no killed export mixes two plans.
    """
    sources = sorted([*(SOURCES / "common").iterdir(), *(SOURCES / kind).iterdir()])
    texts = {source.name: source.read_text(encoding="utf-8") for source in sources if source.is_file()}
    texts["heliomesh_tables.h"] = _dispatch([one.number for one in tables])
    devices = {f"device_{one.number}.h": table_text(head, one) for one in tables}
    with alone_in(folder):
        write_set(folder, "heliomesh_*.[ch]", {})
        write_set(folder, "device_*.h", devices)
        write_set(folder, "example_*.[ch]", texts)
    return [folder / name for name in (*devices, *texts)]


def bits_of(count: int) -> int:
    """Bits of a number that is one of so many."""
    return next(bits for bits in (1, 2, 4, 8, 16, 32) if count <= 1 << bits)


def check_limits(limits: Iterable[tuple[str, float, float]]) -> None:
    """Refuse numbers that C's types do not hold; (field, limit, actual value)."""
    for field, limit, actual in limits:
        refuse(actual > limit, field, f"at most {limit:g} in a C header", f"value {actual:g}")


def _harmless(name: str) -> str:
    """A name that cannot end a comment."""
    return "".join(letter if letter.isalnum() or letter in " .-_" else "?" for letter in name)


def _in_words(power_watt: float, trained: bool) -> str:
    """What an action is."""
    if power_watt > 0:
        return f"{'train and send' if trained else 'send only'} at {power_watt:g} W"
    return "train only" if trained else "idle"


def _fits(flash: int) -> str:
    """Which well-known processors have no room for so many bytes."""
    small = [name for name, room in _FLASH_BYTES.items() if flash > room]
    return f"too large for {', '.join(small)}." if small else f"room enough in {', '.join(_FLASH_BYTES)}."


def _dispatch(numbers: Sequence[int]) -> str:
    """The file that includes the table file of HELIOMESH_DEVICE."""
    lines = [f'#elif HELIOMESH_DEVICE == {number}\n#include "device_{number}.h"' for number in numbers]
    return _DISPATCH.substitute(first=numbers[0], last=numbers[-1], choices="\n".join(lines).removeprefix("#el"))


_FLASH_BYTES = {"ATmega328P (32 KB)": 2**15, "ATmega2560 (256 KB)": 2**18}

_DISPATCH = Template("""\
/* The tables of device HELIOMESH_DEVICE, $first to $last. */
#ifndef HELIOMESH_TABLES_H
#define HELIOMESH_TABLES_H

#ifndef HELIOMESH_DEVICE
#error "Compile with -DHELIOMESH_DEVICE=$first, ...: the number of the device"
#endif

#$choices
#else
#error "HELIOMESH_DEVICE: expected a number from $first to $last"
#endif

#endif
""")

_TABLES = Template("""\
/*
 * heliomesh plan "$planner" of scenario "$scenario" (sha256 $sha): tables of device $number of $devices.
 * $beyond
 * Flash: $flash bytes of constants. RAM: $ram bytes, constant; no heap.
 * With about $code bytes of code (AVR, the example): $fits
 * Energies are whole numbers of $unit J.
 *
 * Actions:
$actions
 */
$macros

#if defined(HELIOMESH_WITH_TABLES) || defined(HELIOMESH_WITH_THRESHOLDS)
#include <stdint.h>

#include "heliomesh_flash.h"
#endif

#ifdef HELIOMESH_WITH_TABLES
$constants
#endif

#ifdef HELIOMESH_WITH_THRESHOLDS
$thresholds
#endif
""")
