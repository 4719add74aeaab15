"""Plans by bids and grants, as table files in C99 for the firmware kit.

A table file has one row of `planners.bids.Bidders.own`, the terms that all share, and the device's values of energy,
each different row once. `firmware/bids` computes with them as `slot/bids.py` does.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from heliomesh.interop.c_kit import Constants, Head, bits_of, check_limits, write_kit
from heliomesh.interop.c_levels import Measuring
from heliomesh.model.overhead import paid_talk, talk_joule
from heliomesh.planners.bids import Bidders
from heliomesh.scenario.errors import refuse
from heliomesh.slot.bids import SHARE_BITS, Own
from heliomesh.slot.energy_table import spent_units, unit_of

_LEAN_ZERO = 128  # stored for no lean, so that no stored number is negative


@dataclass(frozen=True)
class BidHeader:
    """The table file of one device."""

    policy: Bidders
    number: int
    code_bytes = 6200  # of the example program on AVR, about; measured by `benchmarks/firmware.py`
    hops = 1  # that messages travel

    @cached_property
    def measuring(self) -> Measuring:
        """Units and thresholds."""
        return Measuring(self.policy.problem, self.number)

    @cached_property
    def _own(self) -> Own:
        """What the device knows, with its neighbours only."""
        return Own(**self.policy.part_of(self.number))

    @property
    def _degree(self) -> int:
        return len(self._own.weight)

    @cached_property
    def _points(self) -> int:
        """Points of the table of values that the battery may reach, and one above."""
        return (int(self.measuring.macros["CAPACITY"]) >> int(self._own.point_bits)) + 2

    @cached_property
    def _rows(self) -> tuple[Tensor, Tensor]:
        """Different rows of values (row, weather × point), and the row of each slot."""
        entries = cast(Tensor, self.policy.entries)  # plans without are refused
        by_slot = entries[:, self.number, :, : self._points].flatten(1)
        rows, row_of_slot = torch.unique(by_slot, dim=0, return_inverse=True)
        return rows, row_of_slot

    @property
    def ram_bytes(self) -> int:
        """Bytes of the state that a device keeps, where numbers are aligned to their size."""
        terms, directions = self.policy.terms, len(self._own.direction)
        words, room = len(terms.trained) + 2 * len(terms.harm) + directions + 3, max(self._degree, 1)
        account = -(-(2 + directions) // 2) * 2
        small = account * (1 + room) + 2 + 2 + len(self.policy.problem.sites_into(self.number)) + 1 + 2 * room
        return 4 * (words - (-small // 4))

    @cached_property
    def constants(self) -> list[Constants]:
        """All arrays."""
        policy, own, terms = self.policy, self._own, self.policy.terms
        problem, (rows, row_of_slot) = policy.problem, self._rows
        sites = problem.sites_into(self.number)
        site = [sites.index(one) for one in problem.site_of_neighbour(self.number)]
        weights = [policy.bias_weight_in(slot) for slot in range(problem.slots)]
        return [
            Constants("power", 8, terms.action_power.tolist(), "power of each action"),
            Constants("trains", 1, terms.trained.int().tolist(), "whether it trains"),
            Constants("spent", 32, own.spent.tolist(), "units of energy that it draws"),
            Constants("needed", 32, own.needed.tolist(), "units of energy that it needs"),
            Constants("near", 16, list(problem.topology.neighbours[self.number]), "neighbours"),
            Constants("place", 8, own.place.tolist(), "place among the neighbours of each"),
            Constants("hears", 1, own.hears.flatten().tolist(), "whether a neighbour, by row, hears another"),
            Constants("site", 8, site, "which of the levels is the channel of each"),
            Constants("weight", 16, own.weight.tolist(), "weight of the model of each, in 2^-15"),
            Constants("share", 16, own.share.tolist(), "the same where it arrives alone"),
            Constants(
                "arrival", 16, own.arrival.flatten().tolist(), "arrival by neighbour, level and power, in 2^-15"
            ),
            Constants("harm", 16, terms.harm.flatten().tolist(), "what is destroyed, by its power and the own one"),
            Constants("direction", 8, (own.direction + _LEAN_ZERO).tolist(), "128 + direction of the own data"),
            Constants("bias_weight", 16, weights, "weight of bias by slot"),
            Constants("row_of_slot", max(bits_of(len(rows)), 8), row_of_slot.tolist(), "row of values by slot"),
            Constants("value", 16, rows.flatten().tolist(), "cost to come by row, weather and energy left"),
        ]

    @property
    def macros(self) -> Mapping[str, int]:
        """Numbers by name."""
        policy, problem, own = self.policy, self.policy.problem, self._own
        talk, unit, weight = paid_talk(problem, policy), 1 << SHARE_BITS, int(own.own_weight)
        drain = problem.battery.losses.drain_joule
        joule = torch.zeros_like(drain) if talk is None else talk_joule(problem, talk)
        silent = torch.stack([joule, joule + drain], -1)
        paid, awake = spent_units(problem, silent)[self.number].tolist()
        scale_of = {"oneself": 0, "all": unit * unit, "arrived": (unit - weight) * unit}[policy.terms.keeps]
        return {
            "ACTIONS": len(problem.actions),
            "POWERS": len(policy.terms.harm),
            "DIRECTIONS": len(own.direction),
            "SITES": len(problem.sites_into(self.number)),
            "LEVELS": problem.channel.levels,
            "WEATHERS": problem.harvest.law.num_weather,
            "DEGREE": self._degree,
            "ROOM": max(self._degree, 1),
            "SLOTS": problem.slots,
            "POINTS": self._points,
            "POINT_BITS": int(own.point_bits),
            "ENTRY_BITS": int(own.entry_bits),
            "BIAS_BITS": policy.terms.bias_bits,
            "SCALE_OF": scale_of,
            "SCALE_OWN": weight if policy.terms.keeps == "all" else 0,
            "MOST_LEAD": policy.terms.most_lead,
            "HALF_DUPLEX": int(policy.terms.half_duplex),
            "TALK": paid,
            "AWAKE": awake,
        }


def write_bid_headers(policy: Bidders, folder: Path) -> tuple[list[BidHeader], list[Path]]:
    """Write the kit; returns its table files and all paths. Raises ScenarioError for what C's types do not hold."""
    problem = policy.problem
    refuse(policy.values is None, "planner option passes", "at least 1 in a C header", "value 0")
    headers = [BidHeader(policy, number) for number in range(problem.num_devices)]
    for header in headers:
        measured, planned = header.measuring.unit_exponent, unit_of(problem, header.number)[0]
        expected = f"harvests of a slot that 32 bits hold in units of 1e{planned} J"
        refuse(measured != planned, "harvest", expected, f"harvests that need 1e{measured} J")
    check_limits(
        (
            ("network.devices", 65535, problem.num_devices),
            ("channel.levels", 255, problem.channel.levels),
            ("slots", 32768, problem.slots),
            ("directions of leans", 253, len(policy.model.directions[0])),
            ("energy.powers_watt", 120, len(policy.terms.harm)),
        )
    )
    actions = list(zip(problem.actions.power_watt.tolist(), problem.actions.trained.tolist(), strict=True))
    scenario, period = problem.scenario, problem.cycle_slots
    head = Head("bids", scenario.name, scenario.content_hash, len(headers), actions, problem.slots, period)
    return headers, write_kit(folder, "bids", head, headers)
