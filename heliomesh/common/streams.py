"""Independent random generators by purpose: who draws how much elsewhere never changes what is drawn here."""

from typing import Literal, get_args

import numpy as np

Purpose = Literal[
    "topology",
    "channel",
    "harvest",
    "link",
    "policy",
    "partition",
    "init",
    "minibatch",
    "rounding",
    "meter",
    "control",
    "validation",
]
VALIDATION_SEED = 1_000_000  # of whatever is chosen by trying; published seeds are smaller

PURPOSES: tuple[str, ...] = get_args(Purpose)


def stream(seed: int, purpose: Purpose, *index: int) -> np.random.Generator:
    """Generator for one purpose and index (an episode or a device, never a worker, rank or clock)."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(PURPOSES.index(purpose), *index)))
