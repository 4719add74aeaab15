"""The server from which tests fork children: it has PyTorch in memory, so that they start in milliseconds.

Python has one such server in a process. Whoever starts it, it has loaded what children of any test need.
"""

import multiprocessing

from heliomesh.engine import processes

_LOADED = (
    *processes.LOADED,
    "heliomesh.cli",
    "heliomesh.studies.reproduce",
    "matplotlib.figure",
    "pyarrow.parquet",
    "safetensors.torch",
    # a child without rights may not be able to read Python's own folder
    "encodings.cp437",  # of zip files
    "torch._dynamo",  # of torch's optimisers
    "heliomesh.field.agents.agent",
    "tests.agents.network",
)
processes.LOADED = _LOADED
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(list(_LOADED))
