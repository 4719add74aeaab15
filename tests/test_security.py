"""What the package must never do: run what it reads, trust an archive, write half a file, or ask without need."""

import ast
import gzip
import hashlib
import io
import os
import re
import signal
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import heliomesh
from heliomesh.common import catalog
from heliomesh.common.mistakes import MistakeError
from heliomesh.pages.page import render
from heliomesh.tasks.dataset import DATASET_CATALOG, DatasetError
from heliomesh.tasks.retrieval.source import Address, Archive, PinnedFile, Source, download, silent, take, untar
from tests.conftest import Call

PACKAGE = Path(heliomesh.__file__).parent
MODULES = sorted(path for path in PACKAGE.rglob("*.py"))
FORBIDDEN_IMPORTS = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml", "telnetlib"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "torch.load", "pd.read_pickle"}
# the only files that start programs; processes.py starts copies of this one, source.py clients of package registries
PROCESSES = {"engine/processes.py", "engine/ray.py", "tasks/retrieval/source.py"}
PICKLES = {"engine/processes.py"}  # what its own processes send it, never a file
WRITERS = {
    *("write_text", "write_bytes", "savez", "savez_compressed", "save_file", "savefig", "to_parquet", "write_table"),
    *("to_csv", "to_json", "tofile", "dump", "save"),
}
# (file, function): what they write gets its name by a rename later, or is written inside a caller's `written_whole`
RENAMED_LATER = {
    ("field/agents/journal.py", "add"),  # a line at the end; readers leave out one that is not whole
    ("common/durable.py", "_locked"),
    ("tasks/datasets/cifar10.py", "_unpack_sheets"),
    ("tasks/retrieval/source.py", "_copy"),
    ("pages/drawing.py", "svg_text"),  # to memory
}


def name_of(node: ast.expr) -> str:
    """Dotted name of what is called, as far as it is one."""
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def calls(path: Path) -> Iterator[ast.Call]:
    return (node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call))


def test_nothing_that_is_read_is_run() -> None:
    found = []
    for path in MODULES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            known = {"pickle"} if path.relative_to(PACKAGE).as_posix() in PICKLES else set()
            found += [(path, name) for name in names if name.split(".")[0] in FORBIDDEN_IMPORTS - known]
        for call in calls(path):
            if name_of(call.func) in FORBIDDEN_CALLS:
                found.append((path, name_of(call.func)))
            for keyword in call.keywords:
                value = keyword.value.value if isinstance(keyword.value, ast.Constant) else keyword.value
                if keyword.arg in ("shell", "allow_pickle") and value is not False:
                    found.append((path, f"{keyword.arg}={value}"))
            if name_of(call.func) == "np.load":
                assert any(keyword.arg == "allow_pickle" for keyword in call.keywords), path
    assert found == []


def test_programs_are_started_in_known_places_only() -> None:
    starters = re.compile(r"^\s*(import|from) (subprocess|pty|multiprocessing)\b", re.MULTILINE)
    found = {
        path.relative_to(PACKAGE).as_posix() for path in MODULES if starters.search(path.read_text(encoding="utf-8"))
    }
    assert found <= PROCESSES


def unguarded(path: Path) -> Iterator[str]:
    """Functions of a file that write without `written_whole` around it."""

    def visit(node: ast.AST, function: str, guarded: bool) -> Iterator[str]:
        if isinstance(node, ast.FunctionDef):
            function = node.name
        if isinstance(node, ast.With):
            guarded |= any("written_whole" in ast.unparse(item.context_expr) for item in node.items)
        if isinstance(node, ast.Call) and not guarded and writes(node):
            yield function
        for child in ast.iter_child_nodes(node):
            yield from visit(child, function, guarded)

    return visit(ast.parse(path.read_text(encoding="utf-8")), "", guarded=False)


