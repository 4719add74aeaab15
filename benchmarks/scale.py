"""Plan, bound and simulate large networks: seconds, memory and certified gap against the number of devices.

Jittered geometric networks of mean degree 4 (or rings), 4 channel levels, energies of 2 and 3 J, mean harvest of
0.8 J, batteries of 8 J, T = 100, 64 episodes, planner `receiver`. The bound speaks of continuous batteries. Prints
one row per size, the growth exponent of the time, and last the total and the gap of the largest network.
"""

import argparse
import math
import resource
import time
from itertools import pairwise

import torch

import heliomesh as hm
from heliomesh.simulation.diagnostics import interval


def network(devices: int, topology: str) -> hm.Scenario:
    """The benchmark's scenario."""
    return hm.Scenario.parse(
        {
            "slots": 100,
            "network": {
                "topology": topology,
                "devices": devices,
                "mixing": "lazy-metropolis",
                "allow_disconnected": True,
                "mean_degree": 4.0,
                "max_degree": 8,
                "placement": "jittered",
            },
            "channel": {"source": "rayleigh", "levels": 4, "doppler_slot": 0.05},
            "link": {"waterfall": 1.0, "noise_watt": 0.3},
            "energy": {
                "powers_watt": [0.0, 1.0, 2.0],
                "transmit_second": 1.0,
                "slot_second": 1.0,
                "compute_joule": 1.0,
                "capacity_joule": 8.0,
                "battery_levels": 9,
            },
            "harvest": {"source": "table", "joule": [0.0, 1.0, 2.0], "prob": [0.4, 0.4, 0.2]},
        }
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, nargs="+", default=[300, 1000])
    parser.add_argument("--topology", default="geometric", choices=["geometric", "ring", "grid"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--paths", type=int, default=0, help="bound along so many sampled paths, at their lower end")
    parser.add_argument("--steps", type=int, default=40, help="by which prices along these paths are raised")
    parser.add_argument("--largest-table", type=int, help="0: devices' own values in place of tables")
    options = parser.parse_args()
    total_seconds, gap_percent, started = [], math.nan, time.process_time()
    print("| devices | build s | plan s | bound s | simulate s | cost / device | certified gap % | peak GiB |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for devices in options.devices:
        marks = [time.perf_counter()]
        problem = hm.build(network(devices, options.topology), options.device, options.dtype)
        _ = problem.colour
        marks.append(time.perf_counter())
        limits = {"largest_table": options.largest_table, "memory_gib": 16.0}
        plan = hm.plan(problem, "receiver", bound=False, **limits)
        marks.append(time.perf_counter())
        if options.paths:
            bound = hm.sampled_bound(problem, paths=options.paths, steps=options.steps).lower
        else:
            bound = hm.lower_bound(problem) or math.nan
        marks.append(time.perf_counter())
        cost = interval(hm.simulate_costs(problem, plan, options.episodes))
        marks.append(time.perf_counter())
        build, planned, bounded, simulated = (after - before for before, after in pairwise(marks))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        if options.device != "cpu":
            peak = torch.cuda.max_memory_allocated() / 2**30
        gap_percent = 100 * (cost.mean / bound - 1)
        print(
            f"| {devices} | {build:.1f} | {planned:.1f} | {bounded:.1f} | {simulated:.1f} "
            f"| {cost.mean / devices:.4f} | {gap_percent:.2f} ± {100 * cost.half_width / bound:.2f}"
            f" | {peak:.2f} |",
            flush=True,
        )
        print(f"  ({'; '.join(plan.notes)})", flush=True)
        total_seconds.append(marks[-1] - marks[0])
    if len(total_seconds) > 1:
        sizes = options.devices
        growth = math.log(total_seconds[-1] / total_seconds[0]) / math.log(sizes[-1] / sizes[0])
        print(f"time grows like devices^{growth:.2f} from {sizes[0]} to {sizes[-1]}")
    print(
        f"total: build, plan, bound and {options.episodes} episodes of {options.devices[-1]} devices in "
        f"{total_seconds[-1]:.1f} s, certified gap {gap_percent:.3f} % "
        f"({time.process_time() - started:.0f} CPU s of all sizes)"
    )


if __name__ == "__main__":
    main()
