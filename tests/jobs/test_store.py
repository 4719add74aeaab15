"""A store keeps results by what decides them: complete or absent files, and damage that is named."""

import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import heliomesh as hm
from heliomesh.jobs import store as store_module
from heliomesh.jobs.job import Job, Step
from heliomesh.jobs.steps import planned
from heliomesh.jobs.store import Store
from heliomesh.learning.run import versions
from heliomesh.learning.settings import TrainSettings
from heliomesh.learning.trainer import ALONE
from heliomesh.model.policy import Decision, Observation, Plan

TINY = hm.Scenario.load("tiny").override({"slots": 4, "learning.local_steps": 1, "learning.dataset": "synthetic"})
JOB = Job(TINY, "uncoordinated", training=TrainSettings(strategy="loop", evaluate_every=2))
STEPS: tuple[Step, ...] = ("plan", "trace", "run")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the results of a job; do not change it."""
    folder = tmp_path_factory.mktemp("store")
    Store(folder).run(JOB)
    return folder


@pytest.fixture
def store(whole: Path, tmp_path: Path) -> Store:
    """A copy of it."""
    return Store(Path(shutil.copytree(whole, tmp_path / "copy")))


def _forbid(monkeypatch: pytest.MonkeyPatch, *steps: str) -> None:
    for step in steps:
        monkeypatch.setattr(store_module, step, pytest.fail)


def test_results_come_back_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "new")
    assert [store.has(JOB, step) for step in STEPS] == [False, False, False]
    first = store.run(JOB)
    assert [store.has(JOB, step) for step in STEPS] == [True, True, True]
    _forbid(monkeypatch, "planned", "simulated", "train_stacks")
    again = store.run(JOB)
    for name, column in first.metrics.items():
        np.testing.assert_array_equal(again.metrics[name], column)
    np.testing.assert_array_equal(again.weights.numpy(), first.weights.numpy())
    problem = hm.build(TINY)
    expected = hm.simulate(problem, hm.plan(problem, "uncoordinated"), [0])
    np.testing.assert_array_equal(store.trace(JOB).delivered, expected.delivered)
    assert not [path for path in tmp_path.rglob(".*") if path.is_file()]  # nothing temporary is left
    assert not list(tmp_path.rglob("checkpoints"))


@pytest.mark.parametrize("step", STEPS)
def test_files_without_their_sealed_one_are_no_result(store: Store, step: Step) -> None:
    next(store.place(JOB, step).glob("*.json")).unlink()
    assert not store.has(JOB, step)
    np.testing.assert_array_equal(store.run(JOB).metrics["slot"], [2, 4])  # it is computed again
    assert store.has(JOB, step) == (step == "run")  # what a finished run does not need is not


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    ("pattern", "damage", "words"),
    [
        ("*.json", lambda path: path.write_text("", encoding="utf-8"), "expected the "),
        ("*.json", lambda path: path.write_text("[]", encoding="utf-8"), "expected the "),
        ("*.json", lambda path: path.write_text("{}", encoding="utf-8"), "expected the "),
        ("*.json", lambda path: path.write_bytes(b"\xff\xfe"), "expected the "),
        ("*[!nl]", _cut, "expected sha256"),  # all but .json and .toml
        ("*[!nl]", Path.unlink, "No such file"),
    ],
)
def test_damage_is_named(
    store: Store, step: Step, pattern: str, damage: Callable[[Path], object], words: str
) -> None:
    place = next(store.place(JOB, step).glob(pattern))
    damage(place)
    asked = {
        "plan": lambda: store.facts(JOB, "plan"),
        "trace": lambda: store.trace(JOB),
        "run": lambda: store.run(JOB),
    }
    with pytest.raises(hm.TrainingError) as caught:
        asked[step]()
    assert place.name in str(caught.value)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_traces_are_shared_by_what_is_learned(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    _forbid(monkeypatch, "planned", "simulated")
    other = replace(JOB, scenario=TINY.override({"learning.partition": "dirichlet"}))
    assert not store.has(other)
    store.run(other)
    assert store.has(other)


def test_jobs_of_one_plan_are_simulated_together_and_alone_alike(tmp_path: Path) -> None:
    jobs = [replace(JOB, episode=episode) for episode in (3, 1)]
    together = Store(tmp_path / "together").traces(jobs)
    for job, trace in zip(jobs, together, strict=True):
        alone = Store(tmp_path / "alone").trace(job)
        np.testing.assert_array_equal(alone.delivered, trace.delivered)
        np.testing.assert_array_equal(alone.battery_joule, trace.battery_joule)


def test_costs_are_those_of_the_traces_and_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [replace(JOB, episode=episode) for episode in (2, 0, 2)]
    store = Store(tmp_path)
    costs = store.means(jobs).cost.tolist()
    assert costs == [float(Store(tmp_path / "b").trace(job).cost[0]) for job in jobs]
    assert not (tmp_path / "traces").exists()
    assert len(list((tmp_path / "costs").rglob("*.json"))) == 2
    _forbid(monkeypatch, "planned", "simulated_means")
    assert store.means(jobs).cost.tolist() == costs


def test_no_job_has_no_cost(tmp_path: Path) -> None:
    assert len(Store(tmp_path).means([]).cost) == 0


def test_a_cost_of_another_job_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.means([JOB, replace(JOB, episode=1)])
    one, other = sorted((tmp_path / "costs").rglob("*.json"))
    shutil.copy(other, one)
    with pytest.raises(hm.TrainingError, match=f"expected the cost of job {one.stem}, actual {other.stem}"):
        store.means([JOB, replace(JOB, episode=1)])


def test_a_view_is_a_run_s_folder(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `heliomesh run --out` leaves it, so that the same job finds itself finished there."""
    view = Store(store.view(JOB, tmp_path / "view"), single=True)
    direct = Store(tmp_path / "direct", single=True)
    direct.run(JOB)
    names = [sorted(path.name for path in one.folder.iterdir()) for one in (view, direct)]
    assert names[0] == names[1]
    _forbid(monkeypatch, "planned", "simulated", "train_stacks")
    np.testing.assert_array_equal(view.run(JOB).accuracy, direct.run(JOB).accuracy)


