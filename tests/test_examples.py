"""The examples of docs/extend.md: a package installed beside heliomesh, and an experiment that is one file."""

import importlib.util
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import heliomesh as hm
from heliomesh import testing
from heliomesh.cli import app
from heliomesh.common import catalog
from heliomesh.jobs.store import Store
from heliomesh.planning import PLANNER_CATALOG
from heliomesh.scenario.schema import AGGREGATION_CATALOG, HARVEST_CATALOG
from heliomesh.studies.results import result_of
from heliomesh.tasks.dataset import DATASET_CATALOG
from heliomesh.tasks.model import MODEL_CATALOG

ROOT = Path(__file__).parents[1]
EXTEND = (ROOT / "docs" / "extend.md").read_text(encoding="utf-8")
PLUGIN = ROOT / "examples" / "plugin"
OFFERED = {
    PLANNER_CATALOG: "frames",
    HARVEST_CATALOG: "wind",
    DATASET_CATALOG: "rings",
    MODEL_CATALOG: "linear",
    AGGREGATION_CATALOG: "trimmed",
}
EXPERIMENT = ROOT / "examples/experiments/waterfall.py"
TINY = hm.Scenario.load("tiny")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder into which pip installed the package, without a network."""
    folder = tmp_path_factory.mktemp("plugin")
    source, target = folder / "source", folder / "site"
    shutil.copytree(PLUGIN, source)  # building writes beside the sources
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(target), str(source)]
    subprocess.run(command, check=True, timeout=120)  # noqa: S603
    return target


@pytest.fixture
def installed(site, monkeypatch):
    """The package can be imported as long as the test lasts."""
    monkeypatch.syspath_prepend(site)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "heliomesh_example"]:
        del sys.modules[name]


@pytest.fixture
def waterfall():
    """The experiment of the example."""
    spec = importlib.util.spec_from_file_location("waterfall", EXPERIMENT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.WATERFALL


def invoke(*arguments):
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


# the documentation


def test_the_documentation_shows_what_is_tested():
    files = {path.read_text(encoding="utf-8") for path in PLUGIN.glob("heliomesh_example/*.py")}
    shown = [block for block in re.findall(r"```python\n(.*?)```", EXTEND, re.DOTALL) if block.startswith('"""')]
    assert shown
    assert set(shown) <= files
    (listed,) = re.findall(r"```toml\n(.*?)```", EXTEND, re.DOTALL)
    assert all(part in (PLUGIN / "pyproject.toml").read_text(encoding="utf-8") for part in listed.split("\n\n"))


# the package


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("package", "name"), OFFERED.items())
def test_an_installed_variant_is_found_by_its_name(package, name):
    assert name in catalog.names(package)
    assert catalog.find(package, name) is not None
    (entry,) = (one for one in entry_points(group=f"heliomesh.{package.rpartition('.')[2]}") if one.name == name)
    assert entry.dist.name == "heliomesh-example"
    with pytest.raises(catalog.UnknownVariantError, match=f"expected one of .*{name}.*; did you mean '{name}'"):
        catalog.find(package, f"{name}x")


@pytest.mark.parametrize(("package", "name"), OFFERED.items())
def test_nothing_is_left_behind(package, name):
    assert name not in catalog.names(package)
    assert not any(module.startswith("heliomesh_example") for module in sys.modules)


@pytest.mark.usefixtures("installed")
def test_every_variant_keeps_its_contract():
    testing.check_planner("frames", rest=1)
    testing.check_harvest("wind", speed=6.0)
    testing.check_dataset("rings")
    testing.check_model("linear", (2,), 3)
    testing.check_aggregation("trimmed")


@pytest.mark.usefixtures("installed")
def test_the_command_line_uses_all_of_it(tmp_path):
    assert "frames" in invoke("compare", "tiny", "frames", "uncoordinated", "--episodes", "2")
    assert "rings" in invoke("data", "list")
    changes = [
        "harvest.source=wind",
        "learning.dataset=rings",
        "learning.aggregation=trimmed",
        "learning.model=linear",
    ]
    settings = [part for change in changes for part in ("--set", change)]
    out = tmp_path / "run"
    invoke("run", "tiny", "frames", *settings, "--out", str(out), "--quiet")
    invoke("report", str(out), "--out", str(tmp_path / "page.html"))
    assert (tmp_path / "page.html").exists()


