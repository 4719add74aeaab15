"""Files that are on the disk in full, or not at all."""

import errno
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

if sys.platform != "win32":
    import fcntl


@contextmanager
def written_whole(target: Path) -> Iterator[Path]:
    """A path to write to; when the block ends well, its file is forced to the disk and takes the target's name.

    Whatever goes wrong, also a loss of power, ``target`` is the old file or the new one. The temporary name is
    always the same, so what a killed process leaves behind is overwritten by the next.
    """
    temporary = target.with_name(f".{target.name}.part")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
        _sync_folder(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def alone_in(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Make a folder and let one process at a time work in it; another one waits, or gets BlockingIOError.

    The lock is the operating system's and ends with the process, however that ends. Windows has none here.
    """
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / ".lock"
    with place.open("ab") as lock:
        if sys.platform != "win32":
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        if not wait and not _is_open_file(place, lock.fileno()):
            raise BlockingIOError(errno.EAGAIN, "another process has just left", str(folder))
        try:
            yield
        finally:
            if not wait:  # nobody sleeps on it
                place.unlink(missing_ok=True)


def _is_open_file(place: Path, descriptor: int) -> bool:
    """Whether a name still leads to an open file: its last holder may have removed it meanwhile."""
    try:
        return os.path.samestat(place.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _sync_folder(folder: Path) -> None:
    """Force a folder's names to the disk: a rename is lost with the power otherwise."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(target: Path, value: object) -> None:
    """Write a JSON file whole."""
    with written_whole(target) as path:
        path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def write_tensors(target: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file whole; raises OSError where the disk does not take it."""
    from safetensors import SafetensorError  # here, because training without files does not need it
    from safetensors.torch import save_file

    with written_whole(target) as path:
        try:
            save_file(dict(tensors), path)
        except SafetensorError as error:
            raise OSError(errno.EIO, str(error), str(target)) from error
        path.chmod(0o666 & ~_umask())  # safetensors makes files that only their owner may read


def _umask() -> int:
    mask = os.umask(0o022)  # it can only be read by setting it
    os.umask(mask)
    return mask


def read_tensors(source: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file, on the CPU."""
    from safetensors.torch import load_file

    return load_file(source)


def file_sha256(path: Path) -> str:
    """Hexadecimal sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_sha256(value: Any) -> str:
    """Hexadecimal sha256 of plain data, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
