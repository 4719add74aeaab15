"""Files from strangers: whatever a file names, no reader imports it unless the user said trust at that door.

Every kind of file that the package writes is made, and poisoned as a stranger could: a field, a planner or a class
names a module that tells when it is imported, and all seals and sums are made anew. Then every reader reads it.
"""

import json
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import heliomesh as hm
from heliomesh.common import catalog
from heliomesh.common.durable import file_sha256, json_sha256
from heliomesh.common.mistakes import MistakeError
from heliomesh.interop.export_tables import read_tables
from heliomesh.interop.weights import write_weights
from heliomesh.jobs.pack import Packs
from heliomesh.pages.run_folder import read_run
from heliomesh.studies.bench.bench import leaderboard
from heliomesh.studies.bench.line import Entry, new_line, write_line
from heliomesh.studies.bench.scenarios import BENCH
from tests.conftest import Call

EVIL = "evilmod:build"
FIELDS = (
    *("harvest.source", "channel.source"),
    *("learning.dataset", "learning.model", "learning.aggregation", "learning.optimizer"),
    "planner",
)
TINY = hm.Scenario.load("tiny").override({"slots": 3, "learning.local_steps": 1, "learning.batch": 8})
JOB = hm.Job(TINY, "uncoordinated", training=hm.TrainSettings(strategy="loop"))


@pytest.fixture(autouse=True)
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module on the path that tells when it is imported, and a folder to work in."""
    marker, modules = tmp_path / "imported", tmp_path / "modules"
    modules.mkdir()
    (modules / "evilmod.py").write_text(f"open({str(marker)!r}, 'w').close()\ndef build(*_): pass\nclass X: pass\n")
    monkeypatch.syspath_prepend(str(modules))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(catalog, "_vouched", set())
    yield marker
    sys.modules.pop("evilmod", None)


def trained(folder: Path) -> Path:
    """A run's folder, whole."""
    hm.Store(folder, single=True).run(JOB)
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file or folder of each kind that the package writes."""
    root = tmp_path_factory.mktemp("whole")
    problem = hm.build(TINY)
    (root / "scenario.toml").write_text(TINY.to_toml())
    plan = hm.plan(problem, "receiver")
    plan.save(root / "plan.safetensors")
    hm.simulate(problem, plan, 1).save(root / "trace.npz")
    run = hm.Run.load(trained(root / "run"))
    hm.Store(root / "store").run(JOB)
    Packs(root / "packed" / "packs").write("some", [run])
    write_line(root / "bench", BENCH, new_line(BENCH, "uncoordinated", {}).model_copy(update={"entries": claimed()}))
    return root


def claimed() -> dict[str, Entry]:
    """What a line of the benchmark may say of the first scenario."""
    one = BENCH.scenarios[0]
    told = {"scenario_sha256": one.sha256, "key": "", "results_version": 1, "made_with": {}}
    costs = (1.0,) * one.episodes
    return {one.name: Entry(**told, cost=costs, spent_joule=costs, accuracy=(0.5,) * one.seeds)}


def with_field(text: str, field: str) -> str:
    """A scenario's text in which a field names the module."""
    data = tomllib.loads(text)
    section, _, name = field.partition(".")
    if name:
        data.setdefault(section, {})[name] = EVIL
    return tomli_w.dumps(data)


def poisoned_json(value: Any, field: str) -> Any:
    """Plain data in which every scenario and every entry of that name is poisoned."""
    if isinstance(value, dict):
        return {key: _poisoned_entry(key, entry, field) for key, entry in value.items()}
    return [poisoned_json(entry, field) for entry in value] if isinstance(value, list) else value


def _poisoned_entry(key: str, value: Any, field: str) -> Any:
    if isinstance(value, str):
        if key in ("scenario_toml", "scenario") and "\n" in value:
            return with_field(value, field)
        return EVIL if key == field.rpartition(".")[2] else value
    return poisoned_json(value, field)


