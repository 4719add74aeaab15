"""Dynamic programs of single devices against given action prices: all devices at once.

v_t(b) = min over feasible a of  price_t(a) + E[v_{t+1} | b − e(a)]
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from heliomesh.grid.after_spending import Spending
from heliomesh.grid.cycle_fixed_point import settle_laws, settle_values
from heliomesh.model.problem import Problem
from heliomesh.slot.ties import first_least


def opportunity_values(problem: Problem, price: Tensor) -> Tensor:
    """Post-decision values of every device whose prices of actions are drawn anew in every slot.

        v_t(b) = mean over opportunities of  min over feasible a of  price(a) + E[v_{t+1} | b − e(a)]

    price (slot, opportunity, device, action), equally likely → (slot, device, energy); around a cycle they are right
    but for a constant of every device.
    """
    slots, _, devices, _ = price.shape
    programs = DevicePrograms(problem, torch.arange(devices, device=problem.device))
    futures = torch.empty(slots, devices, problem.num_energy, dtype=problem.dtype, device=problem.device)

    def before(value: Tensor) -> Tensor:
        """Values before the first slot of those after the last."""
        for slot in range(slots - 1, -1, -1):
            if programs.goes_on(slot):
                value = (programs.kernels(slot) @ value.unsqueeze(-1)).squeeze(-1)
            futures[slot] = value
            reached = programs.read(futures[slot]) + programs.barred
            value = torch.stack([(now.unsqueeze(1) + reached).amin(-1) for now in price[slot].to(reached)]).mean(0)
        return value

    nothing = torch.zeros_like(futures[0])
    if problem.endless:
        settle_values(before, nothing, slots, _TOLERANCE)
    else:
        before(nothing)
    return futures


_TOLERANCE = 1e-3  # of opportunities around a cycle; tables round values to more than that


class DevicePrograms(Spending):
    """What dynamic programs of some devices share."""

    def goes_on(self, slot: int) -> bool:
        """Whether another slot follows."""
        return self.problem.endless or slot < self.problem.slots - 1

    def kernels(self, slot: int) -> Tensor:
        """`Problem.energy_kernels` of the devices; (device, energy, energy)."""
        phase = int(self.problem.harvest.law.phase_of_slot[slot])
        if phase not in self._newest:
            self._newest.clear()  # a law may have many phases
            self._newest[phase] = self.problem.energy_kernels(slot)[self.devices]
        return self._newest[phase]

    @cached_property
    def _newest(self) -> dict[int, Tensor]:
        """Kernels of the phase last asked for."""
        return {}


@dataclass(frozen=True)
class OwnPrograms(DevicePrograms):
    """Dynamic programs of some devices, each on its own.

    Loops over slots hold as few operations as can be: on small networks each costs more than its arithmetic.
    """

    def best_responses(self, price: Tensor) -> tuple[Tensor, Tensor, bool]:
        """Optimal actions and post-decision values against prices (slot, device, action).

        Returns actions (slot, device, energy), futures (slot, device, energy): E[v_{t+1} | state after spending], and
        whether these are exact: around a cycle they are but for a constant, once they have settled.
        """
        slots, shape = len(price), (len(self.devices), self.problem.num_energy, price.shape[-1])
        futures = price.new_zeros(slots, *shape[:2])

        def before(last: Tensor) -> Tensor:
            """Values before the first slot of those after the last."""
            value = last.clone()
            for slot in range(slots - 1, -1, -1):
                future = futures[slot]
                if self.goes_on(slot):
                    torch.bmm(self.kernels(slot), value.unsqueeze(-1), out=future.unsqueeze(-1))
                torch.amin(self._costs(future, price[slot]), -1, out=value)
            return value

        nothing, exact = price.new_zeros(shape[:2]), True
        if self.problem.endless:
            exact, _ = settle_values(before, nothing, slots)
        else:
            before(nothing)
        at_once = max(1, _COST_ENTRIES[price.device.type] // self.barred.numel())
        pieces = zip(torch.split(futures, at_once), torch.split(price, at_once), strict=True)
        best = [first_least(self._costs(*piece)).to(self.problem.actions.index_type) for piece in pieces]
        return torch.cat(best), futures, exact

    def _costs(self, future: Tensor, price: Tensor) -> Tensor:
        """Price and future of every action; (..., device, energy), (..., action) → (..., device, energy, action)."""
        return self.read(future).add_(price.unsqueeze(-2)).add_(self.barred)

    def action_laws(self, actions: Tensor) -> Tensor:
        """Law of every action in every slot; actions (slot, device, energy) → (slot, device, action).

        Around a cycle these are the laws in the long run.
        """
        problem, chosen = self.problem, actions.long()
        slots, count = len(actions), len(problem.actions)
        place = chosen + count * torch.arange(problem.num_energy, device=problem.device)
        # (slot, device, energy)
        lower, upper = (table.expand(slots, -1, -1).gather(2, place) for table in (self.lower, self.upper))
        share = None if self.share is None else self.share.expand(slots, -1, -1).gather(2, place)
        held = torch.empty(actions.shape, dtype=problem.dtype, device=problem.device)

        def after(law: Tensor) -> Tensor:
            """Laws of the energies after the last slot of those before the first."""
            for slot in range(slots):
                held[slot] = law
                if share is None:
                    stored = torch.zeros_like(law).scatter_add_(1, lower[slot], law)
                else:
                    above = law * share[slot]
                    stored = torch.zeros_like(law).scatter_add_(1, lower[slot], law - above)
                    stored.scatter_add_(1, upper[slot], above)
                law = torch.bmm(stored.unsqueeze(1), self.kernels(slot)).squeeze(1)
            return law

        first = problem.initial_energy_law[self.devices]
        if problem.endless:
            settle_laws(after, first, slots)
        else:
            after(first)
        return held.new_zeros(*held.shape[:2], count).scatter_add_(2, chosen, held)


_COST_ENTRIES = {"cpu": 1 << 20, "cuda": 1 << 27}  # costs of actions compared at a time


def action_laws(problem: Problem, actions: Tensor) -> Tensor:
    """Law of every device's action in every slot; actions (slot, device, energy) → (slot, device, action)."""
    return OwnPrograms(problem, torch.arange(problem.num_devices, device=problem.device)).action_laws(actions)
