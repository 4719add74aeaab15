"""Wrong arguments of the Python functions get one clear sentence, like wrong settings."""

import dataclasses
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import heliomesh as hm


def test_wrong_arguments_of_the_python_face() -> None:
    with pytest.raises(TypeError, match="scenario: expected a Scenario"):
        hm.build("tiny")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="problem: expected a Problem"):
        hm.plan(hm.Scenario.load("tiny"), "prices")  # type: ignore[arg-type]
    problem = hm.build(hm.Scenario.load("tiny"))
    plan = hm.plan(problem, "uncoordinated", bound=False)
    with pytest.raises(ValueError, match="seed: expected a whole number of at least 0"):
        hm.simulate(problem, plan, 1, -1)
    other = hm.build(hm.Scenario.load("tiny").override({"network.devices": 6}))
    with pytest.raises(ValueError, match="plan: expected one for"):
        hm.simulate(other, plan, 1)
    assert hm.exact_cost(problem, plan) == hm.exact_cost(problem, plan.policy)  # type: ignore[arg-type]


_FORKS = """
import multiprocessing
import torch
import heliomesh as hm

torch.set_num_threads(2)
# so many devices and episodes that torch shares the work among its threads
problem = hm.build(hm.Scenario.load("tiny").override({"network.devices": 250, "slots": 3}))
plan = hm.plan(problem, "uncoordinated", bound=False)

def cost():
    return float(hm.simulate(problem, plan, episodes=250).cost.sum())

def child(found):
    found.put((cost(), torch.get_num_threads()))

expected, context = cost(), multiprocessing.get_context("fork")
found = context.Queue()
process = context.Process(target=child, args=(found,))
process.start()
process.join(240)
if process.exitcode is None:
    process.kill()
    raise SystemExit("the forked child hangs")
assert found.get() == (expected, 1)
assert cost() == expected and torch.get_num_threads() == 2
"""


@pytest.mark.skipif(sys.platform == "win32", reason="nothing is forked on Windows")
def test_a_child_forked_after_a_simulation_simulates_too() -> None:
    ended = subprocess.run([sys.executable, "-c", _FORKS], capture_output=True, text=True, check=False)  # noqa: S603
    assert ended.returncode == 0, ended.stderr


_LISTS_COMMANDS = """
import sys
import heliomesh
assert "numpy" not in sys.modules
from heliomesh.cli import main
sys.argv = ["heliomesh", "--help"]
try:
    main()
finally:
    print(*{"matplotlib", "numpy", "pandas", "pydantic", "scipy", "torch"}.intersection(sys.modules), file=sys.stderr)
"""


def test_the_list_of_commands_loads_nothing_heavy() -> None:
    listed = subprocess.run([sys.executable, "-c", _LISTS_COMMANDS], capture_output=True, text=True, check=True)  # noqa: S603
    assert "reproduce" in listed.stdout
    assert listed.stderr.split() == []


SHORT = hm.Scenario.load("tiny").override({"slots": 6, "learning.local_steps": 1})


def test_sizing_as_a_table() -> None:
    found = hm.size("tiny", target_loss=0.7, capacity_joule=[1, 3], panel=[0.5, 2.0], episodes=2)
    table = found.table()
    assert list(table["capacity_joule"]) == [1, 1, 3, 3]
    assert table["tried"].all()
    assert [tuple(row) for row in table[table["smallest"]][["capacity_joule", "panel"]].to_numpy()] == found.smallest
    with pytest.raises(
        hm.ScenarioError, match="target_loss: expected exactly one of target_loss and target_accuracy"
    ):
        hm.size(SHORT)
    with pytest.raises(hm.ScenarioError, match="by_slot: expected at most slots = 6"):
        hm.size(SHORT, target_accuracy=0.5, by_slot=7)
    with pytest.raises(TypeError, match="epochs: expected one of by_slot"):
        hm.size(SHORT, target_loss=0.5, epochs=3)


def test_a_changing_world_as_a_table() -> None:
    table = hm.live(hm.build(SHORT), ["harvest=0@3"], "uncoordinated", episodes=4, train=0).table()
    assert list(table["plan"]) == ["stale", "re-planned", "fresh"]
    assert table["difference"][0] == 0
    assert (table["cost"] - table["cost"][0]).to_numpy() == pytest.approx(table["difference"].to_numpy())


def test_reports_of_run_folders_and_of_a_comparison(tmp_path: Path) -> None:
    hm.run(SHORT, "uncoordinated", folder=tmp_path / "run")
    page = hm.report([tmp_path / "run"], tmp_path / "run.html", title="one run")
    assert "<title>one run</title>" in page.read_text(encoding="utf-8")
    problem = hm.build(SHORT)
    compared = hm.compare(problem, ["uncoordinated", "prices"], episodes=2, train=1, store=tmp_path / "store")
    text = hm.report(compared, tmp_path / "compared.html").read_text(encoding="utf-8")
    assert '"label":"uncoordinated"' in text
    assert '"label":"prices"' in text
    with pytest.raises(hm.ScenarioError, match="store: expected a store given to compare"):
        hm.report(hm.compare(problem, ["uncoordinated"], episodes=2, train=1), tmp_path / "page.html")


FUNCTIONS = [name for name in hm.__all__ if inspect.isfunction(getattr(hm, name))]
RECORDS = [name for name in hm.__all__ if dataclasses.is_dataclass(getattr(hm, name))]


def described(docstring: str | None, section: str) -> list[str]:
    """Names that a section of a docstring in NumPy's form describes."""
    parts = re.split(r"^(\w+)\n-+$", inspect.cleandoc(docstring or ""), flags=re.MULTILINE)
    text = dict(zip(parts[1::2], parts[2::2], strict=True)).get(section, "")
    return re.findall(r"^\*{0,2}(\w+)$", text, re.MULTILINE)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_public_function_describes_its_parameters(name: str) -> None:
    function = getattr(hm, name)
    assert described(function.__doc__, "Parameters") == list(inspect.signature(function).parameters)


@pytest.mark.parametrize("name", sorted(set(RECORDS) - {"Trace"}))  # Trace has a table of its columns
def test_every_public_record_describes_its_fields(name: str) -> None:
    record = getattr(hm, name)
    assert described(record.__doc__, "Attributes") == [field.name for field in dataclasses.fields(record)]
