"""A plan's tables as C99 headers, one per device, for microcontrollers.

A header needs `<stdint.h>` only, allocates nothing and holds constants: battery cuts in microjoules, actions in one,
two, four or eight bits, each different table once. In every slot a device writes its state message, sends it, hears
those of others and looks its action up; all it remembers is a view of a few bytes.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from string import Template

import networkx as nx

from heliomesh.durable import alone_in, write_set
from heliomesh.interop.export_tables import DUST, DeviceTables, PlanTables
from heliomesh.scenario import ScenarioError

FILE_PATTERN = "device_*.h"
_MICROJOULE = 1e6  # per joule
_PER_LINE = 24  # numbers


@dataclass(frozen=True)
class Constants:
    """One array of a header."""

    name: str
    width: int  # bits of an entry
    values: Sequence[int]
    comment: str

    @property
    def num_bytes(self) -> int:
        """Bytes of flash; an empty array has one entry, since C knows no empty arrays."""
        return self.width // 8 * max(len(self.values), 1)

    def declared(self, prefix: str) -> str:
        """The array in C."""
        numbers = [str(value) for value in self.values] or ["0"]
        lines = [", ".join(numbers[i : i + _PER_LINE]) for i in range(0, len(numbers), _PER_LINE)]
        body = ",\n    ".join(lines)
        return (
            f"/* {self.comment} */\n"
            f"static const uint{self.width}_t {prefix}_{self.name}[{len(numbers)}] = {{\n    {body}}};"
        )


@dataclass(frozen=True)
class Header:
    """The header of one device."""

    plan: PlanTables
    device: DeviceTables

    @property
    def file_name(self) -> str:
        """Name of the header's file."""
        return f"device_{self.device.device}.h"

    @property
    def flash_bytes(self) -> int:
        """Bytes of all constants."""
        return sum(array.num_bytes for array in self.constants)

    @property
    def ram_bytes(self) -> int:
        """Bytes of the view that a device keeps."""
        return max(len(self.device.scope), 1)

    @cached_property
    def constants(self) -> list[Constants]:
        """All arrays."""
        device = self.device
        sources = [self._source(place) for place in range(len(device.scope))]
        arrays = [
            Constants("cut", 32, self.cuts_microjoule, "battery cells begin here [microjoule]"),
            Constants("size", 8, [seen.size for seen in device.scope], "values of each variable of the view"),
            Constants("from", 16, [source for source, _ in sources], "device whose message holds the variable"),
            Constants("byte", 8, [byte for _, byte in sources], "where in that message"),
            Constants("actions", 8, self.packed, f"actions, {self.bits} bits each, low bits first"),
        ]
        if len(device.table_of_slot) > 1:
            width = next(bits for bits in (8, 16, 32) if len(device.tables) <= 1 << bits)
            arrays.append(Constants("table_of_slot", width, device.table_of_slot, "table of each slot"))
        return arrays

    @property
    def cuts_microjoule(self) -> list[int]:
        """The smallest whole numbers of microjoules that reach the cuts."""
        step = self.plan.step_joule[self.device.device]
        return [microjoule(cut - DUST * step) for cut in self.device.reports.battery_cuts_joule]

    @property
    def bits(self) -> int:
        """Bits of an action."""
        return action_bits(len(self.plan.actions))

    @cached_property
    def packed(self) -> list[int]:
        """All tables one after the other, several actions in a byte."""
        return packed_actions([action for table in self.device.tables for action in table], self.bits)

    def _source(self, place: int) -> tuple[int, int]:
        """Device that measures a variable of the view, the nearest of them, and the byte of its message."""
        seen = self.device.scope[place]
        if seen.kind == "energy":
            return seen.owner, len(self.plan.devices[seen.owner].reports.sites)
        measuring = [d for d in self.plan.devices if seen.owner in d.reports.sites]
        nearest = min(measuring, key=lambda d: (self._distances.get(d.device, len(self.plan.devices)), d.device))
        return nearest.device, nearest.reports.sites.index(seen.owner)

    @cached_property
    def _distances(self) -> dict[int, int]:
        """Links from the device to every device that it can reach."""
        graph: nx.Graph[int] = nx.Graph()
        graph.add_edges_from((d.device, other) for d in self.plan.devices for other in d.neighbours)
        graph.add_node(self.device.device)
        return dict(nx.single_source_shortest_path_length(graph, self.device.device))

    @property
    def hops(self) -> int:
        """Links that messages travel until all that the device sees has reached it."""
        sources = (self._source(place)[0] for place in range(len(self.device.scope)))
        return max((self._distances[source] for source in sources), default=0)

    def text(self, travel: int) -> str:
        """The header; ``travel``: links that every message travels."""
        plan, device, prefix = self.plan, self.device, f"hm{self.device.device}"
        actions = [(action.power_watt, action.trained) for action in plan.actions]
        slotted, states, rows = len(device.table_of_slot) > 1, len(device.tables[0]), len(device.table_of_slot)
        return _HEADER.substitute(
            head_fields(device.device, plan.planner, actions, self.constants, self.ram_bytes),
            devices=len(plan.devices),
            scenario=harmless(plan.scenario),
            sha=plan.scenario_sha256[:12],
            slots=plan.slots,
            hops=travel,
            sites=len(device.reports.sites),
            message=len(device.reports.sites) + 1,
            view=max(len(device.scope), 1),
            scope=len(device.scope),
            cuts=len(device.reports.battery_cuts_joule),
            weathers=plan.num_weather,
            levels=plan.channel_levels,
            select=(
                f"entry += {states}u * {prefix}_table_of_slot[{place_of_slot(rows, plan.period is not None)}];"
                if slotted
                else "(void)slot; /* every slot has the same table */"
            ),
            beyond=beyond(plan.slots, plan.period),
        )