def poison(path: Path, field: str) -> None:
    """Rewrite a file as a stranger would."""
    if path.suffix == ".toml":
        path.write_text(with_field(path.read_text(), field))
    elif path.suffix == ".npz":
        trace = hm.Trace.load(path)
        replace(trace, scenario_toml=with_field(trace.scenario_toml, field), planner=EVIL).save(path)
    elif path.name == "plan.safetensors":
        rewrite_plan(path, lambda plan: plan | {"planner": EVIL}, lambda scenario: with_field(scenario, field))
    elif path.suffix == ".json":
        seal_anew(path, poisoned_json(json.loads(path.read_text()), field))


def rewrite_plan(path: Path, plan: Callable[[Any], Any], scenario: Callable[[str], str] = str) -> None:
    """The same tables under another header."""
    with safe_open(path, framework="pt") as file:
        header = dict(file.metadata())
    header |= {"plan": json.dumps(plan(json.loads(header["plan"]))), "scenario": scenario(header["scenario"])}
    save_file(load_file(path), path, header)


def name_class(path: Path, kind: str) -> None:
    """Let every plan below a path be an object of some class, under new seals."""
    plans = [path] if path.is_file() else sorted(path.rglob("plan.safetensors"))
    for found in plans:
        rewrite_plan(found, lambda plan: plan | {"policy": {"object": kind, "values": {}}})
        if (sealed := found.with_suffix(".json")).exists():
            seal_anew(sealed, json.loads(sealed.read_text()))


def seal_anew(path: Path, content: dict[str, Any]) -> None:
    """Write a sealed file whose sums, key and seal fit what it says."""
    content.pop("seal", None)
    if isinstance(content.get("sha256"), dict):
        content["sha256"] = {name: file_sha256(path.with_name(name)) for name in content["sha256"]}
    for line in content.get("lines", []):
        for run in line["runs"]:
            run["key"] = json_sha256({**line["identity"], **run["identity"]})
    path.write_text(json.dumps(content | {"seal": json_sha256(content)}))


@dataclass(frozen=True)
class Door:
    """A kind of file, and who reads it: functions of its path, and words of the command line."""

    kind: str
    readers: tuple[Callable[[Path], object], ...]
    commands: tuple[tuple[str, ...], ...] = ()


def learned(scenario: hm.Scenario) -> object:
    """All that a scenario decides."""
    problem = hm.build(scenario)
    trace = hm.simulate(problem, hm.plan(problem, "uncoordinated"), 1)
    return hm.train(scenario, trace, strategy="loop")


def ledgered(path: Path) -> object:
    trace = hm.Trace.load(path)
    for look in (hm.energy_ledger, hm.summarise, lambda trace: hm.train(TINY, trace, strategy="loop")):
        with suppress(MistakeError):
            look(trace)
    return hm.train(hm.Scenario.parse(tomllib.loads(trace.scenario_toml)), trace, strategy="loop")


def agent_folder(path: Path) -> object:
    pytest.importorskip("cryptography")
    from heliomesh.field.agents.folder import AgentFolder

    found = AgentFolder(path.parent)
    with suppress(MistakeError, OSError):
        _ = found.settings
    return found.problem


def packed(path: Path) -> object:
    store = hm.Store(path)
    return [
        learned(hm.Scenario.parse(tomllib.loads(run.provenance["scenario_toml"]))) for run in store.packs.runs("some")
    ]


