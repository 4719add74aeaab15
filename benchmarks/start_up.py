"""How long do `import heliomesh` and `heliomesh --help` take, beside a bare interpreter and `import numpy`?

Every program is started several times, in turns. The shortest time counts, since other programs on the machine only
ever make it longer. Processor time is beside it. Prints a Markdown table, and last the seconds of both and how often
they hold the import of NumPy.
"""

import argparse
import os
import subprocess
import sys
import time
from typing import NamedTuple

HELP = "import sys; sys.argv = ['heliomesh', '--help']; from heliomesh.cli import main; main()"
PROGRAMS = {
    "bare interpreter": "pass",
    "import numpy": "import numpy",
    "import heliomesh": "import heliomesh",
    "heliomesh --help": HELP,
}


class Seconds(NamedTuple):
    """Of one program, by the clock and of the processor."""

    wall: float
    processor: float


def started(program: str) -> Seconds:
    """How long the program takes in an interpreter of its own."""
    before, clock = os.times(), time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)  # noqa: S603
    wall, after = time.perf_counter() - clock, os.times()
    own, system = after.children_user - before.children_user, after.children_system - before.children_system
    return Seconds(wall, own + system)


def main() -> None:
    """Print one row per program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=9)
    turns = [{name: started(code) for name, code in PROGRAMS.items()} for _ in range(parser.parse_args().times)]
    shortest = {name: Seconds(*map(min, zip(*(turn[name] for turn in turns), strict=True))) for name in PROGRAMS}
    bare, numpy, package, helped = (seconds.wall for seconds in shortest.values())
    print("| program | wall s | processor s | times the bare interpreter |\n|---|---|---|---|")
    for name, seconds in shortest.items():
        print(f"| {name} | {seconds.wall:.3f} | {seconds.processor:.2f} | {seconds.wall / bare:.1f} |")
    print(
        f"import heliomesh: {package:.2f} s, {package / numpy:.1f} × import numpy; "
        f"heliomesh --help: {helped:.2f} s, {helped / numpy:.1f} ×"
    )


if __name__ == "__main__":
    main()
