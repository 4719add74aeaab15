"""What happened, as arrays: the only thing that learning needs to know about planning and physics."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from heliomesh.common.arguments import NOT_EMPTY, Count, Index, checked
from heliomesh.common.durable import npz_sizes, written_whole
from heliomesh.common.memory_limit import DEFAULT_LIMIT_GIB, TooLargeError, check_fits
from heliomesh.common.mistakes import MistakeError
from heliomesh.model.overhead import refuse_uncounted
from heliomesh.model.policy import Plan, Policy, Track, as_plan, untracked
from heliomesh.model.problem import Problem
from heliomesh.model.threads import fitting_threads
from heliomesh.scenario.errors import refuse
from heliomesh.simulation.blocks import for_every_slot, run_blocks
from heliomesh.simulation.slot_loop import Slot

if TYPE_CHECKING:
    import xarray

_FORMAT = 1
_EPISODES_AT_ONCE = 256

Array = npt.NDArray[Any]


class TraceError(MistakeError, ValueError):
    """A file is not a trace that this version can read."""


@dataclass(frozen=True)
class Column:
    """An array of a trace, said once: all that reads or writes traces follows `COLUMNS`."""

    name: str
    axes: tuple[str, ...]
    dtype: type[np.generic]
    unit: str  # "1" where there is none
    meaning: str

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Its shape for given lengths of the axes."""
        return tuple(sizes[axis] for axis in self.axes)

    @property
    def kind(self) -> str:
        """NumPy's letter for booleans (b), whole numbers (i) or floating-point numbers (f)."""
        return np.dtype(self.dtype).kind


_DEVICE, _EDGE = ("episode", "slot", "device"), ("episode", "slot", "edge")
_MOMENT = ("episode", "moment", "device")  # moments are the starts of slots and the end of the last: slots + 1

COLUMNS = (
    Column("scheduled", _DEVICE, np.bool_, "1", "the device trains in the slot"),
    Column("power_watt", _DEVICE, np.float64, "W", "transmit power, 0 where the device does not send"),
    Column("update_loss", _DEVICE, np.float64, "1", "x_j, the share of the device's update weight that is lost"),
    Column("battery_joule", _MOMENT, np.float64, "J", "stored energy; the first entry is the initial battery"),
    Column("spent_joule", _DEVICE, np.float64, "J", "energy drawn from storage: training, sending, standing by"),
    Column("harvested_joule", _DEVICE, np.float64, "J", "energy harvested"),
    Column("overflow_joule", _DEVICE, np.float64, "J", "harvest that found the battery full"),
    Column("delivered", _EDGE, np.bool_, "1", "the packet of the edge arrived"),
    Column("error_prob", _EDGE, np.float64, "1", "probability that it does not"),
    Column("channel_level", ("episode", "slot", "site"), np.int16, "1", "level of the channel at the site"),
    Column("edge_receiver", ("edge",), np.int64, "1", "device that hears"),
    Column("edge_sender", ("edge",), np.int64, "1", "device that is heard"),
)
RECORDED = tuple(column for column in COLUMNS if "episode" in column.axes)
# only of policies with mixing weights of their own, which stop waiting for neighbours that are gone
OWN_WEIGHT = Column("edge_weight", _EDGE, np.float64, "1", "mixing weight a_ij in force")
# only where batteries pay for messages
CONTROL = Column("control_joule", _DEVICE, np.float64, "J", "energy drawn for messages, part of spent_joule")


def axis_sizes(problem: Problem, episodes: int) -> dict[str, int]:
    """Lengths of all axes."""
    return {
        "episode": episodes,
        "slot": problem.slots,
        "moment": problem.slots + 1,
        "device": problem.num_devices,
        "edge": problem.topology.num_edges,
        "site": problem.channel.num_sites,
    }


