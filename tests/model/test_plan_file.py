"""Plans as files: the same decisions after reading, and nothing else is read."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import heliomesh as hm
from heliomesh.model.plan_file import PlanError
from heliomesh.model.policy import Decision, Observation, Plan
from heliomesh.model.problem import Problem
from heliomesh.studies.compare import in_variants

TINY = hm.Scenario.load("tiny").override({"slots": 6})
EVERY = [(scheme.planner, scheme.options) for scheme in in_variants(hm.planner_names())]


@pytest.fixture(scope="module")
def problem() -> Problem:
    return hm.build(TINY)


@pytest.fixture
def saved(tmp_path: Path, problem: Problem) -> Path:
    path = tmp_path / "plan.safetensors"
    hm.plan(problem, "receiver").save(path)
    return path


@pytest.mark.parametrize(("planner", "options"), [*EVERY, ("myopic", {"mode": "continuous"})])
def test_every_planner_s_plan_decides_the_same_after_reading(
    planner: str, options: dict[str, Any], problem: Problem, tmp_path: Path
) -> None:
    made = hm.plan(problem, planner, **options)
    made.save(tmp_path / "plan.safetensors")
    read = Plan.load(tmp_path / "plan.safetensors")
    known = ("planner", "lower_bound", "expected_cost", "converged", "rounds", "residual", "overhead", "notes")
    assert [getattr(read, name) for name in known] == [getattr(made, name) for name in known]
    one = hm.simulate(problem, made, 4, seed=3)
    other = hm.simulate(hm.build(TINY), read, 4, seed=3)
    for name in ("scheduled", "power_watt", "delivered", "battery_joule", "update_loss"):
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes(), name


def test_a_table_that_occurs_twice_is_kept_once(problem: Problem, tmp_path: Path) -> None:
    table = torch.arange(4.0)
    Plan("own", _Tables(problem, (table, table))).save(tmp_path / "plan.safetensors")
    assert list(load_file(tmp_path / "plan.safetensors")) == ["table 0"]


@dataclass(frozen=True)
class _Tables:
    """A policy outside heliomesh."""

    problem: Problem
    tables: tuple[torch.Tensor, ...]

    def decide(self, slot: int, seen: Observation) -> Decision:
        return Decision(seen.battery_joule * 0, seen.battery_joule < 0)


class _Opaque(_Tables):
    """A policy that holds more than tables."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem, (print,))  # type: ignore[arg-type]


def test_classes_outside_heliomesh_need_trust(problem: Problem, tmp_path: Path) -> None:
    path = tmp_path / "plan.safetensors"
    Plan("own", _Tables(problem, (torch.arange(4.0),))).save(path)
    with pytest.raises(PlanError, match=r"heliomesh's planners \(or trust=True\), actual 'tests\.") as caught:
        Plan.load(path)
    assert str(caught.value).startswith(f"{path}: ")
    trusted = Plan.load(path, trust=True)
    assert isinstance(trusted.policy, _Tables)
    np.testing.assert_array_equal(trusted.policy.tables[0].numpy(), np.arange(4.0))


def test_a_policy_that_is_more_than_tables_is_not_written(problem: Problem, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="policy: expected dataclasses, settings and tensors, actual type builtins:"):
        Plan("own", _Opaque(problem)).save(tmp_path / "plan.safetensors")
    assert list(tmp_path.iterdir()) == []


def _rewritten(path: Path, **texts: str | None) -> None:
    """The same tables with other texts in the header; None drops one."""
    with safe_open(path, framework="pt") as file:
        header = {**file.metadata(), **texts}
    save_file(load_file(path), path, {name: text for name, text in header.items() if text is not None})


def _policy(path: Path, change: dict[str, Any]) -> None:
    with safe_open(path, framework="pt") as file:
        content = json.loads(file.metadata()["plan"])
    _rewritten(path, plan=json.dumps(content | {"policy": change}))


def _refused(path: Path, words: str) -> None:
    with pytest.raises(PlanError) as caught:
        Plan.load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"no tensors", b"\xff" * 64, b'{"format": "1"}'])
def test_a_foreign_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "plan").write_bytes(content)
    _refused(tmp_path / "plan", "expected a safetensors file")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    _refused(tmp_path / "absent", "No such file")


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.99])
def test_a_cut_file_is_refused(saved: Path, kept: float) -> None:
    whole = saved.read_bytes()
    saved.write_bytes(whole[: int(kept * len(whole))])
    _refused(saved, "expected a safetensors file")


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ({"format": "1"}, "expected a plan in format 2, actual format '1'"),
        ({"format": None}, "expected a plan in format 2, actual format None"),
        ({"plan": "{"}, "expected a plan as it was written"),
        ({"plan": "[]"}, "expected a plan as it was written"),
        ({"plan": "{}"}, "expected a plan as it was written"),
        ({"plan": "[" * 100_000}, "expected a plan as it was written"),
        ({"scenario": "slots = -1"}, "expected a plan as it was written"),
        ({"scenario": "="}, "expected a plan as it was written"),
        ({"scenario": None}, "expected a plan as it was written"),
        ({"device": "moon"}, "expected a plan as it was written"),
        ({"dtype": "int7"}, "expected a plan as it was written"),
    ],
)
def test_a_damaged_header_is_refused(saved: Path, texts: dict[str, str | None], words: str) -> None:
    _rewritten(saved, **texts)
    _refused(saved, words)


@pytest.mark.parametrize(
    "policy",
    [
        {"object": "os:system", "values": {}},
        {"object": "subprocess:Popen", "values": {"args": ["true"]}},
        {"settings": "heliomesh.common.durable:os.system", "values": {}},
        {"object": "heliomesh.common.durable:os.remove", "values": {}},
        {"object": "heliomesh.common.durable:write_text", "values": {"target": "x", "text": "y"}},
        {"object": "heliomesh.common.durable:sys.version_info", "values": {}},
        {"object": "heliomesh.model.plan_file:importlib.util._os.terminal_size", "values": {}},
        {"settings": "heliomesh.model.plan_file:BaseModel", "values": {}},
        {"object": "heliomesh.absent:Policy", "values": {}},
        {"object": "heliomesh.model.policy:Absent", "values": {}},
        {"object": "heliomesh.model.policy:Weights", "values": {"other": 1}},
        {"tensor": "table 999"},
        {"anything": 1},
        {"dict": 3},
        {"settings": "heliomesh.model.policy:Weights", "values": 3},
        {},
    ],
)
def test_a_file_can_name_no_other_code(
    saved: Path, policy: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _policy(saved, policy)
    _refused(saved, "expected ")
    assert list(tmp_path.iterdir()) == [saved]


@pytest.mark.parametrize(
    "policy", [3, None, "text", {"object": "heliomesh.model.policy:Weights", "values": {"edge": 1, "own": 2}}]
)
def test_what_is_no_policy_is_refused(saved: Path, policy: Any) -> None:
    _policy(saved, policy)
    _refused(saved, "expected ")