def place_of_slot(rows: int | str, endless: bool) -> str:
    """Where a slot stands in a table of so many rows, in C: around it, or at its end."""
    return f"slot % {rows}" if endless else f"slot < {rows} ? slot : {rows} - 1"


def beyond(slots: int, period: int | None) -> str:
    """What a plan does after its last slot."""
    if period is None:
        return f"Beyond slot {slots - 1} it keeps that slot's table, in which energy has no future."
    return "It has no end: " + ("every slot is alike." if period == 1 else f"it repeats after {period} slots.")


def head_fields(
    device: int, planner: str, actions: Sequence[tuple[float, bool]], constants: Sequence[Constants], ram_bytes: int
) -> dict[str, object]:
    """What every header says of itself, of its actions (power [W], trained) and of its arrays."""
    prefix, bits = f"hm{device}", action_bits(len(actions))
    return {
        "prefix": prefix,
        "upper": prefix.upper(),
        "device": device,
        "planner": harmless(planner),
        "flash": sum(array.num_bytes for array in constants),
        "ram": ram_bytes,
        "actions": "\n".join(f" *   {number}: {in_words(*action)}" for number, action in enumerate(actions)),
        "constants": "\n\n".join(array.declared(prefix) for array in constants),
        "sum_of_sizes": "\n        + ".join(f"sizeof {prefix}_{array.name}" for array in constants),
        "per_byte": 8 // bits,
        "bits": bits,
        "mask": (1 << bits) - 1,
    }


def action_bits(count: int) -> int:
    """Bits of an action that is one of so many."""
    return next(bits for bits in (1, 2, 4, 8) if count <= 1 << bits)


def check_limits(limits: Iterable[tuple[str, float, float]]) -> None:
    """Refuse numbers that C's types do not hold; (field, limit, actual value)."""
    for field, limit, actual in limits:
        if actual > limit:
            raise ScenarioError(field, f"expected at most {limit:g} in a C header, actual value {actual:g}")


def microjoule(joule: float) -> int:
    """The smallest whole number of microjoules that is not less."""
    return max(math.ceil(joule * _MICROJOULE), 0)


def packed_actions(actions: Sequence[int], bits: int) -> list[int]:
    """Several actions in a byte, the first one in its lowest bits."""
    per_byte = 8 // bits
    return [
        sum(action << bits * place for place, action in enumerate(actions[start : start + per_byte]))
        for start in range(0, len(actions), per_byte)
    ]


def write_headers(plan: PlanTables, folder: Path) -> list[Header]:
    """Write ``device_0.h``, ``device_1.h``, …; raises ScenarioError for numbers that C's types do not hold."""
    headers = [Header(plan, device) for device in plan.devices]
    for header in headers:
        _check(header)
    travel = max(header.hops for header in headers)
    with alone_in(folder):
        write_set(folder, FILE_PATTERN, {header.file_name: header.text(travel) for header in headers})
    return headers


