"""Averaging with neighbours: four built-in rules, one pass over the stacked weights of all devices and runs.

With w = weights before local training, w½ after it, Δ = w½ − w, mixing weights a_ij and ζ_ij = 1 where the packet
from j reached i in this slot (ζ_ii = 1), device i ends the slot with

- ``update``, eq. (update_global) of the paper:  w_i + Σ_j β_j ζ_ij a_ij Δ_j, own term a_ii Δ_i included;
- ``model``, where lost weight stays with oneself:  w_i½ + Σ_j ζ_ij a_ij (w_j½ − w_i½);
- ``renormalized``, where what arrived and oneself share lost weight:  Σ_j ζ_ij a_ij w_j½ / Σ_j ζ_ij a_ij, j = i too;
- ``reassigned``, the default, where only what arrived shares it and oneself keeps a_ii:
  a_ii w_i½ + (1 − a_ii) Σ_j ζ_ij a_ij w_j½ / Σ_j ζ_ij a_ij, j ≠ i.

All four are sums of terms c · (w_j½ − anchor) on top of a reference: `update` has the reference w and the anchor
w_j, the others have w_i½ for both. Who sends without training sends w_j½ = w_j: its Δ_j is zero, and β_j changes
nothing. Terms are added in one fixed order, element by element, so results depend
neither on chunks nor on who else is in the stack. A device without terms keeps its weights bit for bit.

Where models are compressed on the air (`packets.py`), what j sent takes the place of w_j½ or Δ_j in every term but
one's own. A term is zero in entries that were not sent.

Any other rule is a function of what one device holds and receives, `Arrived`: one file of `learning/aggregations`, or
code from outside.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heliomesh.common import catalog
from heliomesh.physics.topology import Topology
from heliomesh.scenario.errors import refuse
from heliomesh.scenario.schema import AGGREGATION_CATALOG, BUILT_IN_RULES, variant

Rule = str  # model, update, renormalized, reassigned, or a name of the catalog
Bools = npt.NDArray[np.bool_]
# (after, reference, target, landing): row ``landing[n]`` of ``target`` becomes the n-th mixed row; matrices are
# (row, parameter) views of one range of parameters
Mix = Callable[[Tensor, Tensor, Tensor, npt.NDArray[np.int64]], None]

WORKSPACE_BYTES = 256 * 2**20  # what averaging in place may hold beside the weights
_DENSE_EIGENVALUES = 1000  # devices up to which all eigenvalues take less than a second
_CPU_WIDTH = 32_768  # parameters at once: a few rows of them fit into a core's cache
_ROUNDING = -1e-9  # rounding of a zero eigenvalue


@dataclass(frozen=True)
class Arrived:
    """What one device knows at the end of a slot in which at least one packet reached it."""

    own: Tensor  # (parameter,) its weights after local training, w_i½
    received: Tensor  # (packet, parameter) what arrived of neighbours' w_j½; one's own where nothing was sent
    weight: Tensor  # (packet,) their mixing weights a_ij, of the weights' type
    own_weight: float  # a_ii; it and the weights of all neighbours sum to one


# A rule from outside: the weights (parameter,) with which the device leaves the slot, without changing its inputs.
Mixing = Callable[[Arrived], Tensor]


def aggregate(
    rule: Rule,
    topology: Topology,
    before: Tensor | None,
    after: Tensor,
    delivered: Bools,
    trained: Bools,
    out: Tensor,
    sent: Tensor | None = None,
) -> None:
    """Write the weights with which every device leaves the slot into ``out``.

    ``before`` and ``after`` are the weights around local training, contiguous, of shape (device, parameter) or
    (run, device, parameter); only `update` reads ``before``, and devices that did not train have equal rows in
    both. ``delivered`` is (edge,) or (run, edge) in the topology's order and implies that the sender sent;
    ``trained`` is (device,) or (run, device). ``out`` has the shape of ``after``, and may be ``before`` or ``after``
    itself: then results wait in at most `WORKSPACE_BYTES` until their inputs have been read. No
    memory is needed where ``out`` is not read. ``sent`` has the shape of ``after`` and is what senders put on the
    air, Δ for `update`, NaN in entries that were not sent; None: ``after`` itself.
    """
    if rule not in BUILT_IN_RULES:
        _mix_by_device(rule, topology, after, np.atleast_2d(delivered), out, sent)
        return
    models, source = _matrix(after), _matrix(after if sent is None else sent)
    reference = models if before is None or rule != "update" else _matrix(before)
    if reference is not models and sent is not None:  # the own term of `update` is exact, so packets follow as rows
        source = torch.cat([models, source])
        reference = torch.cat([reference, torch.zeros_like(models)])  # Δ − 0
    first_packet = len(source) - trained.size
    terms = _terms(rule, topology, np.atleast_2d(delivered), np.atleast_2d(trained), first_packet)
    if out.data_ptr() != reference.data_ptr():
        terms = replace(terms, rows=np.arange(trained.size))  # rows without terms are copied
    if len(terms.rows):
        _mix_in_chunks(terms, source, reference, _matrix(out), partial=sent is not None)


def _mix_by_device(
    rule: Rule, topology: Topology, after: Tensor, delivered: Bools, out: Tensor, sent: Tensor | None
) -> None:
    """Apply a rule of the catalog to every device that received anything; ``delivered`` (run, edge)."""
    mix: Mixing = catalog.function(variant(AGGREGATION_CATALOG, rule, "learning.aggregation"), "mix")
    models, mixed = _matrix(after), {}
    packets = models if sent is None else _matrix(sent)
    run, edge = np.nonzero(delivered)
    receiver = run * topology.num_devices + topology.edge_receiver[edge]
    sender = run * topology.num_devices + topology.edge_sender[edge]
    for row in np.unique(receiver).tolist():
        arrived = np.flatnonzero(receiver == row)
        weight = torch.from_numpy(topology.edge_weight[edge[arrived]]).to(models)
        own_weight = float(topology.self_weight[row % topology.num_devices])
        received = packets[sender[arrived]]
        if sent is not None:
            received = torch.where(received.isnan(), models[row], received)
        made = mix(Arrived(models[row], received, weight, own_weight))
        shape, actual = (
            tuple(models[row].shape),
            tuple(made.shape) if isinstance(made, Tensor) else type(made).__name__,
        )
        refuse(actual != shape, "learning.aggregation", f"{rule!r} to return weights of shape {shape}", actual)
        mixed[row] = made.clone()  # it may be a view of what is about to change
    if out.data_ptr() != after.data_ptr():
        out.copy_(after)
    for row, made in mixed.items():
        _matrix(out)[row] = made


def _matrix(weights: Tensor) -> Tensor:
    """(row, parameter), with runs and devices in one axis."""
    return weights.view(-1, weights.shape[-1])


@dataclass(frozen=True)
class _Terms:
    """Row ``rows[n]`` of the stack is its reference + Σ_e coefficient[e] · (after[sender[e]] − reference[anchor[e]]).

    The sum runs over e = start[n], …, start[n + 1] − 1; rows count runs and devices as run · devices + device.
    """

    rows: npt.NDArray[np.int64]  # (mixed row,)
    receiver: npt.NDArray[np.int64]  # (term,) in rising order
    sender: npt.NDArray[np.int64]  # (term,)
    anchor: npt.NDArray[np.int64]  # (term,)
    coefficient: npt.NDArray[np.float64]  # (term,)

    @property
    def start(self) -> npt.NDArray[np.int64]:
        """First term of every row, and the number of terms; (mixed row + 1,)."""
        return np.append(np.searchsorted(self.receiver, self.rows), len(self.receiver))


def _terms(rule: Rule, topology: Topology, delivered: Bools, trained: Bools, first_packet: int = 0) -> _Terms:
    """The terms of one slot, own term first; ``delivered`` (run, edge), ``trained`` (run, device).

    What neighbours sent stands ``first_packet`` rows below their own.
    """
    devices = topology.num_devices
    run, edge = np.nonzero(delivered)
    receiver = run * devices + topology.edge_receiver[edge]
    sender = run * devices + topology.edge_sender[edge] + first_packet
    coefficient = topology.edge_weight[edge]
    if rule == "update":
        own = np.flatnonzero(trained)
        receiver, sender = np.concatenate([own, receiver]), np.concatenate([own, sender])
        coefficient = np.concatenate([topology.self_weight[own % devices], coefficient])
        order = np.argsort(receiver, kind="stable")
        receiver, sender, coefficient = receiver[order], sender[order], coefficient[order]
    if rule in ("renormalized", "reassigned"):
        arrived = np.bincount(receiver, weights=coefficient, minlength=trained.size)
        own_weight = np.tile(topology.self_weight, len(trained))
        if rule == "renormalized":
            coefficient = coefficient / (own_weight + arrived)[receiver]
        else:
            coefficient = coefficient * ((1 - own_weight)[receiver] / arrived[receiver])
    anchor = sender if rule == "update" else receiver
    return _Terms(np.unique(receiver), receiver, sender, anchor, coefficient)


def _mix_in_chunks(terms: _Terms, after: Tensor, reference: Tensor, out: Tensor, partial: bool) -> None:
    """Mix one range of parameters after the other; where ``out`` is read too, the range's results wait beside it."""
    parameters, num_rows = out.shape[1], len(terms.rows)
    mix, widest = _mix_for(terms, out, partial)
    width, is_read = min(parameters, widest), out.data_ptr() in (after.data_ptr(), reference.data_ptr())
    if is_read:
        width = min(width, max(WORKSPACE_BYTES // (num_rows * out.element_size()), 1))
        workspace, rows = out.new_empty(num_rows, width), torch.from_numpy(terms.rows).to(out.device)
    for start in range(0, parameters, width):
        columns = slice(start, min(start + width, parameters))
        if not is_read:
            mix(after[:, columns], reference[:, columns], out[:, columns], terms.rows)
            continue
        waiting = workspace[:, : columns.stop - start]
        mix(after[:, columns], reference[:, columns], waiting, np.arange(num_rows))
        out[:, columns].index_copy_(0, rows, waiting)


def _mix_for(terms: _Terms, out: Tensor, partial: bool) -> tuple[Mix, int]:
    """How to mix where ``out`` lives, and the most parameters at once; ``partial``: packets may have NaN entries."""
    if not out.is_cuda or importlib.util.find_spec("triton") is None:  # Triton comes with PyTorch for accelerators
        return _row_mix(terms, partial), _CPU_WIDTH
    from heliomesh.learning.cuda.mixing import LARGEST_WIDTH, kernel_mix

    indices = (terms.rows, terms.start, terms.sender, terms.anchor)
    return kernel_mix(indices, terms.coefficient, out, partial), LARGEST_WIDTH


def _row_mix(terms: _Terms, partial: bool) -> Mix:
    """Row after row, without gathers, in time proportional to what arrived.

    On a CPU it is as quick as a sparse matrix product for many devices. A dense one takes half the time for ten
    devices, but its rounding depends on the stack.
    """
    rows, start = terms.rows.tolist(), terms.start.tolist()
    sender, anchor, coefficient = terms.sender.tolist(), terms.anchor.tolist(), terms.coefficient.tolist()

    def mix(after: Tensor, reference: Tensor, target: Tensor, landing: npt.NDArray[np.int64]) -> None:
        after_row, reference_row, target_row = after.unbind(), reference.unbind(), target.unbind()
        difference = target.new_empty(target.shape[1])
        for index, place in enumerate(landing.tolist()):
            mixed = target_row[place].copy_(reference_row[rows[index]])
            for term in range(start[index], start[index + 1]):
                torch.sub(after_row[sender[term]], reference_row[anchor[term]], out=difference)
                if partial:
                    difference.nan_to_num_(0.0, torch.inf, -torch.inf)
                mixed.add_(difference, alpha=coefficient[term])

    return mix


def smallest_eigenvalue(topology: Topology) -> float:
    """The smallest eigenvalue of the mixing matrix A, or the lower bound 2 min a_ii − 1 where that is not negative.

    Above 1,000 devices it is found by Lanczos iteration, to four digits.
    """
    bound = 2 * float(topology.self_weight.min()) - 1  # Gershgorin: A is symmetric with rows that sum to one
    if bound >= _ROUNDING:
        return bound
    if topology.num_devices <= _DENSE_EIGENVALUES:
        return float(np.linalg.eigvalsh(topology.mixing)[0])
    from scipy.sparse import coo_array, diags_array  # slow to import and needed here only
    from scipy.sparse.linalg import eigsh

    devices = topology.num_devices
    ends, shape = (topology.edge_receiver, topology.edge_sender), (devices, devices)
    mixing = (coo_array((topology.edge_weight, ends), shape=shape) + diags_array(topology.self_weight)).tocsr()
    start = np.cos(np.arange(devices) ** 2)  # any vector that is the same every time
    return float(eigsh(mixing, k=1, which="SA", tol=1e-4, v0=start, return_eigenvectors=False)[0])


def check_contraction(rule: Rule, topology: Topology, allow_divergence: bool) -> None:
    """Refuse `update` where A has a negative eigenvalue: its disagreements then grow instead of shrinking.

    On a quadratic of curvature L, local steps of size η multiply the disagreement along an eigenvector of A with
    eigenvalue λ by 1 − ηLλ, which exceeds 1 for λ < 0.
    """
    if rule != "update" or allow_divergence:
        return
    smallest = smallest_eigenvalue(topology)
    matrix = "a mixing matrix without negative eigenvalues for 'update' (network.mixing = 'lazy-metropolis')"
    expected = f"{matrix} or learning.allow_divergence = true"
    refuse(smallest < _ROUNDING, "learning.aggregation", expected, f"smallest eigenvalue {smallest:.4g}")
