"""The report page: what it carries, what it refuses, and that nothing gets out of its place."""

import base64
import json
import os
import re
import shutil
import signal
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import heliomesh as hm
from heliomesh.common.durable import Sealed, file_sha256
from heliomesh.common.memory_limit import TooLargeError
from heliomesh.common.streams import stream
from heliomesh.jobs.scheme import scheme_of
from heliomesh.learning.run import TrainingError
from heliomesh.pages import page_data as page_data_module
from heliomesh.pages.colours import SCHEMES, scheme_colour
from heliomesh.pages.page import render, report_page, source_hash
from heliomesh.pages.page_data import page_data
from heliomesh.pages.run_folder import read_run
from heliomesh.pages.schemes import scheme_label
from heliomesh.pages.seed_by_seed import differences
from heliomesh.simulation.diagnostics import interval
from heliomesh.studies.compare import Row
from heliomesh.tasks.dataset import load_dataset
from heliomesh.tasks.partition import split
from tests.pages.conftest import make_run

HOSTILE = "</script><img src=x onerror=alert(1)>"
KINDS = {"u1": "<u1", "u2": "<u2", "u4": "<u4", "f4": "<f4"}
FOUR_KINDS = {(False, False), (False, True), (True, False), (True, True)}  # sends, trains


class Elements(HTMLParser):
    """Tags, texts of style and script, and the policy of a page, as a browser reads them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: dict[str, str] = {}
        self.policy = ""
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append(tag)
        self._inside = f"{tag} {given.get('id', '')}".strip()
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"] or ""

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.texts[self._inside] = self.texts.get(self._inside, "") + data


def decoded(data: dict[str, Any], ref: dict[str, Any]) -> np.ndarray:
    """The values that the page's script reads."""
    content = base64.b64decode(data["blobs"][ref["blob"]])
    if ref["kind"] == "bits":
        bits = np.unpackbits(np.frombuffer(content, np.uint8), bitorder="little")
        return bits[: int(np.prod(ref["shape"]))].reshape(ref["shape"]).astype(bool)
    return np.frombuffer(content, KINDS[ref["kind"]]).reshape(ref["shape"]) * ref["scale"]


# What it carries


def test_slots_survive_the_packing(finished_runs):
    data = page_data(finished_runs)
    trace, shown = hm.Trace.load(finished_runs[0] / "trace.npz"), data["runs"][0]["trace"]
    action = decoded(data, shown["action"]).astype(int)
    np.testing.assert_array_equal(action >= 128, trace.scheduled[0])
    np.testing.assert_array_equal(np.array(shown["powers_watt"])[action % 128], trace.power_watt[0])
    np.testing.assert_array_equal(decoded(data, shown["delivered"]), trace.delivered[0])
    for name, array in (
        ("battery", trace.battery_joule),
        ("spent", trace.spent_joule),
        ("harvested", trace.harvested_joule),
        ("update_loss", trace.update_loss),
    ):
        step = shown[name]["scale"]
        np.testing.assert_allclose(decoded(data, shown[name]), array[0], atol=0.51 * step)
        assert 255 * step <= max(array[0].max(), 4.0)  # no range is wasted
    cost = trace.update_loss[0].sum(1)
    np.testing.assert_allclose(decoded(data, shown["cost_so_far"])[-1], cost.mean(), rtol=1e-6)
    np.testing.assert_allclose(decoded(data, shown["cost_recent"])[-1], cost[-10:].mean(), rtol=1e-6)
    np.testing.assert_allclose(decoded(data, shown["cost_recent"])[3], cost[:4].mean(), rtol=1e-6)


