"""Jobs with equal keys give equal bits, and whatever changes the bits changes the key."""

import linecache
import sys
import tomllib
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import heliomesh as hm
from heliomesh.jobs import job as job_module
from heliomesh.jobs.fingerprint import of_code, of_path
from heliomesh.jobs.job import STEPS, Job
from heliomesh.learning.settings import TrainSettings
from heliomesh.planners import bids, news, prices, uncoordinated
from heliomesh.planning import find_planner
from heliomesh.scenario.files import shipped
from heliomesh.tasks.datasets import digits

SETTINGS = TrainSettings(evaluate_every=3, device_samples=50)
BASE = hm.Scenario.load("tiny").override({"slots": 6, "learning.local_steps": 2, "learning.batch": 8})


def base(**changes: object) -> Job:
    return replace(Job(BASE, "uncoordinated", training=SETTINGS), **changes)  # type: ignore[arg-type]


def scenario(**changes: object) -> Job:
    return base(scenario=BASE.override({name.replace("__", "."): value for name, value in changes.items()}))


# Every kind of thing that decides a result, one change each.
DECIDES = {
    "seed": base(seed=1),
    "episode": base(episode=1),
    "training seed": base(training_seed=1),
    "planner": base(planner="receiver"),
    "options": base(planner="prices", options={"coordinate": False}),
    "other options": base(planner="prices"),
    "changes": base(changes=("harvest=0@2",)),
    "changes and a fresh plan": base(changes=("link.0-1=off@1",), reaction="fresh"),
    "the same with the first plan": base(changes=("link.0-1=off@1",), reaction="stale"),
    "until": base(until=4),
    "precision": base(training=replace(SETTINGS, precision="bf16")),
    "evaluated": base(training=replace(SETTINGS, evaluate_every=2)),
    "test samples": base(training=replace(SETTINGS, device_samples=40)),
    "scenario's seed": scenario(seed=5),
    "horizon": scenario(slots=5),
    "weights": scenario(network__mixing="lazy-metropolis"),
    "links": scenario(link__waterfall=0.2),
    "energy": scenario(energy__compute_joule=0.5),
    "harvest": scenario(harvest__scale=3.0),
    "partition": scenario(learning__partition="dirichlet"),
    "rule": scenario(learning__aggregation="renormalized"),
    "rate": scenario(learning__learning_rate=0.02),
    "batch": scenario(learning__batch=4),
    "schedule": scenario(learning__schedule="cosine"),
    "final rate": scenario(learning__schedule="cosine", learning__final_rate=0.5),
    "until, of a schedule": base(scenario=BASE.override({"learning.schedule": "cosine"}), until=4),
    "quasi-global": scenario(learning__quasi_global=0.5),
    "on air": scenario(learning__on_air="int8"),
    "top-k share": scenario(learning__on_air="top-k", learning__top_k_share=0.3),
    "momentum": scenario(learning__optimizer="momentum", learning__momentum=0.5),
}
# What is carried out differently, or only called differently.
DECIDES_NOT = {
    "name": scenario(name="another"),
    "memory": base(training=replace(SETTINGS, memory_gib=1.0)),
    "checkpoints": base(training=replace(SETTINGS, checkpoint_every=2)),
    "the strategy that auto is": base(training=replace(SETTINGS, strategy="batched")),
    "the format that is the default": scenario(learning__on_air="float32"),
    "false alarms of who does not watch": base(false_alarm_prob=0.2),
    "the default option": base(planner="prices", options={"coordinate": True, "sweeps": 30}),
    "a list of one number": scenario(energy__capacity_joule=[BASE.energy.capacity_joule] * BASE.network.devices),
    "numbers of other types": base(seed=False, episode=np.int64(0), training_seed=0.0, until=6.0),
    "a planner's module": base(planner=uncoordinated),
    "a planner's function": base(planner=uncoordinated.plan),
    "a planner as module:name": base(planner="heliomesh.planners:uncoordinated"),
    "a dataset's module": scenario(learning__dataset=digits),
}


@pytest.fixture(scope="module")
def bits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """All numbers of every job's run, each computed in a store of its own."""
    every = {"base": base(), **DECIDES, **DECIDES_NOT}
    found = {}
    for name, job in every.items():
        run = hm.Store(tmp_path_factory.mktemp("store")).run(job)
        curves = np.concatenate(list(run.metrics.values()))
        found[name] = curves.tobytes() + run.weights.numpy().tobytes()
    return found


