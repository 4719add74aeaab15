"""Agents in network namespaces of their own, joined by a bridge: python -m tests.agents.namespaces FOLDER [CUT].

It needs to be root of a user namespace: unshare --user --map-root-user --net --mount --pid --fork --kill-child.
Device i has the address 10.7.0.(i + 1). CUT is DEVICE:SLOT:SECONDS: a device's cable is pulled out after a slot of
device 0, for so long. It prints the first and the last slot of device 0 in between.
"""

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.agents.network import live

from heliomesh.field.agents.folder import AgentFolder  # isort: skip
from tests.agents.lines import read_journal

ENTER = ("unshare", "--user", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--kill-child")
HIDE_RUN = ("mount", "-t", "tmpfs", "none", "/run")  # where `ip netns` keeps its names
_NETWORK = 0x40000000  # CLONE_NEWNET of linux/sched.h


def address(device: int) -> str:
    return f"10.7.0.{device + 1}"


def ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True)  # noqa: S603, S607


def join(device: int) -> None:
    """A namespace with one cable to the bridge."""
    ip(f"netns add d{device}")
    ip(f"link add v{device} type veth peer name eth0 netns d{device}")
    ip(f"link set v{device} master br0 up")
    ip(f"-n d{device} address add {address(device)}/24 dev eth0")
    ip(f"-n d{device} link set eth0 up")
    ip(f"-n d{device} link set lo up")


def started(folder: Path, device: int) -> int:
    """An agent in the device's namespace; its process."""
    child = os.fork()
    if child:
        return child
    with Path(f"/run/netns/d{device}").open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _NETWORK):
            os._exit(3)
    try:
        live(folder / f"device-{device}")
    except BaseException:
        os._exit(2)
    os._exit(0)


def reached(folder: Path) -> int:
    """The last slot of device 0."""
    lines = read_journal(AgentFolder(folder / "device-0"))
    return int(lines[-1]["slot"]) if lines else -1


def main(folder: Path, cut: str | None) -> int:
    subprocess.run(HIDE_RUN, check=True)  # noqa: S603
    ip("link add br0 type bridge")
    ip("link set br0 up")
    devices = range(len(list(folder.glob("device-*"))))
    for device in devices:
        join(device)
    children = [started(folder, device) for device in devices]
    if cut is not None:
        gone, slot, second = cut.split(":")
        while reached(folder) < int(slot):
            time.sleep(0.1)
        ip(f"link set v{gone} down")
        since = reached(folder) + 1
        time.sleep(float(second))
        ip(f"link set v{gone} up")
        print(since, reached(folder), flush=True)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None))