def test_training_and_sending_are_told_apart(separate_run):
    data, trace = page_data([separate_run]), hm.Trace.load(separate_run / "trace.npz")
    shown, headline = data["runs"][0]["trace"], data["schemes"][0]["headline"]
    action = decoded(data, shown["action"]).astype(int)
    sends = np.array(shown["powers_watt"])[action % 128] > 0
    np.testing.assert_array_equal(sends, trace.power_watt[0] > 0)
    np.testing.assert_array_equal(action >= 128, trace.scheduled[0])
    assert {(bool(s), bool(t)) for s, t in zip(sends.flat, trace.scheduled[0].flat, strict=True)} == FOUR_KINDS
    assert headline["participation"]["mean"] == pytest.approx(trace.scheduled[0].mean())
    assert headline["sending"]["mean"] == pytest.approx(sends.mean())


def test_one_slot_is_left_of_a_run_that_is_shorter_than_a_step(finished_runs):
    data = page_data(finished_runs[:1], every=10**400)
    assert decoded(data, data["runs"][0]["trace"]["slot"]).tolist() == [0]


def test_curves_and_network_survive_the_packing(finished_runs):
    data = page_data(finished_runs)
    run, shown = hm.Run.load(finished_runs[1]), data["runs"][1]["curves"]
    np.testing.assert_allclose(decoded(data, shown["accuracy_mean"]), run.metrics["accuracy_mean"], rtol=1e-6)
    np.testing.assert_allclose(decoded(data, shown["device_accuracy"]), run.accuracy, atol=1e-5)
    topology = hm.build(hm.Scenario.load(finished_runs[1] / "scenario.toml")).topology
    network = data["scenarios"][0]["network"]
    np.testing.assert_allclose(decoded(data, network["position_metre"]), topology.position_metre, atol=1e-3)
    np.testing.assert_array_equal(decoded(data, network["sender"]), topology.edge_sender)


def test_the_page_calls_devices_by_the_names_of_their_places(tmp_path):
    places = "network.positions_metre=[[0, 0], [30, 40], [60, 0]]"
    made = make_run(
        tmp_path / "run", "uncoordinated", 0, "--set", places, "--set", "network.names=['roof', '', '<b>']"
    )
    data = page_data([made])
    network = data["scenarios"][0]["network"]
    assert network["names"] == ["roof", "", "<b>"]
    assert decoded(data, network["position_metre"]).tolist() == [[0, 0], [30, 40], [60, 0]]


def test_headline_averages_seeds_and_shares_the_best_bound(finished_runs):
    data = page_data(finished_runs)
    receiver, uncoordinated = data["schemes"]
    assert (receiver["label"], receiver["runs"]) == ("receiver", [0, 1])
    costs = np.array([hm.Trace.load(folder / "trace.npz").cost[0] for folder in finished_runs])
    expected = interval(costs[:2])
    assert receiver["headline"]["cost"]["mean"] == pytest.approx(expected.mean)
    assert receiver["headline"]["cost"]["half"] == pytest.approx(expected.half_width)
    bound = hm.lower_bound(hm.build(read_run(finished_runs[0]).scenario))
    assert uncoordinated["headline"]["bound"]["mean"] == bound
    assert uncoordinated["headline"]["gap"]["mean"] == pytest.approx(costs[2] / bound - 1)
    assert uncoordinated["headline"]["cost"]["half"] is None  # one seed gives no interval


def test_a_run_with_powers_of_its_own_has_no_gap(finished_runs, monkeypatch):
    """The other runs' bound speaks of the scenario's powers only."""
    *others, last = map(read_run, finished_runs)
    outside = replace(last, trace=replace(last.trace, power_watt=last.trace.power_watt * 0.9))
    runs = dict(zip(finished_runs, [*others, outside], strict=True))
    monkeypatch.setattr("heliomesh.pages.page_data.read_run", runs.__getitem__)
    receiver, uncoordinated = page_data(finished_runs)["schemes"]
    assert receiver["headline"]["gap"]["mean"] > 0
    assert uncoordinated["headline"]["cost"]["mean"] > 0
    assert uncoordinated["headline"]["bound"] is None
    assert uncoordinated["headline"]["gap"] is None


