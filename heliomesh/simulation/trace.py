"""What happened, as arrays: the only thing that learning needs to know about planning and physics."""

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from heliomesh.durable import npz_sizes, written_whole
from heliomesh.problem.policy import Plan, Track, untracked
from heliomesh.problem.problem import Problem
from heliomesh.problem.size import DEFAULT_LIMIT_GIB, TooLargeError, check_fits
from heliomesh.simulation.slot_loop import Slot, run_slots

_FORMAT = 1
_EPISODES_AT_ONCE = 256

Array = npt.NDArray[Any]


class TraceError(ValueError):
    """A file is not a trace that this version can read."""


@dataclass(frozen=True)
class Trace:
    """Arrays by (episode, slot, device) and (episode, slot, edge), with the scenario they belong to."""

    scenario_toml: str
    planner: str
    seed: int
    scheduled: Array  # (episode, slot, device) bool
    power_watt: Array  # (episode, slot, device)
    update_loss: Array  # (episode, slot, device) x_j
    battery_joule: Array  # (episode, slot + 1, device): first entry is the initial battery, last the final one
    spent_joule: Array  # (episode, slot, device)
    harvested_joule: Array  # (episode, slot, device)
    overflow_joule: Array  # (episode, slot, device)
    delivered: Array  # (episode, slot, edge) bool
    error_prob: Array  # (episode, slot, edge)
    channel_level: Array  # (episode, slot, site)
    edge_receiver: Array  # (edge,)
    edge_sender: Array  # (edge,)

    @property
    def cost(self) -> npt.NDArray[np.float64]:
        """Normalised mean cost per slot, Σ_j x_j averaged over slots; (episode,)."""
        total: npt.NDArray[np.float64] = self.update_loss.sum(-1).mean(-1)
        return total

    def episode(self, number: int) -> "Trace":
        """The trace of one episode alone."""
        edges = ("edge_receiver", "edge_sender")  # the same in every episode
        parts = {name: getattr(self, name)[number : number + 1] for name in _array_names() if name not in edges}
        return replace(self, **parts)

    def save(self, path: str | Path) -> None:
        """Write one compressed file; the name appears only when the file is complete."""
        target = Path(path)
        meta = {"format": _FORMAT, "scenario": self.scenario_toml, "planner": self.planner, "seed": self.seed}
        arrays = {name: getattr(self, name) for name in _array_names()}
        with written_whole(target) as path, path.open("wb") as file:
            np.savez_compressed(file, meta=np.array(json.dumps(meta)), **arrays)

    @classmethod
    def load(cls, path: str | Path, *, memory_gib: float = DEFAULT_LIMIT_GIB) -> "Trace":
        """Read a saved trace; raises TraceError for anything else, and TooLargeError above the memory limit."""
        try:
            _check_unpacked(Path(path), memory_gib)
            with Path(path).open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                meta = json.loads(str(file["meta"]))
                if meta.get("format") != _FORMAT:
                    raise TraceError(f"{path}: expected trace format {_FORMAT}, actual value {meta.get('format')!r}")
                arrays = {name: file[name] for name in _array_names()}
                _check_fit(path, arrays)
                return cls(str(meta["scenario"]), str(meta["planner"]), int(meta["seed"]), **arrays)
        except (TraceError, TooLargeError):
            raise
        except OSError as error:
            raise TraceError(f"{path}: expected a complete trace file, actual: {error.strerror or error}") from None
        except Exception as error:  # a damaged archive may raise anything, even zlib.error
            raise TraceError(f"{path}: expected a complete trace file, actual: {error}") from None


def _array_names() -> list[str]:
    return [field.name for field in fields(Trace) if field.name not in ("scenario_toml", "planner", "seed")]


def _check_unpacked(path: Path, memory_gib: float) -> None:
    """Refuse a file before it is unpacked if its arrays, and a copy of one while it is checked, do not fit."""
    sizes = [size.num_bytes for size in npz_sizes(path).values()]
    check_fits(f"{path}", sum(sizes) + 1.2 * max(sizes, default=0), memory_gib, "raise memory_gib")


def _check_fit(path: str | Path, arrays: dict[str, Array]) -> None:
    """Refuse arrays of a file that are not of the kinds, shapes and ranges that `simulate` gives."""
    shapes = _shapes(path, arrays)
    devices = shapes["scheduled"][2]
    for name, array in arrays.items():
        kind = _KINDS.get(name, "f")
        if array.dtype.kind != kind or array.shape != shapes[name]:
            raise TraceError(
                f"{path}: expected {name} of {_KIND_WORDS[kind]} and shape {shapes[name]}, "
                f"actual type {array.dtype} and shape {array.shape}"
            )
        if not (np.abs(array) <= _LARGEST).all():
            raise TraceError(f"{path}: expected finite numbers in {name}, actual: NaN or beyond {_LARGEST:g}")
        if name in ("edge_receiver", "edge_sender") and not ((array >= 0) & (array < devices)).all():
            raise TraceError(f"{path}: expected devices 0 to {devices - 1} in {name}, actual: others")


