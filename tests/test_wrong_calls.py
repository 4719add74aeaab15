"""Every public function and class, called with arguments of another kind: one sentence that names the argument.

Which values are of the right kind is written down here by the annotation's text, apart from the package's own check.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest

import heliomesh as hm
from heliomesh.tasks.dataset import load_dataset

SCENARIO = hm.Scenario.load("tiny").override({"slots": 3, "learning.local_steps": 1})
METHODS = {  # those that users call with arguments
    "Scenario": ("load", "parse", "override", "first_slots"),
    "Plan": ("load", "save"),
    "Trace": ("load", "save", "episode", "first_slots"),
    "Run": ("load", "save"),
    "Job": ("key", "identity"),
    "Store": ("place", "has", "plan", "trace", "traces", "run", "runs", "means", "pack", "facts", "view"),
}
RESULTS = {
    "Dataset",
    "Plan",
    "Problem",
    "Run",
    "SampledBound",
    "Scenario",
    "Trace",
}  # made by functions, not by users


@cache
def nouns() -> dict[str, Any]:
    """One object of every kind that the package makes."""
    problem = hm.build(SCENARIO)
    plan = hm.plan(problem, "uncoordinated")
    trace = hm.simulate(problem, plan, 1)
    job = hm.Job(SCENARIO, "uncoordinated")
    return {
        "Scenario": SCENARIO,
        "Problem": problem,
        "Plan": plan,
        "Trace": trace,
        "Run": hm.train(SCENARIO, trace),
        "Job": job,
        "TrainJob": hm.TrainJob(SCENARIO, trace),
        "TrainSettings": hm.TrainSettings(),
        "Execution": hm.Execution(),
        "Dataset": load_dataset(SCENARIO.learning),
        "Store": hm.Store(Path(mkdtemp())),
    }


PLAIN: dict[str, Any] = {
    "None": None,
    "text": "no such thing",
    "int": 7,
    "float": 1.5,
    "empty list": [],
    "list of ints": [1, 2],
    "mapping": {"a": 1},
    "bytes": b"x",
    "object": object(),
}
# what an annotation lets in, by its text without modules; nouns are let in by their names
RIGHT = {
    "CodeOrName": {"text"},
    "ArrayLike": set(),
    "int": {"int"},
    "float": {"int", "float"},
    "bool": set(),
    "str": {"text"},
    "Path": set(),
    "None": {"None"},
    "Sequence[int]": {"empty list", "list of ints"},
    "Sequence[float]": {"empty list", "list of ints"},
    "Sequence": {"empty list"},
    "Mapping": {"mapping"},
}


def right_kinds(annotation: str) -> set[str]:
    """Names of the values that are of the kind of an annotation."""
    if "_NestedSequence" in annotation:
        return RIGHT["ArrayLike"]
    text = annotation.replace("collections.abc.", "").replace("pathlib.", "").replace("typing.", "")
    text = text.replace("str | Callable[..., Any] | module | types.SimpleNamespace", "CodeOrName")
    text = re.sub(r"Annotated\[(\w+), [^]]*\]", r"\1", text)  # first those inside
    text = re.sub(r"Annotated\[(.+?\]), \S*Limit\([^]]*\)\]", r"\1", text)
    found: set[str] = set()
    for part in _alternatives(text):
        name = part.rsplit(".", 1)[-1] if "[" not in part else part
        if name in ("object", "Any"):
            return {*PLAIN, *nouns()}
        if "[" in part and part not in RIGHT:
            name = part.split("[", 1)[0].removeprefix("tuple").rsplit(".", 1)[-1] or "Sequence"
        found |= RIGHT.get(name, {name})
    return found


def _alternatives(text: str) -> list[str]:
    """Parts of a union."""
    if text.startswith("Optional["):
        return [*_alternatives(text.removeprefix("Optional[")[:-1]), "None"]
    sign = "|"
    if text.startswith("Union["):
        text, sign = text.removeprefix("Union[")[:-1], ","
    parts, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if letter == sign and depth == 0:
            parts.append(text[start:place].strip())
            start = place + 1
    return [*parts, text[start:].strip()]


def doors() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Public functions, constructors and methods, by name."""
    for name in hm.__all__:
        value = getattr(hm, name)
        if inspect.isclass(value):
            if not issubclass(value, BaseException) and name not in RESULTS:
                yield name, value
        elif callable(value):
            yield name, value
    for noun, methods in METHODS.items():
        for method in methods:
            yield f"{noun}.{method}", getattr(nouns()[noun], method)


