"""Does accuracy follow the progress of the model of learning?

Plans and simulates the schemes of the experiment `learning` on `ring10` with i.i.d. data, and follows progress
through each trace. Puts beside it the average model's accuracy that is stored for the same seeds. The last line
is the rank correlation of the two over schemes.

    python benchmarks/progress.py [--folder results]
"""

import argparse

import numpy as np
import torch
from scipy import stats

import heliomesh as hm
from heliomesh.jobs.job import IDEAL
from heliomesh.slot.agreement import agreed
from heliomesh.slot.learning_model import LearningModel
from heliomesh.studies.line import Line

SETTING = "ring10, i.i.d."


def progress(problem: hm.Problem, trace: hm.Trace) -> float:
    """Mean progress over devices and episodes after the last slot, in slots of training."""
    model = LearningModel(problem)
    now = model.first(len(trace.scheduled))
    for slot in range(problem.slots):
        now = model.trained(now, torch.from_numpy(trace.scheduled[:, slot]))
        now = model.averaged(now, torch.from_numpy(trace.delivered[:, slot]))
    return float(now.progress.mean())


def simulated(line: Line) -> tuple[float, float]:
    """Slots trained and progress of a line, means over devices and seeds."""
    problem = hm.build(line.scenario)
    plan = agreed(problem, hm.plan(problem, line.scheme.planner, **line.scheme.options), line.scheme.agree)
    trace = hm.simulate(problem, plan, line.num_seeds)
    return float(trace.scheduled.sum(1).mean()), progress(problem, trace)


def main() -> None:
    """Print one row per scheme."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", default="results")
    (figure,) = hm.reproduce(["learning"], parser.parse_args().folder, only="read")
    rows = []
    print("| scheme | slots trained | progress | average model % |\n|---|---|---|---|", flush=True)
    for result in figure.results:
        if result.line.setting == SETTING and result.line.scheme.planner != IDEAL:
            trained, reached = simulated(result.line)
            rows.append((reached, float(result.average_accuracy.mean())))
            print(f"| {result.label} | {trained:.0f} | {reached:.0f} | {rows[-1][1]:.2f} |", flush=True)
    correlation = stats.spearmanr(*np.transpose(rows)).statistic
    print(f"rank correlation of progress and accuracy over {len(rows)} schemes: {correlation:.2f}")


if __name__ == "__main__":
    main()