def _shapes(path: str | Path, arrays: dict[str, Array]) -> dict[str, tuple[int, ...]]:
    """Shapes of all arrays that fit those of two."""
    scheduled, receiver = arrays["scheduled"], arrays["edge_receiver"]
    if scheduled.ndim != 3 or 0 in scheduled.shape or receiver.ndim != 1:
        raise TraceError(
            f"{path}: expected scheduled of shape (episode, slot, device) and edge_receiver of shape (edge,), "
            f"actual shapes {scheduled.shape} and {receiver.shape}"
        )
    episodes, slots, devices = scheduled.shape
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(arrays, scheduled.shape)
    shapes |= dict.fromkeys(("delivered", "error_prob"), (episodes, slots, len(receiver)))
    shapes |= dict.fromkeys(("edge_receiver", "edge_sender"), receiver.shape)
    sites = arrays["channel_level"].shape[2:3]
    return shapes | {"battery_joule": (episodes, slots + 1, devices), "channel_level": (episodes, slots, *sites)}


_LARGEST = 1e100  # sums over slots must stay numbers
_KINDS = {"scheduled": "b", "delivered": "b", "channel_level": "i", "edge_receiver": "i", "edge_sender": "i"}
_KIND_WORDS = {"b": "booleans", "i": "whole numbers", "f": "floating-point numbers"}


def simulate(
    problem: Problem,
    plan: Plan,
    episodes: int = 64,
    seed: int = 0,
    *,
    first_episode: int = 0,
    memory_gib: float = DEFAULT_LIMIT_GIB,
    track: Track = untracked,
) -> Trace:
    """Simulate episodes with continuous batteries; the same seed and episode mean the same luck for every plan.

    Forked children may simulate too, with one thread each, and get the same numbers.
    """
    if episodes < 1:
        raise ValueError(f"episodes: expected at least 1, actual value {episodes}")
    check_fits("trace", estimate_bytes(problem, episodes), memory_gib, "lower episodes, slots or network.devices")
    numbers = list(range(first_episode, first_episode + episodes))
    chunks = [numbers[start : start + _EPISODES_AT_ONCE] for start in range(0, episodes, _EPISODES_AT_ONCE)]
    collected: list[dict[str, Array]] = []
    total = len(chunks) * problem.slots
    steps = (
        (index, slot) for index, chunk in enumerate(chunks) for slot in run_slots(problem, plan.policy, chunk, seed)
    )
    recorders = [Recorder(problem, len(chunk)) for chunk in chunks]
    for index, slot in track(steps, f"simulate {plan.planner}", total):
        recorders[index].add(slot)
    collected = [recorder.arrays for recorder in recorders]
    joined = {name: np.concatenate([part[name] for part in collected]) for name in collected[0]}
    return Trace(
        scenario_toml=problem.scenario.to_toml(),
        planner=plan.planner,
        seed=seed,
        edge_receiver=problem.topology.edge_receiver,
        edge_sender=problem.topology.edge_sender,
        **joined,
    )


def estimate_bytes(problem: Problem, episodes: int) -> float:
    """Size of the recorded arrays, held twice while episodes are joined."""
    devices, edges, sites = problem.num_devices, problem.topology.num_edges, problem.channel.num_sites
    per_slot = devices * (1 + 6 * 8) + edges * (1 + 8) + sites * 2
    return 2.0 * episodes * problem.slots * per_slot


class Recorder:
    """Collects slots of one chunk of episodes into preallocated arrays."""

    def __init__(self, problem: Problem, episodes: int) -> None:
        slots, devices, edges = problem.slots, problem.num_devices, problem.topology.num_edges
        by_device = ("power_watt", "update_loss", "spent_joule", "harvested_joule", "overflow_joule")
        self.arrays: dict[str, Array] = {name: np.empty((episodes, slots, devices)) for name in by_device}
        self.arrays |= {
            "scheduled": np.empty((episodes, slots, devices), dtype=np.bool_),
            "battery_joule": np.empty((episodes, slots + 1, devices)),
            "delivered": np.empty((episodes, slots, edges), dtype=np.bool_),
            "error_prob": np.empty((episodes, slots, edges)),
            "channel_level": np.empty((episodes, slots, problem.channel.num_sites), dtype=np.int16),
        }
        self._slot = 0

    def add(self, slot: Slot) -> None:
        """Record the next slot."""
        for name, array in self.arrays.items():
            array[:, self._slot] = getattr(slot, name).cpu().numpy()
        self._slot += 1
        self.arrays["battery_joule"][:, self._slot] = slot.battery_after_joule.cpu().numpy()
