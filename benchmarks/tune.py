"""Choose the knobs of every planner by the same small search, setting by setting, without the test set.

Each scheme is tuned on held-out training samples and on validation seeds; published numbers come from other seeds and
from the test set. Writes what was chosen into --out (TOML, read by the experiment `learning`), where settings that
are not asked for stay, and what was tried beside it. Last line: how many schemes changed by tuning.

    python benchmarks/tune.py --networks ring10 --device cuda --precision bf16 --processes 16
"""

import argparse
import tomllib
from pathlib import Path

import tomli_w

import heliomesh as hm
from heliomesh.common.durable import write_text
from heliomesh.engine.processes import work_fields
from heliomesh.studies.experiments import FASHION_MNIST, NETWORKS, THREE_PARTITIONS
from heliomesh.studies.schemes import PLANNERS, SEPARATE, TUNED, first_scheme
from heliomesh.studies.tuning import Tuned


def main() -> None:
    """Search, and write the settings one by one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--partitions", nargs="+", choices=THREE_PARTITIONS, default=list(THREE_PARTITIONS))
    parser.add_argument("--planners", nargs="+", choices=PLANNERS, default=list(PLANNERS))
    parser.add_argument("--quick", action="store_true", help="digits instead of Fashion-MNIST")
    parser.add_argument("--seeds", type=int, default=2, help="validation seeds")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--together", type=int, default=160, help="runs trained in one stack")
    parser.add_argument("--store", type=Path, help="folder that keeps plans, traces and runs")
    parser.add_argument("--out", type=Path, default=TUNED)
    asked = parser.parse_args()
    changed = 0
    for network in asked.networks:
        for partition in asked.partitions:
            found = tuned_in(asked, network, partition)
            changed += sum(one.scheme.options != first_scheme(name).options for name, one in found.items())
            keep(asked.out, f"{network}, {partition}", found)
    print(f"{changed} schemes have other settings than their defaults")


def tuned_in(asked: argparse.Namespace, network: str, partition: str) -> dict[str, Tuned]:
    """What the search chose on a network with a partition, by planner."""
    name, changes = NETWORKS[network]
    terms = {**SEPARATE, **changes, **THREE_PARTITIONS[partition]}
    problem = hm.build(FASHION_MNIST.scenario(asked.quick, terms, network=name))
    planners = [one for one in asked.planners if one != "decentralized" or name == "ring10"]
    work = {**work_fields(asked.processes, asked.device), "runs_at_once": asked.together}
    settings = {"device": asked.device, "precision": asked.precision, "store": asked.store, **work}
    return dict(zip(planners, hm.tune(problem, [*map(first_scheme, planners)], asked.seeds, **settings), strict=True))


def keep(out: Path, setting: str, found: dict[str, Tuned]) -> None:
    """Write what was chosen, and beside it what was tried."""
    files = {
        out: {name: one.scheme.label for name, one in found.items()},
        Path(__file__).with_name("tuned.tried.toml"): {name: dict(one.tried) for name, one in found.items()},
    }
    for file, own in files.items():
        known = tomllib.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        write_text(file, tomli_w.dumps({**known, setting: {**known.get(setting, {}), **own}}))
    for name, one in found.items():
        print(f"{setting}: {name}: {one.scheme.label}, best of {len(one.tried)}", flush=True)


if __name__ == "__main__":
    main()
