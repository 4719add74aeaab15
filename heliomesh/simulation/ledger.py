"""Energy bookkeeping: first battery + harvested = spent + lost in charging + leaked + overflow + last battery.

What is spent leaves the storage: for training, for sending, for standing by (listening, waking and sleeping), for
messages where they are paid, and what the converter loses between storage and load.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from heliomesh.common.arguments import checked
from heliomesh.model.actions import consumption
from heliomesh.physics.storage import Consumption, build_losses
from heliomesh.scenario.errors import refuse
from heliomesh.scenario.scenario import Scenario
from heliomesh.simulation.trace import Trace

Joules = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Ledger:
    """Totals over slots [J]; every array has shape (episode, device)."""

    initial_joule: Joules
    harvested_joule: Joules
    spent_joule: Joules  # the next five together
    training_joule: Joules
    sending_joule: Joules
    standby_joule: Joules
    control_joule: Joules  # for messages, what the converter loses included
    converter_joule: Joules
    charging_joule: Joules
    leaked_joule: Joules
    overflow_joule: Joules
    stored_joule: Joules

    @property
    def imbalance_joule(self) -> Joules:
        """What the books fail to explain; rounding only."""
        lost = self.charging_joule + self.leaked_joule + self.overflow_joule
        return (self.initial_joule + self.harvested_joule) - (self.spent_joule + lost + self.stored_joule)

    @property
    def is_ideal(self) -> bool:
        """Whether nothing was lost but by overflow, and nothing spent but on training and sending models."""
        spent = self.standby_joule, self.control_joule, self.converter_joule
        losses = (*spent, self.charging_joule, self.leaked_joule)
        return all(float(np.abs(joule).sum()) <= _DUST * float(self.spent_joule.sum()) for joule in losses)


_DUST = 1e-8  # of the spending: batteries forgive as much


@checked
def energy_ledger(trace: Trace, scenario: Scenario | None = None) -> Ledger:
    """Balance the energy of every device in every episode.

    Parameters
    ----------
    trace
        What happened.
    scenario
        Whose storage has the losses; by default the trace's own.

    Returns
    -------
    Ledger
        What was harvested, spent, stored and lost [J]; (episode, device) each.
    """
    scenario = scenario or _scenario(trace)
    devices = trace.scheduled.shape[-1]
    expected = f"one of {devices} devices, as the trace has"
    refuse(scenario.network.devices != devices, "scenario", expected, f"number {scenario.network.devices}")
    used = consumption(scenario)
    losses = build_losses(scenario, used.drain_joule)
    spent = trace.spent_joule
    left = torch.from_numpy(trace.battery_joule[:, :-1] - spent)
    training = trace.scheduled * used.training_joule.numpy()
    sending = used.sending_joule(torch.from_numpy(trace.power_watt)).numpy()
    control = np.zeros_like(spent) if trace.control_joule is None else trace.control_joule
    standby, unstored = _standby(trace, used, spent - control), 1 - losses.charge_efficiency.numpy()
    return Ledger(
        initial_joule=trace.battery_joule[:, 0],
        harvested_joule=trace.harvested_joule.sum(1),
        spent_joule=spent.sum(1),
        training_joule=training.sum(1),
        sending_joule=sending.sum(1),
        standby_joule=standby.sum(1),
        control_joule=control.sum(1),
        converter_joule=(spent - training - sending - standby - control).sum(1),
        charging_joule=(unstored * (trace.harvested_joule - trace.overflow_joule)).sum(1),
        leaked_joule=((1 - losses.kept_share(left)) * left).numpy().sum(1),
        overflow_joule=trace.overflow_joule.sum(1),
        stored_joule=trace.battery_joule[:, -1],
    )


def dark_slots(trace: Trace) -> npt.NDArray[np.bool_]:
    """Whether a device's battery did not pay for the slot's drain; (episode, slot, device)."""
    drain = consumption(_scenario(trace)).drain_joule.numpy()
    dark: npt.NDArray[np.bool_] = trace.spent_joule < drain * (1 - _DUST)
    return dark


def _standby(trace: Trace, used: Consumption, spent_joule: Joules) -> Joules:
    """Delivered while standing by, of what is spent on all but messages; (episode, slot, device).

    A dark device delivers what it had left.
    """
    power, trained = torch.from_numpy(trace.power_watt), torch.from_numpy(trace.scheduled)
    drawn = spent_joule - used.drawn_joule(power, trained).numpy()
    share = used.standby_joule / used.drain_joule.clamp_min(1e-300)
    standby: Joules = np.clip(drawn, 0, used.drain_joule.numpy()) * share.numpy()
    return standby


def _scenario(trace: Trace) -> Scenario:
    return Scenario.from_toml(trace.scenario_toml)


def energy_facts(trace: Trace) -> dict[str, Any]:
    """Where the energy went, per episode, if anything was lost; and what the books fail to explain."""
    ledger = energy_ledger(trace)
    facts: dict[str, Any] = {}
    if not ledger.is_ideal:
        where = _WHERE if trace.control_joule is None else _WHERE | {"control": "spent on messages"}
        totals = {name: getattr(ledger, f"{part}_joule").sum(1) for part, name in where.items()}
        facts = {f"{name} [J]": float(joule.mean()) for name, joule in totals.items()}
        facts["dark share"] = float(dark_slots(trace).mean())
    return facts | {"energy ledger imbalance [J], largest": float(abs(ledger.imbalance_joule).max())}


_WHERE = {
    "training": "spent on training",
    "sending": "spent on sending",
    "standby": "spent on standing by",
    "converter": "lost in the converter",
    "charging": "lost in charging",
    "leaked": "leaked",
}
