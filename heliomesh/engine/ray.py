"""Work over Ray: on this machine's cores or on a cluster, with the results of the local engine.

A task is a pure function of its item, so a lost worker or node only means that its tasks are done again. Tasks
compute with as many threads as the driver, since sums depend on it in the last bit, and reserve as many cores where a
node has them: with one thread (OMP_NUM_THREADS=1) as many tasks run at once as there are cores.

A local Ray listens on the loopback address only. Asked for 127.0.0.1, Ray takes the machine's outer address instead
unless it is told that clusters are not wanted; that switch, which Ray names after other systems, works everywhere. It
also spares the look-up of the outer address. A cluster that others started listens where they told it to.
"""

import os

# read by Ray when it is imported
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ.setdefault("RAY_worker_niceness", "0")  # else other processes go before its workers

import atexit
import ipaddress
import logging
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import ray
import torch
from ray.exceptions import RayError, RayTaskError

from heliomesh.scenario.errors import ScenarioError, refuse

_LOOPBACK = "127.0.0.1"
_PATIENCE_SECOND = 10  # for a cluster to answer
_MOST_RETRIES = 20  # of a task whose worker or node was lost

_sessions: list[Path] = []  # folders of the Ray that this process started


def start(address: str | None = None) -> None:
    """Start a Ray of this machine's own, or connect to the cluster at an address (host:port)."""
    logging.getLogger("ray").setLevel(logging.ERROR)
    if address is not None:
        _check_answers(address)
    else:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # otherwise Ray keeps one in the home folder
    own: dict[str, Any] = {"include_dashboard": False, "_node_ip_address": _LOOPBACK} if address is None else {}
    try:
        with _own_signals():
            context: Any = ray.init(address or "local", log_to_driver=False, configure_logging=False, **own)
    except (RayError, RuntimeError, ValueError, OSError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ScenarioError("address", f"Ray did not start: {reason}") from None
    if address is None:
        _sessions.append(Path(context.address_info["session_dir"]))
        atexit.register(stop)
    node = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    if address is None and not ipaddress.ip_address(node).is_loopback:
        stop()
        remedy = "import heliomesh.engine.ray before ray"
        raise ScenarioError("engine", f"a local Ray on {_LOOPBACK}", f"value {node!r}; {remedy}")


def stop() -> None:
    """Leave the cluster, and end it if it is this machine's own; what it wrote for itself goes too."""
    ray.shutdown()
    while _sessions:
        session = _sessions.pop()
        latest = session.with_name("session_latest")
        if latest.is_symlink() and latest.readlink().name == session.name:
            latest.unlink(missing_ok=True)
        shutil.rmtree(session, ignore_errors=True)


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep the program's own handlers while Ray starts: those of Ray write a C++ stack at SIGTERM.

    Ray's processes ignore SIGHUP, which a closed terminal sends to all of them: the driver ends them in its time.
    """
    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    own = {getattr(signal, name): signal.getsignal(getattr(signal, name)) for name in names}
    own = {number: handler for number, handler in own.items() if callable(handler)}
    if signal.SIGHUP in own:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in own.items():
            signal.signal(number, handler)


def _check_answers(address: str) -> None:
    """Raise within seconds where no cluster answers: Ray itself would wait for minutes."""
    host, _, port = address.rpartition(":")
    expected = "expected host:port of a running Ray cluster"
    refuse(not host or not port.isdecimal(), "address", f"{expected}, actual value {address!r}")
    try:
        socket.create_connection((host, int(port)), _PATIENCE_SECOND).close()
        check = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
        subprocess.run(check, check=True, capture_output=True, timeout=_PATIENCE_SECOND)  # noqa: S603
    except (OSError, OverflowError, subprocess.SubprocessError):
        raise ScenarioError("address", f"{expected}, actual value {address!r} does not answer") from None


def parallel_map(function: Callable[[Any], Any], items: Iterable[Any], num_gpus: float = 0) -> Iterator[Any]:
    """Like `map`, on all of Ray; results in order, each as soon as it and those before it are there.

    An error of the function is raised as it is. Items are taken only a little ahead of the work, so that many large
    ones need not fit in memory.
    """
    num_cpus, fitting = room()
    task = ray.remote(_with_threads).options(
        num_cpus=num_cpus, num_gpus=num_gpus, max_retries=_MOST_RETRIES, scheduling_strategy="SPREAD"
    )
    called = partial(task.remote, torch.get_num_threads(), ray.put(function))
    waiting = enumerate(items)
    running = {called(item): position for position, item in islice(waiting, 2 * fitting)}
    early, due = dict[int, Any](), 0  # results by position
    while running:
        done = ray.wait(list(running))[0][0]
        try:
            early[running.pop(done)] = ray.get(done)
        except RayTaskError as error:
            raise error.cause from None
        running |= {called(item): position for position, item in islice(waiting, 1)}
        while due in early:
            yield early.pop(due)
            due += 1


def room() -> tuple[int, int]:
    """Cores of a task that computes with as many threads as the driver, and how many such tasks run at once."""
    sizes = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    num_cpus = min(torch.get_num_threads(), max(sizes))
    return num_cpus, sum(size // num_cpus for size in sizes)


def _with_threads(threads: int, function: Callable[[Any], Any], item: Any) -> Any:
    torch.set_num_threads(threads)
    return function(item)
