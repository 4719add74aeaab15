"""A scheme: a planner with options of its own, an action set, an aggregation rule and an agreement phase.

    PLANNER[:OPTION=VALUE,…][ OPTION=VALUE …][+SETTING=VALUE …]

as in ``turns:power_watt=0.1,last_slots=20``, ``decentralized gamma=1e5`` or ``receiver+agree=6+rule=model``. Settings
are ``agree`` (slots before each deadline in which devices only send), ``rule`` (learning.aggregation), ``actions``
(energy.actions) and paths of the scenario. Planners meet the same random numbers whatever their action set is.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from heliomesh.common.arguments import Index, checked
from heliomesh.common.catalog import CodeOrName
from heliomesh.jobs.job import Job
from heliomesh.planning import find_planner
from heliomesh.scenario.errors import refuse
from heliomesh.scenario.scenario import Scenario, parse_override

_SHORT = {"rule": "learning.aggregation", "actions": "energy.actions"}
AGREE = "agree"


@checked
@dataclass(frozen=True)
class Scheme:
    """What is compared.

    Attributes
    ----------
    label
        What was written, or the name that a figure gives it.
    planner
        A name, or a function or module that can be imported.
    options
        Options of the planner.
    changes
        Settings of the scenario by path: an action set, an aggregation rule.
    agree
        Slots before each deadline in which devices only send.
    """

    label: str
    planner: CodeOrName
    options: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)
    agree: Index = 0

    @property
    def keeps_bound(self) -> bool:
        """Whether a bound for the scenario holds for it: world, energies and action set are the scenario's."""
        return not self.agree and set(self.changes) <= {_SHORT["rule"]}

    def named(self) -> "Scheme":
        """The same under the text that describes it, which `scheme_of` reads."""
        planner = self.planner if isinstance(self.planner, str) else find_planner(self.planner).name
        options = ",".join(_written(self.options))
        settings = {**self.changes, **({AGREE: self.agree} if self.agree else {})}
        return replace(self, label="+".join([planner + (options and f":{options}"), *_written(settings)]))

    def job(self, base: Job) -> Job:
        """The job of this scheme where ``base`` names all else."""
        own = self.scenario(base.scenario)
        return replace(base, scenario=own, planner=self.planner, options=self.options, agree=self.agree)

    def scenario(self, scenario: Scenario) -> Scenario:
        """The scenario with the scheme's own settings."""
        return scenario.override(self.changes) if self.changes else scenario


def scheme_of(given: "Scheme | CodeOrName") -> Scheme:
    """A scheme as it is, one of a planner without options, or the one that a text describes; raises ScenarioError."""
    if isinstance(given, Scheme):
        return given
    if not isinstance(given, str):
        return Scheme(find_planner(given).name, given)
    named, *settings = given.split("+")
    planner, options = _options(named)
    changes = dict(parse_override(text, f"scheme {given!r}") for text in settings)
    agree = changes.pop(AGREE, 0)
    is_count = isinstance(agree, int) and not isinstance(agree, bool) and agree >= 0
    refuse(not is_count, f"scheme {given!r}: {AGREE}", "a number of slots", f"value {agree!r}")
    in_full = {_SHORT.get(path, path): value for path, value in changes.items()}
    known = ", ".join([AGREE, *_SHORT])
    for path in in_full:
        refuse("." not in path, f"scheme {given!r}", f"{known} or a path of the scenario", f"value {path!r}")
    return Scheme(given, planner, options, in_full, agree)


def _options(text: str) -> tuple[str, dict[str, Any]]:
    """The planner that a text names, and its options; a colon is also part of ``module:function``."""
    head, *rest = text.split() or [""]
    before, colon, last = head.rpartition(":")
    planner, first = (before, last) if colon and "=" in last else (head, "")
    texts: Iterable[str] = [part for one in (first, *rest) for part in one.split(",") if part]
    return planner, dict(parse_override(one, f"planner {planner!r}") for one in texts)


def _written(settings: Mapping[str, Any]) -> list[str]:
    """Settings as `parse_override` reads them; a plus sign would begin the next one."""
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in settings.items()}
    return [f"{name}={text.replace('e+', 'e')}" for name, text in texts.items()]
