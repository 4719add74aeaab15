"""Joint decisions of the planner `prices` as C99 headers: message rounds between neighbours, in whole numbers.

In a slot, each device as a sender has a price per action, u_j(a), and as a receiver a table of what it misses,
f_i(h_i, joint action of those it hears); see `problem/coordination.py`. All are rounded to multiples of 2^−k and kept
as whole numbers, so sums are exact and every processor comes to the same actions. `Rounded` is that very policy in
Python; the plan itself may differ from it where costs differ by less than the rounding.

Rounds start from two first actions, the devices' own and silence. Which of the two ends costs less is a sum over the
network: each device offers its share of it, and collecting the shares is left to the application.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from string import Template

import torch
from torch import Tensor

from heliomesh.durable import write_set
from heliomesh.interop.c_header import FILE_PATTERN, Constants, harmless, in_words, microjoule, packed_actions
from heliomesh.interop.export_tables import DUST
from heliomesh.planners.prices import Coordinated
from heliomesh.problem.coordination import Group
from heliomesh.problem.policy import ActionPolicy, Observation
from heliomesh.problem.problem import Problem
from heliomesh.problem.size import DEFAULT_LIMIT_GIB, check_fits, entries
from heliomesh.scenario import ScenarioError

_LARGEST = 2**29  # of any sum that a device forms: a bit to spare in 32
_FINEST = 24  # bits after the point, at most


@dataclass(frozen=True)
class Rounded(ActionPolicy):
    """`prices` with every cost rounded to a multiple of 2^−k; values are in these units."""

    problem: Problem
    source: Coordinated

    @cached_property
    def _exact(self) -> tuple[dict[int, Tensor], Tensor]:
        """What is missed, per group offset (level combination, receiver, joint); futures (slot, device, energy)."""
        problem = self.problem
        missed = {}
        for group in self.source.coordination.groups:
            levels = torch.tensor(list(product(range(problem.channel.levels), repeat=num_sites(problem, group))))
            place = torch.tensor([self._site_places(group, n) for n in range(len(group.receivers))])
            fading = problem.channel.gain.cpu()[levels[:, place]]  # (combination, receiver, neighbour)
            missed[group.offset] = self.source.coordination.missed(group, fading.to(problem.device)).cpu()
        futures = self.source.futures.cpu()
        return missed, futures - futures.amin(-1, keepdim=True)  # a constant per slot and device decides nothing

    def _site_places(self, group: Group, number: int) -> list[int]:
        """Where the channels of a receiver's edges stand among its sites."""
        sites = self.problem.sites_into(int(group.receivers[number]))
        return [sites.index(int(self.problem.channel.site_of_edge[edge])) for edge in group.edges[number]]

    @cached_property
    def bits(self) -> int:
        """k, bits after the point."""
        missed, futures = self._exact
        listeners = max(len(self.problem.heard_by(j)) for j in range(self.problem.num_devices))
        table = max((float(t.abs().max()) for t in missed.values()), default=0.0)
        largest = table * listeners + float(futures.max()) + float(self.problem.idle_cost.abs().max())
        return max((k for k in range(_FINEST + 1) if largest * 2**k <= _LARGEST), default=0)

    @cached_property
    def missed(self) -> dict[int, Tensor]:
        """Rounded costs per group offset; whole numbers (level combination, receiver, joint action)."""
        return {offset: torch.round(t.double() * 2**self.bits) for offset, t in self._exact[0].items()}

    @cached_property
    def futures(self) -> Tensor:
        """Rounded values of the energy left; whole numbers (slot, device, energy)."""
        return torch.round(self._exact[1].double() * 2**self.bits)

    @cached_property
    def idle(self) -> Tensor:
        """Rounded idle penalties; whole numbers (device, action)."""
        return torch.round(self.problem.idle_cost.cpu().double() * 2**self.bits)

    def action(self, slot: int, seen: Observation) -> Tensor:
        """Coordinate rounds from the devices' own choices and from silence."""
        return torch.cat([self._decide(slot, piece) for piece in seen.pieces(self.source.coordination.batch)])

    def _decide(self, slot: int, seen: Observation) -> Tensor:
        problem, coordination = self.problem, self.source.coordination
        device, state = torch.arange(problem.num_devices), seen.energy_state(problem).cpu()
        left = problem.energy_left.cpu()[device, state]
        price = self.futures[slot][device.unsqueeze(-1), left] + self.idle
        price = price.masked_fill(~problem.feasible.cpu()[device, state], torch.inf)
        tables = torch.cat([self._tables(group, seen.channel_level.cpu()) for group in coordination.groups], 1)
        own = self.source.alone.action(slot, seen)
        place = problem.device
        starts = [own, torch.zeros_like(own)]
        return coordination.decide(tables.to(place), price.to(place), starts, self.source.rounds, 0)

    def _tables(self, group: Group, level: Tensor) -> Tensor:
        sites = torch.tensor([self.problem.sites_into(i) for i in group.receivers.tolist()])
        index = torch.zeros(len(level), len(sites), dtype=torch.long)
        for place in range(sites.shape[1]):
            index = index * self.problem.channel.levels + level[:, sites[:, place]]
        return self.missed[group.offset][index, torch.arange(len(sites))].flatten(1)


