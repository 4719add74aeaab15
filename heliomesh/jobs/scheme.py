"""A scheme: a planner with options of its own, an action set, an aggregation rule and an agreement phase.

    PLANNER[:OPTION=VALUE,…][ OPTION=VALUE …][+SETTING=VALUE …]

as in ``turns:power_watt=0.1,last_slots=20``, ``decentralized gamma=1e5`` or ``receiver+agree=6+rule=model``. Settings
are ``agree`` (slots before each deadline in which devices only send), ``rule`` (learning.aggregation), ``actions``
(energy.actions) and paths of the scenario. Planners meet the same random numbers whatever their action set is.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from heliomesh.common.catalog import CodeOrName
from heliomesh.jobs.job import Job
from heliomesh.planning import find_planner
from heliomesh.scenario.errors import ScenarioError
from heliomesh.scenario.scenario import Scenario, parse_override

_SHORT = {"rule": "learning.aggregation", "actions": "energy.actions"}
_AGREE = "agree"


@dataclass(frozen=True)
class Scheme:
    """What is compared; ``label`` is what was written."""

    planner: CodeOrName
    options: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)  # of the scenario
    agree: int = 0  # slots
    label: str = ""

    def job(self, base: Job) -> Job:
        """The job of this scheme where ``base`` names all else."""
        return replace(
            base,
            scenario=self.scenario(base.scenario),
            planner=self.planner,
            options=self.options,
            agree=self.agree,
        )

    def scenario(self, scenario: Scenario) -> Scenario:
        """The scenario with the scheme's own settings."""
        return scenario.override(self.changes) if self.changes else scenario


def scheme_of(given: "Scheme | CodeOrName") -> Scheme:
    """A scheme as it is, one of a planner without options, or the one that a text describes; raises ScenarioError."""
    if isinstance(given, Scheme):
        return given
    if not isinstance(given, str):
        return Scheme(given, label=find_planner(given).name)
    named, *settings = given.split("+")
    planner, options = _options(named)
    changes = dict(parse_override(text, f"scheme {given!r}") for text in settings)
    agree = changes.pop(_AGREE, 0)
    if not isinstance(agree, int) or isinstance(agree, bool) or agree < 0:
        raise ScenarioError(f"scheme {given!r}: {_AGREE}", "a number of slots", f"value {agree!r}")
    in_full = {_SHORT.get(path, path): value for path, value in changes.items()}
    for path in in_full:
        if "." not in path:
            known = ", ".join([_AGREE, *_SHORT])
            raise ScenarioError(f"scheme {given!r}", f"{known} or a path of the scenario", f"value {path!r}")
    return Scheme(planner, options, in_full, agree, given)


def _options(text: str) -> tuple[str, dict[str, Any]]:
    """The planner that a text names, and its options; a colon is also part of ``module:function``."""
    head, *rest = text.split()
    before, colon, last = head.rpartition(":")
    planner, first = (before, last) if colon and "=" in last else (head, "")
    texts: Iterable[str] = [part for one in (first, *rest) for part in one.split(",") if part]
    return planner, dict(parse_override(one, f"planner {planner!r}") for one in texts)