@dataclass(frozen=True)
class Trace:
    """Arrays by (episode, slot, device) and (episode, slot, edge), with the scenario they belong to."""

    scenario_toml: str
    planner: str
    seed: int
    # axes, units and meanings are in `COLUMNS`
    scheduled: Array
    power_watt: Array
    update_loss: Array
    battery_joule: Array
    spent_joule: Array
    harvested_joule: Array
    overflow_joule: Array
    delivered: Array
    error_prob: Array
    channel_level: Array
    edge_receiver: Array
    edge_sender: Array
    edge_weight: Array | None = None  # None: the network's own in all slots
    control_joule: Array | None = None  # None: messages are free

    @property
    def columns(self) -> tuple[Column, ...]:
        """The arrays that it has."""
        return (*COLUMNS, *(one for one in (OWN_WEIGHT, CONTROL) if getattr(self, one.name) is not None))

    @property
    def recorded(self) -> tuple[Column, ...]:
        """Those with an axis of episodes."""
        return tuple(column for column in self.columns if "episode" in column.axes)

    @property
    def cost(self) -> npt.NDArray[np.float64]:
        """Normalised mean cost per slot, Σ_j x_j averaged over slots; (episode,)."""
        total: npt.NDArray[np.float64] = self.update_loss.sum(-1).mean(-1)
        return total

    @checked
    def episode(self, number: Index) -> "Trace":
        """The trace of one episode alone."""
        if number >= len(self.scheduled):
            raise TraceError("number", f"an episode below {len(self.scheduled)}", f"value {number}")
        own = {c.name: getattr(self, c.name)[number : number + 1].copy() for c in self.recorded}
        return replace(self, **own)  # copies: it may stay when the others go

    @checked
    def first_slots(self, slots: Count) -> "Trace":
        """The beginning of the trace."""
        if slots > self.scheduled.shape[1]:
            raise TraceError("slots", f"at most {self.scheduled.shape[1]}", f"value {slots}")
        length = {"slot": slots, "moment": slots + 1}
        return replace(self, **{c.name: getattr(self, c.name)[:, : length[c.axes[1]]] for c in self.recorded})

    def to_xarray(self) -> "xarray.Dataset":
        """The arrays with named axes, coordinates and units; needs `pip install heliomesh[xarray]`."""
        try:
            import xarray
        except ImportError:
            raise ModuleNotFoundError("xarray is not installed. Run `pip install heliomesh[xarray]`.") from None
        own = self.columns
        arrays = {c.name: (c.axes, getattr(self, c.name), {"units": c.unit, "long_name": c.meaning}) for c in own}
        axes = {axis: size for c in own for axis, size in zip(c.axes, getattr(self, c.name).shape, strict=True)}
        coords = {axis: np.arange(size) for axis, size in axes.items()}
        dataset = xarray.Dataset(arrays, coords).set_coords(["edge_receiver", "edge_sender"])
        return dataset.assign_attrs(planner=self.planner, seed=self.seed, scenario=self.scenario_toml)

    @checked
    def save(self, path: str | Path) -> None:
        """Write one compressed file; the name appears only when the file is complete."""
        target = Path(path)
        meta = {"format": _FORMAT, "scenario": self.scenario_toml, "planner": self.planner, "seed": self.seed}
        arrays = {column.name: getattr(self, column.name) for column in self.columns}
        with written_whole(target) as path, path.open("wb") as file:
            np.savez_compressed(file, meta=np.array(json.dumps(meta)), **arrays)

    @classmethod
    @checked
    def load(cls, path: str | Path, *, memory_gib: float = DEFAULT_LIMIT_GIB) -> "Trace":
        """Read a saved trace; raises TraceError for anything else, and TooLargeError above the memory limit."""
        try:
            _check_unpacked(Path(path), memory_gib)
            with Path(path).open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                meta = json.loads(str(file["meta"]))
                if meta.get("format") != _FORMAT:
                    raise TraceError(path, f"trace format {_FORMAT}", f"value {meta.get('format')!r}")
                columns = (*COLUMNS, *(one for one in (OWN_WEIGHT, CONTROL) if one.name in file))
                arrays = {column.name: file[column.name] for column in columns}
                _check_fit(path, arrays, columns)
                return cls(str(meta["scenario"]), str(meta["planner"]), int(meta["seed"]), **arrays)
        except (TraceError, TooLargeError):
            raise
        except OSError as error:
            raise TraceError(path, "a complete trace file", f": {error.strerror or error}") from None
        except Exception as error:  # a damaged archive may raise anything, even zlib.error
            raise TraceError(path, "a complete trace file", f": {error}") from None