@cache
def right_arguments() -> dict[str, Any]:
    """Arguments without defaults, by name."""
    arrays = {"inputs": np.zeros((4, 2)), "labels": [0, 1, 0, 1]}
    return {f"{part}_{what}": arrays[what] for part in ("train", "test") for what in arrays} | {
        "changes": {},
        "data": {},
        "folder": Path("folder"),
        "jobs": [nouns()["Job"]],
        "label": "label",
        "name": "name",
        "name_or_path": "tiny",
        "number": 0,
        "path": "file",
        "plan": nouns()["Plan"],
        "planner": "uncoordinated",
        "runs": ["folder"],
        "scenario": SCENARIO,
        "schemes": ["uncoordinated"],
        "slots": 2,
        "step": "plan",
    }


def whole_call(door: str, function: Callable[..., Any]) -> dict[str, Any]:
    """Arguments of the right kinds for all parameters without a default."""
    given = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD:
            kind = str(parameter.annotation).rsplit(".", 1)[-1].rstrip("'>")
            given[name] = nouns().get(kind) or right_arguments()[name]
    if door == "train_many":
        given["jobs"] = [nouns()["TrainJob"]]
    return given | ({"changes": ["link.0-1=off@1"]} if door == "live" else {})


def wrong_calls(door: str) -> Iterator[tuple[str, Callable[..., Any], dict[str, Any], str, Any]]:
    """All calls with one argument of another kind."""
    function = dict(doors())[door]
    base = whole_call(door, function)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        annotation = inspect.formatannotation(parameter.annotation)
        right = right_kinds(annotation)
        for label, value in (PLAIN | nouns()).items():
            if label not in right:
                yield f"{door}({parameter.name}={label})", function, base, parameter.name, value


def message_of(function: Callable[..., Any], arguments: dict[str, Any]) -> str:
    """The sentence of a user's mistake; any other error passes."""
    try:
        function(**arguments)
    except hm.MistakeError as error:
        return str(error)
    return "accepted"