def test_a_run_that_sends_without_training_has_no_gap_to_coupled_actions(finished_runs, monkeypatch):
    last = read_run(finished_runs[2])
    outside = replace(last, trace=replace(last.trace, scheduled=np.zeros_like(last.trace.scheduled)))
    monkeypatch.setattr("heliomesh.pages.page_data.read_run", {finished_runs[2]: outside}.__getitem__)
    (scheme,) = page_data(finished_runs[2:])["schemes"]
    assert scheme["headline"]["bound"] is None


def test_differences_are_paired_by_seed(finished_runs):
    data = page_data(finished_runs)  # receiver with seeds 0 and 1, uncoordinated with seed 0
    (own, against_receiver), (against_uncoordinated, same) = data["differences"]
    assert (own, same) == (None, None)
    runs = [hm.Run.load(finished_runs[index]).metrics["accuracy_mean"] for index in (0, 2)]
    costs = [hm.Trace.load(finished_runs[index] / "trace.npz").cost[0] for index in (0, 2)]
    assert against_uncoordinated["seeds"] == 1
    assert against_uncoordinated["accuracy"] == {"mean": pytest.approx(runs[0][-1] - runs[1][-1]), "half": None}
    assert against_uncoordinated["accuracy_over_run"]["mean"] == pytest.approx(np.mean(runs[0] - runs[1]))
    assert against_uncoordinated["cost"]["mean"] == pytest.approx(costs[0] - costs[1])
    assert against_receiver["cost"]["mean"] == pytest.approx(costs[1] - costs[0])


def test_differences_need_common_luck(finished_runs):
    assert page_data(finished_runs[1:])["differences"] == [[None, None], [None, None]]


def test_differences_over_several_seeds_have_intervals(finished_runs):
    first, second, other = map(read_run, finished_runs)
    again = replace(other, seed=second.seed, trace=replace(other.trace, seed=second.trace.seed))
    ((_, found), _) = differences([[first, second], [other, again]])
    costs = [run.trace.cost[0] for run in (first, second, other)]
    expected = interval(np.array([costs[2] - costs[0], costs[2] - costs[1]]))
    assert found["seeds"] == 2
    assert found["cost"] == {"mean": pytest.approx(expected.mean), "half": pytest.approx(expected.half_width)}


def test_the_ledger_balances(finished_runs):
    for run in page_data(finished_runs)["runs"]:
        ledger = run["trace"]["ledger"]
        assert ledger["initial"] + ledger["harvested"] == pytest.approx(
            ledger["spent"] + ledger["overflow"] + ledger["stored"]
        )
        assert ledger["ideal"]


def test_the_ledger_says_where_lossy_energy_went(lossy_run):
    (run,) = page_data([lossy_run])["runs"]
    ledger = run["trace"]["ledger"]
    assert not ledger["ideal"]
    assert ledger["imbalance"] == pytest.approx(0, abs=1e-9)
    parts = [ledger[name] for name in ("training", "sending", "standby", "converter")]
    assert sum(parts) == pytest.approx(ledger["spent"])
    assert min(*parts, ledger["charging"], ledger["leaked"]) > 0


def test_the_gap_ledger_is_shown_where_every_seed_has_one(finished_runs, run_with_ledger):
    receiver, uncoordinated = page_data([finished_runs[0], run_with_ledger])["schemes"]
    assert receiver["gap_ledger"] is None
    means = {name: fact["mean"] for name, fact in uncoordinated["gap_ledger"].items()}
    gap = means.pop("gap to the ideal")
    assert list(means) == ["steps not trained", "disagreement", "optimiser"]
    assert sum(means.values()) == pytest.approx(gap, abs=1e-9)
    assert {fact["half"] for fact in uncoordinated["gap_ledger"].values()} == {None}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"key": "another", "accuracies": {}}, "expected the gap ledger of run"),
        ({"accuracies": {"ideal": 2}}, "expected ideal from 0 to 1, actual value 2"),
        ({"accuracies": []}, "expected the gap ledger of a run with accuracies (dict)"),
    ],
)
def test_a_damaged_gap_ledger_is_one_sentence(call, run_with_ledger, tmp_path, content, words):
    run = Path(shutil.copytree(run_with_ledger, tmp_path / "run"))
    kind = Sealed("the gap ledger of a run", 1)
    kind.write(run / "gap_ledger.json", kind.read(run / "gap_ledger.json", ValueError) | content)
    code, _, told = call("report", run, "--out", tmp_path / "report.html")
    assert code == 2
    assert words in told
    assert told.count("\n") == 1


