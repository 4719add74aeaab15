"""One large network over Ray actors, with the results of the local engine.

The network is cut into parts that few links join, and an actor trains each of them. In a slot only those rows travel
of which someone in another part received a packet; they go from actor to actor. The driver gets the losses of every
slot, and all weights at evaluations and checkpoints, where it averages models in the order of devices as the local
engine does. Devices are scored where they are.

A lost actor takes its weights along. All actors are then started anew from the weights that the driver got last, and
repeat the slots since: these follow from the trace, so the run ends with the same bits.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heliomesh.common.memory_limit import DEFAULT_LIMIT_GIB, check_fits
from heliomesh.engine.graph_cut import cut_into_parts, num_cut_links
from heliomesh.engine.ray import room
from heliomesh.learning.members import lined_up
from heliomesh.learning.replay import Stack, first_model, state_names
from heliomesh.learning.run import TrainingError
from heliomesh.learning.settings import TrainJob, TrainSettings
from heliomesh.learning.shard import Border, Indices, Rows, Shard
from heliomesh.learning.stacked import Scores, joined, layout_of
from heliomesh.learning.trainer import MakeStack
from heliomesh.scenario.errors import ScenarioError, refuse
from heliomesh.tasks.dataset import Dataset

import ray  # isort: skip  # after engine.ray, which sets what Ray reads when it is imported
from ray.exceptions import RayError, RayTaskError  # isort: skip

_Result = TypeVar("_Result")
_TRIES = 5  # of one step, each with new actors
_START_SECOND = 300  # for actors to start on busy nodes


def over_actors(num_actors: int | None = None, gpus_per_actor: float | None = None) -> MakeStack:
    """Let a run's network be trained by Ray actors, by default as many as fit; see `ActorNetwork`.

    On CUDA devices an actor reserves ``gpus_per_actor``, by default one; a fraction lets actors share a GPU.
    """

    def make(jobs: Sequence[TrainJob], dataset: Dataset, settings: TrainSettings) -> Stack:
        if len(jobs) != 1:
            raise ValueError(f"jobs: expected 1, since actors share one network, actual value {len(jobs)}")
        return ActorNetwork(jobs[0], dataset, settings, num_actors, gpus_per_actor)

    return make


class ActorNetwork:
    """A `Stack` whose rows live in actors."""

    def __init__(
        self,
        job: TrainJob,
        dataset: Dataset,
        settings: TrainSettings,
        num_actors: int | None = None,
        gpus_per_actor: float | None = None,
    ) -> None:
        self.members = lined_up([job], dataset)
        self.num_slots, self.layout = job.scenario.slots, layout_of(first_model(job, dataset))
        topology = self.members[0].topology
        self._num_gpus = _gpus(settings.device, gpus_per_actor)
        num_parts = _num_parts(num_actors, topology.num_devices, self._num_gpus)
        self._part = cut_into_parts(topology, num_parts)
        self.num_cut_links = num_cut_links(topology, self._part)
        self._own = [np.flatnonzero(self._part == number) for number in range(num_parts)]
        self._place = np.argsort(np.concatenate(self._own))  # of each device in the rows of all actors
        self._pairs = Border(topology, self._part, self.members[0].delivered).pairs
        self._state_names = state_names(job.scenario.learning)
        size = 4.0 * len(self._state_names) * topology.num_devices * self.layout.num_parameters
        limit = DEFAULT_LIMIT_GIB if settings.memory_gib is None else settings.memory_gib
        check_fits("weights at the driver", size, limit, "lower network.devices or take a smaller model")
        self._settings = settings
        sent_job = replace(job, trace=job.trace.episode(job.episode), episode=0)
        self._shared = ray.put((sent_job, dataset, self._settings, self._part))
        self._actors: list[Any] = []
        self._state: dict[str, Tensor] = {}  # (device, parameter) each, when gathered last; none: the first
        self._gathered = self._done = 0  # slots done then, and now
        self.sent_bytes: list[int] = []  # by trained slot, from actor to actor
        self.gathered_bytes = 0
        self.setting: str  # the strategy of the first actor, like all others
        self._insist(lambda: None)

    @property
    def facts(self) -> dict[str, Any]:
        """Where it trains, and what travelled since it was started or resumed."""
        return {
            "device": self._settings.device,
            "engine": "ray",
            "actors": len(self._own),
            "links": self.members[0].topology.num_edges // 2,
            "cut_links": self.num_cut_links,
            "bytes_between_actors": sum(self.sent_bytes),
            "bytes_gathered": self.gathered_bytes,
        }

    def step(self, slot: int) -> npt.NDArray[np.float64]:
        """Train and average in one slot; returns the training loss, NaN for idle devices; (device,)."""
        losses, sent_bytes = self._insist(lambda: self._step(slot))
        self._done = slot + 1
        self.sent_bytes.append(sent_bytes)
        return losses

    def _step(self, slot: int) -> tuple[npt.NDArray[np.float64], int]:
        """The losses (device,), and the bytes that went from actor to actor."""
        heads, rows = [], dict[tuple[int, int], Any]()  # rows by the part that sends and the one that receives
        for number, actor in enumerate(self._actors):
            targets = [target for source, target in self._pairs if source == number]
            returned = actor.train.options(num_returns=1 + len(targets)).remote(slot)
            head, *sent = returned if targets else [returned]
            heads.append(head)
            rows |= {(number, target): one for target, one in zip(targets, sent, strict=True)}
        averaged = []
        for number, actor in enumerate(self._actors):
            sources = [source for source, target in self._pairs if target == number]
            averaged.append(actor.average.remote(slot, sources, *(rows[source, number] for source in sources)))
        results = ray.get(heads)
        ray.get(averaged)  # also to hear of an actor that was lost meanwhile
        losses = np.concatenate([loss for loss, _ in results])[self._place]
        return losses, sum(sent_bytes for _, sent_bytes in results)

    def gather_state(self) -> dict[str, Tensor]:
        """What `state_names` lists, after the last step; (device, parameter) each."""
        if not self._state or self._gathered != self._done:
            parts = self._insist(lambda: self._all("state"))  # all of them, before any is taken over
            whole = (np.concatenate(rows)[self._place] for rows in zip(*parts, strict=True))
            self._state = dict(zip(self._state_names, map(torch.from_numpy, whole), strict=True))
            self._gathered = self._done
            self.gathered_bytes += sum(one.nbytes for one in self._state.values())
        return self._state

    def restore(self, state: Mapping[str, Tensor], done: int) -> None:
        """Go back to what `gather_state` gave after ``done`` slots."""
        self._state = {name: state[name] for name in self._state_names}
        self._gathered = self._done = done
        self._insist(self._hand_out)

    def score_devices(self, done: int) -> Scores:
        """Every device on its part of the test set, after the last slot on all of it; (device,)."""
        scores = joined(self._insist(lambda: self._all("score_devices", done)))
        return Scores(scores.loss[self._place], scores.accuracy[self._place])

    def score_models(self, models: Tensor) -> Scores:
        """Other models (model, parameter) on the whole test set."""
        scores: Scores = self._insist(lambda: ray.get(self._actors[0].call.remote("score_models", models.numpy())))
        return scores

    def _all(self, method: str, *arguments: Any) -> list[Any]:
        """What every actor answers."""
        answers: list[Any] = ray.get([actor.call.remote(method, *arguments) for actor in self._actors])
        return answers

    def _insist(self, work: Callable[[], _Result]) -> _Result:
        """Do the work, with new actors where some are lost; an error of the training is raised as it is."""
        reason = ""
        for _ in range(_TRIES):
            try:
                if not self._actors:
                    self._start()
                return work()
            except RayError as error:
                cause = error.cause if isinstance(error, RayTaskError) else error
                if not isinstance(cause, RayError):
                    raise cause from None
                reason = str(cause).strip().split("\n")[0]
                for actor in self._actors:
                    ray.kill(actor)
                self._actors = []
        raise TrainingError(f"actors: the slot after {self._done} failed {_TRIES} times: {reason}")

    def _start(self) -> None:
        """Start actors where the last gathered weights were, and let them catch up."""
        threads = torch.get_num_threads()
        options = _reserved(len(self._own), self._num_gpus)
        actor = ray.remote(_Actor).options(scheduling_strategy="SPREAD", **options)
        self._actors = [actor.remote() for _ in self._own]
        ready = [one.prepare.remote(threads, self._shared, number) for number, one in enumerate(self._actors)]
        self.setting = ray.get(ready, timeout=_START_SECOND)[0]
        self._hand_out()
        for slot in range(self._gathered, self._done):
            self._step(slot)

    def _hand_out(self) -> None:
        """Give actors what was gathered last."""
        if self._state:
            state, pairs = [one.numpy() for one in self._state.values()], zip(self._actors, self._own, strict=True)
            ray.get([actor.call.remote("restore", *(one[own] for one in state)) for actor, own in pairs])


class _Actor:
    """A `Shard` in a process of its own."""

    _shard: Shard

    def prepare(self, threads: int, shared: tuple[TrainJob, Dataset, TrainSettings, Indices], number: int) -> str:
        """Make the shard; no constructor, since Ray tells of its errors in words only."""
        torch.set_num_threads(threads)  # sums depend on it in the last bit
        job, dataset, settings, part = shared
        self._shard = Shard(job, dataset, settings, part, number)
        return self._shard.setting

    def train(self, slot: int) -> Any:
        """(losses, bytes sent), and one array of rows for every part that has a link to this one."""
        losses, sent = self._shard.train(slot)
        head = (losses, sum(rows.nbytes for rows in sent.values()))
        return (head, *sent.values()) if sent else head

    def average(self, slot: int, sources: Sequence[int], *sent: Rows) -> None:
        """Average with the rows that each source sent."""
        self._shard.average(slot, dict(zip(sources, sent, strict=True)))

    def call(self, method: str, *arguments: Any) -> Any:
        """What another method of the shard returns."""
        return getattr(self._shard, method)(*arguments)


def _gpus(device: str, gpus_per_actor: float | None) -> float:
    """GPUs that an actor reserves."""
    if device == "cpu":
        if gpus_per_actor:
            raise ScenarioError("gpus_per_actor", "device = 'cuda' with it", f"value {gpus_per_actor:g}")
        return 0.0
    refuse(device != "cuda", "device", "cpu or cuda for actors, which Ray places", f"value {device!r}")
    wanted = 1.0 if gpus_per_actor is None else gpus_per_actor
    wrong = wanted <= 0 or (wanted > 1 and wanted != int(wanted))
    refuse(wrong, "gpus_per_actor", "a fraction of a GPU or a whole number", f"value {wanted:g}")
    return wanted


def _num_parts(num_actors: int | None, num_devices: int, num_gpus: float) -> int:
    """How many actors share the network."""
    if num_actors is None:
        fitting = room()[1] if num_gpus == 0 else _fitting_gpus(num_gpus)
        return min(max(fitting, 1), num_devices)
    fits = 1 <= num_actors <= num_devices
    refuse(not fits, "actors", f"1 to {num_devices}, one device for each", f"value {num_actors}")
    return num_actors


def _fitting_gpus(num_gpus: float) -> int:
    """Actors for which there are GPUs."""
    sizes = [node["Resources"].get("GPU", 0.0) for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    return sum(int(size / num_gpus + 1e-9) for size in sizes)


def _reserved(num_actors: int, num_gpus: float) -> dict[str, float]:
    """What an actor reserves: cores for its threads and GPUs. More actors than cores share the cores they find."""
    if num_gpus and _fitting_gpus(num_gpus) < num_actors:
        actual = f"value {num_gpus:g} fits {_fitting_gpus(num_gpus)}"
        raise ScenarioError("gpus_per_actor", f"a share at which {num_actors} actors fit", actual)
    num_cpus, fitting = room()
    return {"num_cpus": num_cpus if num_actors <= fitting else 0, "num_gpus": num_gpus}
