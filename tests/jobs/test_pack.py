"""Packs: many runs in two files, read back as they were, and damage that is named."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import heliomesh as hm
from heliomesh.jobs.job import Job
from heliomesh.jobs.pack import Packs
from heliomesh.jobs.store import Store
from heliomesh.learning.settings import TrainSettings

TINY = hm.Scenario.load("tiny").override({"slots": 4, "learning.local_steps": 1, "learning.dataset": "synthetic"})
BASE = Job(TINY, "uncoordinated", training=TrainSettings(strategy="loop", evaluate_every=2))
JOBS = [replace(BASE, episode=seed, training_seed=seed) for seed in range(3)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[hm.Run]:
    return Store(tmp_path_factory.mktemp("runs")).runs(JOBS)


@pytest.fixture
def packs(tmp_path: Path, runs: list[hm.Run]) -> Packs:
    Packs(tmp_path / "packs").write("figure", runs)
    return Packs(tmp_path / "packs")


def test_runs_come_back_without_their_weights(packs: Packs, runs: list[hm.Run]) -> None:
    assert sorted(path.name for path in packs.folder.iterdir()) == ["figure.json", "figure.parquet"]
    found = packs.runs("figure")
    for one, other in zip(found, runs, strict=True):
        assert list(one.metrics) == list(other.metrics)
        for name, column in other.metrics.items():
            np.testing.assert_array_equal(one.metrics[name], column)
        assert dict(one.provenance) == dict(other.provenance)
        assert one.weights.numel() == 0
    assert packs.key_of(JOBS[1].identity()) == JOBS[1].key()
    assert packs.key_of(BASE.identity("plan")) is None


def test_a_table_says_planner_and_seed_and_counts_in_whole_numbers(packs: Packs) -> None:
    table = pd.read_parquet(packs.folder / "figure.parquet")
    assert list(table)[:4] == ["key", "planner", "seed", "slot"]
    assert table.groupby("seed")["slot"].apply(list).to_dict() == {0: [2, 4], 1: [2, 4], 2: [2, 4]}
    assert set(table["planner"]) == {"uncoordinated"}
    assert list(table.select_dtypes("integer")) == ["seed", "slot", "device_samples"]


def test_a_line_is_said_once(packs: Packs) -> None:
    (line,) = packs.content("figure")["lines"]
    assert [run["identity"] for run in line["runs"]] == [{"episode": e, "training seed": e} for e in range(3)]
    assert line["facts"]["planner"] == "uncoordinated"
    assert all("planner" not in run["facts"] for run in line["runs"])


def test_runs_of_another_machine_are_alike_and_of_another_seed_are_not(packs: Packs) -> None:
    elsewhere = replace(JOBS[1], training=replace(BASE.training, device="cuda", precision="bf16", strategy="fused"))
    assert packs.key_of(elsewhere.identity()) is None
    (found,) = packs.alike(elsewhere.identity())
    assert found.provenance["key"] == JOBS[1].key()
    assert packs.alike(replace(elsewhere, training_seed=7).identity()) == []


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("figure.json", b"", "figure.json: expected a pack of runs"),
        ("figure.json", b"{}", "figure.json: expected a pack of runs"),
        ("figure.parquet", b"x", "figure.parquet: expected sha256"),
        ("figure.parquet", None, "figure.parquet: "),
    ],
)
def test_damage_is_named(packs: Packs, name: str, content: bytes | None, words: str) -> None:
    place = packs.folder / name
    if content is None:
        place.unlink()
    else:
        place.write_bytes(content)
    with pytest.raises(hm.TrainingError) as caught:
        packs.key_of(JOBS[0].identity())
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_changed_number_in_the_seal_s_content_is_noticed(packs: Packs) -> None:
    place = packs.folder / "figure.json"
    text = place.read_text(encoding="utf-8")
    place.write_text(text.replace('"episode": 2', '"episode": 5'), encoding="utf-8")
    with pytest.raises(hm.TrainingError, match="its content has changed since it was written"):
        packs.key_of(JOBS[0].identity())


def test_a_packed_run_serves_whichever_versions_computed_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Published runs took days; a loose run is computed again."""
    store = Store(tmp_path)
    store.runs(JOBS)
    store.pack("figure", JOBS[:2])
    monkeypatch.setattr("heliomesh.jobs.job.versions", lambda: {"torch": "7.1.0", "numpy": "9.0.0"})
    later = [replace(job) for job in JOBS]
    assert [Store(tmp_path).has(job) for job in later] == [True, True, False]
    assert Store(tmp_path).runs(later[:1])[0].provenance["key"] == JOBS[0].key()


# a store's


def _kept(store: Store) -> list[str]:
    return [path.parent.name for path in sorted(store.folder.glob("runs/*/*/manifest.json"))]


def test_a_store_moves_runs_into_packs_and_keeps_each_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    before = store.runs(JOBS)
    store.pack("first", JOBS[:2])
    assert _kept(store) == [JOBS[2].key()]
    store.pack("second", JOBS)  # two of which the first holds
    assert list((tmp_path / "runs").iterdir()) == []
    assert _kept(store) == []
    assert [len(store.packs.runs(name)) for name in ("first", "second")] == [2, 1]
    monkeypatch.setattr("heliomesh.jobs.stacks.begun", pytest.fail)
    for one, other in zip(Store(tmp_path).runs(JOBS), before, strict=True):
        assert one.final == pytest.approx(other.final, abs=0, nan_ok=True)


def test_a_pack_that_is_there_is_never_written_again(tmp_path: Path) -> None:
    """Its runs may be published, of another machine or of lines that the experiment no longer has."""
    store = Store(tmp_path)
    store.runs(JOBS)
    store.pack("figure", JOBS[:1])
    before = {path.name: path.read_bytes() for path in store.packs.folder.iterdir()}
    store.pack("figure", JOBS[:1])  # nothing new
    assert {path.name: path.read_bytes() for path in store.packs.folder.iterdir()} == before
    for job in JOBS[1:]:
        store.pack("figure", [job])
    after = {path.name: path.read_bytes() for path in store.packs.folder.iterdir()}
    assert before.items() <= after.items()
    assert sorted(name for name in after if name.endswith(".json")) == [
        "figure-2.json",
        "figure-3.json",
        "figure.json",
    ]
    assert all(Store(tmp_path).has(job) for job in JOBS)


def test_a_kill_between_packing_and_removing_leaves_each_run_once(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.packs.write("figure", store.runs(JOBS))
    store = Store(tmp_path)
    store.pack("figure", JOBS)
    assert _kept(store) == []
    assert len(list(store.packs.folder.iterdir())) == 2
