"""One long episode on `ring10`: seconds of `simulate` in blocks of slots against the plain slot loop.

The plain loop, without looked-up responses and NumPy, runs for fewer slots; its trace must be the same to the last
bit. Processor time is shown besides, since it depends less on what else the machine does. The ratio comes
last.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np

import heliomesh as hm
from heliomesh.grid import after_spending as few
from heliomesh.simulation import blocks
from heliomesh.slot import coordination


def timed(name: str, slots: int, work: Callable[[], hm.Trace]) -> tuple[float, hm.Trace]:
    """Processor time per slot [s], printed with the wall time."""
    wall, processor = time.perf_counter(), time.process_time()
    trace = work()
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    print(f"{name}: {slots} slots in {wall:.1f} s, processor time {processor:.1f} s", flush=True)
    return processor / slots, trace


def main() -> None:
    """Print both times, and their ratio last."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--planner", default="receiver")
    parser.add_argument("--slots", type=int, default=100_000)
    parser.add_argument("--plain-slots", type=int, default=2_000)
    options = parser.parse_args()
    scenario = hm.Scenario.load("ring10")
    choice = {} if options.planner == "uncoordinated" else {"endless": True}
    problem, short = (hm.build(scenario.override({"slots": n})) for n in (options.slots, options.plain_slots))
    plan = hm.plan(problem, options.planner, **choice)
    fast, trace = timed("blocks", options.slots, lambda: hm.simulate(problem, plan, 1))
    blocks._BLOCK_SLOTS, coordination._MOST_RESPONSES, few._MOST_DEVICES = 1, 0, 0
    plan = hm.plan(short, options.planner, **choice)
    slow, plain = timed("plain loop", options.plain_slots, lambda: hm.simulate(short, plan, 1))
    alike = np.array_equal(plain.update_loss, trace.first_slots(options.plain_slots).update_loss)
    print(f"cost {trace.cost[0]:.4f}, the first {options.plain_slots} slots {'are alike' if alike else 'DIFFER'}")
    print(f"processor time of the plain loop over that of blocks: {slow / fast:.1f}")


if __name__ == "__main__":
    main()
