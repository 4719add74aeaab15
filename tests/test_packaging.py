"""What users get who install the package: an editable install is one that type checkers can follow."""

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
_BUILD = "import sys; from setuptools.build_meta import build_editable; build_editable(sys.argv[1])"


def run(*command: object, folder: Path) -> str:
    """What a command says, without this run's own search paths."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
    words = [sys.executable, *map(str, command)]
    ended = subprocess.run(words, cwd=folder, env=clean, capture_output=True, text=True, check=False)  # noqa: S603
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_a_type_checker_finds_an_editable_install(tmp_path: Path) -> None:
    """As pip does it: build the editable wheel, unpack it into an environment, and check a user's file elsewhere."""
    project, wheels, home, user = (tmp_path / name for name in ("project", "wheels", "environment", "user"))
    for folder in (project, wheels, user):
        folder.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, project)
    shutil.copytree(ROOT / "heliomesh", project / "heliomesh", ignore=shutil.ignore_patterns("__pycache__"))
    run("-c", _BUILD, wheels, folder=project)
    venv.create(home, with_pip=False)
    python = next(path for path in (home / "bin" / "python", home / "Scripts" / "python.exe") if path.exists())
    (site,) = home.rglob("site-packages")
    (wheel,) = wheels.glob("heliomesh-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (user / "use.py").write_text("import heliomesh\n\nreveal_type(heliomesh.Scenario.load('tiny'))\n")
    told = run("-m", "mypy", "--python-executable", python, "--cache-dir", tmp_path / "cache", "use.py", folder=user)
    assert 'Revealed type is "heliomesh.scenario.scenario.Scenario"' in told
