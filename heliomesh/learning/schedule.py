"""The learning rate of every slot: η_t = η · share(t / (T − 1)), where the share falls from 1 to φ.

η is `learning.learning_rate`, φ is `learning.final_rate`, and T is `learning.schedule_slots`, by default the horizon.
Later slots keep φ. With s = t / (T − 1) between 0 and 1 the shares are

- ``constant``:  1;
- ``cosine``:  φ + (1 − φ)(1 + cos πs) / 2;
- ``inverse``:  1 / (1 + (1/φ − 1) s), as the theory of SGD asks for;
- ``step``:  1, √φ and φ, each for a third of the slots.
"""

import math
from collections.abc import Callable

from heliomesh.scenario.scenario import Scenario

DEFAULT_FINAL_RATE = 0.1

# (s, φ) → share of the first rate
_SHARES: dict[str, Callable[[float, float], float]] = {
    "constant": lambda done, final: 1.0,
    "cosine": lambda done, final: final + (1 - final) * (1 + math.cos(math.pi * done)) / 2,
    "inverse": lambda done, final: 1 / (1 + (1 / final - 1) * done),
    "step": lambda done, final: final ** (min(int(3 * done), 2) / 2),
}


def learning_rates(scenario: Scenario) -> tuple[float, ...]:
    """The learning rate of each slot; (slot,)."""
    settings, last = scenario.learning, max(schedule_slots(scenario) - 1, 1)
    share = _SHARES[settings.schedule or "constant"]
    final = DEFAULT_FINAL_RATE if settings.final_rate is None else settings.final_rate
    return tuple(settings.learning_rate * share(min(slot / last, 1.0), final) for slot in range(scenario.slots))


def schedule_slots(scenario: Scenario) -> int:
    """Slots over which the rate falls."""
    return scenario.learning.schedule_slots or scenario.slots