DOORS = (
    Door(
        "scenario.toml",
        (lambda path: learned(hm.Scenario.load(path)), agent_folder, lambda path: hm.run(path, "uncoordinated")),
        (
            ("scenario", "validate", "{}"),
            ("plan", "{}", "uncoordinated"),
            ("run", "{}", "uncoordinated", "--out", "R", "--strategy", "loop"),
            ("export", "{}", "uncoordinated", "--format", "json", "--out", "tables.json"),
            ("device", "deploy", "{}", "--planner", "uncoordinated", "--out", "net"),
        ),
    ),
    Door("plan.safetensors", (hm.Plan.load, read_tables)),
    Door(
        "trace.npz",
        (ledgered,),
        (("run", "tiny", "--trace", "{}", "--set", "slots=3", "--out", "R", "--strategy", "loop"),),
    ),
    Door(
        "run",
        (
            lambda path: learned(read_run(path).scenario),
            lambda path: write_weights(hm.Run.load(path), path / "weights", "safetensors"),
            lambda path: hm.report([path], path / "page.html"),
            lambda path: hm.Store(path, single=True).plan(JOB),
            lambda path: hm.Store(path, single=True).run(JOB),
        ),
        (
            ("store", "list", "{}"),
            ("store", "show", "{}"),
            ("store", "verify", "{}"),
            ("store", "export", "{}", "--out", "W"),
            ("report", "{}", "--out", "page.html"),
            ("run", "tiny", "uncoordinated", "--set", "slots=3", "--out", "{}", "--strategy", "loop"),
        ),
    ),
    Door(
        "store",
        (
            lambda path: hm.Store(path).plan(JOB),
            lambda path: hm.Store(path).trace(JOB),
            lambda path: hm.Store(path).run(JOB),
        ),
        (("store", "list", "{}"), ("store", "verify", "{}")),
    ),
    Door("packed", (packed,), (("store", "list", "{}"), ("store", "verify", "{}"))),
    Door("bench", (leaderboard,), (("bench", "--folder", "{}", "--only-print"),)),
)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.kind)
def test_no_reader_imports_what_a_file_names(
    door: Door, field: str, whole: Path, tmp_path: Path, call: Call, evil: Path
) -> None:
    for number, reader in enumerate(door.readers):
        with suppress(MistakeError):
            reader(copied(whole, door, tmp_path / f"python {number}", field))
        assert not evil.exists(), f"{door.kind}, reader {number}"
    for number, words in enumerate(door.commands):
        path = copied(whole, door, tmp_path / f"command {number}", field)
        code, _, told = call(*(word.format(path) for word in words))
        assert (code, "Traceback" in told) in ((0, False), (2, False)), told
        assert not evil.exists(), words
    assert "evilmod" not in sys.modules


def copied(whole: Path, door: Door, target: Path, field: str | None) -> Path:
    """A copy, with all files poisoned where a field is named: those with sums last."""
    path = target / door.kind
    target.mkdir()
    if (whole / door.kind).is_dir():
        shutil.copytree(whole / door.kind, path)
    else:
        shutil.copy(whole / door.kind, path)
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    for file in sorted(files if field else [], key=lambda one: one.suffix == ".json"):
        poison(file, str(field))
    return path


def poisonings(value: Any) -> Iterator[Any]:
    """Copies of plain data, in each of which one text, or one entry of a scenario within a text, names the module."""
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from (value | {key: other} for other in poisonings(entry))
    elif isinstance(value, list):
        for number, entry in enumerate(value):
            yield from ([*value[:number], other, *value[number + 1 :]] for other in poisonings(entry))
    elif value is None or isinstance(value, str):
        yield EVIL
        if value and "\n" in value:
            yield from map(tomli_w.dumps, poisonings(tomllib.loads(value)))


def poisoned_files(file: Path) -> Iterator[Callable[[Path], None]]:
    """All that write such a copy in place of a file."""
    if file.suffix == ".json":
        yield from (partial(seal_anew, content=one) for one in poisonings(json.loads(file.read_text())))
    elif file.suffix == ".toml":
        for one in poisonings(tomllib.loads(file.read_text())):
            yield partial(Path.write_text, data=tomli_w.dumps(one))
    elif file.name == "plan.safetensors":
        with safe_open(file, framework="pt") as opened:
            header = dict(opened.metadata())
        for one in poisonings({"plan": json.loads(header["plan"]), "scenario": header["scenario"]}):
            yield partial(
                rewrite_plan, plan=lambda _, one=one: one["plan"], scenario=lambda _, one=one: one["scenario"]
            )


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.kind)
def test_no_text_of_a_file_is_taken_for_code(door: Door, whole: Path, tmp_path: Path, call: Call, evil: Path) -> None:
    base, tries = whole / door.kind, 0
    for file in [base] if base.is_file() else sorted(one for one in base.rglob("*") if one.is_file()):
        for write in poisoned_files(file):
            for reader in (*door.readers, *door.commands):
                tries += 1
                path = copied(whole, door, tmp_path / f"try {tries}", None)
                write(path / file.relative_to(base))
                if (sealed := (path / file.relative_to(base)).with_suffix(".json")).exists():
                    seal_anew(sealed, json.loads(sealed.read_text()))
                with suppress(MistakeError, ValueError):
                    reader(path) if callable(reader) else call(*(word.format(path) for word in reader))
                assert not evil.exists(), f"{file.name}, reader {reader}"
    assert tries > 10 or door.kind == "trace.npz"


