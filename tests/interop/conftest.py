"""Examples as modules, a harvest with memory, and storage with losses and drains."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

WEATHER = {
    "harvest": {
        "source": "markov",
        "joule": [[0.0, 0.3], [0.9, 1.7]],
        "prob": [[0.5, 0.5], [0.4, 0.6]],
        "kernel": [[0.8, 0.2], [0.3, 0.7]],
    }
}
DRAINED = {
    "energy.storage": "li-ion",
    "energy.capacity_joule": 5.3,
    "energy.sleep_watt": [0.0, 0.2, 0.31, 1.1, 0.05],
    "energy.wake_joule": 0.05,
}
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example() -> Callable[[str], ModuleType]:
    """Import an example by its name."""

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load