def writes(call: ast.Call) -> bool:
    method = call.func.attr if isinstance(call.func, ast.Attribute) else name_of(call.func)
    if method == "open":
        modes = [ast.unparse(argument) for argument in call.args] + [ast.unparse(k.value) for k in call.keywords]
        return any(re.fullmatch(r"'[rwaxbt+]*[wax+][rwaxbt+]*'", mode) or " if " in mode for mode in modes)
    if method == "save":  # of our own classes: they write whole
        return name_of(call.func).split(".")[0] in ("np", "torch", "image", "pickle")
    own = ("write_text", "write_bytes")  # durable's functions of these names, called by their bare names
    return method in WRITERS and not (method in own and isinstance(call.func, ast.Name))


def test_every_file_is_written_whole() -> None:
    found = {(path.relative_to(PACKAGE).as_posix(), name) for path in MODULES for name in unguarded(path)}
    assert found == RENAMED_LATER


def sources() -> list[Source]:
    modules = [catalog.find(DATASET_CATALOG, name) for name in catalog.names(DATASET_CATALOG)]
    return [module.SOURCE for module in modules if hasattr(module, "SOURCE")]


def test_downloads_come_over_tls_and_meet_checksums() -> None:
    assert {source.name for source in sources()} >= {"fashion_mnist", "cifar10"}
    for source in sources():
        addresses = [way for way in source.ways if isinstance(way, Address)]
        assert addresses
        assert all(way.folder.startswith("https://") for way in addresses)
        sums = [pinned.sha256 for pinned in source.files] + [archive.sha256 for archive in source.archives]
        assert all(re.fullmatch("[0-9a-f]{64}", value) for value in sums)


PINNED = PinnedFile("data", 4, hashlib.sha256(b"good").hexdigest())


def hostile_tar(path: Path, kind: str) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        if kind == "bomb":
            info = tarfile.TarInfo("top/data")
            info.size = 32 << 20
            archive.addfile(info, io.BytesIO(bytes(info.size)))
            return path
        info = tarfile.TarInfo({"traversal": "../../data", "absolute": "/tmp/data"}.get(kind, "top/link"))  # noqa: S108
        if kind == "link":
            info.type, info.linkname = tarfile.SYMTYPE, "/etc"
        archive.addfile(info, io.BytesIO(b""))
    return path


@pytest.mark.parametrize("kind", ["traversal", "absolute", "link", "bomb"])
def test_a_hostile_archive_is_never_unpacked(tmp_path: Path, kind: str) -> None:
    evil, target = hostile_tar(tmp_path / "toy-1.tgz", kind), tmp_path / "a" / "b" / "target"
    target.mkdir(parents=True)
    source = Source("toy", (PINNED,), (), (Archive("toy-1.tgz", PINNED.sha256, "top"),))
    for place in (evil, tmp_path):
        with pytest.raises(DatasetError, match="expected sha256"):
            take(source, place, target)
    assert list(target.iterdir()) == []
    if kind in ("traversal", "link"):  # and were its sum known, unpacking would refuse it all the same
        with pytest.raises(tarfile.FilterError):
            untar(evil, target)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("name", ["data", "data.gz"])
def test_what_a_hostile_folder_holds_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "target").mkdir()
    body = bytes(32 << 20)
    (tmp_path / name).write_bytes(gzip.compress(body) if name.endswith("gz") else body)
    with pytest.raises(DatasetError, match="expected at most 4 bytes"):
        take(Source("toy", (PINNED,), ()), tmp_path, tmp_path / "target")
    assert (tmp_path / "target" / "data").stat().st_size <= 1 << 20


def test_pages_allow_nothing_but_themselves() -> None:
    page = render({"title": "</title><script>alert(1)</script>"})
    policy = re.search(r'http-equiv="Content-Security-Policy"\s+content="([^"]*)"', page)
    assert policy is not None
    parts = dict(part.strip().split(" ", 1) for part in policy[1].split(";"))
    assert parts["default-src"] == parts["base-uri"] == parts["form-action"] == "'none'"
    assert "unsafe" not in policy[1]
    assert not re.search(r"https?:|\*", policy[1])
    assert "<script>alert" not in page


