"""Links to leave out of the averaging: what it saves, and what it costs in mixing.

A link that seldom delivers holds weight that is lost in most slots. Left out, its weight goes back to the two devices
and the remaining links. Links are dropped in the order of the share of their packets' weight that arrives under the
present plan, the worst first, as long as the graph stays connected and the mixing matrix keeps a given share of its
spectral gap. The radio does not change: a dropped neighbour is not averaged but still disturbs.

Two gaps are reported: that of the mixing matrix A, as if nothing were lost, and that of the matrix which is really
applied on average, under the scenario's rule of averaging. Fewer lost updates are bought with slower agreement.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import networkx as nx
import numpy as np
import numpy.typing as npt
import torch

from heliomesh.arguments import Count, Index, checked
from heliomesh.living.conditions import Conditions, Pair, links, weights_under
from heliomesh.planning import make_plan
from heliomesh.problem.contributions import LearningModel
from heliomesh.problem.policy import Track, untracked
from heliomesh.problem.problem import Problem
from heliomesh.scenario import ScenarioError
from heliomesh.simulation.diagnostics import Interval, interval, spectral_gap
from heliomesh.simulation.trace import Trace, simulate

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Side:
    """A network before or after pruning."""

    links: int
    cost: Array  # (episode,) per slot
    gap: float  # of the mixing matrix
    real_gap: float  # of the matrix applied on average


@dataclass(frozen=True)
class Pruning:
    """What was dropped, and the network on both sides."""

    dropped: tuple[Pair, ...]
    before: Side
    after: Side

    @property
    def saved(self) -> Interval:
        """Fewer updates lost per slot, paired by episode."""
        return interval(self.before.cost - self.after.cost)


@checked
def prune(
    problem: Problem,
    planner: str = "prices",
    options: Mapping[str, Any] | None = None,
    *,
    keep_gap: float = 0.8,
    episodes: Count = 64,
    seed: Index = 0,
    track: Track = untracked,
) -> Pruning:
    """Drop the links that deliver least, and plan for what is left.

    Parameters
    ----------
    problem
        The network with all links.
    planner
        A name of `planner_names`.
    options
        Options of the planner.
    keep_gap
        Least share of the mixing matrix's spectral gap that is kept, from 0 to 1.
    episodes
        Episodes of each plan.
    seed
        Draws the episodes.
    track
        Shows progress: ``track(items, description, total)`` yields the items.

    Returns
    -------
    Pruning
        The links that were dropped, and costs before and after.
    """
    options = options or {}
    if not 0 <= keep_gap <= 1:
        raise ScenarioError("keep_gap", f"expected a share from 0 to 1, actual value {keep_gap:g}")
    made = make_plan(problem, planner, options, bound=False, track=track)
    trace = simulate(problem, made, episodes, seed, track=track)
    dropped = links_to_drop(problem, delivery(problem, trace), keep_gap)
    smaller = without_weight(problem, dropped)
    again = make_plan(smaller, planner, options, bound=False, previous=made, track=track)
    after = _side(smaller, simulate(smaller, again, episodes, seed, track=track), len(dropped))
    return Pruning(dropped, _side(problem, trace, 0), after)


def delivery(problem: Problem, trace: Trace) -> dict[Pair, float]:
    """Share of slots in which a link's packets arrive, mean of both directions."""
    rate = trace.delivered.mean((0, 1))
    both = (rate + rate[problem.topology.reverse_edge]) / 2
    return {pair: float(both[problem.topology.edge(*pair)]) for pair in links(problem.topology)}


def links_to_drop(problem: Problem, delivered: Mapping[Pair, float], keep_gap: float) -> tuple[Pair, ...]:
    """Links from the worst delivery on whose loss the graph and a share of its spectral gap survive."""
    least = keep_gap * spectral_gap(problem.topology.mixing)
    graph = problem.topology.graph.copy()
    dropped: tuple[Pair, ...] = ()
    for pair in sorted(delivered, key=lambda pair: (delivered[pair], pair)):
        graph.remove_edge(*pair)
        kept = nx.is_connected(graph)
        if kept and spectral_gap(without_weight(problem, (*dropped, pair)).topology.mixing) >= least:
            dropped = (*dropped, pair)
        else:
            graph.add_edge(*pair)
    return dropped


def without_weight(problem: Problem, dropped: tuple[Pair, ...]) -> Problem:
    """The problem with the mixing weights of the graph without some links; who disturbs whom stays."""
    weights = weights_under(problem, Conditions(links_off=frozenset(dropped)))
    topology = replace(
        problem.topology, edge_weight=weights.edge.cpu().numpy(), self_weight=weights.own.cpu().numpy()
    )
    return replace(problem, topology=topology)


def applied_mixing(problem: Problem, trace: Trace) -> Array:
    """Mean of the matrix that the scenario's rule of averaging applies, made symmetric."""
    topology, model = problem.topology, LearningModel(problem)
    episodes = torch.from_numpy(trace.delivered).to(problem.device)
    shares = torch.stack([model.shares(arrived).mean(0) for arrived in episodes]).mean(0)  # (edge,)
    mixing = np.zeros((problem.num_devices, problem.num_devices))
    mixing[topology.edge_receiver, topology.edge_sender] = shares.cpu().numpy()
    mixing = (mixing + mixing.T) / 2
    return mixing + np.diag(1 - mixing.sum(1))


def _side(problem: Problem, trace: Trace, dropped: int) -> Side:
    return Side(
        links=problem.topology.num_edges // 2 - dropped,
        cost=trace.cost,
        gap=spectral_gap(problem.topology.mixing),
        real_gap=spectral_gap(applied_mixing(problem, trace)),
    )