def test_a_folder_of_runs_is_told_from_a_run(finished_runs):
    with pytest.raises(TrainingError, match="runs are inside it, such as receiver-0"):
        read_run(finished_runs[0].parent)


def test_a_label_names_options_that_the_planner_does_not(finished_runs):
    run = read_run(finished_runs[0])
    literal = replace(run, planner="decentralized literal", options={"form": "literal", "hops": 1})
    assert scheme_label(literal, "on ring10") == "decentralized literal hops=1 on ring10"


def test_label_mix_is_the_one_trained_on(finished_runs):
    data = page_data(finished_runs)
    counts = decoded(data, data["runs"][0]["labels"])
    learning = hm.Scenario.load("tiny").learning
    labels = load_dataset(learning).train_labels
    expected = split(labels, learning, len(counts), stream(0, "partition")).label_counts(labels, 10)
    np.testing.assert_array_equal(counts, expected)


def test_the_same_luck_twice_is_not_averaged(finished_runs, tmp_path):
    copy = shutil.copytree(finished_runs[0], tmp_path / "again")
    labels = [scheme["label"] for scheme in page_data([finished_runs[0], copy])["schemes"]]
    assert labels == ["receiver (receiver-0)", "receiver (again)"]


def test_the_page_of_a_comparison_says_which_planners_refused(comparison, tmp_path):
    refused = Row(
        "centralized", scheme_of("centralized"), None, None, None, refusal="memory: expected < 1 B, actual 2 B"
    )
    page = hm.report(replace(comparison, rows=(refused, *comparison.rows)), tmp_path / "page.html")
    text = page.read_text(encoding="utf-8")
    assert "<li>centralized refused. memory: expected &lt; 1 B, actual 2 B</li>" in text
    assert text.count("<li>centralized refused") == 1
    plain = hm.report(comparison, tmp_path / "plain.html").read_text(encoding="utf-8")
    assert re.search('<ul id="refusals"[^>]*></ul>', plain)


def test_namesakes_are_told_apart_by_what_differs(finished_runs, tmp_path):
    longer = make_run(tmp_path / "longer", "uncoordinated", 0, "--set", "slots=14")
    data = page_data([finished_runs[0], longer, finished_runs[2]])
    assert [scheme["label"] for scheme in data["schemes"]] == [
        "receiver on tiny (slots=12)",
        "uncoordinated on tiny (slots=14)",
        "uncoordinated on tiny (slots=12)",
    ]
    assert [scenario["name"] for scenario in data["scenarios"]] == ["tiny (slots=12)", "tiny (slots=14)"]
    other = make_run(tmp_path / "other", "uncoordinated", 0, "--set", 'name="other"', "--set", "slots=13")
    labels = [scheme["label"] for scheme in page_data([finished_runs[0], other])["schemes"]]
    assert labels == ["receiver on tiny", "uncoordinated on other"]


def test_scenarios_that_differ_in_much_are_told_apart_by_hash(finished_runs, tmp_path):
    changes = ("energy.capacity_joule=6.0", "energy.battery_levels=7", "link.waterfall=0.2")
    far = make_run(tmp_path / "far", "uncoordinated", 0, *(word for one in changes for word in ("--set", one)))
    for scenario in page_data([finished_runs[2], far])["scenarios"]:
        assert scenario["name"] == f"tiny ({scenario['hash'][:12]})"


def test_continuous_powers_are_rounded(finished_runs):
    watt = np.linspace(0, 1, 400).reshape(40, 10)
    powers, codes = page_data_module._actions(watt, np.ones((40, 10), bool))
    assert len(powers) <= 128
    np.testing.assert_allclose(np.array(powers)[codes - 128], watt, atol=0.5 / 126 + 1e-9)


