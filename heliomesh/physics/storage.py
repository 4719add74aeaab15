"""What storage loses, and what a device draws from it in every slot whatever it does.

    b ← min(b^max, λ r + η_in u),    r = (b − e − D)⁺

e is drawn for training and sending, D for listening, sleeping and waking; both include what the converter loses. λ is
the share of r that a slot's leakage leaves, η_in the share of the harvest that is stored. A *law* says what λ is: one
file of `physics/storages` each. `scenario/storages` has published numbers, which a scenario's own replace.
"""

from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

import torch
from torch import Tensor

from heliomesh.common import catalog
from heliomesh.physics.piecewise import linear
from heliomesh.physics.sending import Sending
from heliomesh.scenario import parts
from heliomesh.scenario.errors import refuse
from heliomesh.scenario.scenario import Scenario
from heliomesh.scenario.schema import STORAGE_CATALOG, variant
from heliomesh.scenario.section import MOST_JOULE, per_device


@dataclass(frozen=True)
class Losses:
    """The numbers of a law, and the linear one; shape (device,) each. Zeros in what a law adds make it linear."""

    retention: Tensor  # λ, the largest where it depends on r: bounds count with it
    charge_efficiency: Tensor  # η_in
    drain_joule: Tensor  # D

    def kept_share(self, left_joule: Any) -> Any:
        """λ of what is left, r [J], by tensors or arrays; (..., device), or (device,) where r does not matter."""
        return self.retention

    @property
    def linear(self) -> "Losses":
        """The linear law that leaves at least as much."""
        return Losses(self.retention, self.charge_efficiency, self.drain_joule)


LOSSLESS = ("retention", "charge_efficiency")  # numbers that are 1 where nothing is lost; all others are 0


@dataclass(frozen=True)
class Converter:
    """Between storage and load: what it draws is linear in the load between the points of a table.

    Below the first point and above the last, the efficiency stays as it is there.
    """

    load_watt: Tensor  # (point,) rising
    drawn_watt: Tensor  # (point,) rising

    def per_joule(self, load_watt: Tensor) -> Tensor:
        """Joules drawn per joule delivered, 1 / η_out, at a load [W]; any shape."""
        inside = linear(load_watt, self.load_watt, self.drawn_watt) / load_watt.clamp_min(1e-300)
        ratio = self.drawn_watt / self.load_watt
        above = torch.where(load_watt >= self.load_watt[-1], ratio[-1], inside)
        return torch.where(load_watt <= self.load_watt[0], ratio[0], above)

    def delivered_watt(self, drawn_watt: Tensor) -> Tensor:
        """The load [W] that draws so much [W]; any shape."""
        inside = linear(drawn_watt, self.drawn_watt, self.load_watt)
        ratio = self.load_watt / self.drawn_watt
        above = torch.where(drawn_watt >= self.drawn_watt[-1], drawn_watt * ratio[-1], inside)
        return torch.where(drawn_watt <= self.drawn_watt[0], drawn_watt * ratio[0], above)


def _published(scenario: Scenario, name: str) -> Any:
    """A number of the scenario's own, else of its storage's sheet."""
    own = getattr(scenario.energy, name)
    return getattr(_sheet(scenario.energy.storage), name) if own is None else own


_sheet = cache(partial(parts.read, "storage"))


def charge_efficiency(scenario: Scenario) -> Tensor:
    """η_in; (device,)."""
    return by_device(_published(scenario, "charge_efficiency"), scenario.network.devices)


def leak_per_day(scenario: Scenario) -> Tensor:
    """Share of what is stored that a day takes; (device,)."""
    return by_device(_published(scenario, "leak_per_day"), scenario.network.devices)


def slot_days(scenario: Scenario) -> float:
    """A slot in days."""
    return scenario.energy.slot_second / 86400.0


def build_converter(scenario: Scenario) -> Converter:
    """The converter of all devices."""
    efficiency = _published(scenario, "converter_efficiency")
    points = [(1.0, efficiency)] if isinstance(efficiency, float) else efficiency
    load, share = (torch.tensor(column, dtype=torch.float64) for column in zip(*points, strict=True))
    return Converter(load, load / share)


