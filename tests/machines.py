"""The numeric tests under a matrix of emulated machines: python -m tests.machines, or make test-machines.

Environment variables emulate processors, threads, locales and time zones. The nine rows are an orthogonal array:
every pair of a vector unit of PyTorch, one of oneDNN and a number of threads occurs once. Every other supported
Python that is installed gets an environment of its own.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).parent.parent
OTHER_PYTHONS = ("3.11", "3.12", "3.13", "3.14")
# What rounds, adds in an order of its own, breaks ties, or reads and prints numbers, texts and times. Tests of wrong
# inputs, files, keys and processes have the same answer on every machine, and are left out. A machine may take 150 s
# on two cores: twelve of them then fit into half an hour.
NUMERIC_BY_FOLDER = {
    "": "numerics properties terminal delimited demo",
    "physics": "two_faces battery channel link storage days irradiance solar",
    "bounds": "dual minorant",
    "slot": "packet_market",
    "grid": "grids",
    "planners": "centralized certificate endless myopic ties",
    "simulation": "blocks slot_loop trace",
    "learning": "aggregation checkpoint minibatch models optimiser packets quasi_global strategies strategy trainer",
    "living": "detector",
    "jobs": "stacks",
    "pages": "page",
}
NUMERIC = [
    (Path("tests") / folder / f"test_{name}.py").as_posix()
    for folder, names in NUMERIC_BY_FOLDER.items()
    for name in names.split()
] + ["tests/planners/test_bounds.py::test_float32_does_not_round_a_bound_upward"]


@dataclass(frozen=True)
class Machine:
    """Settings that make this machine behave like another one."""

    name: str
    environment: dict[str, str]
    python: Path = Path(sys.executable)
    expected: str = ""  # what PyTorch must say of its vector unit and threads; nothing: anything

    def command(self, selected: list[str]) -> list[str]:
        """pytest on the numeric tests; ``selected`` replaces them."""
        spread = ["--numprocesses=2", "--dist=worksteal"]  # workers inherit the environment, but no flag of Python
        quiet = ["-W", "ignore:assertions not in test modules"]  # rewritten ones are still executed under -O
        chosen = ["-m", "not slow", "-p", "no:cacheprovider", *quiet, *(selected or NUMERIC)]
        return [str(self.python), "-m", "pytest", *spread, *chosen]


def _processor(aten: str, onednn: str, threads: int, **more: str) -> Machine:
    name = ", ".join(
        [f"ATen {aten}", f"oneDNN {onednn}", f"{threads} threads", *(f"{k}={v}" for k, v in more.items())]
    )
    environment = {"ATEN_CPU_CAPABILITY": aten, "ONEDNN_MAX_CPU_ISA": onednn, "OMP_NUM_THREADS": str(threads)}
    environment["MKL_DYNAMIC"] = "FALSE"  # or PyTorch would use no more threads than there are cores
    return Machine(name, environment | more, expected=f"{aten.upper()} {threads}")


C_LOCALE = {"LANG": "C", "LC_ALL": "C", "PYTHONIOENCODING": "ascii:backslashreplace"}
PROCESSORS = [
    _processor("default", "SSE41", 1, **C_LOCALE),
    _processor("default", "AVX2", 2),
    _processor("default", "AVX512_CORE", 4, TZ="Pacific/Auckland"),
    _processor("avx2", "SSE41", 2, TZ="America/St_Johns"),
    _processor("avx2", "AVX2", 4, **C_LOCALE),
    _processor("avx2", "AVX512_CORE", 1),
    _processor("avx512", "SSE41", 4),
    _processor("avx512", "AVX2", 1, TZ="Asia/Kathmandu"),
    _processor("avx512", "AVX512_CORE", 2, **C_LOCALE),
]
OPTIMISED = Machine("python -O", {"OMP_NUM_THREADS": "2", "PYTHONOPTIMIZE": "1"})


def other_pythons(only: str) -> Iterator[Machine]:
    """Other supported versions of Python, each with an environment that is made at the first use."""
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    for version in OTHER_PYTHONS:
        name = f"Python {version}"
        if version != running and only in name and (path := _working(version)):
            yield Machine(name, {"OMP_NUM_THREADS": "1"}, _environment(version, path))


def _working(version: str) -> str | None:
    """An interpreter that starts, from the path or from pyenv; names on the path may lead nowhere."""
    kept = Path.home() / ".pyenv" / "versions"
    for candidate in (shutil.which(f"python{version}"), *sorted(kept.glob(f"{version}.*/bin/python{version}"))):
        if candidate is not None:
            tried = subprocess.run([candidate, "--version"], capture_output=True, check=False)  # noqa: S603
            if tried.returncode == 0:
                return str(candidate)
    return None


def _environment(version: str, interpreter: str) -> Path:
    """The interpreter of a virtual environment with the pinned packages."""
    folder = ROOT / f".venv-{version}"
    python, stamp = folder / "bin" / "python", folder / ".installed"
    wanted = max((ROOT / name).stat().st_mtime for name in ("pyproject.toml", "constraints.txt"))
    if not stamp.exists() or stamp.stat().st_mtime < wanted:
        print(f"installing the pinned packages for Python {version}", flush=True)
        subprocess.run([interpreter, "-m", "venv", folder], check=True)  # noqa: S603
        install = ["-m", "pip", "install", "--quiet", "--constraint", "constraints.txt", "--editable", ".[dev]"]
        if subprocess.run([python, *install], cwd=ROOT, check=False).returncode == 0:  # noqa: S603
            stamp.touch()  # else the tests will say what is missing
    return python


def run(machine: Machine, selected: list[str]) -> tuple[bool, str]:
    """Whether all tests passed, and pytest's last line."""
    started = time.perf_counter()
    actual = _called(machine, [str(machine.python), "-c", _WHAT_IT_IS]).stdout.strip()
    if machine.expected not in ("", actual):
        return False, f"not tested: expected a vector unit and threads {machine.expected}, actual {actual or 'none'}"
    done = _called(machine, machine.command(selected))
    lines = done.stdout.strip().splitlines() or done.stderr.strip().splitlines() or ["no output"]
    if done.returncode:
        failures = [line for line in lines if re.match(r"(FAILED|ERROR) ", line)]
        print("\n".join([*lines[-60:], *failures]), file=sys.stderr, flush=True)
    return done.returncode == 0, f"{lines[-1]} ({time.perf_counter() - started:.0f} s in all)"


