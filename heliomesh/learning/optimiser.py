"""The rule of the local steps: plain SGD by any strategy, or any PyTorch optimiser by the loop.

An optimiser is made for each device in each slot, so its state lives for the slot's K steps: nothing but weights is
averaged, sent or kept in checkpoints. `learning.momentum` and `learning.second_momentum`, where given, are arguments
of those names.
"""

from functools import partial
from typing import Any

import torch
from torch import nn

from heliomesh.common import catalog
from heliomesh.scenario.errors import ScenarioError
from heliomesh.scenario.schema import OPTIMISER_CATALOG, Learning, variant


def is_plain_sgd(learning: Learning) -> bool:
    """Whether local steps are w ← w − η ∇f, which every strategy makes."""
    return learning.optimizer in (None, "sgd")


def optimiser_factory(learning: Learning, model: nn.Module) -> Any:
    """What makes an optimiser of parameters and a learning rate, tried once."""
    name = str(learning.optimizer)
    given = {"momentum": learning.momentum, "second_momentum": learning.second_momentum}
    options = {option: value for option, value in given.items() if value is not None}
    build = catalog.function(variant(OPTIMISER_CATALOG, name, "learning.optimizer"), "build")
    factory = partial(build, **options)
    try:
        made = factory([parameter.detach().clone() for parameter in model.parameters()], 0.1)
    except Exception as error:  # the user's code may raise anything
        expected = f"build({', '.join(('parameters', 'learning_rate', *options))})"
        actual = f"{name!r} raised {type(error).__name__}: {error}"
        raise ScenarioError("learning.optimizer", expected, actual) from error
    if not isinstance(made, torch.optim.Optimizer):
        kind = type(made).__name__
        raise ScenarioError("learning.optimizer", "a torch.optim.Optimizer", f"value of type {kind}")
    return factory
