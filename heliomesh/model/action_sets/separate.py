"""Training and sending each on its own as well; who sends without training sends the current weights."""

from heliomesh.model.actions import Act
from heliomesh.scenario.schema import Energy


def acts(energy: Energy) -> list[Act]:
    """Every power without training, then with it."""
    return [Act(power, trained) for trained in (False, True) for power in energy.powers_watt]
