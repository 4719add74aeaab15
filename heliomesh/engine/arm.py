"""One line of a figure: a scheme on a scenario, over paired seeds.

The number of a seed is the episode that is simulated and the seed of the training (partition, first weights,
minibatches), so that all schemes of a figure meet the same weather, the same packets' luck and the same data.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from heliomesh.durable import json_sha256
from heliomesh.planning import make_plan
from heliomesh.problem.policy import Plan, Track, untracked
from heliomesh.problem.problem import Problem, build
from heliomesh.scenario import Scenario
from heliomesh.simulation.trace import RECORDED, Trace, axis_sizes, simulate

IDEAL = "ideal"  # everyone trains and sends in every slot, and nothing is lost


@dataclass(frozen=True)
class Scheme:
    """A planner with options, under the name that figures give it."""

    label: str
    planner: str
    options: Mapping[str, Any] = field(default_factory=dict)


FORMS: dict[str, dict[str, Any]] = {"proposal": {}, "proposal, literal": {"form": "literal"}}
PAPER = (
    Scheme("centralized", "centralized"),
    *(Scheme(label, "decentralized", form | {"hops": 2}) for label, form in FORMS.items()),
    Scheme("myopic (SCA)", "myopic"),
    Scheme("uncoordinated", "uncoordinated"),
)
OURS = (Scheme("receiver", "receiver"), Scheme("prices", "prices"))
# what figures compare, the one that should be better first: the paper's order, and what we add to it
PAIRS = (
    ("centralized", "proposal"),
    ("proposal", "myopic (SCA)"),
    ("myopic (SCA)", "uncoordinated"),
    ("centralized", "myopic (SCA)"),
    ("proposal", "uncoordinated"),
    ("proposal", "proposal, literal"),
    ("proposal, literal", "myopic (SCA)"),
    ("receiver", "myopic (SCA)"),
)
LOSSLESS = Scheme(IDEAL, IDEAL)
BASELINE = "uncoordinated"  # over which figures draw the others' gain


@dataclass(frozen=True)
class Arm:
    """A scheme on a scenario; ``place`` is its value on the figure's horizontal axis, if that is not time."""

    figure: str
    scheme: Scheme
    scenario: Scenario
    num_seeds: int
    setting: str = ""  # what distinguishes panels, such as the partition
    place: float | None = None

    @property
    def key(self) -> str:
        """Hexadecimal name of everything that decides the result."""
        return self._hash(self.scenario.content_hash)

    @property
    def trace_key(self) -> str:
        """The same for its trace, which knows of learning only what it costs in energy."""
        data = self.scenario.as_dict()
        learning = data.pop("learning")
        return self._hash(
            data | {"name": "", "learning": {name: learning[name] for name in ("local_steps", "batch")}}
        )

    def _hash(self, scenario: object) -> str:
        scheme = {"planner": self.scheme.planner, "options": dict(self.scheme.options)}
        return json_sha256(scheme | {"scenario": scenario, "seeds": self.num_seeds})

    @property
    def name(self) -> str:
        """Readable and unique name of its files."""
        words = [self.setting, self.scheme.label, "" if self.place is None else f"{self.place:g}", self.key[:8]]
        text = "-".join(word for word in words if word)
        return "".join(letter if letter.isalnum() or letter in "-." else "_" for letter in text)


@dataclass(frozen=True)
class Prepared:
    """A planned and simulated arm."""

    trace: Trace
    facts: dict[str, Any]  # of the plan


def prepare(arm: Arm, track: Track = untracked) -> Prepared:
    """Plan once and simulate one episode per seed."""
    problem = build(arm.scenario)
    if arm.scheme.planner == IDEAL:
        return Prepared(lossless(problem, arm.num_seeds), {"planner": IDEAL})
    plan = make_plan(problem, arm.scheme.planner, arm.scheme.options, bound=False, track=track)
    return Prepared(simulate(problem, plan, arm.num_seeds, seed=0, track=track), _plan_facts(problem, plan))


def _plan_facts(problem: Problem, plan: Plan) -> dict[str, Any]:
    return {
        "planner": plan.planner,
        "plan_second": plan.seconds,
        "converged": plan.converged,
        "rounds": plan.rounds,
        "expected_cost_on_grid": plan.expected_cost,
        "online_bytes_per_slot": plan.overhead.online_bytes_per_slot,
        "offline_bytes": plan.overhead.offline_bytes,
        "scarcity": float(problem.scarcity().mean()),
        "diameter": problem.topology.diameter,
    }


def lossless(problem: Problem, episodes: int) -> Trace:
    """A trace in which everyone trains and sends at the largest power, energy is no matter and all arrives."""
    sizes, topology = axis_sizes(problem, episodes), problem.topology
    arrays = {column.name: np.zeros(column.shape(sizes), column.dtype) for column in RECORDED}
    arrays |= {name: np.ones_like(arrays[name]) for name in ("scheduled", "delivered")}
    arrays["power_watt"] += float(problem.actions.power_watt.max())
    ends = {"edge_receiver": topology.edge_receiver, "edge_sender": topology.edge_sender}
    return Trace(problem.scenario.to_toml(), IDEAL, 0, **arrays, **ends)
