"""What a device may do in a slot, and what that draws from its storage.

The scenario names a set of `model/action_sets`. Whoever asks what devices can do looks at powers and training, not at
the set's name, so that another set is one more file.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from heliomesh.common import catalog
from heliomesh.model.workload import compute_joule, transmit_second
from heliomesh.physics.battery import Battery
from heliomesh.physics.sending import build_sending
from heliomesh.physics.storage import Consumption, build_consumption
from heliomesh.scenario.errors import refuse
from heliomesh.scenario.scenario import Scenario
from heliomesh.scenario.schema import ACTION_CATALOG, variant
from heliomesh.scenario.section import MOST_JOULE


class Act(NamedTuple):
    """One action of a set."""

    power_watt: float  # radiated; 0: the device does not send
    trained: bool


@dataclass(frozen=True)
class Actions:
    """What a device may do in a slot: idle, send, train, or both; those that train come last, then powers rise."""

    power_watt: Tensor  # (action,)
    trained: Tensor  # (action,) bool
    spent_joule: Tensor  # (device, action) drawn from storage
    needed_joule: Tensor  # (device, action) what a battery must hold: spending and the slot's drain; nothing to idle
    steps_up: Tensor  # (device, action) spending in battery grid steps, rounded up
    overshoot: Tensor  # (device, action) what that is too much, in grid steps; a value left is interpolated by it
    needed_steps_up: Tensor  # (device, action) what is needed in grid steps, rounded up

    def __len__(self) -> int:
        return len(self.power_watt)

    @cached_property
    def apart(self) -> bool:
        """Whether a device can send without training."""
        return bool((~self.trained & (self.power_watt > 0)).any())

    @cached_property
    def trains_silently(self) -> bool:
        """Whether a device can train without sending."""
        return bool((self.trained & (self.power_watt == 0)).any())

    @property
    def index_type(self) -> torch.dtype:
        """Smallest type that holds an action's index; the scenario allows 1000 powers."""
        return torch.int8 if len(self) <= 128 else torch.int16

    def last_of(self, allowed: Tensor) -> Tensor:
        """Last allowed action, idle always being allowed: train if possible, then send as strongly as possible.

        allowed (..., action) → (...).
        """
        return (allowed * self._order).argmax(-1)

    @cached_property
    def _order(self) -> Tensor:
        """1, 2, … (action,)."""
        return torch.arange(1, len(self) + 1, device=self.power_watt.device)


def action_set(scenario: Scenario) -> tuple[Tensor, Tensor]:
    """Powers [W] and training of all actions; (action,) each."""
    found = variant(ACTION_CATALOG, scenario.energy.actions, "energy.actions")
    power, trained = zip(*catalog.function(found, "acts")(scenario.energy), strict=True)
    return torch.tensor(power, dtype=torch.float64), torch.tensor(trained)


def action_energies(scenario: Scenario) -> tuple[Tensor, Tensor, Tensor]:
    """Powers [W] (action,), training (action,) and energies drawn [J] (device, action) of all actions.

    e = e_cmp·β + e_com, where storage is ideal.
    """
    power, beta = action_set(scenario)
    spent = consumption(scenario).drawn_joule(power.unsqueeze(1), beta.unsqueeze(1)).T.contiguous()
    largest, expected = float(spent.max()), f"spending of at most {MOST_JOULE:g} J"
    refuse(not largest <= MOST_JOULE, "energy.powers_watt", expected, f"value {largest:g}")
    return power, beta, spent


def actions_on(battery: Battery, power: Tensor, trained: Tensor, spent: Tensor, needed: Tensor) -> Actions:
    """Actions with what they spend and need in steps of a battery grid."""
    steps = battery.steps_up(spent), battery.overshoot(spent), battery.steps_up(needed)
    return Actions(power, trained, spent, needed, *steps)


def consumption(scenario: Scenario) -> Consumption:
    """What devices consume: training, sending, and what no action changes."""
    sending = build_sending(scenario.energy, transmit_second(scenario))
    return build_consumption(scenario, sending, compute_joule(scenario))
