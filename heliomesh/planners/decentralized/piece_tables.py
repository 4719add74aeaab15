"""The policy of the form by pieces: a device adds up what its receivers' pieces say and takes the cheapest action."""

from dataclasses import dataclass

import torch
from torch import Tensor

from heliomesh.problem.factor import Variable, energy, site
from heliomesh.problem.policy import ActionPolicy, Observation
from heliomesh.problem.problem import Problem
from heliomesh.problem.ties import first_least


@dataclass(frozen=True)
class Piece:
    """Tables of receivers of one shape; positions number the devices that a receiver hears."""

    senders: Tensor  # (receiver, position)
    sites: Tensor  # (receiver, site)
    class_of_energy: Tensor  # (device, energy)
    num_classes: int
    tables: Tensor  # (slot, receiver, position, channel, own energy, classes of others..., action) above idling


@dataclass(frozen=True)
class PieceTables(ActionPolicy):
    """Each device looks up one piece per receiver that hears it."""

    problem: Problem
    pieces: tuple[Piece, ...]
    looks_back = False

    def action(self, slot: int, seen: Observation) -> Tensor:
        """The affordable action of least sum; of equals the first."""
        problem, state = self.problem, seen.energy_state(self.problem)
        device = torch.arange(problem.num_devices, device=state.device)
        cost = torch.zeros(*state.shape, len(problem.actions), dtype=torch.float32, device=state.device)
        for piece in self.pieces:
            self._add(piece, slot, seen, state, cost)
        return first_least(cost.masked_fill(~problem.feasible[device, state], torch.inf))

    def _add(self, piece: Piece, slot: int, seen: Observation, state: Tensor, cost: Tensor) -> None:
        """Add a shape's pieces to the costs (batch, device, action) of the devices that are heard."""
        levels, heard = self.problem.channel.levels, piece.senders.shape[1]
        channel = torch.zeros(len(state), len(piece.senders), dtype=torch.long, device=state.device)
        for column in piece.sites.unbind(1):
            channel = channel * levels + seen.channel_level[:, column]
        classes = piece.class_of_energy[torch.arange(state.shape[1], device=state.device), state]
        receiver = torch.arange(len(piece.senders), device=state.device)
        for position in range(heard):
            entry = channel * self.problem.num_energy + state[:, piece.senders[:, position]]
            for other in range(heard):
                if other != position:
                    entry = entry * piece.num_classes + classes[:, piece.senders[:, other]]
            table = piece.tables[slot, :, position].reshape(len(receiver), -1, cost.shape[-1])
            cost.index_add_(1, piece.senders[:, position], table[receiver, entry])

    def visible(self, device: int) -> frozenset[Variable]:
        """Sites into the device's receivers and energies of all whom these hear."""
        found = {energy(device)}
        for piece in self.pieces:
            rows = (piece.senders == device).any(1)
            found |= {energy(j) for j in piece.senders[rows].flatten().tolist()}
            found |= {site(s) for s in piece.sites[rows].flatten().tolist()}
        return frozenset(found)