class _Own:
    """A policy that is no dataclass."""

    def __init__(self, problem: hm.Problem) -> None:
        self.problem = problem

    def decide(self, slot: int, seen: Observation) -> Decision:
        return Decision(seen.battery_joule * 0, seen.battery_joule < 0)


def test_a_policy_that_no_file_can_hold_is_planned_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put_plan(JOB, Plan("own", _Own(hm.build(TINY))))
    assert store.has(JOB, "plan")
    assert store.facts(JOB, "plan")["planner"] == "own"
    assert not list(tmp_path.rglob("*.safetensors"))
    assert store.plan(JOB).planner == planned(JOB, ALONE).planner


# two writers


@pytest.mark.parametrize("single", [False, True])
def test_the_first_writer_s_result_is_never_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, single: bool
) -> None:
    """Tables hold the seconds of planning, so that those of two writers differ."""
    store, made = Store(tmp_path, single), planned(JOB, ALONE)
    store.put_plan(JOB, made)
    trace, run = store.trace(JOB), store.run(JOB)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for name in ("save_plan", "write_text"):
        monkeypatch.setattr(store_module, name, pytest.fail)
    second = Store(tmp_path, single)
    second.put_plan(JOB, replace(made, seconds=made.seconds + 1))
    second.put_trace(JOB, replace(trace, update_loss=trace.update_loss + 1))
    second.put_run(JOB, replace(run, provenance={**run.provenance, "duration_second": 1e9}))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_reader_between_two_writes_gets_the_first_writer_s(tmp_path: Path) -> None:
    """One process writes while another one plans the same, and a third one reads."""
    first, made = Store(tmp_path), planned(JOB, ALONE)
    second, read = Store(tmp_path), []
    original = second._seal

    def sealing(*arguments: Any) -> None:
        read.append(Store(tmp_path).plan(JOB))  # the tables are new by now, their sums are not
        original(*arguments)

    object.__setattr__(second, "_seal", sealing)
    first.put_plan(JOB, made)
    second.put_plan(JOB, replace(made, seconds=made.seconds + 1))
    assert Store(tmp_path).plan(JOB).seconds == made.seconds
    assert read == []


