"""Plans as files: one safetensors file with all tables, and their structure as JSON in its header; no pickle.

A policy is a tree of dataclasses, settings, tuples, numbers and tensors. Its classes are those of heliomesh's own
planners. Where the caller or an entry point names an outside planner, classes of its package count too, if they are
imported already. A file imports nothing else without ``trust``. The problem is not stored: it is built anew from the
scenario, which is. What is stored of it is its battery grid.
"""

import importlib
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel
from torch import Tensor

from heliomesh.common import catalog
from heliomesh.common.durable import read_header, read_tensors, write_tensors
from heliomesh.common.mistakes import MistakeError
from heliomesh.model.endless import cycle_of
from heliomesh.model.overhead import Overhead
from heliomesh.model.policy import Plan
from heliomesh.model.problem import Problem, build, with_battery
from heliomesh.scenario.scenario import Scenario

_FORMAT = "2"
# their files only define: a plan may name any of them
_ROOMS = ("heliomesh.planners.", "heliomesh.model.", "heliomesh.grid.", "heliomesh.slot.", "heliomesh.bounds.")
_MOVED = {  # what earlier plans name
    "heliomesh.problem.coordination": "heliomesh.slot.coordination",
    "heliomesh.problem.endless": "heliomesh.model.endless",
    "heliomesh.problem.factor": "heliomesh.model.factor",
}
_PLANNERS = "heliomesh.planners"
_SEQUENCES: dict[str, Callable[..., Any]] = {"tuple": tuple, "list": list, "frozenset": frozenset}
_KNOWN = ("lower_bound", "expected_cost", "converged", "rounds", "residual", "seconds", "process_seconds")


class PlanError(MistakeError, ValueError):
    """A plan cannot be written to a file, or a file is no plan that this version can read."""


def save_plan(plan: Plan, path: str | Path, *, planner: str | None = None) -> None:
    """Write a plan whole; raises PlanError where its policy is more than dataclasses and tensors.

    With ``planner`` also where `load_plan` would not read it for the same planner.
    """
    problem = getattr(plan.policy, "problem", None)
    if not isinstance(problem, Problem):
        raise PlanError("policy", "one with its problem", f"type {type(plan.policy).__name__}")
    writer = _Writer(problem, None if planner is None else _Classes(planner))
    header = {
        "planner": plan.planner,
        "policy": writer.encoded(plan.policy),
        "notes": list(plan.notes),
        "overhead": asdict(plan.overhead),
        **{name: getattr(plan, name) for name in _KNOWN},
    }
    where = {"device": problem.device.type, "dtype": str(problem.dtype).removeprefix("torch.")}
    texts = {"format": _FORMAT, "scenario": problem.scenario.to_toml(), "plan": json.dumps(header), **where}
    write_tensors(Path(path), writer.tensors, texts)