@pytest.mark.usefixtures("installed")
def test_python_takes_names_and_objects_alike():
    from heliomesh_example import frames, linear, rings, trimmed, wind

    named = {"harvest.source": "wind", "learning.dataset": "rings", "learning.model": "linear"}
    given = {"harvest.source": wind, "learning.dataset": rings.load, "learning.model": linear}
    runs = []
    for planner, rule, changes in (("frames", "trimmed", named), (frames, trimmed.mix, given)):
        scenario = TINY.override({**changes, "learning.aggregation": rule, "harvest.speed": 8.0})
        problem = hm.build(scenario)
        runs.append(hm.train(scenario, hm.simulate(problem, hm.plan(problem, planner), episodes=1), strategy="loop"))
    assert runs[0].weights.shape == (5, 2 * 3 + 3)
    assert torch.equal(runs[0].weights, runs[1].weights)


@pytest.mark.usefixtures("installed")
def test_frames_meet_no_interference():
    problem = hm.build(TINY)
    trace = hm.simulate(problem, hm.plan(problem, "frames"), episodes=8)
    sending = np.take(trace.power_watt > 0, trace.edge_sender, axis=2)
    for receiver in range(problem.num_devices):
        assert sending[:, :, trace.edge_receiver == receiver].sum(-1).max() <= 1
    assert sending.any()
    rested = hm.simulate(problem, hm.plan(problem, "frames", rest=9), episodes=8)
    assert rested.scheduled.mean() < trace.scheduled.mean()
    with pytest.raises(hm.ScenarioError, match=r"frames option\.rest: expected a number greater than or equal to 0"):
        hm.plan(problem, "frames", rest=-1)


@pytest.mark.usefixtures("installed")
def test_wind_blows_as_its_law_says():
    scenario = TINY.override({"harvest.source": "wind", "harvest.speed": 6.0})
    problem = hm.build(scenario)
    # E[v³] = scale³ Γ(1 + 3/2) for a Rayleigh law; ½ · 1.2 · 0.3 · 50 cm² · 1 s
    expected = 0.5 * 1.2 * 0.3 * 50e-4 * 6.0**3 * 1.3293
    mean = problem.harvest.law.mean_joule()
    torch.testing.assert_close(mean, torch.full((5,), expected, dtype=torch.float64), rtol=0.03, atol=0.0)
    calm = hm.build(scenario.override({"harvest.rotor_cm2": [0.0] * 5}))
    assert hm.simulate(calm, hm.plan(calm, "uncoordinated"), episodes=2).harvested_joule.max() == 0


@pytest.mark.usefixtures("installed")
def test_rings_are_learned_by_a_perceptron_and_not_by_a_line():
    changes = {"learning.dataset": "rings", "learning.learning_rate": 0.3, "harvest.scale": 4.0, "slots": 30}
    scores = {}
    for model in ("auto", "linear"):
        scenario = TINY.override({**changes, "learning.model": model})
        problem = hm.build(scenario)
        trace = hm.simulate(problem, hm.plan(problem, "uncoordinated", bound=False), episodes=1)
        scores[model] = hm.train(scenario, trace, strategy="loop").final["average_accuracy"]
    assert scores["auto"] > 0.9 > 0.6 > scores["linear"]


# the experiment


@pytest.mark.parametrize("quick", [True, False])
def test_an_experiment_is_stored_and_printed(waterfall, quick, tmp_path):
    lines, training = waterfall.lines(quick), hm.TrainSettings(strategy="loop")
    assert len({line.jobs(training)[0].key() for line in lines}) == len(lines)
    shorter = {"slots": 3, "learning.dataset": "synthetic"}
    store = Store(tmp_path)
    for line in lines[-2:]:
        small = replace(line, scenario=line.scenario.override(shorter), num_seeds=2)
        found = result_of(small, store.runs(small.jobs(training), hm.Execution(runs_at_once=2)))
        assert len(found.runs) == 2
        assert all(store.has(job) for job in small.jobs(training))


def test_reproduce_takes_the_experiment(waterfall, tmp_path):
    (figure,) = hm.reproduce([waterfall], tmp_path, quick=True, only="read")
    assert (figure.name, len(figure.absent)) == ("waterfall", 6)