_WHAT_IT_IS = "import torch; print(torch.backends.cpu.get_cpu_capability(), torch.get_num_threads())"


def _called(machine: Machine, command: list[str]) -> subprocess.CompletedProcess[str]:
    """A command on a machine."""
    return subprocess.run(  # noqa: S603
        command,
        cwd=ROOT,
        env=os.environ | machine.environment,
        capture_output=True,
        check=False,
        errors="replace",
        encoding="utf-8",
    )


def main() -> int:
    """Run the matrix, print a table; exit code 1 if a machine failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="machines whose name contains this text")
    parser.add_argument("tests", nargs="*", help="tests to run instead of all numeric ones")
    given = parser.parse_args()
    results = []
    here = [machine for machine in (*PROCESSORS, OPTIMISED) if given.only in machine.name]
    for machine in chain(here, other_pythons(given.only)):
        results.append((machine.name, *run(machine, given.tests)))
        print(f"{'ok    ' if results[-1][1] else 'FAILED'} {machine.name}: {results[-1][2]}", flush=True)
    failed = [name for name, passed, _ in results if not passed]
    print(
        f"{len(results) - len(failed)} of {len(results)} machines green" + "".join(f"; failed: {n}" for n in failed)
    )
    return 1 if failed or not results else 0


if __name__ == "__main__":
    sys.exit(main())