def _check_unpacked(path: Path, memory_gib: float) -> None:
    """Refuse a file before it is unpacked if its arrays, and a copy of one while it is checked, do not fit."""
    sizes = [size.num_bytes for size in npz_sizes(path).values()]
    check_fits(f"{path}", sum(sizes) + 1.2 * max(sizes, default=0), memory_gib, "raise memory_gib")


def _check_fit(path: str | Path, arrays: dict[str, Array], columns: Sequence[Column]) -> None:
    """Refuse arrays of a file that are not of the kinds, shapes and ranges that `simulate` gives."""
    sizes = _sizes(path, arrays)
    for column in columns:
        name, array, shape = column.name, arrays[column.name], column.shape(sizes)
        if array.dtype.kind != column.kind or array.shape != shape:
            expected = f"{name} of {_KIND_WORDS[column.kind]} and shape {shape}"
            raise TraceError(path, expected, f"type {array.dtype} and shape {array.shape}")
        if not (np.abs(array) <= _LARGEST).all():
            raise TraceError(path, f"finite numbers in {name}", f": NaN or beyond {_LARGEST:g}")
        if column.axes == ("edge",) and not ((array >= 0) & (array < sizes["device"])).all():
            expected = f"devices 0 to {sizes['device'] - 1} in {name}"
            raise TraceError(path, expected, f"values {array.min()} to {array.max()}")


def _sizes(path: str | Path, arrays: dict[str, Array]) -> dict[str, int]:
    """Lengths of the axes, as three of the arrays have them."""
    scheduled, receiver = arrays["scheduled"], arrays["edge_receiver"]
    if scheduled.ndim != 3 or 0 in scheduled.shape or receiver.ndim != 1:
        expected = "scheduled of shape (episode, slot, device) and edge_receiver of shape (edge,)"
        raise TraceError(path, expected, f"shapes {scheduled.shape} and {receiver.shape}")
    episodes, slots, devices = scheduled.shape
    sites = arrays["channel_level"].shape[-1] if arrays["channel_level"].ndim else 0
    sizes = {"episode": episodes, "slot": slots, "moment": slots + 1, "device": devices}
    return sizes | {"edge": len(receiver), "site": sites}


_LARGEST = 1e100  # sums over slots must stay numbers
_KIND_WORDS = {"b": "booleans", "i": "whole numbers", "f": "floating-point numbers"}


@checked
def simulate(
    problem: Problem,
    plan: Plan | Policy,
    episodes: Count | Annotated[Sequence[Index], NOT_EMPTY] = 64,
    seed: Index = 0,
    *,
    truth: Mapping[Index, Problem] = MappingProxyType({}),
    memory_gib: float = DEFAULT_LIMIT_GIB,
    track: Track = untracked,
) -> Trace:
    """Simulate episodes with continuous batteries.

    The same seed and episode mean common random numbers for every plan. Forked children may simulate too, with one
    thread each, and get the same numbers.

    Parameters
    ----------
    problem
        The world as it is planned for.
    plan
        A plan, or any policy: an object with ``decide(slot, seen)``.
    episodes
        How many, from number 0 on, or their numbers.
    seed
        Draws channels, harvests and packet losses.
    truth
        The world as it is from a slot on, as in `run_slots`; by default the problem all along.
    memory_gib
        Largest trace that may be recorded [GiB].
    track
        Shows progress: ``track(items, description, total)`` yields the items.

    Returns
    -------
    Trace
        Arrays by (episode, slot, device) and (episode, slot, edge).
    """
    plan = as_plan(plan)
    refuse_uncounted(problem, plan.policy, plan.overhead, plan.planner)
    numbers = range(episodes) if isinstance(episodes, int) else list(episodes)
    check_fits("trace", estimate_bytes(problem, len(numbers)), memory_gib, "lower episodes, slots or network.devices")
    starts = range(0, len(numbers), _EPISODES_AT_ONCE)
    chunks = [list(numbers[start : start + _EPISODES_AT_ONCE]) for start in starts]
    total = len(chunks) * problem.slots
    steps = (
        (index, block)
        for index, chunk in enumerate(chunks)
        for block in for_every_slot(run_blocks(problem, plan.policy, chunk, seed, truth))
    )
    recorders = [Recorder(problem, len(chunk)) for chunk in chunks]
    with fitting_threads(problem):
        for index, block in track(steps, f"simulate {plan.planner}", total):
            if block is not None:
                recorders[index].add(block)
    joined = _joined(recorders)
    check_finite(joined["update_loss"])
    return Trace(
        scenario_toml=problem.scenario.to_toml(),
        planner=plan.planner,
        seed=seed,
        edge_receiver=problem.topology.edge_receiver,
        edge_sender=problem.topology.edge_sender,
        **joined,
    )