# Safety of the page


def test_hostile_names_stay_text(tmp_path):
    folder = make_run(tmp_path / "<img src=x onerror=alert(1)>", "uncoordinated", 0, "--set", f'name="{HOSTILE}"')
    page = report_page([folder], title=HOSTILE + "{{data}}")
    found = Elements(page)
    assert "img" not in found.tags
    assert found.tags.count("script") == 2
    data = json.loads(found.texts["script data"])
    assert data["scenarios"][0]["name"] == HOSTILE
    assert data["runs"][0]["name"] == "<img src=x onerror=alert(1)>"
    assert found.texts["title"] == HOSTILE + "{{data}}"


def test_the_policy_allows_this_script_and_style_only(finished_runs):
    page = report_page(finished_runs)
    found = Elements(page)
    assert found.policy.startswith("default-src 'none';")
    assert f"script-src '{source_hash(found.texts['script'])}';" in found.policy
    assert f"style-src '{source_hash(found.texts['style'])}';" in found.policy
    assert "unsafe" not in found.policy
    assert not re.search(r"<[^>]+ (on\w+|style)=", page.split("<script")[0])
    assert set(re.findall(r"https?://[\w./]+", page)) == {"http://www.w3.org/2000/svg"}


def test_every_place_of_the_template_is_filled(finished_runs):
    assert "{{" not in report_page(finished_runs).replace("{{data}}", "")


def test_no_path_of_this_machine_is_told(finished_runs):
    page = report_page(finished_runs)
    assert str(finished_runs[0].parent) not in page


# Size


def test_five_runs_of_200_slots_are_small(tmp_path):
    scenario = hm.Scenario.load("ring10")
    problem = hm.build(scenario)
    plan = hm.plan(problem, "uncoordinated")
    for seed in range(5):
        job, store = hm.Job(scenario, "uncoordinated", seed=seed), hm.Store(tmp_path / str(seed), single=True)
        store.put_plan(job, plan)
        store.put_trace(job, hm.simulate(problem, plan, 1, seed))
    size = len(report_page([tmp_path / str(seed) for seed in range(5)]).encode())
    assert size < 300_000


def test_too_large_is_refused_with_the_estimate(finished_runs, call, monkeypatch, tmp_path):
    monkeypatch.setattr(page_data_module, "LIMIT_MIB", 1e-3)
    with pytest.raises(TooLargeError, match=r"expected at most 0.001 MiB of slot data, actual estimate [\d.]+ KiB"):
        page_data(finished_runs)
    code, _, told = call("report", *finished_runs, "--out", tmp_path / "r.html")
    assert code == 2
    enough = re.search(r"every = (\d+)", told)
    assert enough
    assert call("report", *finished_runs, "--out", tmp_path / "r.html", "--every", enough[1])[0] == 0


def test_thinned_slots_keep_the_sums(finished_runs):
    whole, thin = page_data(finished_runs), page_data(finished_runs, every=5)
    assert thin["runs"][0]["trace"]["slot"]["shape"] == [3]
    assert thin["runs"][0]["trace"]["battery"]["shape"] == [4, 5]  # three slots and the end; five devices
    assert thin["runs"][0]["trace"]["ledger"] == whole["runs"][0]["trace"]["ledger"]
    assert thin["schemes"] == whole["schemes"]
    spent = decoded(whole, whole["runs"][0]["trace"]["spent_so_far"])
    np.testing.assert_array_equal(decoded(thin, thin["runs"][0]["trace"]["spent_so_far"]), spent[[0, 5, 10]])


# Half-finished runs


def test_a_run_without_a_checkpoint_says_so(own_run):
    for name in ("manifest.json", "metrics.parquet", "weights.safetensors"):
        (own_run / name).unlink()
    data = page_data([own_run])
    assert data["runs"][0]["missing"] == ["The training is not finished (no manifest.json): no curve yet."]
    assert data["schemes"][0]["label"] == "receiver (unfinished)"
    assert data["schemes"][0]["headline"]["accuracy_mean"] is None
    assert data["schemes"][0]["headline"]["cost"] is not None


