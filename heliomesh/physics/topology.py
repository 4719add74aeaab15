"""The graph: who hears whom, k-hop sets, positions and the mixing matrix."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import networkx as nx
import numpy as np
import numpy.typing as npt

from heliomesh.common.streams import stream
from heliomesh.physics.chain import Floats
from heliomesh.physics.reach import MOST_LINKS, crowded_sinr, pairs_by_budget, pairs_within
from heliomesh.scenario.errors import ScenarioError, refuse
from heliomesh.scenario.scenario import Scenario
from heliomesh.scenario.schema import Network

Integers = npt.NDArray[np.int64]
Links = list[tuple[int, int]] | Integers  # pairs of devices, in any order

_TRIES = 1000  # draws of a random graph
_PLACED = ("ring", "grid", "star", "geometric", "places")  # whose positions give the links their lengths


@dataclass(frozen=True)
class Topology:
    """Directed edges sorted by (receiver, sender), positions, and the mixing weights on them.

    The mixing matrix A is symmetric and doubly stochastic; ``edge_weight[e] = a_ij`` with i the receiver and
    j the sender of edge e, ``self_weight[i] = a_ii``.
    """

    num_devices: int
    edge_receiver: Integers  # (edge,)
    edge_sender: Integers  # (edge,)
    edge_weight: Floats  # (edge,)
    self_weight: Floats  # (device,)
    position_metre: Floats  # (device, 2), for drawing
    edge_metre: Floats  # (edge,) distance of sender and receiver, for path loss

    @property
    def num_edges(self) -> int:
        """Number of directed edges, twice the number of links."""
        return len(self.edge_receiver)

    @cached_property
    def neighbours(self) -> tuple[tuple[int, ...], ...]:
        """One-hop neighbours of every device, without itself, in rising order."""
        splits = np.split(self.edge_sender, self.edge_start[1:-1])
        return tuple(tuple(part.tolist()) for part in splits)

    @cached_property
    def edge_start(self) -> Integers:
        """Edges into receiver i are ``edge_start[i]:edge_start[i + 1]``; shape (device + 1,)."""
        counts = np.bincount(self.edge_receiver, minlength=self.num_devices)
        return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)

    def edges_into(self, receiver: int) -> slice:
        """Edges into a receiver, in the order of its neighbours."""
        return slice(*self.edge_start[receiver : receiver + 2].tolist())

    @cached_property
    def reverse_edge(self) -> Integers:
        """Index of the edge in the other direction; shape (edge,)."""
        return np.lexsort((self.edge_receiver, self.edge_sender))

    @cached_property
    def graph(self) -> "nx.Graph[int]":
        """The undirected graph."""
        graph: nx.Graph[int] = nx.Graph()
        graph.add_nodes_from(range(self.num_devices))
        graph.add_edges_from(zip(self.edge_receiver.tolist(), self.edge_sender.tolist(), strict=True))
        return graph

    @property
    def mixing(self) -> Floats:
        """Dense mixing matrix A; shape (device, device)."""
        dense = np.diag(self.self_weight)
        dense[self.edge_receiver, self.edge_sender] = self.edge_weight
        return dense

    @cached_property
    def diameter(self) -> int:
        """Longest shortest path; the largest over components where the graph is disconnected."""
        parts = (self.graph.subgraph(part) for part in nx.connected_components(self.graph))
        return max(nx.diameter(part) for part in parts)

    @cached_property
    def num_components(self) -> int:
        """Parts of the graph between which there is no link."""
        from scipy.sparse import coo_array, csgraph  # slow to import

        shape = (self.num_devices, self.num_devices)
        links = coo_array((np.ones(self.num_edges), (self.edge_receiver, self.edge_sender)), shape=shape)
        number, _ = csgraph.connected_components(links, directed=False)
        return int(number)

    def edge(self, receiver: int, sender: int) -> int:
        """Index of the directed edge from ``sender`` to ``receiver``."""
        start = int(self.edge_start[receiver])
        return start + self.neighbours[receiver].index(sender)

    def within(self, device: int, hops: int) -> dict[int, int]:
        """Devices at most ``hops`` links away, itself included, each with its distance."""
        return dict(nx.single_source_shortest_path_length(self.graph, device, cutoff=hops))


def build_topology(scenario: Scenario) -> Topology:
    """The scenario's graph with positions and mixing weights."""
    network = scenario.network
    degree = {"complete": math.inf, "regular": network.degree}
    degree |= dict.fromkeys(("geometric", "erdos-renyi"), network.mean_degree)
    most = network.devices * min(degree.get(network.topology, 2), network.devices - 1) / 2  # which memory must hold
    expected = f"a {network.topology} graph of at most {MOST_LINKS} links"
    refuse(most > MOST_LINKS, "network.devices", expected, f"value {network.devices} gives {most:.0f}")
    links, position = _links_and_positions(scenario)
    topology = with_mixing(network, _directed(links, network.devices), position)
    if topology.num_components > 1 and not network.allow_disconnected:
        expected = "a connected graph (or network.allow_disconnected = true)"
        raise ScenarioError("network.topology", expected, f"number of components {topology.num_components}")
    return topology if network.keep_gap is None else _pruned(scenario, topology, network.keep_gap)