def load_plan(
    path: str | Path, problem: Problem | None = None, *, planner: str | None = None, trust: bool = False
) -> Plan:
    """Read a plan; its problem is built from the stored scenario unless it is given. Raises PlanError.

    ``planner`` is the one that the caller asked for: classes of its package may be named too.
    """
    source = Path(path)
    header, tensors = read_header(source, PlanError), read_tensors(source, PlanError)
    if header.get("format") != _FORMAT:
        raise PlanError(source, f"a plan in format {_FORMAT}", f"format {header.get('format')!r}")
    try:
        if problem is None:
            scenario = Scenario.from_toml(header["scenario"], trust=trust)
            problem = build(scenario, header["device"], header["dtype"])
        content = {"process_seconds": 0.0} | json.loads(header["plan"])  # the first plans do not say it
        classes = _Classes(planner or catalog.offered(_PLANNERS, str(content["planner"])), trust)
        policy = _Reader(problem, tensors, classes).decoded(content["policy"])
        if not callable(getattr(policy, "decide", None)):
            raise PlanError(f"expected a policy, actual type {type(policy).__name__}")
        known = {name: content[name] for name in _KNOWN}
        notes, overhead = tuple(content["notes"]), Overhead(**content["overhead"])
        return Plan(content["planner"], policy, notes=notes, overhead=overhead, **known)
    except PlanError as error:
        raise PlanError(f"{source}: {error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, ImportError, RecursionError) as error:
        raise PlanError(source, "a plan as it was written", f": {error}") from None


class _Classes:
    """Which classes a file may name: ours, and those of an outside planner's package that it has imported."""

    def __init__(self, planner: str | None, trust: bool = False) -> None:
        outside = None if planner is None else planner if ":" in planner else catalog.offered(_PLANNERS, planner)
        self._package = "" if outside is None else outside.partition(":")[0].partition(".")[0]
        self._trust = trust
        if planner is not None and outside is not None and ":" not in planner:
            catalog.find(_PLANNERS, planner)  # an installed package registered it

    def named(self, name: str) -> Any:
        """The class that ``module:name`` means; raises PlanError where a file may not name it."""
        module, _, path = name.partition(":")
        module = _MOVED.get(module, module)
        if self._trust or module.startswith(_ROOMS):
            found: Any = importlib.import_module(module)
        elif module in sys.modules and module.partition(".")[0] == self._package:
            found = sys.modules[module]
        else:
            ours = "expected classes of heliomesh's planners" + (f" or of {self._package}" if self._package else "")
            raise PlanError(f"{ours} (or trust=True), actual {name!r}")
        for part in path.split("."):
            found = getattr(found, part)
        if not (is_dataclass(found) or hasattr(found, "_fields") or issubclass(found, BaseModel)):
            raise PlanError(f"expected a dataclass or settings, actual {name!r}")
        if f"{module}:{path}" != _name_of(found):  # a module also holds what it imports
            raise PlanError(f"expected a class by the name of its own module, actual {name!r}")
        return found


def _name_of(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


class _Writer:
    """Turns a policy into plain data, and collects its tensors; one that occurs twice is kept once."""

    def __init__(self, problem: Problem, classes: _Classes | None) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._classes = classes
        self._problem, self._names = problem, dict[int, str]()

    def encoded(self, value: Any) -> Any:
        """A value as JSON: plain ones as they are, all others as an object with one tag."""
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, Tensor):
            return {"tensor": self._named(value)}
        if isinstance(value, np.ndarray):
            return {"array": self._named(value)}
        if type(value) in _SEQUENCES.values():
            return {type(value).__name__: [self.encoded(entry) for entry in value]}
        if isinstance(value, Mapping):
            return {"dict": [[self.encoded(key), self.encoded(entry)] for key, entry in value.items()]}
        return self._object(value)

    def _object(self, value: Any) -> dict[str, Any]:
        if isinstance(value, Problem):
            if value.scenario != self._problem.scenario:
                raise PlanError("policy", "parts of one problem", ": parts of several")
            step, cycle = self.encoded(value.battery.chosen_step_joule), value.cycle_slots
            grid = {"levels": value.battery.levels, "rounding": value.battery.rounding, "step": step}
            return {"problem": grid if cycle is None else grid | {"cycle": cycle}}
        name = _name_of(type(value))
        if self._classes is not None:
            self._classes.named(name)
        if isinstance(value, BaseModel):
            return {"settings": name, "values": value.model_dump(mode="json")}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return {"object": name, "values": {key: self.encoded(getattr(value, key)) for key in value._fields}}
        if is_dataclass(value):
            own = {part.name: self.encoded(getattr(value, part.name)) for part in fields(value) if part.init}
            return {"object": name, "values": own}
        raise PlanError("policy", "dataclasses, settings and tensors", f"type {name}")

    def _named(self, value: Any) -> str:
        if id(value) not in self._names:
            self._names[id(value)] = name = f"table {len(self._names)}"
            tensor = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
            self.tensors[name] = tensor.detach().cpu().contiguous().clone()
        return self._names[id(value)]


class _Reader:
    """The way back."""

    def __init__(self, problem: Problem, tensors: Mapping[str, Tensor], classes: _Classes) -> None:
        self._problem, self._classes = problem, classes
        self._grids: dict[tuple[int, str, int | None], Problem] = {}
        self._arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        self._tensors = {name: tensor.to(problem.device) for name, tensor in tensors.items()}

    def decoded(self, value: Any) -> Any:
        """A value from its JSON."""
        if not isinstance(value, dict):
            return value
        content: Any
        tag, content = next(iter(value.items()), ("nothing", None))
        if tag in _SEQUENCES:
            return _SEQUENCES[tag](self.decoded(entry) for entry in content)
        match tag:
            case "problem":
                grid = content["levels"], content["rounding"], content.get("cycle")
                return self._on_grid(*grid, self.decoded(content["step"]))
            case "tensor":
                return self._tensors[content]
            case "array":
                return self._arrays[content]
            case "dict":
                return {self.decoded(key): self.decoded(entry) for key, entry in content}
            case "settings":
                return self._classes.named(content).model_validate(value["values"])
            case "object":
                own = {name: self.decoded(entry) for name, entry in value["values"].items()}
                return self._classes.named(content)(**own)
        raise PlanError(f"expected a known kind of value, actual {tag!r}")

    def _on_grid(
        self, levels: int, rounding: Literal["up", "mean"], cycle: int | None, step_joule: Tensor | None
    ) -> Problem:
        """The problem, or that of a cycle, on a battery grid; the same object for the same grid."""
        if (levels, rounding, cycle) not in self._grids:
            problem = self._problem if cycle is None else cycle_of(self._problem, int(cycle))
            grid = problem.battery.on_grid(int(levels), rounding, step_joule)
            self._grids[levels, rounding, cycle] = with_battery(problem, grid)
        return self._grids[levels, rounding, cycle]
