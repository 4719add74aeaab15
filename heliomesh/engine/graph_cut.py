"""Cut a network into parts of equal size that few links join.

Recursive spectral bisection: the second eigenvector of the graph's Laplacian L = D − W orders the devices so that
neighbours stand close to each other; the order is cut where the sizes ask for it. Kernighan and Lin's swaps then
improve the cut. Parts decide what travels, never what is computed.
"""

import networkx as nx
import numpy as np
import numpy.typing as npt

from heliomesh.physics.topology import Topology

Indices = npt.NDArray[np.int64]

_DENSE = 200  # devices up to which all eigenvectors take no time
_SWAPPED = 10_000  # devices up to which swaps take a few seconds
_SHIFT = -1e-3  # below all eigenvalues, so that L − shift can be factorised


def cut_into_parts(topology: Topology, num_parts: int) -> Indices:
    """The part of every device, 0 to ``num_parts`` − 1; sizes differ by at most one; (device,)."""
    part = np.zeros(topology.num_devices, dtype=np.int64)
    sizes = [len(own) for own in np.array_split(part, num_parts)]
    _cut(topology.graph, np.arange(topology.num_devices), sizes, part, 0)
    return part


def num_cut_links(topology: Topology, part: Indices) -> int:
    """Links between devices of different parts."""
    return int((part[topology.edge_receiver] != part[topology.edge_sender]).sum()) // 2


def _cut(graph: "nx.Graph[int]", devices: Indices, sizes: list[int], part: Indices, first: int) -> None:
    """Give ``devices`` parts ``first``, ``first`` + 1, … of the given sizes."""
    if len(sizes) == 1:
        part[devices] = first
        return
    middle = len(sizes) // 2
    left, right = _halves(graph.subgraph(devices.tolist()), devices, sum(sizes[:middle]))
    _cut(graph, left, sizes[:middle], part, first)
    _cut(graph, right, sizes[middle:], part, first + middle)


def _halves(graph: "nx.Graph[int]", devices: Indices, num_left: int) -> tuple[Indices, Indices]:
    """``num_left`` devices and the others, with few links between them."""
    ordered = devices[np.argsort(_second_eigenvector(graph, devices), kind="stable")]
    left, right = set(ordered[:num_left].tolist()), set(ordered[num_left:].tolist())
    if len(devices) <= _SWAPPED:
        swapped = nx.community.kernighan_lin_bisection(graph, (left, right))
        left, right = sorted(swapped, key=lambda half: len(half) != num_left)  # the order of halves is its own
    return np.array(sorted(left)), np.array(sorted(right))


def _second_eigenvector(graph: "nx.Graph[int]", devices: Indices) -> npt.NDArray[np.float64]:
    """The Fiedler vector; (device,) in the order of ``devices``."""
    from scipy.sparse.linalg import eigsh  # slow to import and needed here only

    laplacian = nx.laplacian_matrix(graph, nodelist=devices.tolist()).astype(np.float64)
    if len(devices) <= _DENSE:
        return np.linalg.eigh(laplacian.toarray())[1][:, 1]
    start = np.cos(np.arange(len(devices)) ** 2)  # any vector that is the same every time
    values, vectors = eigsh(laplacian.tocsc(), k=2, sigma=_SHIFT, which="LM", v0=start)
    return vectors[:, int(np.argmax(values))]  # type: ignore[no-any-return]