class _SentOn:
    """An answer that came from elsewhere than was asked."""

    url, status = "http://elsewhere.example/data", 200

    def __enter__(self) -> "_SentOn":
        return self

    def __exit__(self, *why: object) -> None:
        pass


def test_a_download_does_not_leave_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("urllib.request.urlopen", lambda *arguments, **settings: _SentOn())
    with pytest.raises(DatasetError, match="expected a redirect to https"):
        download("https://somewhere.example/data", tmp_path / "data", silent)
    assert list(tmp_path.iterdir()) == []


class _Whole(_SentOn):
    """An answer of four bytes."""

    url, headers = "https://somewhere.example/data", {"Content-Length": "4"}
    _body = io.BytesIO(b"good")

    def read(self, size: int) -> bytes:
        return self._body.read(size)


def test_a_download_follows_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("urllib.request.urlopen", lambda *arguments, **settings: _Whole())
    (tmp_path / "victim").write_text("")
    (tmp_path / "data").symlink_to(tmp_path / "victim")
    with pytest.raises(DatasetError, match="File exists"):
        download("https://somewhere.example/data", tmp_path / "data", silent)
    assert (tmp_path / "victim").read_text() == ""


SPY = """
from pathlib import Path
import heliomesh.tasks.models.mlp as mlp
Path("imported").touch()
def factory(input_shape, num_classes):
    return mlp.build(input_shape, num_classes)
"""


@pytest.fixture
def spied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a scenario whose model is in a module that tells when it is imported, and with a trace of it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "spy.py").write_text(SPY)
    changes = {"slots": 4, "learning.local_steps": 1, "learning.model": "spy:factory"}
    scenario = heliomesh.Scenario.load("tiny").override(changes)
    (tmp_path / "s.toml").write_text(scenario.to_toml())
    problem = heliomesh.build(scenario)
    heliomesh.simulate(problem, heliomesh.plan(problem, "uncoordinated"), 1).save(tmp_path / "t.npz")
    yield tmp_path
    sys.modules.pop("spy", None)


TRAINING = [
    ["run", "s.toml", "uncoordinated", "--out", "R", "--strategy", "loop"],
    ["run", "s.toml", "--trace", "t.npz", "--out", "R", "--strategy", "loop"],
    ["compare", "s.toml", "uncoordinated", "--train", "1", "--runs", "R", "--episodes", "2"],
    [
        "size",
        "s.toml",
        "--target-accuracy",
        "0.0",
        "--store",
        "R",
        "--capacity",
        "3",
        "--panel",
        "1",
        "--episodes",
        "2",
    ],
]
OVER_RAY = [
    ["run", "s.toml", "uncoordinated", "--out", "R", "--engine", "ray"],
    ["device", "fleet", "s.toml", "--planner", "uncoordinated", "--out", "R"],
]
BY_HAND = ["run", "tiny", "uncoordinated", "--out", "R", "--set", "learning.model=spy:factory"]


