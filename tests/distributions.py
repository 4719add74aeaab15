"""Build wheel and sdist, and try both outside the tree: python -m tests.distributions, or make dist.

The wheel is built from the unpacked sdist, so an sdist that lacks a file shows. Each is installed into an environment
of its own. Dependencies are those of this environment, or with --fresh are installed anew.
"""

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent
_BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, 'build_' + sys.argv[1])(sys.argv[2])"
TREE = ("heliomesh", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "MANIFEST.in", "README.md")
SETTINGS = ("constraints.txt", "pyproject.toml")
_SHORT = ("--set", "slots=4", "--set", "learning.local_steps=1")
SMOKE = (  # reads packaged scenarios, radios and the page's assets; plans, simulates and trains
    ("--version",),
    ("scenario", "radios"),
    ("scenario", "validate", "field40"),
    ("bench", "--list"),
    ("compare", "tiny", "receiver", "uncoordinated", "--episodes", "2", "--quiet"),
    ("run", "tiny", "uncoordinated", "--out", "run", "--quiet", *_SHORT),
    ("report", "run", "--out", "run.html"),
)

_NETWORK = (
    "device",
    "deploy",
    "tiny",
    "--out",
    "net",
    "--ready",
    "--port",
    "17447",
    "--quiet",
    "--set",
    "network.devices=3",
)
_HAS_ZENOH = "from importlib.util import find_spec; print(find_spec('zenoh') is not None)"


def run(*command: object, folder: Path) -> str:
    """What a command prints, without this run's search paths; ends the program where it fails."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [str(word) for word in command]
    ended = subprocess.run(words, cwd=folder, env=clean, capture_output=True, text=True, check=False)  # noqa: S603
    if ended.returncode:
        sys.exit(f"{' '.join(words)}: exit code {ended.returncode}\n{ended.stdout}{ended.stderr}")
    return ended.stdout


def build(scratch: Path, target: Path) -> list[Path]:
    """An sdist of a copy of the tree, and a wheel of that sdist."""
    tree, unpacked = scratch / "tree", scratch / "unpacked"
    tree.mkdir()
    for name in (*TREE, *SETTINGS):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, tree)
    run(sys.executable, "-c", _BUILD, "sdist", target, folder=tree)
    (sdist,) = target.glob("heliomesh-*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(unpacked, filter="data")
    run(sys.executable, "-c", _BUILD, "wheel", target, folder=next(unpacked.iterdir()))
    (wheel,) = target.glob("heliomesh-*.whl")
    return [sdist, wheel]


def install(package: Path, home: Path, fresh: bool) -> Path:
    """A new environment with the package in it; returns the folder of its programs."""
    venv.create(home, with_pip=True)
    programs = home / ("Scripts" if os.name == "nt" else "bin")
    command = [programs / "python", "-m", "pip", "install", "--quiet"]
    if fresh:
        run(*command, "--constraint", ROOT / "constraints.txt", f"{package}[agent]", folder=home)
        return programs
    (site,) = home.rglob("site-packages")
    # a folder named in a .pth file is searched, but its own .pth files are not read: our editable install stays out
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    run(*command, "--no-deps", "--force-reinstall", package, folder=home)
    return programs


def smoke(programs: Path, folder: Path) -> str:
    """Use the installed package as a stranger would; returns its version."""
    where = "import heliomesh, pathlib; print(pathlib.Path(heliomesh.__file__).resolve())"
    found = Path(run(programs / "python", "-c", where, folder=folder).strip())
    if programs.parent.resolve() not in found.parents:
        sys.exit(f"expected the package in {programs.parent}, actual {found}")
    for arguments in SMOKE:
        run(programs / "heliomesh", *arguments, folder=folder)
    if run(programs / "python", "-c", _HAS_ZENOH, folder=folder).strip() == "True":
        smoke_agents(programs, folder)
    if "tiny" not in run(programs / "python", "-m", "heliomesh", "scenario", "list", folder=folder):
        sys.exit("python -m heliomesh scenario list: expected the name tiny")
    return run(programs / "heliomesh", "--version", folder=folder).strip()


def smoke_agents(programs: Path, folder: Path) -> None:
    """Three agents from first to last slot."""
    run(programs / "heliomesh", *_NETWORK, *_SHORT, folder=folder)
    with ThreadPoolExecutor() as pool:
        list(
            pool.map(
                lambda i: run(programs / "heliomesh", "device", "run", f"net/device-{i}", folder=folder), range(3)
            )
        )
    if len(list(folder.glob("net/device-*/model.safetensors"))) != 3:
        sys.exit("heliomesh device run: expected a model in each of three folders")


def main(arguments: list[str]) -> None:
    """Build into dist/, or the folder given, and try what was built."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fresh", action="store_true", help="install dependencies anew")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    asked = parser.parse_args(arguments)
    shutil.rmtree(asked.out, ignore_errors=True)
    asked.out.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        for package in build(scratch, asked.out.resolve()):
            home, folder = scratch / f"environment-{package.suffix}", scratch / f"stranger-{package.suffix}"
            folder.mkdir()
            version = smoke(install(package, home, asked.fresh), folder)
            print(f"{package.name}: {version}, {package.stat().st_size / 1e6:.2f} MB, works outside the tree")


if __name__ == "__main__":
    main(sys.argv[1:])