@pytest.mark.parametrize("kind", ["evilmod:X", "heliomesh.__main__:X", "heliomesh.cli:_Commands", "os:PathLike"])
@pytest.mark.parametrize("name", ["plan.safetensors", "run", "store"])
def test_a_plan_names_classes_of_planners_only(
    kind: str, name: str, whole: Path, tmp_path: Path, evil: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copied(whole, next(one for one in DOORS if one.kind == name), tmp_path / "sent", None)
    name_class(path, kind)
    with pytest.raises(MistakeError, match="expected classes of heliomesh's planners"):
        hm.Plan.load(path) if path.is_file() else hm.Store(path, single=name == "run").plan(JOB)
    assert not evil.exists()
    assert "Usage" not in capsys.readouterr().err


def test_the_command_of_a_poisoned_run_folder_imports_nothing(
    whole: Path, tmp_path: Path, call: Call, evil: Path
) -> None:
    """The plan is read only where no trace is: a stranger leaves that out."""
    door = next(one for one in DOORS if one.kind == "run")
    path = copied(whole, door, tmp_path / "sent", None)
    name_class(path, "evilmod:X")
    for file in ("manifest.json", "trace.json", "trace.npz"):
        (path / file).unlink()
    words = ("run", "tiny", "uncoordinated", "--set", "slots=3", "--set", "learning.local_steps=1")
    code, _, told = call(*words, "--set", "learning.batch=8", "--out", path, "--strategy", "loop")
    assert code == 2
    assert "expected classes of heliomesh's planners" in told
    assert not evil.exists()


def test_a_watcher_plans_by_no_code_that_its_folder_names(tmp_path: Path, evil: Path) -> None:
    pytest.importorskip("zenoh")
    from heliomesh.field.agents.watch import watch

    (tmp_path / "scenario.toml").write_text(TINY.to_toml())
    (tmp_path / "watch.toml").write_text(tomli_w.dumps({"network": "n", "planner": EVIL, "devices": {}}))
    with pytest.raises(MistakeError, match="expected trust=True"), watch(tmp_path, 1.0):
        pass
    assert not evil.exists()


@pytest.mark.parametrize("field", ["harvest.source", "learning.model"])
def test_trust_at_the_door_lets_the_code_in(field: str, whole: Path, tmp_path: Path, evil: Path) -> None:
    door = DOORS[0]
    path = copied(whole, door, tmp_path / "trusted", field)
    with suppress(MistakeError, Exception):
        learned(hm.Scenario.load(path, trust=True))
    assert evil.exists()


def test_trust_is_said_at_one_door_and_holds_at_no_other(whole: Path, tmp_path: Path, evil: Path) -> None:
    other = copied(whole, DOORS[0], tmp_path / "other", "harvest.source")
    other.write_text(other.read_text().replace(EVIL, "evilmod:other"))
    with suppress(Exception):
        learned(hm.Scenario.load(copied(whole, DOORS[0], tmp_path / "one", "learning.model"), trust=True))
    with pytest.raises(MistakeError, match="expected trust=True"):
        hm.Scenario.load(other)


def test_code_that_python_names_needs_no_trust_in_other_processes_either() -> None:
    import pickle

    catalog.vouch("mine:model")
    scenario = TINY.override({"learning.model": "mine:model"})
    sent = pickle.dumps(scenario)
    catalog._vouched.clear()
    assert pickle.loads(sent) == scenario  # noqa: S301
    assert catalog.vouched("mine:model")