def test_the_automatic_choice_has_a_key_of_its_own_unless_the_scenario_decides_it() -> None:
    bf16 = replace(SETTINGS, precision="bf16")
    for change, settings, same in (
        ({}, SETTINGS, "batched"),
        ({"learning.model": "mlp"}, SETTINGS, "batched"),
        ({}, bf16, "loop"),
        ({"learning.model": "cnn"}, SETTINGS, None),
        ({"learning.dataset": "fashion_mnist"}, SETTINGS, None),
        ({"learning.model": "cnn", "learning.optimizer": "adam"}, SETTINGS, "loop"),
    ):
        one = base(scenario=BASE.override(change), training=settings)
        for name in ("loop", "batched"):
            named = replace(one, training=replace(settings, strategy=name))
            assert (one.key() == named.key()) == (name == same), (change, name)


def test_whatever_changes_the_bits_changes_the_key(bits: dict[str, bytes]) -> None:
    keys = {name: job.key() for name, job in {"base": base(), **DECIDES, **DECIDES_NOT}.items()}
    for one, other in combinations(keys, 2):
        if bits[one] != bits[other]:
            assert keys[one] != keys[other], (one, other)
        if keys[one] == keys[other]:
            assert bits[one] == bits[other], (one, other)


def test_every_listed_change_shows_in_the_bits(bits: dict[str, bytes]) -> None:
    """Else the test above would prove nothing about it."""
    same = {name for name in DECIDES if bits[name] == bits["base"]}
    assert same == set()