def num_sites(problem: Problem, group: Group) -> int:
    """Channel sites into each receiver of a group."""
    return len(problem.sites_into(int(group.receivers[0])))


@dataclass(frozen=True)
class RoundHeader:
    """The header of one device."""

    policy: Rounded
    planner: str
    device: int

    @property
    def file_name(self) -> str:
        """Name of the header's file."""
        return f"device_{self.device}.h"

    @property
    def flash_bytes(self) -> int:
        """Bytes of all constants."""
        return sum(array.num_bytes for array in self.constants)

    @property
    def ram_bytes(self) -> int:
        """Bytes of the state that a device keeps: channels, energy, action and actions heard, in whole words."""
        return -(-(4 + 2 + 1 + max(len(self.heard), 1)) // 4) * 4

    @property
    def hops(self) -> int:
        """Links that messages travel."""
        return 1

    @cached_property
    def _place(self) -> tuple[Group, int] | None:
        """The group of receivers that the device is in, and where."""
        for group in self.policy.source.coordination.groups:
            where = (group.receivers == self.device).nonzero()
            if len(where):
                return group, int(where[0])
        return None

    @property
    def heard(self) -> list[int]:
        """Devices whose actions decide what this one gets."""
        return [] if self._place is None else self._place[0].actors[self._place[1]].tolist()

    @cached_property
    def constants(self) -> list[Constants]:
        """All arrays."""
        policy, problem, device = self.policy, self.policy.problem, self.device
        step = float(problem.battery.step_joule[device])
        cuts = [microjoule(step * level - DUST * step) for level in range(1, problem.battery.levels)]
        group, number = self._place or (None, 0)
        missed = [] if group is None else policy.missed[group.offset][:, number].flatten().long().tolist()
        own = policy.source.alone.actions[:, device].flatten().tolist()
        return [
            Constants("cut", 32, cuts, "battery levels begin here [microjoule]"),
            Constants("quanta", 16, problem.actions.quanta[device].tolist(), "battery levels that actions cost"),
            Constants(
                "idle", 32, policy.idle[device].long().tolist(), f"penalty of each action, in 2^-{policy.bits}"
            ),
            Constants("future", 32, policy.futures[:, device].flatten().long().tolist(), "value of the energy left"),
            Constants("own", 8, packed_actions(own, self._bits), f"first actions, {self._bits} bits each"),
            Constants("missed", 32, missed, "weight missed by channels and joint action heard"),
            Constants("heard", 16, self.heard, "devices heard, the first one's action counts most"),
        ]

    @property
    def _bits(self) -> int:
        return next(bits for bits in (1, 2, 4, 8) if len(self.policy.problem.actions) <= 1 << bits)

    def text(self) -> str:
        """The header."""
        problem, prefix = self.policy.problem, f"hm{self.device}"
        actions = zip(problem.actions.power_watt.tolist(), problem.actions.trained.tolist(), strict=True)
        movers = len(problem.topology.neighbours[self.device]) > 0
        return _HEADER.substitute(
            prefix=prefix,
            upper=prefix.upper(),
            device=self.device,
            devices=problem.num_devices,
            planner=harmless(self.planner),
            scenario=harmless(problem.scenario.name),
            sha=problem.scenario.content_hash[:12],
            flash=self.flash_bytes,
            ram=self.ram_bytes,
            actions="\n".join(f" *   {number}: {in_words(*action)}" for number, action in enumerate(actions)),
            count=len(problem.actions),
            slots=problem.slots,
            sites=len(problem.sites_into(self.device)),
            channel_levels=problem.channel.levels,
            battery_levels=problem.battery.levels,
            energies=problem.num_energy,
            cuts=problem.battery.levels - 1,
            weathers=problem.harvest.law.num_weather,
            heard=len(self.heard),
            room=max(len(self.heard), 1),
            joint=len(problem.actions) ** len(self.heard) if self.heard else 0,
            colour=problem.colour[self.device] if movers else -1,
            colours=max(problem.colour) + 1,
            rounds=self.policy.source.rounds,
            constants="\n\n".join(array.declared(prefix) for array in self.constants),
            sum_of_sizes="\n        + ".join(f"sizeof {prefix}_{array.name}" for array in self.constants),
            per_byte=8 // self._bits,
            bits=self._bits,
            mask=(1 << self._bits) - 1,
        )


def write_round_headers(
    problem: Problem, policy: Coordinated, planner: str, folder: Path, memory_gib: float = DEFAULT_LIMIT_GIB
) -> list[RoundHeader]:
    """Write ``device_0.h``, ``device_1.h``, …; refuses min-sum messages, which are no whole numbers."""
    if policy.messages:
        raise ScenarioError(
            "planner", f"expected no min-sum messages in a C header (messages=0), actual value {policy.messages}"
        )
    largest = max(
        (
            entries([problem.channel.levels] * num_sites(problem, group)) * float(len(problem.actions)) ** group.heard
            for group in policy.coordination.groups
        ),
        default=0.0,
    )
    check_fits("costs of one receiver", 64 * largest, memory_gib, "lower the degree, channel.levels or power levels")
    for field, limit, actual in (
        ("energy.capacity_joule", (2**32 - 1) / 1e6, float(problem.battery.capacity_joule.max())),
        ("network.devices", 65535, problem.num_devices),
        ("energy.battery_levels", 65535, problem.num_energy),
    ):
        if actual > limit:
            raise ScenarioError(field, f"expected at most {limit:g} in a C header, actual value {actual:g}")
    rounded = Rounded(problem, policy)
    headers = [RoundHeader(rounded, planner, device) for device in range(problem.num_devices)]
    write_set(folder, FILE_PATTERN, {header.file_name: header.text() for header in headers})
    return headers


_HEADER = Template("""\
/*
 * heliomesh plan "$planner" of scenario "$scenario" (sha256 $sha): device $device of $devices.
 * Flash: $flash bytes of constants. RAM: $ram bytes of state, constant; no heap. C99, needs <stdint.h> only.
 *
 * Actions:
$actions
 *
 * In every slot:
 *   1. ${prefix}_begin: what the device measures.
 *   2. For start 0 (the devices' own choices) and start 1 (silence):
 *      a. ${prefix}_start: the first action. Tell it to those that hear the device; they call their _note.
 *      b. ${upper}_ROUNDS times, for colours 0 to ${upper}_COLOURS - 1: devices of that colour ask all that hear them
 *         for a row (their _row), add the rows up, call their _move and tell the action; who is told calls _note.
 *         Under half duplex a device hears itself. Colour -1 never moves. A round that changed nothing is the last.
 *      c. ${prefix}_share: the device's part of the network's cost.
 *   3. Keep the actions of the start whose shares sum to less, those of start 0 if they are equal.
 */
#ifndef HELIOMESH_DEVICE_${device}_H
#define HELIOMESH_DEVICE_${device}_H

#include <stdint.h>

#define ${upper}_DEVICE $device
#define ${upper}_SLOTS $slots
#define ${upper}_SITES $sites
#define ${upper}_ACTIONS $count
#define ${upper}_HEARD $heard
#define ${upper}_COLOUR $colour
#define ${upper}_COLOURS $colours
#define ${upper}_ROUNDS $rounds
#define ${upper}_FLASH_BYTES $flash

$constants

typedef struct {
    uint32_t channels; /* of all sites, the last one counts least */
    uint16_t energy;
    uint8_t action;
    uint8_t heard[$room]; /* actions of the devices heard */
} ${prefix}_state;

/* Bytes of the constants above, as the compiler counts them: ${upper}_FLASH_BYTES. */
static inline uint32_t ${prefix}_flash_bytes(void)
{
    return (uint32_t)($sum_of_sizes);
}

/* Levels (0 to $channel_levels - 1) of the $sites incoming channels, battery and weather (0 to $weathers - 1). */
static inline void ${prefix}_begin(
    ${prefix}_state *state, const uint8_t *level, uint32_t battery_microjoule, uint8_t weather)
{
    int site, cell = 0;
    state->channels = 0;
    for (site = 0; site < $sites; site++) {
        uint32_t known = level[site] < $channel_levels ? level[site] : $channel_levels - 1;
        state->channels = state->channels * $channel_levels + known;
    }
    while (cell < $cuts && battery_microjoule >= ${prefix}_cut[cell]) {
        cell++;
    }
    if (weather >= $weathers) {
        weather = $weathers - 1;
    }
    state->energy = (uint16_t)(weather * $battery_levels + cell);
}

static inline uint32_t ${prefix}_entry(uint32_t slot)
{
    return (slot < $slots ? slot : $slots - 1) * $energies;
}

/* The first action of a start; everybody heard is silent until told otherwise. */
static inline uint8_t ${prefix}_start(${prefix}_state *state, uint32_t slot, int start)
{
    uint32_t entry = ${prefix}_entry(slot) + state->energy;
    int place;
    for (place = 0; place < $room; place++) {
        state->heard[place] = 0;
    }
    state->action = 0;
    if (start == 0) {
        state->action = (uint8_t)(${prefix}_own[entry / $per_byte] >> (entry % $per_byte * $bits) & $mask);
    }
    return state->action;
}

/* A device tells its action; 1 if this one hears it. */
static inline int ${prefix}_note(${prefix}_state *state, uint16_t from, uint8_t action)
{
    int place;
    for (place = 0; place < $heard; place++) {
        if (${prefix}_heard[place] == from && action < $count) {
            state->heard[place] = action;
            return 1;
        }
    }
    return 0;
}

/* What this device would miss for each action of a device it hears: added to the row; 1 if it hears it. */
static inline int ${prefix}_row(const ${prefix}_state *state, uint16_t from, int32_t *row)
{
    uint32_t base = 0, stride = 0;
    int place, action;
    for (place = 0; place < $heard; place++) {
        int moves = ${prefix}_heard[place] == from;
        base = base * $count + (moves ? 0u : state->heard[place]);
        stride = moves ? 1 : stride * $count;
    }
    for (action = 0; stride && action < $count; action++) {
        row[action] += (int32_t)${prefix}_missed[state->channels * ${joint}u + base + stride * (uint32_t)action];
    }
    return stride != 0;
}

/* Price of an action, or -1 where the battery does not pay for it. */
static inline int32_t ${prefix}_price(const ${prefix}_state *state, uint32_t slot, int action)
{
    if (${prefix}_quanta[action] > state->energy % $battery_levels) {
        return -1;
    }
    return (int32_t)(${prefix}_idle[action]
        + ${prefix}_future[${prefix}_entry(slot) + state->energy - ${prefix}_quanta[action]]);
}

/* The best action for the sum of the rows of all that hear the device. */
static inline uint8_t ${prefix}_move(${prefix}_state *state, uint32_t slot, const int32_t *row)
{
    int32_t least = 0;
    int action;
    for (action = 0; action < $count; action++) {
        int32_t price = ${prefix}_price(state, slot, action);
        if (price >= 0 && (action == 0 || price + row[action] < least)) {
            least = price + row[action];
            state->action = (uint8_t)action;
        }
    }
    return state->action;
}

/* The device's part of the network's cost: its price and what it misses. */
static inline int32_t ${prefix}_share(const ${prefix}_state *state, uint32_t slot)
{
    int32_t share = ${prefix}_price(state, slot, state->action);
    uint32_t joint = 0;
    int place;
    for (place = 0; place < $heard; place++) {
        joint = joint * $count + state->heard[place];
    }
    if ($heard > 0) {
        share += (int32_t)${prefix}_missed[state->channels * ${joint}u + joint];
    }
    return share;
}

#endif
""")
