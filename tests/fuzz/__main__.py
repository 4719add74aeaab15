"""``python -m tests.fuzz --inputs 20000 --seed 0``: try inputs of every kind and print how they ended.

Exit code 1 if there was a find: an input that ended neither well nor in one clear error, took too long or too much
memory, or killed its process. Every input follows from the seed, its kind and its number, so a find can be repeated
by ``--kind`` and ``--only``.
"""

import argparse
import json
import os
import select
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

from tests.fuzz.kinds import KINDS

WALL_SECOND = 300.0  # after which a worker is taken to hang


class Campaign:
    """Endings of all inputs so far."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.counts: Counter[tuple[str, str]] = Counter()
        self.finds: list[tuple[str, int, str]] = []

    def run(self, inputs: Iterator[tuple[int, int]]) -> None:
        """Feed workers, one at a time; one that dies or hangs is a find."""
        waiting = next(inputs, None)
        while waiting is not None:
            with self._start() as worker:
                while waiting is not None:
                    answer = self._ask(worker, waiting)
                    self._note(waiting, *(answer or ("find", "the process died or hung")))
                    waiting = next(inputs, None)
                    if answer is None:
                        worker.kill()
                        break
                if worker.stdin:
                    worker.stdin.close()

    def _start(self) -> subprocess.Popen[str]:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "COLUMNS": "200"}
        command = [sys.executable, "-m", "tests.fuzz.worker", str(self._seed)]
        return subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env=environment,
            encoding="utf-8",
        )

    def _ask(self, worker: subprocess.Popen[str], one: tuple[int, int]) -> tuple[str, str] | None:
        assert worker.stdin is not None
        assert worker.stdout is not None
        try:
            worker.stdin.write(f"{one[0]} {one[1]}\n")
            worker.stdin.flush()
        except BrokenPipeError:
            return None
        ready, _, _ = select.select([worker.stdout], [], [], WALL_SECOND)
        line = worker.stdout.readline() if ready else ""
        if not line:
            return None
        _, _, kind, text = json.loads(line)
        return kind, text

    def _note(self, one: tuple[int, int], ending: str, text: str) -> None:
        name = KINDS[one[0]].name
        self.counts[name, ending] += 1
        if ending == "find":
            self.finds.append((name, one[1], text))
            sys.stderr.write(f"FIND {name} {one[1]}: {text}\n\n")

    def table(self) -> str:
        """Rows of kinds as Markdown."""
        lines = ["| kind | inputs | success | refused | finds |", "|---|---|---|---|---|"]
        for kind in KINDS:
            numbers = [self.counts[kind.name, ending] for ending in ("success", "refused", "find")]
            if sum(numbers):
                lines.append(f"| {kind.name} | {sum(numbers)} | {' | '.join(map(str, numbers))} |")
        totals = [sum(self.counts[kind.name, e] for kind in KINDS) for e in ("success", "refused", "find")]
        return "\n".join([*lines, f"| all | {sum(totals)} | {' | '.join(map(str, totals))} |"]) + "\n"


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=[kind.name for kind in KINDS], help="this kind only")
    parser.add_argument("--only", type=int, help="the number of one input of --kind")
    given = parser.parse_args()
    campaign = Campaign(given.seed)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        campaign.run(_inputs(given.inputs, given.kind, given.only))
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; so far:\n")
    sys.stdout.write(campaign.table())
    sys.exit(1 if campaign.finds else 0)


def _inputs(total: int, only_kind: str | None, only_number: int | None) -> Iterator[tuple[int, int]]:
    """Kinds and numbers of all inputs, mixed by their shares, so that an interrupted campaign met all."""
    if only_number is not None:
        yield from ((index, only_number) for index, kind in enumerate(KINDS) if kind.name == only_kind)
        return
    chosen = [(index, kind) for index, kind in enumerate(KINDS) if only_kind in (None, kind.name)]
    counts = {index: total if only_kind else round(total * kind.share) for index, kind in chosen}
    order = [(number / count, index, number) for index, count in counts.items() for number in range(count)]
    yield from ((index, number) for _, index, number in sorted(order))


if __name__ == "__main__":
    main()