@pytest.mark.parametrize(
    "change",
    [
        {"learning.partition": "dirichlet"},
        {"learning.aggregation": "model"},
        {"cost.unlikeness": 2.0},
        {"cost.deadline": "always"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_plan_for_learning_is_another_where_it_reads_another_setting(change: dict[str, object]) -> None:
    plain, changed = (Job(one, "contributions") for one in (BASE, BASE.override(change)))
    assert plain.key("plan") != changed.key("plan")


def test_a_plan_for_packets_does_not_depend_on_how_data_are_spread() -> None:
    spread = BASE.override({"learning.partition": "dirichlet"})
    assert Job(BASE, "receiver").key("plan") == Job(spread, "receiver").key("plan")


def test_what_decides_nothing_leaves_the_key_alone() -> None:
    for name, job in DECIDES_NOT.items():
        twin = DECIDES["other options"] if name == "the default option" else base()
        assert job.key() == twin.key(), name


@pytest.mark.parametrize("name", shipped())
def test_a_scenario_written_out_with_all_defaults_has_the_key_of_the_short_one(name: str) -> None:
    short = hm.Scenario.load(name)
    whole = hm.Scenario.parse(tomllib.loads(short.to_toml()))
    bare = hm.Scenario.parse(short.chosen())
    for planner in ("prices", "decentralized"):
        options = find_planner(planner).checked_options({}).model_dump(mode="json")
        jobs = [Job(short, planner), Job(whole, planner, options), Job(bare, planner)]
        for step in STEPS:
            assert len({job.key(step) for job in jobs}) == 1
    assert _num_settings(short.chosen()) < _num_settings(short.as_dict())


def _num_settings(data: object) -> int:
    return sum(map(_num_settings, data.values())) if isinstance(data, dict) else 1


def test_sources_are_named_although_one_is_the_default() -> None:
    """Two sources may have settings of the same names."""
    assert hm.Scenario.parse({}).chosen() == {"channel": {"source": "rayleigh"}, "harvest": {"source": "solar"}}


def test_a_new_setting_or_option_leaves_keys_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [base(planner="prices").key(step) for step in STEPS]

    class More(prices.Options):
        new: int = 3

    monkeypatch.setattr(prices, "Options", More)
    assert [base(planner="prices").key(step) for step in STEPS] == before
    assert base(planner="prices", options={"new": 3}).key() == before[-1]
    assert base(planner="prices", options={"new": 4}).key() != before[-1]


def test_another_results_version_is_another_job(monkeypatch: pytest.MonkeyPatch) -> None:
    before = base().key()
    monkeypatch.setattr(job_module, "RESULTS_VERSION", job_module.RESULTS_VERSION + 1)
    assert base().key() != before


def test_plans_and_traces_do_not_depend_on_what_is_learned() -> None:
    other = scenario(learning__learning_rate=0.02, learning__dataset="synthetic")
    assert [base().key(step) == other.key(step) for step in ("plan", "trace", "run")] == [True, True, False]
    assert base(episode=3).key("plan") == base().key("plan")


def _own_data(path: Path, noise: float = 0.0) -> Job:
    """A dataset file of 40 samples; ``noise`` is added to one that a sparse look would miss."""
    rng = np.random.default_rng(0)
    arrays = {
        "train_inputs": rng.random((40, 8, 8)),
        "train_labels": np.arange(40) % 4,
        "test_inputs": rng.random((8, 8, 8)),
        "test_labels": np.arange(8) % 4,
    }
    arrays["train_inputs"][3] += noise
    np.savez(path, **arrays)
    return scenario(learning__dataset="own", learning__path=str(path), learning__model="mlp")


def test_any_changed_sample_is_another_job(tmp_path: Path) -> None:
    before, after = _own_data(tmp_path / "a.npz").key(), _own_data(tmp_path / "a.npz", 1.0).key()
    assert before != after


def test_data_count_by_content_wherever_they_lie(tmp_path: Path) -> None:
    assert _own_data(tmp_path / "a.npz").key() == _own_data(tmp_path / "b.npz").key()


def test_a_folder_of_files_counts_by_names_and_content(tmp_path: Path) -> None:
    for number, text in enumerate(("x", "x", "y")):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "file").write_text(text, encoding="utf-8")
    sums = [of_path(tmp_path / str(number)) for number in range(3)]
    assert sums[0] == sums[1] != sums[2]


@pytest.mark.parametrize("wrong", [1.5, "1", float("nan"), float("inf"), [1]])
def test_a_number_that_is_not_whole_is_refused(wrong: object) -> None:
    with pytest.raises(hm.MistakeError, match="episode: expected a whole number of at least 0, actual value"):
        base(episode=wrong)


def test_versions_of_what_computes_count_without_their_last_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def keys(torch: str, numpy: str) -> list[str]:
        monkeypatch.setattr(job_module, "versions", lambda: {"torch": torch, "numpy": numpy})
        return [base().key(step) for step in STEPS]

    first = keys("2.11.0+cu130", "2.4.6")
    assert keys("2.11.3+cpu", "2.4.0") == first
    for other in (keys("2.12.0", "2.4.6"), keys("2.11.0", "2.5.0")):
        assert not set(other) & set(first)


NOTEBOOK = """
def layers(shape):
    return 8

def build(shape, classes):
    return layers(shape)
"""


@pytest.mark.parametrize("readable", [True, False], ids=["with source", "without source"])
def test_code_of_a_notebook_counts_by_its_own_source(readable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def key(source: str) -> str:
        module = ModuleType("__main__")
        monkeypatch.setitem(sys.modules, "__main__", module)
        monkeypatch.setitem(linecache.cache, "<cell>", (len(source), None, source.splitlines(True), "<cell>"))
        exec(compile(source, "<cell>" if readable else "<lost>", "exec"), vars(module))  # noqa: S102
        return scenario(learning__model=module.build).key()

    assert key(NOTEBOOK) == key(NOTEBOOK) == key(NOTEBOOK.replace("return 8", "return 9"))
    assert key(NOTEBOOK) != key(NOTEBOOK.replace("return layers(shape)", "return 2 * layers(shape)"))


def test_a_script_counts_whole_with_what_it_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, file = ModuleType("__main__"), tmp_path / "script.py"
    monkeypatch.setitem(sys.modules, "__main__", module)
    vars(module)["__file__"] = str(file)
    exec("def build(shape, classes): ...", vars(module))  # noqa: S102
    monkeypatch.syspath_prepend(tmp_path)
    keys = []
    for text, helper in (("one", "1"), ("one", "1"), ("two", "1"), ("one", "2")):
        file.write_text(f"import script_helper  # {text}", encoding="utf-8")
        (tmp_path / "script_helper.py").write_text(helper, encoding="utf-8")
        keys.append(scenario(learning__model=module.build).key())
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3


def test_our_own_code_is_named_by_the_results_version() -> None:
    assert of_code("receiver") is None
    assert of_code("heliomesh.planning:plan") is None
    assert of_code(f"{__name__}:scenario") is not None


def test_a_planner_that_decides_otherwise_has_results_of_its_own(monkeypatch):
    scenario = hm.Scenario.load("tiny").override({"energy.actions": "separate"})
    before = {name: Job(scenario, name).key() for name in ("bids", "news")}
    assert "planner version" not in Job(scenario, "receiver").identity()
    for planner, own in (("bids", bids), ("news", news)):
        assert Job(scenario, planner).identity()["planner version"] == own.VERSION
        monkeypatch.setattr(own, "VERSION", own.VERSION + 1)
    assert all(Job(scenario, name).key() != key for name, key in before.items())
