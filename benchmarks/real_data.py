"""Fashion-MNIST on `ring10`, 200 slots: the time of one run.

A run plans, simulates, trains the paper's CNN (η = 0.01, K = 5, batch 32) and evaluates every ten slots: the average
model on 10,000 test images, each device on 500 of them, and all on all at the end. The last line says how long it
took. Accuracies over seeds, partitions and aggregation rules come from `heliomesh reproduce`.
"""

import argparse
import time

import heliomesh as hm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, default=200)
    parser.add_argument("--planner", default="receiver")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "tf32", "bf16"])
    options = parser.parse_args()
    started = time.perf_counter()
    task = {"slots": options.slots, "learning.dataset": "fashion_mnist", "learning.model": "cnn"}
    scenario = hm.Scenario.load("ring10").override(task)
    problem = hm.build(scenario)
    trace = hm.simulate(problem, hm.plan(problem, options.planner, bound=False), episodes=1)
    planned = time.perf_counter() - started
    run = hm.train(
        scenario, trace, seed=0, device=options.device, strategy=options.strategy, precision=options.precision
    )
    seconds = time.perf_counter() - started
    print(f"{scenario.name}, {options.planner}, {options.slots} slots, {trace.scheduled.mean():.1%} trained")
    for name in ("accuracy_mean", "accuracy_min", "accuracy_max", "average_accuracy", "consensus_distance"):
        print(f"{name} {run.final[name]:.4f}")
    print(f"planned and simulated in {planned:.1f} s; in all {seconds:.1f} s by {run.provenance['strategy']}")


if __name__ == "__main__":
    main()