def _pruned(scenario: Scenario, topology: Topology, keep_gap: float) -> Topology:
    """The weakest links without weight, as far as the graph stays together and the spectral gap large enough.

    Weakest is the link that hears least when all send. The radio does not change: such a neighbour still disturbs.
    """
    pairs = np.stack([topology.edge_receiver, topology.edge_sender], axis=1)
    sinr = crowded_sinr(scenario, topology.edge_receiver, topology.edge_metre)
    worse = np.minimum(sinr, sinr[topology.reverse_edge])
    kept, weight = np.ones(len(pairs), dtype=bool), topology.edge_weight
    least = keep_gap * spectral_gap(topology.mixing)
    for edge in np.argsort(worse, kind="stable"):
        trial = kept.copy()
        trial[[edge, topology.reverse_edge[edge]]] = False
        smaller = with_mixing(scenario.network, pairs[trial], topology.position_metre)
        if smaller.num_components == topology.num_components and spectral_gap(smaller.mixing) >= least:
            kept, weight = trial, np.zeros(len(pairs))
            weight[kept] = smaller.edge_weight
    return reweighted(topology, weight)


def spectral_gap(mixing: Floats) -> float:
    """1 − λ, λ the second largest absolute eigenvalue of a symmetric mixing matrix: how fast models agree."""
    eigenvalues = np.sort(np.abs(np.linalg.eigvalsh(mixing)))
    return 1 - (float(eigenvalues[-2]) if len(mixing) > 1 else 0.0)


def _directed(links: Links, devices: int) -> Integers:
    """Both directions of every link, each once, sorted; (edge, 2)."""
    ends = np.array(links, dtype=np.int64).reshape(-1, 2)
    number = np.unique(np.concatenate([ends, ends[:, ::-1]]) @ np.array([devices, 1]))
    return np.stack(np.divmod(number, devices), axis=1)


def with_mixing(network: Network, pairs: Integers, position: Floats) -> Topology:
    """A graph of sorted directed pairs (receiver, sender) with Metropolis weights.

    a_ij = 1 / (1 + max(d_i, d_j)), halved when lazy: A = (I + W) / 2. Where positions follow the devices' numbers
    rather than the links, every link is ``network.link_metre`` long, so that renumbering devices changes nothing.
    """
    receiver, sender = pairs[:, 0], pairs[:, 1]
    degree = np.bincount(receiver, minlength=network.devices)
    weight = 1.0 / (1.0 + np.maximum(degree[receiver], degree[sender]))
    if network.mixing == "lazy-metropolis":
        weight = weight / 2
    self_weight = (1.0 - np.bincount(receiver, weights=weight, minlength=network.devices)).astype(np.float64)
    metre = np.full(len(receiver), network.link_metre)
    if network.topology in _PLACED:
        metre = np.linalg.norm(position[receiver] - position[sender], axis=1)
    return Topology(network.devices, receiver, sender, weight, self_weight, position, metre)


def reweighted(topology: Topology, edge_weight: Floats) -> Topology:
    """The same graph with other symmetric mixing weights (edge,); what they leave of one is a device's own."""
    given = np.bincount(topology.edge_receiver, weights=edge_weight, minlength=topology.num_devices)
    return replace(topology, edge_weight=edge_weight, self_weight=(1.0 - given).astype(np.float64))


def _links_and_positions(scenario: Scenario) -> tuple[Links, Floats]:
    network, seed = scenario.network, scenario.seed
    m, spacing = network.devices, network.link_metre
    match network.topology:
        case "ring":
            return [(i, (i + 1) % m) for i in range(m) if m > 1], _circle(m, spacing)
        case "complete":
            return [(i, j) for i in range(m) for j in range(i)], _circle(m, spacing)
        case "star":
            rim = spacing * _unit_circle(m - 1)
            return [(0, i) for i in range(1, m)], np.concatenate([np.zeros((1, 2)), rim])
        case "grid":
            return _grid(network)
        case "regular":
            return _regular(network, seed), _circle(m, spacing)
        case "geometric":
            return _redrawn(network, seed, _geometric)
        case "erdos-renyi":
            return _redrawn(network, seed, _erdos_renyi)
        case "places":
            position = np.array(network.positions_metre, dtype=np.float64)
            if network.edges is not None:
                return _explicit(network), position
            if network.links == "budget":
                return pairs_by_budget(scenario, position), position
            return pairs_within(position, spacing, "network.link_metre"), position
        case "edges":
            return _explicit(network), _circle(m, spacing)