def test_a_stopped_run_shows_its_checkpoint(call, tmp_path, monkeypatch):
    arguments = ["run", "tiny", "uncoordinated", "--json", "--evaluate-every", 2, "--set", "slots=8"]

    def press(items, description, total):
        for item in items:
            if item == 4:
                os.kill(os.getpid(), signal.SIGINT)
            yield item

    monkeypatch.setattr("heliomesh.commands.progress.track_unless", lambda quiet: press)
    assert call(*arguments, "--strategy", "loop", "--out", tmp_path / "stopped")[0] == 130
    data = page_data([tmp_path / "stopped"])
    assert data["runs"][0]["done"] == 4
    assert data["runs"][0]["missing"][0].endswith("only the first 4 of 8 slots are evaluated.")
    assert decoded(data, data["runs"][0]["curves"]["slot"]).tolist() == [2, 4]

    tensors = next((tmp_path / "stopped" / "checkpoints").glob("*.safetensors"))
    tensors.write_bytes(tensors.read_bytes()[:100])
    spoiled = page_data([tmp_path / "stopped"])["runs"][0]
    assert spoiled["done"] == 0
    assert "A checkpoint was passed over: " in spoiled["missing"][1]
    assert tensors.exists()  # a report changes nothing


def test_a_trace_without_a_plan_is_shown(own_run):
    for name in ("manifest.json", "metrics.parquet", "weights.safetensors", "plan.json"):
        (own_run / name).unlink()
    run = page_data([own_run])["runs"][0]
    assert run["trace"] is not None
    assert run["missing"][1] == "There is no plan.json: bound, control overhead and planning time are unknown."


def test_without_a_trace_the_curves_remain(own_run):
    for name in ("trace.json", "trace.npz", "plan.json"):
        (own_run / name).unlink()
    run = page_data([own_run])["runs"][0]
    assert run["trace"] is None
    assert len(run["missing"]) == 2
    assert run["done"] == 12


# Folders that are none


def _absent(run: Path) -> None:
    shutil.rmtree(run)


def _empty(run: Path) -> None:
    shutil.rmtree(run)
    run.mkdir()


def _foreign(run: Path) -> None:
    _empty(run)
    (run / "holiday.jpg").write_bytes(b"sea")


