"""How a run is trained and measured."""

from dataclasses import dataclass

from heliomesh.arguments import Count, checked
from heliomesh.learning.precision import Precision


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