def harmless(name: str) -> str:
    """A name that cannot end a comment."""
    return "".join(letter if letter.isalnum() or letter in " .-_" else "?" for letter in name)


def in_words(power_watt: float, trained: bool) -> str:
    """What an action is."""
    if power_watt > 0:
        return f"{'train and send' if trained else 'send only'} at {power_watt:g} W"
    return "train only" if trained else "idle"


def _check(header: Header) -> None:
    device = header.device
    limits = (
        ("energy.capacity_joule", (2**32 - 1) / _MICROJOULE, header.plan.capacity_joule[device.device]),
        ("energy.battery_levels", 255, max((seen.size for seen in device.scope), default=1)),
        ("channel.levels", 255, header.plan.channel_levels),
        ("network.devices", 65535, len(header.plan.devices)),
        ("table entries", 2**32 - 1, len(device.tables) * len(device.tables[0])),
    )
    check_limits(limits)


_HEADER = Template("""\
/*
 * heliomesh plan "$planner" of scenario "$scenario" (sha256 $sha): device $device of $devices.
 * $beyond
 * Flash: $flash bytes of constants. RAM: $ram bytes of view, constant; no heap. C99, needs <stdint.h> only.
 *
 * Actions:
$actions
 *
 * In every slot:
 *   1. ${prefix}_message: what the device measures, as $message bytes. Every message travels ${upper}_HOPS links,
 *      passed on unchanged together with the number of its device.
 *   2. ${prefix}_hear: for each message heard, the device's own included. Not heard: the last values stay.
 *   3. ${prefix}_action: what to do.
 */
#ifndef HELIOMESH_DEVICE_${device}_H
#define HELIOMESH_DEVICE_${device}_H

#include <stdint.h>

#define ${upper}_DEVICE $device
#define ${upper}_SLOTS $slots
#define ${upper}_HOPS $hops
#define ${upper}_SITES $sites
#define ${upper}_MESSAGE_BYTES $message
#define ${upper}_FLASH_BYTES $flash

$constants

/* What the device knows of the present slot; zero it once. */
typedef struct {
    uint8_t value[$view];
} ${prefix}_view;

/* Bytes of the constants above, as the compiler counts them: ${upper}_FLASH_BYTES. */
static inline uint32_t ${prefix}_flash_bytes(void)
{
    return (uint32_t)($sum_of_sizes);
}

/* Energy of the device: weather ($weathers levels) and battery cell; a weather beyond the last counts as the last. */
static inline uint8_t ${prefix}_energy(uint32_t battery_microjoule, uint8_t weather)
{
    int cell = 0;
    while (cell < $cuts && battery_microjoule >= ${prefix}_cut[cell]) {
        cell++;
    }
    if (weather >= $weathers) {
        weather = $weathers - 1;
    }
    return (uint8_t)(weather * ($cuts + 1) + cell);
}

/* The device's message: levels (0 to $levels - 1) of its $sites incoming channels, then its energy. */
static inline void ${prefix}_message(
    const uint8_t *level, uint32_t battery_microjoule, uint8_t weather, uint8_t *message)
{
    int site;
    for (site = 0; site < $sites; site++) {
        message[site] = level[site];
    }
    message[$sites] = ${prefix}_energy(battery_microjoule, weather);
}

/* Take what matters from the message of a device; 1 if anything did, 0 if nothing did or the message is damaged. */
static inline int ${prefix}_hear(${prefix}_view *view, uint16_t from, const uint8_t *message)
{
    int place, used = 0;
    for (place = 0; place < $scope; place++) {
        if (${prefix}_from[place] == from) {
            if (message[${prefix}_byte[place]] >= ${prefix}_size[place]) {
                return 0;
            }
            used = 1;
        }
    }
    for (place = 0; used && place < $scope; place++) {
        if (${prefix}_from[place] == from) {
            view->value[place] = message[${prefix}_byte[place]];
        }
    }
    return used;
}

/* The action for a slot (0 first) and a view. */
static inline uint8_t ${prefix}_action(uint32_t slot, const ${prefix}_view *view)
{
    uint32_t entry = 0;
    int place;
    for (place = 0; place < $scope; place++) {
        entry = entry * ${prefix}_size[place] + view->value[place];
    }
    $select
    return (uint8_t)(${prefix}_actions[entry / $per_byte] >> (entry % $per_byte * $bits) & $mask);
}

#endif
""")