@pytest.mark.parametrize("door", [name for name, _ in doors()])
def test_an_argument_of_another_kind_is_named(door: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for label, function, base, name, value in wrong_calls(door):
        try:
            message = message_of(function, {**base, name: value})
        except Exception as error:
            pytest.fail(f"{label}: {type(error).__name__}: {error}")
        assert message.startswith(f"{name}: expected "), f"{label}: {message}"
        assert ", actual " in message, f"{label}: {message}"
        assert "\n" not in message
    assert list(tmp_path.iterdir()) == []


def problem() -> hm.Problem:
    return nouns()["Problem"]


def other() -> hm.Problem:
    """A problem of another size."""
    return hm.build(SCENARIO.override({"network.devices": 6}))


# right kinds, wrong values: the call, and how its sentence begins
VALUES: dict[str, tuple[Callable[[], Any], str]] = {
    "no episode": (
        lambda: hm.simulate(problem(), nouns()["Plan"], 0),
        "episodes: expected a whole number of at least 1",
    ),
    "no numbers": (lambda: hm.simulate_costs(problem(), nouns()["Plan"], []), "episodes: expected a whole number"),
    "episode -1": (lambda: hm.simulate(problem(), nouns()["Plan"], [-1]), "episodes: expected a whole number"),
    "seed -1": (
        lambda: hm.simulate(problem(), nouns()["Plan"], 1, -1),
        "seed: expected a whole number of at least 0",
    ),
    "a seed of 400 digits": (
        lambda: hm.simulate(problem(), nouns()["Plan"], 1, -(10**400)),
        "seed: expected a whole number of at least 0",
    ),
    "none at once": (lambda: hm.simulate_costs(problem(), nouns()["Plan"], 1, at_once=0), "at_once: expected"),
    "another problem": (
        lambda: hm.simulate(other(), nouns()["Plan"], 1),
        "plan: expected one for (6, 3, 1, 3) devices",
    ),
    "another's cost": (
        lambda: hm.exact_cost(other(), nouns()["Plan"]),
        "plan: expected one for (6, 3, 1, 3) devices",
    ),
    "another world": (
        lambda: hm.simulate(problem(), nouns()["Plan"], 1, truth={1: other()}),
        "truth: expected worlds of 5 devices and 10 edges, actual value 6 and 12",
    ),
    "no planner": (lambda: hm.compare(problem(), []), "names: expected a list that is not empty"),
    "no such planner": (lambda: hm.compare(problem(), ["nope"]), "planner: expected one of"),
    "no policy": (
        lambda: hm.plan(problem(), lambda context: 7),
        "planner: expected one that returns a policy",
    ),
    "negative trainings": (lambda: hm.compare(problem(), ["turns"], 1, train=-1), "train: expected a whole number"),
    "no stack": (lambda: hm.compare(problem(), ["turns"], 1, stacks_at_once=0), "stacks_at_once: expected"),
    "no such setting": (
        lambda: hm.compare(problem(), ["turns"], 1, nope=1),
        "nope: expected one of checkpoint_every",
    ),
    "keys that are numbers": (lambda: SCENARIO.override({1: 1}), "changes: expected a mapping, each key text"),  # type: ignore[dict-item]
    "no capacity": (lambda: hm.size(SCENARIO, target_loss=0.5, capacity_joule=[]), "capacity_joule: expected a list"),
    "one episode": (
        lambda: hm.size(SCENARIO, target_loss=0.5, episodes=1),
        "episodes: expected a whole number of at le",
    ),
    "slot 0": (
        lambda: hm.size(SCENARIO, target_accuracy=0.5, by_slot=0),
        "by_slot: expected a whole number of at least",
    ),
    "episode of a run": (
        lambda: hm.run(SCENARIO, "turns", episode=-1),
        "episode: expected a whole number of at least 0",
    ),
    "negative steps": (lambda: hm.sampled_bound(problem(), steps=-1), "steps: expected a whole number of at least 0"),
    "another's ledger": (
        lambda: hm.energy_ledger(nouns()["Trace"], other().scenario),
        "scenario: expected one of 5 dev",
    ),
    "episode 5 of 1": (
        lambda: hm.TrainJob(SCENARIO, nouns()["Trace"], 5),
        "episode: expected 0 to 0, as the trace has, actual value 5",
    ),
    "episode 99": (lambda: nouns()["Trace"].episode(99), "number: expected an episode below 1, actual value 99"),
    "99 slots": (lambda: nouns()["Trace"].first_slots(99), "slots: expected at most 3, actual value 99"),
    "samples below 0": (lambda: hm.TrainSettings(device_samples=-1), "device_samples: expected a whole number of at"),
    "certain alarms": (
        lambda: hm.Job(SCENARIO, "turns", reaction="re-planned", false_alarm_prob=7.0),
        "false_alarm_prob: expected a number between 0 and 1, actual value 7.0",
    ),
    "world of slot -1": (
        lambda: hm.simulate(problem(), nouns()["Plan"], 1, truth={-1: problem()}),
        "truth: expected a mapping, each key a whole number of at least 0",
    ),
    "job of slot -1": (lambda: hm.Job(SCENARIO, episode=-1), "episode: expected a whole number of at least 0"),
    "half a scenario": (lambda: hm.Scenario(name="a"), "channel: expected a value, actual value missing"),  # type: ignore[call-arg]
    "a name that is none": (lambda: hm.Scenario(name=3), "name: expected text, actual value 3"),  # type: ignore[arg-type, call-arg]
}


@pytest.mark.parametrize("case", VALUES)
def test_a_value_out_of_range_is_named(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    call, start = VALUES[case]
    message = message_of(call, {})
    assert message.startswith(start)
    assert ", actual " in message


def test_a_store_takes_a_folder_by_name(tmp_path: Path) -> None:
    assert hm.Store(str(tmp_path)) == hm.Store(tmp_path)
    assert hm.Store(str(tmp_path)).folder == tmp_path


def test_the_sentences_of_the_worst_calls() -> None:
    with pytest.raises(hm.MistakeError, match=r"^problem: expected a Problem, actual value of type Scenario$"):
        hm.compare(SCENARIO)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^scenario: expected a Scenario, actual value 'tiny'$"):
        hm.build("tiny")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^precision: expected one of 'fp32', 'tf32', 'bf16', actual value 'fp8'$"):
        hm.TrainSettings(precision="fp8")  # type: ignore[arg-type]


def test_what_python_itself_refuses_is_left_to_python() -> None:
    with pytest.raises(TypeError, match="missing a required argument: 'scenario'"):
        hm.build()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'nope'"):
        hm.build(SCENARIO, nope=1)  # type: ignore[call-arg]