def _truncate(name: str):
    def spoil(run: Path) -> None:
        content = (run / name).read_bytes()
        (run / name).write_bytes(content[: len(content) // 2])

    return spoil


def _replace(name: str, text: str):
    return lambda run: (run / name).write_text(text, encoding="utf-8") and None


def _change_manifest(**changes: Any):
    def spoil(run: Path) -> None:
        kind = Sealed("the manifest of a run", 2)
        manifest = kind.read(run / "manifest.json", ValueError)
        manifest["provenance"] |= changes
        kind.write(run / "manifest.json", manifest)

    return spoil


def _seal_trace(run: Path) -> None:
    """Let a changed trace pass its sum."""
    kind = Sealed("the trace of a job", 1)
    content = kind.read(run / "trace.json", ValueError)
    content["sha256"] = {"trace.npz": file_sha256(run / "trace.npz")}
    kind.write(run / "trace.json", content)


def _no_archive(run: Path) -> None:
    (run / "trace.npz").write_text("sea", encoding="utf-8")
    _seal_trace(run)


def _other_trace(run: Path) -> None:
    scenario = hm.Scenario.load(run / "scenario.toml")
    problem = hm.build(scenario)
    hm.simulate(problem, hm.plan(problem, "uncoordinated"), 1, 9).save(run / "trace.npz")
    _seal_trace(run)


def _not_finite(run: Path) -> None:
    trace = hm.Trace.load(run / "trace.npz")
    trace.battery_joule[0, 0, 0] = np.nan
    trace.save(run / "trace.npz")
    _seal_trace(run)


def _checkpoints_only(run: Path) -> None:
    _empty(run)
    (run / "checkpoints").mkdir()


def _planned_only(run: Path) -> None:
    for name in ("manifest.json", "trace.json", "trace.npz", "metrics.parquet", "weights.safetensors"):
        (run / name).unlink()


def _folder_for(name: str):
    def spoil(run: Path) -> None:
        (run / name).unlink()
        (run / name).mkdir()

    return spoil


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_absent, "expected the folder of a run, actual: nothing there"),
        (_empty, "actual: an empty folder"),
        (_foreign, "with manifest.json or trace.json, actual: none of them"),
        (_checkpoints_only, "not finished and has no trace.npz"),
        (_truncate("manifest.json"), "manifest.json: expected the manifest of a run"),
        (_truncate("metrics.parquet"), "metrics.parquet: expected sha256"),
        (_truncate("trace.npz"), "trace.npz: expected sha256"),
        (_truncate("plan.json"), "plan.json: expected the plan of a job"),
        (_planned_only, "has a plan but was not simulated"),
        (_replace("manifest.json", "[1]"), "expected the manifest of a run, actual: JSON without names, [1]"),
        (_no_archive, "trace.npz: expected a complete trace file, actual: File is not a zip file"),
        (_folder_for("trace.npz"), "trace.npz: expected a file of a finished result, actual: Is a directory"),
        (_replace("manifest.json", '{"format": 7}'), "expected the manifest of a run in format 2, actual format 7"),
        (_replace("plan.json", '{"run": 1, "plan": []}'), "expected the plan of a job, actual: it has no 'format'"),
        (_change_manifest(scenario_toml="slots = 'many'"), "expected a scenario of this version"),
        (_change_manifest(scenario_toml="][", planner=3), "expected a scenario of this version"),
        (_change_manifest(seed=None), "expected the manifest of a run"),
        (_change_manifest(episode=3), "episode: expected 0 to 0"),
        (_other_trace, "not the trace that the run was trained under"),
        (_not_finite, "expected finite numbers in battery_joule"),
    ],
)
def test_bad_folders_are_one_sentence(call, own_run, tmp_path, spoil, words):
    spoil(own_run)
    code, printed, told = call("report", own_run, "--out", tmp_path / "report.html")
    assert (code, printed) == (2, "")
    assert words in told
    assert told.startswith("error: ")
    assert told.count("\n") == 1
    assert not (tmp_path / "report.html").exists()


def test_a_file_or_a_folder_twice_is_refused(call, own_run, tmp_path):
    assert "actual: a file" in call("report", own_run / "trace.npz", "--out", tmp_path / "r.html")[2]
    assert "every run's folder once" in call("report", own_run, own_run, "--out", tmp_path / "r.html")[2]
    assert call("report", own_run, "--out", tmp_path / "no" / "r.html")[0] == 2


def test_the_command_writes_the_page(call, finished_runs, tmp_path):
    code, printed, told = call("report", *finished_runs, "--out", tmp_path / "r.html", "--title", "Three runs")
    assert (code, told) == (0, "")
    assert "r.html: 3 runs, " in printed
    assert Elements((tmp_path / "r.html").read_text(encoding="utf-8")).texts["title"] == "Three runs"


# Colours


def test_schemes_have_colours_of_their_own():
    for theme in ("light", "dark"):
        assert len({getattr(colour, theme) for colour in SCHEMES.values()}) == len(SCHEMES)
    assert scheme_colour("decentralized literal") != scheme_colour("decentralized")
    assert scheme_colour("receiver hops=2") == SCHEMES["receiver"]
    assert scheme_colour("") == scheme_colour("something new")


def test_a_template_knows_no_other_data():
    page = render({"title": "a & b", "blobs": ["{{script}}"]})
    assert Elements(page).texts["script data"] == '{"title":"a \\u0026 b","blobs":["{{script}}"]}'