@pytest.mark.parametrize("words", [*TRAINING, *OVER_RAY, BY_HAND])
def test_a_scenario_runs_no_code_without_trust(
    call: Call, spied: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setattr("heliomesh.commands.options.start_ray", pytest.fail)
    assert call(*words, "--quiet") == (
        2,
        "",
        "error: learning.model: expected --trust (heliomesh --trust <command>) to run code named in a file, "
        "actual value 'spy:factory'\n",
    )
    assert "spy" not in sys.modules
    assert {path.name for path in spied.iterdir()} == {"spy.py", "s.toml", "t.npz"}


@pytest.mark.parametrize("words", TRAINING)
def test_trust_lets_a_scenario_run_code(call: Call, spied: Path, words: list[str]) -> None:
    code, _, told = call("--trust", *words, "--quiet")
    assert (code, told) == (0, "")
    assert (spied / "imported").exists()
    assert call(*TRAINING[0][:-3], "new", "--quiet")[0] == 2  # it was for that command only
    assert not (spied / "new").exists()


def test_trust_is_asked_for_again_when_a_run_goes_on(
    call: Call, spied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(items: Iterator[int], description: str, total: int) -> Iterator[int]:
        os.kill(os.getpid(), signal.SIGINT)
        yield from items

    with monkeypatch.context() as patch:
        patch.setattr("heliomesh.commands.progress.track_unless", lambda quiet: stop)
        assert call("--trust", *TRAINING[0], "--quiet")[0] == 130
    code, _, told = call(*TRAINING[0], "--quiet")
    assert code == 2
    assert "expected --trust" in told
    assert call("--trust", *TRAINING[0], "--quiet")[0] == 0
    (spied / "imported").unlink()
    del sys.modules["spy"]
    for words in (
        ["store", "list", "."],
        ["store", "show", "R"],
        ["store", "verify", "."],
        ["report", "R"],
        TRAINING[0],
    ):
        assert call(*words)[0] == 0
    assert "spy" not in sys.modules
    assert not (spied / "imported").exists()


def test_what_does_not_train_imports_nothing(call: Call, spied: Path) -> None:
    for words in (
        ["scenario", "validate", "s.toml"],
        ["plan", "s.toml", "uncoordinated"],
        ["compare", "s.toml", "uncoordinated", "--episodes", "2"],
        ["data", "split", "s.toml"],
        ["export", "s.toml", "uncoordinated", "--out", "tables"],
    ):
        assert call(*words)[0] == 0
    assert "spy" not in sys.modules


def test_a_call_from_python_says_trust_where_it_reads(spied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "_vouched", set())  # the fixture named the code itself
    trace = heliomesh.Trace.load("t.npz")
    with pytest.raises(MistakeError, match=r"learning\.model: expected trust=True where the file is read"):
        heliomesh.train(heliomesh.Scenario.load("s.toml"), trace, strategy="loop")
    assert not (spied / "imported").exists()
    heliomesh.train(heliomesh.Scenario.load("s.toml", trust=True), trace, strategy="loop")
    assert (spied / "imported").exists()


def test_user_modules_are_imported_in_one_place() -> None:
    places = set()
    for path in MODULES:
        names = {name_of(call.func) for call in calls(path)} & {"importlib.import_module", "import_module"}
        places |= {path.relative_to(PACKAGE).as_posix()} if names else set()
    own = {
        "__init__.py",
        "cli.py",
        "commands/options.py",
        "model/plan_file.py",
    }  # import our own only
    assert places == own | {"common/catalog.py"}


@pytest.mark.parametrize(
    ("setting", "command"),
    [
        ("harvest.source", ("scenario", "show", "tiny")),
        ("channel.source", ("scenario", "show", "tiny")),
        ("learning.model", ("run", "tiny", "uncoordinated")),
        ("learning.dataset", ("run", "tiny", "uncoordinated")),
    ],
)
def test_code_named_in_a_scenario_runs_only_if_trusted(setting, command, tmp_path, monkeypatch, call):
    code = f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\ndef build(*_): pass\n"
    (tmp_path / "stranger.py").write_text(code, encoding="utf-8")
    monkeypatch.delitem(sys.modules, "stranger", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    out = ["--out", str(tmp_path / "run")] if command[0] == "run" else []
    arguments = [*command, *out, "--set", f"{setting}=stranger:build"]
    code, _, complaint = call(*arguments)
    assert code == 2
    assert f"{setting}: expected --trust" in complaint
    assert not (tmp_path / "ran").exists()
    call("--trust", *arguments)
    assert (tmp_path / "ran").exists()