def test_a_writer_waits_for_the_one_before_it(tmp_path: Path) -> None:
    made, order = planned(JOB, ALONE), []
    stores = [Store(tmp_path), Store(tmp_path)]
    entered, threads = threading.Event(), []

    def waiting(*arguments: Any) -> None:
        entered.set()
        threads[1].start()
        threads[1].join(0.3)  # it waits for us
        order.append("first")
        Store._seal(stores[0], *arguments)

    def put_second() -> None:
        stores[1].put_plan(JOB, replace(made, seconds=made.seconds + 1))
        order.append("second")

    object.__setattr__(stores[0], "_seal", waiting)
    threads += [threading.Thread(target=stores[0].put_plan, args=(JOB, made)), threading.Thread(target=put_second)]
    threads[0].start()
    threads[0].join()
    threads[1].join()
    assert order == ["first", "second"]
    assert Store(tmp_path).plan(JOB).seconds == made.seconds


# results that do not serve


def _told(store: Store, job: Job) -> list[str]:
    said: list[str] = []
    store.run(job, replace(ALONE, notify=said.append))
    return said


def test_what_changed_is_said_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    now = {"torch": "7.1.0", "numpy": versions()["numpy"]}
    monkeypatch.setattr("heliomesh.jobs.job.versions", lambda: now)
    (sentence,) = _told(store, replace(JOB))
    minor = ".".join(versions()["torch"].split(".")[:2])
    expected = f"1 stored run is not used: computed with.torch was '{minor}', now '7.1'"
    assert sentence == f"{store.folder}: {expected}"
    assert _told(store, replace(JOB)) == []


def test_changed_code_is_named_by_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three runs of which a helper module changed, and a fourth one that nobody asked for before."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "told_rule.py").write_text(
        "import told_helper\n\ndef mix(arrived):\n    return arrived.own\n", encoding="utf-8"
    )
    (tmp_path / "told_helper.py").write_text("RATE = 1\n", encoding="utf-8")
    scenario = TINY.override({"learning.aggregation": "told_rule:mix"})

    def told(episodes: int) -> list[str]:
        said: list[str] = []
        jobs = [replace(JOB, scenario=scenario, episode=number) for number in range(episodes)]
        Store(tmp_path / "store").runs(jobs, replace(ALONE, notify=said.append))
        return said

    assert told(3) == []
    (tmp_path / "told_helper.py").write_text("RATE = 2\n", encoding="utf-8")
    (sentence,) = told(4)
    assert "3 stored runs are not used: code.aggregation.told_helper was '" in sentence


def test_another_request_is_no_change(store: Store) -> None:
    assert _told(store, replace(JOB, episode=5)) == []
    assert _told(store, replace(JOB, scenario=TINY.override({"link.waterfall": 0.7}))) == []


# a run's folder


def test_a_run_s_folder_takes_one_job_only(tmp_path: Path) -> None:
    store = Store(tmp_path, single=True)
    store.run(JOB)
    with pytest.raises(hm.TrainingError, match=r"episode: expected 0 \(as in the folder\), actual 1; another run"):
        store.run(replace(JOB, episode=1))


def test_an_error_in_training_keeps_what_was_there(tmp_path: Path) -> None:
    """A folder that was empty is so again; one with a plan keeps it."""
    store, diverging = Store(tmp_path, single=True), TINY.override({"learning.learning_rate": 1e30})
    for expected in (set(), {"plan.json", "plan.safetensors", "scenario.toml"}):
        with pytest.raises(hm.TrainingError, match="finite"), store.unclaimed():
            store.run(replace(JOB, scenario=diverging))
        assert expected <= {path.name for path in tmp_path.iterdir()}
        assert bool(expected) == bool(list(tmp_path.iterdir()))
        store.plan(JOB)