def _circle(devices: int, spacing_metre: float) -> Floats:
    """Points on a circle, neighbours ``spacing_metre`` apart; shape (device, 2)."""
    radius = spacing_metre / (2 * math.sin(math.pi / devices)) if devices > 1 else 0.0
    return radius * _unit_circle(devices)


def _unit_circle(points: int) -> Floats:
    """Points at equal angles, the first at (1, 0); shape (point, 2)."""
    angle = 2 * np.pi * np.arange(points) / max(points, 1)
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


def _grid(network: Network) -> tuple[list[tuple[int, int]], Floats]:
    m = network.devices
    rows = network.rows or max(r for r in range(1, math.isqrt(m) + 1) if m % r == 0)
    refuse(m % rows, "network.rows", f"a divisor of network.devices = {m}", f"value {rows}")
    columns = m // rows
    links = [(i, i + 1) for i in range(m) if (i + 1) % columns]
    links += [(i, i + columns) for i in range(m - columns)]
    position = np.stack(np.divmod(np.arange(m), columns)[::-1], axis=1) * network.link_metre
    return links, position.astype(np.float64)


def _regular(network: Network, seed: int) -> list[tuple[int, int]]:
    m, degree = network.devices, network.degree
    expected = f"a number below network.devices = {m} whose product with it is even"
    refuse(degree >= m or (degree * m) % 2, "network.degree", expected, f"value {degree}")
    rng = stream(seed, "topology")
    for _ in range(_TRIES):
        graph = nx.random_regular_graph(degree, m, seed=int(rng.integers(2**32)))
        if network.allow_disconnected or nx.is_connected(graph):
            break
    return list(graph.edges)


def _redrawn(
    network: Network, seed: int, draw: Callable[[Network, np.random.Generator], tuple[Links, Floats]]
) -> tuple[Links, Floats]:
    """The first random graph that is connected, where it must be, with no degree above the largest allowed."""
    for attempt in range(_TRIES):
        links, position = draw(network, stream(seed, "topology", attempt))
        pairs = _directed(links, network.devices)
        degree = np.bincount(pairs[:, 0], minlength=network.devices)
        few = network.max_degree is None or degree.max() <= network.max_degree
        if few and (network.allow_disconnected or with_mixing(network, pairs, position).num_components == 1):
            return links, position
    limit = "" if network.max_degree is None else f" within network.max_degree = {network.max_degree}"
    expected = f"a value at which {network.devices} random devices are connected{limit}"
    actual = f"value {network.mean_degree:g} fails in {_TRIES} draws"
    raise ScenarioError("network.mean_degree", expected, actual)


def _geometric(network: Network, rng: np.random.Generator) -> tuple[Links, Floats]:
    """Uniform points in a square sized for the mean degree, joined within ``link_metre``.

    Jittered ones, one in each cell of a lattice, leave fewer holes, so sparse networks stay connected.
    """
    from scipy.spatial import cKDTree  # slow to import and needed here only

    m, radius = network.devices, network.link_metre
    unit = rng.random((m, 2))
    if network.placement == "jittered":
        columns = math.ceil(math.sqrt(m))
        cells = rng.permutation(columns * columns)[:m]
        unit = (np.stack(np.divmod(cells, columns), axis=1) + unit) / columns
    position = unit * (radius * math.sqrt(math.pi * max(m - 1, 1) / network.mean_degree))
    # points near the border have fewer neighbours: shrink the square until the mean degree is met
    for _ in range(60):
        pairs = cKDTree(position).query_pairs(radius, output_type="ndarray")
        if 2 * len(pairs) >= network.mean_degree * m or m * (m - 1) == 2 * len(pairs):
            break
        position = position * 0.98
    return pairs, position


def _erdos_renyi(network: Network, rng: np.random.Generator) -> tuple[Links, Floats]:
    """Every pair is linked with the same probability, mean_degree / (m − 1)."""
    m = network.devices
    prob = min(network.mean_degree / max(m - 1, 1), 1.0)
    drawn = nx.fast_gnp_random_graph(m, prob, seed=int(rng.integers(2**32)))
    return list(drawn.edges), _circle(m, network.link_metre)


def _explicit(network: Network) -> list[tuple[int, int]]:
    links = list(network.edges or ())
    expected = f"two different devices in 0..{network.devices - 1}"
    for index, (a, b) in enumerate(links):
        if a == b or not (0 <= a < network.devices and 0 <= b < network.devices):
            raise ScenarioError(f"network.edges.{index}", expected, f"value {[a, b]}")
    return links
