"""Tables with named axes: a function of a few variables of the network, and the algebra of such functions.

A variable is a channel site, a device's energy state (weather and battery level) or a device's action. Names instead
of positions let a planner's line read as its equation: ``(cost + future).average(policy, over=...)``.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from string import ascii_letters
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from heliomesh.common.memory_limit import TooLargeError


class Variable(NamedTuple):
    """One finite variable of the network: its kind and the number of the site or device that owns it."""

    kind: Literal["site", "energy", "action"]
    owner: int


Scope = tuple[Variable, ...]


def site(number: int) -> Variable:
    """Channel level of a site."""
    return Variable("site", number)


def energy(device: int) -> Variable:
    """Energy state of a device: weather × battery level."""
    return Variable("energy", device)


def action(device: int) -> Variable:
    """Action of a device: an index into the problem's action set."""
    return Variable("action", device)


@dataclass(frozen=True)
class Factor:
    """A real function of the variables in ``scope``; axis k of ``table`` belongs to ``scope[k]``."""

    scope: Scope
    table: Tensor

    def aligned(self, scope: Scope) -> Tensor:
        """The table with axes in the order of ``scope`` (a superset) and length 1 where it does not depend."""
        own = [variable for variable in scope if variable in self.scope]
        if len(own) != len(self.scope):
            raise ValueError(f"scope: expected one that includes {self.scope}, actual value {scope}")
        permuted = self.table.permute([self.scope.index(variable) for variable in own])
        index = tuple(slice(None) if variable in self.scope else None for variable in scope)
        return permuted[index]

    def __add__(self, other: "Factor") -> "Factor":
        scope = union_scope(self, other)
        return Factor(scope, self.aligned(scope) + other.aligned(scope))

    def scaled(self, weight: float) -> "Factor":
        """The factor times a number; itself times one."""
        return self if weight == 1 else Factor(self.scope, self.table * weight)

    def restrict(self, values: Mapping[Variable, int]) -> "Factor":
        """Fix variables to values; those that do not occur are ignored."""
        index = tuple(values.get(variable, slice(None)) for variable in self.scope)
        return Factor(tuple(v for v in self.scope if v not in values), self.table[index])

    def average(self, *laws: "Factor", over: Collection[Variable]) -> "Factor":
        """Σ over the variables in ``over`` of factor × laws; the result depends on all the rest."""
        factors = (self, *laws)
        both = union_scope(*factors)
        left = tuple(variable for variable in both if variable not in over)
        if len(both) > len(ascii_letters):
            raise TooLargeError("table", f"at most {len(ascii_letters)} variables", f"number {len(both)}")
        letter = dict(zip(both, ascii_letters, strict=False))
        inputs = ",".join("".join(letter[v] for v in factor.scope) for factor in factors)
        output = "".join(letter[v] for v in left)
        return Factor(left, torch.einsum(f"{inputs}->{output}", *(factor.table for factor in factors)))

    def renamed(self, name: Callable[[Variable], Variable]) -> "Factor":
        """The same function of other variables."""
        return Factor(tuple(name(variable) for variable in self.scope), self.table)

    def at(self, assignment: Mapping[Variable, Tensor]) -> Tensor:
        """Values at a batch of assignments: one index tensor per variable of the scope."""
        return self.table[tuple(assignment[variable] for variable in self.scope)]


def union_scope(*factors: Factor) -> Scope:
    """All variables of some factors, in order of first appearance."""
    return tuple(dict.fromkeys(variable for factor in factors for variable in factor.scope))


def total(factors: Collection[Factor]) -> Factor:
    """Sum of factors; at least one."""
    scope = union_scope(*factors)
    terms = [factor.aligned(scope) for factor in factors]
    table = terms[0]
    for term in terms[1:]:
        table = table + term
    return Factor(scope, table)
