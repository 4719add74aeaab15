"""What a device sees within k hops, which costs its action enters, and how large its tables become."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from heliomesh.model.cost import edge_errors, idle_factor
from heliomesh.model.factor import Factor, Scope, Variable, action, energy, site, total
from heliomesh.model.policy import Sight
from heliomesh.model.problem import Problem


@dataclass(frozen=True)
class Neighbourhood:
    """The k-hop neighbourhood of one device."""

    problem: Problem
    device: int
    hops: int

    @cached_property
    def members(self) -> dict[int, int]:
        """Devices within k hops with their distance, the device itself included."""
        return self.problem.topology.within(self.device, self.hops)

    @cached_property
    def visible(self) -> Sight:
        """State variables of all members."""
        return Sight.within(self.problem, self.device, self.hops)

    @cached_property
    def cost_scope(self) -> Scope:
        """Everything that the device's own cost x_j depends on, in sight or not: sites, then actions."""
        problem = self.problem
        receivers = problem.topology.neighbours[self.device]
        sites = dict.fromkeys(site(s) for i in receivers for s in problem.sites_into(i))
        acting = {j for i in receivers for j in problem.heard_by(i)} | {self.device}
        return (*sites, *map(action, sorted(acting)))

    @cached_property
    def actors(self) -> tuple[int, ...]:
        """Members whose actions enter the device's own cost."""
        return tuple(v.owner for v in self.cost_scope if v.kind == "action" and v.owner in self.members)

    @cached_property
    def states(self) -> Scope:
        """State variables in sight on which the device's own value depends: sites, then energies of the actors."""
        sites = [v for v in self.cost_scope if v.kind == "site" and v in self.visible]
        return (*sites, *map(energy, self.actors))

    def hidden(self, scope: Iterable[Variable]) -> list[Variable]:
        """Variables of a scope that are out of sight."""
        return [v for v in scope if (v.owner not in self.members if v.kind == "action" else v not in self.visible)]

    @cached_property
    def _lost_terms(self) -> list[Factor]:
        """The weight of the device's update that each receiver misses, nothing averaged yet."""
        problem, device = self.problem, self.device
        terms = []
        for receiver in problem.topology.neighbours[device]:
            weight = float(problem.topology.edge_weight[problem.topology.edge(receiver, device)])
            terms.append(edge_errors(problem, receiver)[device].scaled(weight))
        return terms

    def cost(self, out_of_sight: Iterable[Factor]) -> Factor:
        """The device's cost x_j; what is out of sight is averaged over given laws, one per variable."""
        laws = {law.scope[0]: law for law in out_of_sight}
        terms = [idle_factor(self.problem, self.device)]
        for term in self._lost_terms:
            hidden = self.hidden(term.scope)
            terms.append(term.average(*(laws[v] for v in hidden), over=hidden) if hidden else term)
        return total(terms)


Areas = Sequence[Neighbourhood]  # (device,)
