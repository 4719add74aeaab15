"""User-given code counts with all that it really imports and names, and with nothing else."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import heliomesh as hm
from heliomesh.jobs.fingerprint import of_code, of_path
from heliomesh.jobs.job import Job

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a file of the user's, whose folder Python searches."""
    monkeypatch.syspath_prepend(tmp_path)

    def written(name: str, text: str) -> Path:
        place = tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
        importlib.invalidate_caches()
        return place

    return written


def key(model: str = "lab.model:build", **settings: object) -> str:
    return Job(hm.Scenario.load("tiny").override({"learning.model": model, **settings})).key()


PACKAGE = {
    "lab/__init__.py": "",
    "lab/model.py": """
import helper_beside
import lab.by_import
from lab import by_from, NAME
from lab.deep.down import RATE
from . import relative
from .. import nothing_there

def build(shape, classes):
    from lab import in_function
    importlib.import_module(name="lab.by_keyword")
    return importlib.import_module("lab.by_text")
""",
    "helper_beside.py": "import second_helper\nimport collections, numpy\nimport_module('.by_package', 'lab')",
    "second_helper.py": "",
    "lab/by_import.py": "",
    "lab/by_from.py": "",
    "lab/relative.py": "",
    "lab/in_function.py": "",
    "lab/by_text.py": "",
    "lab/by_package.py": "",
    "lab/by_keyword.py": "",
    "lab/deep/__init__.py": "",
    "lab/deep/down.py": "RATE = 1",
}


@pytest.mark.parametrize("changed", PACKAGE)
def test_every_module_that_is_imported_counts(write: Write, changed: str) -> None:
    for name, text in PACKAGE.items():
        write(name, text)
    before = key()
    write(changed, PACKAGE[changed] + "\n# another")
    assert key() != before
    assert not {"lab", "lab.model", "helper_beside"} & set(sys.modules)  # a key runs no code


@pytest.mark.parametrize(
    "unrelated", ["lab/new.py", "new_beside.py", "lab/deep/new.py", "lab/notes.txt", "lab/types.py"]
)
def test_what_is_not_imported_does_not_count(write: Write, unrelated: str) -> None:
    for name, text in PACKAGE.items():
        write(name, text)
    write("lab/model.py", PACKAGE["lab/model.py"] + "\nif TYPE_CHECKING:\n    import lab.types\n")
    before = key()
    write(unrelated, "RATE = 2")
    assert key() == before


def test_modules_of_a_namespace_package_count(write: Write) -> None:
    """Such a package is a folder without `__init__.py`."""
    write("space/inner/model.py", "from space.inner.helper import RATE")
    write("space/inner/helper.py", "RATE = 1")
    before = key("space.inner.model:build")
    write("space/inner/helper.py", "RATE = 2")
    assert key("space.inner.model:build") != before
    assert set(of_code("space.inner:model") or ()) == {"space.inner.model", "space.inner.helper"}  # the module itself


def test_all_modules_of_a_distribution_count_and_of_others_the_version(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an installed one, whose second module is beside its first."""
    monkeypatch.syspath_prepend(tmp_path / "site-packages")

    def installed(name: str, version: str, modules: str) -> None:
        about = f"site-packages/{name}-1.dist-info"
        write(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        write(f"{about}/top_level.txt", modules)
        monkeypatch.setattr(sys, "path", [*sys.path, f"{len(sys.path)}"])  # versions are looked up anew

    installed("own", "1.0.0", "own_model\nown_helper\n")
    installed("other", "2.1.0", "other_code\n")
    write("site-packages/own_model.py", "import own_helper, other_code, torch")
    write("site-packages/own_helper.py", "RATE = 1")
    write("site-packages/other_code.py", "RATE = 1")
    found = of_code("own_model:build")
    assert found is not None
    assert set(found) == {"own_model", "own_helper", "other"}
    assert found["other"] == "2.1"
    write("site-packages/other_code.py", "RATE = 2")
    installed("other", "2.1.7", "other_code\n")
    assert of_code("own_model:build") == found
    installed("other", "2.2.0", "other_code\n")
    assert of_code("own_model:build") == found | {"other": "2.2"}
    write("site-packages/own_helper.py", "RATE = 2")
    changed = of_code("own_model:build")
    assert changed is not None
    assert [name for name in found if changed[name] != found[name]] == ["other", "own_helper"]


def test_code_of_what_computes_counts_by_the_job_s_versions() -> None:
    assert of_code("torch.optim:RMSprop") == {}


def test_images_behind_a_link_count(tmp_path: Path) -> None:
    """The dataset follows links to folders, so its key does."""
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    for part in ("train", "test"):
        for name in ("a", "b"):
            (elsewhere / part / name).mkdir(parents=True)
            Image.fromarray(np.full((8, 8), 9, np.uint8)).save(elsewhere / part / name / "0.png")
    data.mkdir()
    for part in ("train", "test"):
        (data / part).symlink_to(elsewhere / part, target_is_directory=True)
    own = {"learning.dataset": "own", "learning.path": str(data)}
    before = key("mlp", **own)
    assert before == key("mlp", **own | {"learning.path": str(elsewhere)})
    Image.fromarray(np.full((8, 8), 10, np.uint8)).save(elsewhere / "train" / "a" / "0.png")
    assert key("mlp", **own) != before


def test_a_link_to_a_folder_above_ends_somewhere(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("a", encoding="utf-8")
    before = of_path(tmp_path / "folder")
    (tmp_path / "folder" / "loop").symlink_to(tmp_path / "folder", target_is_directory=True)
    (tmp_path / "folder" / "broken").symlink_to(tmp_path / "absent")
    assert of_path(tmp_path / "folder") == before
