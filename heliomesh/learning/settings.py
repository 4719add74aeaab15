"""How a run is trained and measured."""

from dataclasses import dataclass

from heliomesh.learning.precision import Precision


@dataclass(frozen=True)
class TrainSettings:
    """How to train and what to measure; on what, in which episode and by which rule is said by the `TrainJob`."""

    evaluate_every: int = 10  # slots
    device_samples: int = 500  # test samples for each device before the last slot
    device: str = "cpu"
    strategy: str = "auto"
    precision: Precision = "fp32"
    checkpoint_every: int | None = None  # slots
    checkpoint_second: float = 60.0  # at least this long between checkpoints, where no number of slots is given
    memory_gib: float | None = None  # default: 6 GiB, or what a CUDA device has free
