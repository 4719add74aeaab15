"""Agents in network namespaces of their own, joined by a bridge: python -m tests.agents.namespaces FOLDER [EVENT].

It needs to be root of a user namespace: unshare --user --map-root-user --net --mount --pid --fork --kill-child.
Device i has the address 10.7.0.(i + 1). EVENT is DEVICE:SLOT:SECONDS: a device's cable is pulled out after a slot of
device 0, for so long. It prints the first and the last slot of device 0 in between. Or it is DROP:PERCENT: so many of
the packets of every device do not leave, by a rule of nftables.
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


def drop(percent: str) -> None:
    """Let so many packets of this namespace not leave."""
    rule = f"add rule inet lossy out oifname eth0 numgen random mod 100 < {percent} drop"
    chain = "add table inet lossy; add chain inet lossy out { type filter hook output priority 0; };"
    subprocess.run(["nft", f"{chain} {rule}"], check=True)  # noqa: S603, S607


def started(folder: Path, device: int, percent: str) -> int:
    """An agent in the device's namespace; its process."""
    child = os.fork()
    if child:
        return child
    with Path(f"/run/netns/d{device}").open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _NETWORK):
            os._exit(3)
    try:
        if percent:
            drop(percent)
        live(folder / f"device-{device}")
    except BaseException:
        os._exit(2)
    os._exit(0)


def reached(folder: Path) -> int:
    """The last slot of device 0."""
    lines = read_journal(AgentFolder(folder / "device-0"))
    return int(lines[-1]["slot"]) if lines else -1


def main(folder: Path, event: str) -> int:
    subprocess.run(HIDE_RUN, check=True)  # noqa: S603
    ip("link add br0 type bridge")
    ip("link set br0 up")
    devices = range(len(list(folder.glob("device-*"))))
    for device in devices:
        join(device)
    percent = event.removeprefix("DROP:") if event.startswith("DROP:") else ""
    children = [started(folder, device, percent) for device in devices]
    if event and not percent:
        gone, slot, second = event.split(":")
        while reached(folder) < int(slot):
            time.sleep(0.1)
        ip(f"link set v{gone} down")
        since = reached(folder) + 1
        time.sleep(float(second))
        ip(f"link set v{gone} up")
        print(since, reached(folder), flush=True)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), "".join(sys.argv[2:3])))
