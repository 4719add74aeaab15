"""What is trained and how: one episode of a trace under a scenario's ``[learning]``, and the trainer's settings."""

import hashlib
from dataclasses import dataclass

from heliomesh.common.arguments import Count, checked
from heliomesh.learning.precision import Precision
from heliomesh.scenario.scenario import Scenario
from heliomesh.simulation.trace import Trace, TraceError


@checked
@dataclass(frozen=True)
class TrainJob:
    """A run to be: one episode of a trace under a scenario's ``[learning]``.

    Attributes
    ----------
    scenario
        What is trained.
    trace
        Who trained in which slot, and what arrived.
    episode
        Which episode of the trace.
    seed
        Draws partition, first weights, minibatches and test subset; default: the scenario's.
    """

    scenario: Scenario
    trace: Trace
    episode: int = 0
    seed: int | None = None

    def __post_init__(self) -> None:
        TraceError.when(self.training_seed < 0, "seed", "at least 0", f"value {self.training_seed}")
        # no column of whole numbers holds more
        TraceError.when(self.training_seed >= 2**63, "seed", "less than 2^63", f"value {self.training_seed}")
        episodes, expected = len(self.trace.scheduled), f"0 to {len(self.trace.scheduled) - 1}, as the trace has"
        TraceError.when(not 0 <= self.episode < episodes, "episode", expected, f"value {self.episode}")

    @property
    def training_seed(self) -> int:
        """The seed that counts."""
        return self.scenario.seed if self.seed is None else self.seed

    @property
    def trace_hash(self) -> str:
        """Hexadecimal sha256 of all that the trainer reads of the episode."""
        digest = hashlib.sha256()
        by_slot = ["scheduled", "delivered", "spent_joule", "harvested_joule"]
        if self.scenario.learning.on_air == "top-k":
            by_slot.append("power_watt")  # a sender's memory changes even where nobody hears it
        arrays = [getattr(self.trace, name)[self.episode] for name in by_slot]
        if self.trace.edge_weight is not None:
            arrays.append(self.trace.edge_weight[self.episode])
        for array in (*arrays, self.trace.edge_receiver, self.trace.edge_sender):
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(array.tobytes())
        return digest.hexdigest()


@checked
@dataclass(frozen=True)
class TrainSettings:
    """How to train and what to measure; on what, in which episode and by which rule is said by the `TrainJob`.

    Attributes
    ----------
    evaluate_every
        Slots between evaluations.
    device_samples
        Test samples for each device before the last slot, which has all.
    device
        ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.
    strategy
        How local steps are executed: a name of `learning/strategies`, or ``"auto"``: on a CPU it follows from the
        model, on a GPU it is the quickest.
    precision
        Of products: ``"fp32"``, ``"tf32"`` or ``"bf16"``.
    checkpoint_every
        Slots between checkpoints.
    checkpoint_second
        At least this long between checkpoints [s], where no number of slots is given.
    memory_gib
        Largest memory [GiB]; default: 6 GiB, or what a CUDA device has free.
    """

    evaluate_every: Count = 10
    device_samples: Count = 500
    device: str = "cpu"
    strategy: str = "auto"
    precision: Precision = "fp32"
    checkpoint_every: Count | None = None
    checkpoint_second: float = 60.0
    memory_gib: float | None = None
