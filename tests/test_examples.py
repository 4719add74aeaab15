"""The examples of docs/extend.md: each is one file that works as soon as it lies in its catalog."""

import importlib
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import heliomesh as hm
from heliomesh import catalog
from heliomesh.cli import app
from heliomesh.commands.reproduce import EXPERIMENT_CATALOG
from heliomesh.engine.local import Hardware, prepare_all, train_all
from heliomesh.engine.store import Store
from heliomesh.learning.dataset import DATASET_CATALOG
from heliomesh.learning.model import MODEL_CATALOG
from heliomesh.planning import PLANNER_CATALOG
from heliomesh.scenario import HARVEST_CATALOG

ROOT = Path(__file__).parents[1]
CATALOGS = {  # and the example for each
    PLANNER_CATALOG: ROOT / "examples/planners/turns.py",
    HARVEST_CATALOG: ROOT / "examples/harvest/wind.py",
    DATASET_CATALOG: ROOT / "examples/datasets/bars.py",
    MODEL_CATALOG: ROOT / "examples/models/linear.py",
    EXPERIMENT_CATALOG: ROOT / "examples/experiments/waterfall.py",
}
TINY = hm.Scenario.load("tiny")


@pytest.fixture
def added(tmp_path, monkeypatch):
    """Copies of the examples, found by their catalogs as long as the test lasts."""
    for package, path in CATALOGS.items():
        folder = tmp_path / path.parent.name
        folder.mkdir()
        shutil.copy(path, folder)
        module = importlib.import_module(package)
        monkeypatch.setattr(module, "__path__", [*module.__path__, str(folder)])
    yield
    for package, path in CATALOGS.items():
        if sys.modules.pop(f"{package}.{path.stem}", None):
            delattr(sys.modules[package], path.stem)


@pytest.mark.parametrize("path", CATALOGS.values(), ids=lambda path: path.stem)
def test_the_documentation_shows_what_is_tested(path):
    assert f"```python\n{path.read_text(encoding='utf-8')}```" in (ROOT / "docs" / "extend.md").read_text(
        encoding="utf-8"
    )


@pytest.mark.usefixtures("added")
@pytest.mark.parametrize(("package", "path"), CATALOGS.items())
def test_found_by_its_name(package, path):
    assert path.stem in catalog.names(package)
    assert catalog.find(package, path.stem).__doc__


@pytest.mark.parametrize(("package", "path"), CATALOGS.items())
def test_gone_afterwards(package, path):
    assert path.stem not in catalog.names(package)
    assert f"{package}.{path.stem}" not in sys.modules


@pytest.mark.usefixtures("added")
def test_turns_meet_no_interference():
    problem = hm.build(TINY)
    trace = hm.simulate(problem, hm.plan(problem, "turns"), episodes=8)
    sending = np.take(trace.power_watt > 0, trace.edge_sender, axis=2)
    for receiver in range(problem.num_devices):
        assert sending[:, :, trace.edge_receiver == receiver].sum(-1).max() <= 1
    assert sending.any()
    rested = hm.simulate(problem, hm.plan(problem, "turns", rest=9), episodes=8)
    assert rested.scheduled.mean() < trace.scheduled.mean()
    with pytest.raises(hm.ScenarioError, match=r"turns option\.rest: expected a number greater than or equal to 0"):
        hm.plan(problem, "turns", rest=-1)


@pytest.mark.usefixtures("added")
def test_turns_are_compared_by_name():
    result = CliRunner().invoke(app, ["compare", "tiny", "turns", "uncoordinated", "--episodes", "2"])
    assert result.exit_code == 0
    assert "turns" in result.output


@pytest.mark.usefixtures("added")
def test_wind_blows_as_its_law_says():
    scenario = TINY.override({"harvest.source": "wind", "harvest.speed": 6.0})
    problem = hm.build(scenario)
    # E[v³] = scale³ Γ(1 + 3/2) for a Rayleigh law; ½ · 1.2 · 0.3 · 50 cm² · 1 s
    expected = 0.5 * 1.2 * 0.3 * 50e-4 * 6.0**3 * 1.3293
    mean = problem.harvest.law.mean_joule()
    torch.testing.assert_close(mean, torch.full((5,), expected, dtype=torch.float64), rtol=0.03, atol=0.0)
    trace = hm.simulate(problem, hm.plan(problem, "uncoordinated"), episodes=64)
    assert trace.harvested_joule.mean() == pytest.approx(float(mean[0]), rel=0.1)
    calm = hm.build(scenario.override({"harvest.rotor_cm2": [0.0] * 5}))
    assert hm.simulate(calm, hm.plan(calm, "uncoordinated"), episodes=2).harvested_joule.max() == 0


@pytest.mark.usefixtures("added")
def test_bars_are_learned_by_a_linear_model():
    changes = {"learning.dataset": "bars", "learning.model": "linear", "learning.learning_rate": 0.5}
    scenario = TINY.override(changes | {"harvest.scale": 4.0})
    problem = hm.build(scenario)
    trace = hm.simulate(problem, hm.plan(problem, "receiver"), episodes=1)
    run = hm.train(scenario, trace, strategy="loop")
    assert run.weights.shape == (5, 64 * 16 + 16)
    assert run.final["average_accuracy"] > 0.9


@pytest.mark.usefixtures("added")
@pytest.mark.parametrize("quick", [True, False])
def test_an_experiment_is_stored_and_printed(quick, tmp_path):
    module = catalog.find(EXPERIMENT_CATALOG, "waterfall")
    arms = module.arms(quick)
    assert len({arm.key for arm in arms}) == len(arms)
    small = [
        replace(arm, scenario=arm.scenario.override({"slots": 3, "learning.dataset": "synthetic"})) for arm in arms
    ]
    small = [replace(arm, num_seeds=2) for arm in small[-2:]]
    store = Store(tmp_path)
    prepare_all(small, store)
    train_all(small, store, Hardware(strategy="loop", arms_at_once=2))
    assert all(store.has(arm) for arm in small)


@pytest.mark.usefixtures("added")
def test_reproduce_knows_the_experiment(tmp_path):
    result = CliRunner().invoke(app, ["reproduce", "waterfall", "--quick", "--only-print", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "holds no results of waterfall yet" in result.output