def _joined(recorders: Sequence["Recorder"]) -> dict[str, Array]:
    """The arrays of all chunks; weights only where a policy had its own in some slot."""
    joined = {name: _end_to_end([one.arrays[name] for one in recorders]) for name in recorders[0].arrays}
    if any(one.has_own_weights for one in recorders):
        joined[OWN_WEIGHT.name] = _end_to_end([one.edge_weight for one in recorders])
    return joined


def _end_to_end(arrays: Sequence[Array]) -> Array:
    """Arrays one after the other; one alone is not copied."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def check_finite(cost: Array) -> None:
    """Refuse costs that are no numbers, before anyone stores or averages them."""
    refuse(not np.isfinite(cost).all(), "cost", "finite numbers", ": NaN or infinite; check the scenario's numbers")


def estimate_bytes(problem: Problem, episodes: int) -> float:
    """Size of the recorded arrays, held twice while chunks of episodes are joined."""
    sizes, copies = axis_sizes(problem, episodes), 2.0 if episodes > _EPISODES_AT_ONCE else 1.0
    return copies * sum(math.prod(column.shape(sizes)) * np.dtype(column.dtype).itemsize for column in RECORDED)


class Recorder:
    """Collects slots of one chunk of episodes into preallocated arrays."""

    def __init__(self, problem: Problem, episodes: int) -> None:
        sizes = axis_sizes(problem, episodes)
        self.arrays: dict[str, Array] = {c.name: np.empty(c.shape(sizes), c.dtype) for c in RECORDED}
        # a view of one row until a policy brings weights of its own
        self.edge_weight: Array = np.broadcast_to(problem.topology.edge_weight, OWN_WEIGHT.shape(sizes))
        self.has_own_weights = False
        self._slot, self._control_shape = 0, CONTROL.shape(sizes)

    def add(self, happened: Slot) -> None:
        """Record the next slot, or the next block of slots."""
        if happened.edge_weight is not None:
            if not self.has_own_weights:
                self.edge_weight, self.has_own_weights = self.edge_weight.copy(), True
            self._write(self.edge_weight, self._slot, happened.edge_weight)
        if happened.control_joule is not None and CONTROL.name not in self.arrays:
            self.arrays[CONTROL.name] = np.zeros(self._control_shape, CONTROL.dtype)
        for name, array in self.arrays.items():
            self._write(array, self._slot, getattr(happened, name))
        self._write(self.arrays["battery_joule"], self._slot + 1, happened.battery_after_joule)
        self._slot += len(happened.scheduled) if happened.scheduled.ndim == 3 else 1

    @staticmethod
    def _write(array: Array, slot: int, values: Tensor) -> None:
        """Write values (episode, ...) of a slot, or of a block that begins with it: (slot, episode, ...)."""
        found = values.cpu().numpy()
        if found.ndim == 2:
            array[:, slot] = found
        else:
            array[:, slot : slot + len(found)] = found.swapaxes(0, 1)
