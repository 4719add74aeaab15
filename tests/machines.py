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
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
OTHER_PYTHONS = ("3.11", "3.12", "3.13", "3.14")
# What computes, and what prints numbers and texts; not browsers, Ray's processes, damaged files or fuzzed inputs.
NUMERIC = (
    *("tests/physics", "tests/problem", "tests/planners", "tests/simulation", "tests/learning", "tests/living"),
    *("tests/jobs", "tests/studies", "tests/test_numerics.py", "tests/test_properties.py", "tests/test_terminal.py"),
    *(
        "tests/test_compare_command.py",
        "tests/test_run_command.py",
        "tests/test_demo.py",
        "tests/pages/test_page.py",
    ),
    "--ignore=tests/learning/test_retrieval.py",
)


@dataclass(frozen=True)
class Machine:
    """Settings that make this machine behave like another one."""

    name: str
    environment: dict[str, str]
    python: Path = Path(sys.executable)
    flags: tuple[str, ...] = field(default=())

    def command(self, selected: list[str]) -> list[str]:
        """pytest on the numeric tests; ``selected`` replaces them."""
        quiet = ["-W", "ignore:assertions not in test modules"]  # rewritten ones are still executed under -O
        chosen = selected or list(NUMERIC)
        return [
            str(self.python),
            *self.flags,
            "-m",
            "pytest",
            "-m",
            "not slow",
            "-p",
            "no:cacheprovider",
            *quiet,
            *chosen,
        ]


def _processor(aten: str, onednn: str, threads: int, **more: str) -> Machine:
    name = ", ".join(
        [f"ATen {aten}", f"oneDNN {onednn}", f"{threads} threads", *(f"{k}={v}" for k, v in more.items())]
    )
    environment = {"ATEN_CPU_CAPABILITY": aten, "ONEDNN_MAX_CPU_ISA": onednn, "OMP_NUM_THREADS": str(threads)}
    return Machine(name, environment | more)


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
OPTIMISED = Machine("python -O", {"OMP_NUM_THREADS": "2"}, flags=("-O",))


def other_pythons() -> list[Machine]:
    """Other supported versions of Python, each with an environment that is made at the first use."""
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    found = [(version, _working(version)) for version in OTHER_PYTHONS if version != running]
    return [Machine(f"Python {version}", {}, _environment(version, path)) for version, path in found if path]


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
        subprocess.run([python, *install], cwd=ROOT, check=True)  # noqa: S603
        stamp.touch()
    return python


def run(machine: Machine, selected: list[str]) -> tuple[bool, str]:
    """Whether all tests passed, and pytest's last line."""
    started = time.perf_counter()
    environment = os.environ | machine.environment
    done = subprocess.run(  # noqa: S603
        machine.command(selected),
        cwd=ROOT,
        env=environment,
        capture_output=True,
        check=False,
        errors="replace",
        encoding="utf-8",
    )
    lines = done.stdout.strip().splitlines() or done.stderr.strip().splitlines() or ["no output"]
    if done.returncode:
        failures = [line for line in lines if re.match(r"(FAILED|ERROR) ", line)]
        print("\n".join([*lines[-60:], *failures]), file=sys.stderr, flush=True)
    return done.returncode == 0, f"{lines[-1]} ({time.perf_counter() - started:.0f} s in all)"


def main() -> int:
    """Run the matrix, print a table; exit code 1 if a machine failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="machines whose name contains this text")
    parser.add_argument("tests", nargs="*", help="tests to run instead of all numeric ones")
    given = parser.parse_args()
    machines = [m for m in (*PROCESSORS, OPTIMISED) if given.only is None or given.only in m.name]
    if given.only is None or "Python" in given.only:
        machines += [m for m in other_pythons() if given.only is None or given.only in m.name]
    results = []
    for machine in machines:
        results.append((machine.name, *run(machine, given.tests)))
        print(f"{'ok    ' if results[-1][1] else 'FAILED'} {machine.name}: {results[-1][2]}", flush=True)
    failed = [name for name, passed, _ in results if not passed]
    print(
        f"{len(results) - len(failed)} of {len(results)} machines green" + "".join(f"; failed: {n}" for n in failed)
    )
    return 1 if failed or not results else 0


if __name__ == "__main__":
    sys.exit(main())
