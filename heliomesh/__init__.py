"""Plan, simulate and train decentralized federated learning on energy-harvesting wireless devices.

Public names are imported when they are first used: `import heliomesh` itself loads neither PyTorch nor NumPy.

Processes may be forked at any time, as `concurrent.futures.ProcessPoolExecutor` does by default on Linux. A forked
child computes with one thread, because the parent's threads do not exist in it and waiting for them never ends.
"""

import ast
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

# Read once, when torch loads OpenMP: threads that spin while they wait starve each other on busy or small machines
# (twelve times slower beside one busy core). Whoever sets the variable keeps their setting.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _compute_alone() -> None:
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing is forked
    os.register_at_fork(after_in_child=_compute_alone)

# Where each public name lives, as `__init__.pyi` says it to type checkers.
_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_HOME_OF = {
    alias.name: node.module
    for node in _STUB.body
    if isinstance(node, ast.ImportFrom) and node.module
    for alias in node.names
}

__all__ = [*sorted(_HOME_OF), "__version__"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("heliomesh")
    elif name in _HOME_OF:
        value = getattr(import_module(_HOME_OF[name]), name)
    else:
        raise AttributeError(f"module 'heliomesh' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
