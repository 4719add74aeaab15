"""Whoever trains sends and the reverse, as in the paper; ``energy.train_only`` adds training without sending."""

from heliomesh.model.actions import Act
from heliomesh.scenario.schema import Energy


def acts(energy: Energy) -> list[Act]:
    """Idle, and training at every power."""
    silent = [0.0] if energy.train_only else []
    return [Act(0.0, False), *(Act(power, True) for power in (*silent, *energy.powers_watt[1:]))]