@dataclass(frozen=True)
class Consumption:
    """What devices deliver to their loads [J], and what they draw from storage for it."""

    converter: Converter
    training_joule: Tensor  # (device,) delivered in a slot with training
    training_watt: Tensor  # (device,) the load meanwhile
    standby_joule: Tensor  # (device,) delivered in every slot: listening, waking to listen, sleeping
    drain_joule: Tensor  # (device,) D, drawn for that
    wake_joule: Tensor  # (device,) delivered in a slot with sending; zero where the radio wakes to listen
    sending: Sending
    factor: Tensor  # (device,) on all that is drawn for training and sending

    def sending_joule(self, power_watt: Tensor) -> Tensor:
        """Delivered to the radio while it sends; (..., device) → (..., device)."""
        return self.sending.joule(power_watt) + self.wake_joule * (power_watt > 0)

    def slot_joule(self, power_watt: Tensor, trained: Tensor) -> Tensor:
        """All that is drawn in a slot, e + D, if the battery holds it; (..., device) → (..., device)."""
        return self.drawn_joule(power_watt, trained) + self.drain_joule

    def drawn_joule(self, power_watt: Tensor, trained: Tensor) -> Tensor:
        """e, drawn for training and sending; (..., device) → (..., device)."""
        load_watt = self.sending.drawn_watt(power_watt)
        sending = self.sending_joule(power_watt) * self.converter.per_joule(load_watt)
        return trained * self.training_drawn_joule + sending * self.factor

    @cached_property
    def training_drawn_joule(self) -> Tensor:
        """Drawn in a slot with training; (device,)."""
        return self.training_joule * self.converter.per_joule(self.training_watt) * self.factor

    def most_watt(self, joule: Tensor) -> Tensor:
        """The largest power [W] whose sending draws at most so much [J]; (..., device)."""
        # waking is charged at the table's least efficiency, so that the sum is never more than asked
        dearest = (self.converter.drawn_watt / self.converter.load_watt).max()
        left = (joule / self.factor - self.wake_joule * dearest).clamp_min(0)
        return self.sending.radiated_watt(self.converter.delivered_watt(left / self.sending.second))


def build_consumption(scenario: Scenario, sending: Sending, compute_joule: list[float]) -> Consumption:
    """All that devices consume; raises ScenarioError where it is more than numbers hold."""
    energy, converter, devices = scenario.energy, build_converter(scenario), scenario.network.devices
    own = (energy.receive_watt, energy.listen_second, energy.sleep_watt, energy.wake_joule)
    receive, listen, sleep, wake = (by_device(value, devices) for value in own)
    listening = receive * listen + torch.where(listen > 0, wake, 0.0)
    sleeping = sleep * (energy.slot_second - listen)
    drain = listening * converter.per_joule(receive) + sleeping * converter.per_joule(sleep)
    largest, expected = float(drain.max()), f"listening and sleeping to draw at most {MOST_JOULE:g} J"
    refuse(not largest <= MOST_JOULE, "energy.sleep_watt", expected, f"value {largest:g}")
    training = torch.tensor(compute_joule, dtype=torch.float64)
    computing = energy.compute_watt  # where it is not known, training is spread over the slot
    return Consumption(
        converter=converter,
        training_joule=training,
        training_watt=training / energy.slot_second if computing is None else by_device(computing, devices),
        standby_joule=listening + sleeping,
        drain_joule=drain,
        wake_joule=torch.where(listen > 0, 0.0, wake),
        sending=sending,
        factor=torch.ones_like(training),
    )


def build_losses(scenario: Scenario, drain_joule: Tensor) -> Losses:
    """The numbers of the scenario's storage law, with the drain (device,)."""
    law = variant(STORAGE_CATALOG, scenario.storage.source, "storage.source")
    losses: Losses = catalog.function(law, "build")(scenario.storage, scenario, drain_joule)
    return losses


def by_device(value: float | tuple[float, ...], devices: int) -> Tensor:
    """One number for all, or one each; (device,)."""
    return torch.tensor(per_device(value, devices), dtype=torch.float64)
