"""Files that are on the disk in full, or not at all."""

import errno
import hashlib
import json
import math
import os
import re
import secrets
import stat
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from torch import Tensor

from heliomesh.common.mistakes import MistakeError

if sys.platform != "win32":
    import fcntl


class LostFolderError(MistakeError):
    """A folder in which this process worked alone was removed or replaced meanwhile."""


class BusyFolderError(MistakeError):
    """Another process works in a folder."""


_held: dict[int, Path] = {}  # lock files of folders by open descriptor: this process works alone in them


@contextmanager
def written_whole(target: Path) -> Iterator[Path]:
    """A path to write to; when the block ends well, its file is forced to the disk and takes the target's name.

    Whatever goes wrong, also a loss of power, ``target`` is the old file or the new one. The temporary name is new
    and nobody can know it before, so no link planted there is followed. A lock lets a second process wait until the
    first one is done; who holds it removes what killed processes left. Raises LostFolderError as `check_held` does.
    """
    check_held()
    with _locked(target.with_name(f".{target.name}.lock"), wait=True):
        left_behind = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{16}}\.part")  # by killed processes
        for path in target.parent.iterdir():
            if left_behind.fullmatch(path.name):
                path.unlink()
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
        try:
            temporary.touch(exist_ok=False)
            yield temporary
            _force(unlinked(str(temporary), os.O_RDWR))
            check_held()
            temporary.replace(target)
            _force(os.open(target.parent, os.O_RDONLY))  # a rename is lost with the power otherwise
        except OSError as error:
            error.filename = error.filename or str(target)  # a write that fails does not say where
            raise
        finally:
            temporary.unlink(missing_ok=True)


def _force(descriptor: int) -> None:
    """Force an open file or folder to the disk, and close it."""
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def unlinked(path: str, flags: int) -> int:
    """An opener of files that refuses a symbolic link, by OSError."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


@contextmanager
def alone_in(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Make a folder and let one process at a time work in it; another one waits, or gets BusyFolderError.

    The lock is the operating system's and ends with the process, however that ends. Windows has none here. A block
    that ends by an error before anything was written leaves no folder that was not there.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / ".lock", wait) as descriptor:
            _held[descriptor] = folder / ".lock"
            try:
                yield
            finally:
                del _held[descriptor]
    except BaseException:
        with suppress(OSError):  # what is not empty stays
            for path in made:
                path.rmdir()
        raise


@contextmanager
def only_writer(last_file: Path) -> Iterator[None]:
    """Let one process at a time write a result of several files, which is there once its last one is; others wait."""
    with _locked(last_file.with_name(f".{last_file.name}.result.lock"), wait=True):
        yield


def check_held() -> None:
    """Raise LostFolderError where a folder that this process holds is no longer its own: another one may hold it."""
    for descriptor, place in list(_held.items()):
        if not _is_open_file(place, descriptor):
            raise LostFolderError(
                f"{place.parent}: this folder was removed or replaced while the command was running. "
                "Nothing more is written."
            )


def make_folder(folder: Path) -> None:
    """Make a folder to write to, with all above it; raises as `check_held` does."""
    check_held()
    folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def _locked(place: Path, wait: bool) -> Iterator[int]:
    """Hold the lock on a file that is there only meanwhile; gives its descriptor."""
    with ExitStack() as stack:
        while True:
            lock = stack.enter_context(open(place, "ab", opener=unlinked))
            if sys.platform != "win32":
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                except BlockingIOError:
                    raise BusyFolderError(f"{place.parent}: another process is using this folder.") from None
            if _is_open_file(place, lock.fileno()):
                break
            lock.close()  # of a holder that removed it while we waited: a third one may hold its successor
        try:
            yield lock.fileno()
        finally:
            if _is_open_file(place, lock.fileno()):  # else it is another holder's
                place.unlink(missing_ok=True)


def _is_open_file(place: Path, descriptor: int) -> bool:
    """Whether a name still leads to an open file: its last holder may have removed it meanwhile."""
    try:
        return os.path.samestat(place.lstat(), os.fstat(descriptor))
    except OSError:
        return False


def write_text(target: Path, text: str) -> None:
    """Write a UTF-8 file whole; names of files that are no UTF-8 stand in it with escapes."""
    write_bytes(target, text.encode("utf-8", "backslashreplace"))


def write_bytes(target: Path, content: bytes) -> None:
    """Write a file whole."""
    with written_whole(target) as path:
        path.write_bytes(content)


def write_set(folder: Path, pattern: str, texts: Mapping[str, str]) -> None:
    """Write files that belong together, by name; earlier ones that match the pattern go first.

    So a killed process leaves an incomplete set, never one of mixed origin.
    """
    make_folder(folder)
    for earlier in folder.glob(pattern):
        earlier.unlink()
    for name, text in texts.items():
        write_text(folder / name, text)


def without_nan(value: Any) -> Any:
    """Plain data with None for NaN and infinities, which JSON does not have."""
    if isinstance(value, dict):
        return {str(key): without_nan(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(target: Path, value: object) -> None:
    """Write a JSON file whole."""
    write_text(target, json.dumps(value, indent=2) + "\n")


@dataclass(frozen=True)
class Sealed:
    """A kind of JSON file that names its kind and format and carries the sha256 of everything it says."""

    kind: str  # as sentences name it, such as "the manifest of a run"
    format: int
    holds: tuple[tuple[str, type], ...] = ()  # names and types of what is always in it

    def write(self, target: Path, content: Mapping[str, Any]) -> None:
        """Write a file of this kind whole."""
        labelled = json.loads(json.dumps({"kind": self.kind, "format": self.format, **content}))  # as it is read
        write_json(target, labelled | {"seal": json_sha256(labelled)})

    def read(self, source: Path, error: type[Exception]) -> dict[str, Any]:
        """What was written; raises ``error`` with one sentence for another kind, another format or any damage."""
        try:
            content = json.loads(source.read_text(encoding="utf-8"))
            if not isinstance(content, dict):
                raise TypeError(f"JSON without names, {content!r:.40}")
            kind, number, seal = content.pop("kind", self.kind), content.pop("format"), content.pop("seal", None)
        except OSError as problem:
            raise error(f"{source}: expected {self.kind}, actual: {problem.strerror}") from None
        except _NOT_SEALED as problem:
            said = f"it has no {problem}" if isinstance(problem, KeyError) else problem
            raise error(f"{source}: expected {self.kind}, actual: {said}") from None
        if kind != self.kind:
            raise error(f"{source}: expected {self.kind}, actual: {kind}")
        if number != self.format:
            raise error(f"{source}: expected {self.kind} in format {self.format}, actual format {number!r}")
        if seal != json_sha256({"kind": kind, "format": number, **content}):
            raise error(f"{source}: the file is damaged: its content has changed since it was written.")
        for name, wanted in self.holds:
            if not isinstance(content.get(name), wanted):
                actual = f"{content[name]!r:.40}" if name in content else "nothing"
                raise error(f"{source}: expected {self.kind} with {name} ({wanted.__name__}), actual: {actual}")
        return cast(dict[str, Any], content)


_NOT_SEALED = (ValueError, KeyError, TypeError, AttributeError, RecursionError)  # what a foreign JSON file may raise


def write_tensors(target: Path, tensors: Mapping[str, Tensor], header: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file whole, with texts in its header; raises OSError where the disk does not take it."""
    from safetensors import SafetensorError  # here, because training without files does not need it
    from safetensors.torch import save_file

    with written_whole(target) as path:
        usual = stat.S_IMODE(path.stat().st_mode)  # as the umask allows, which can only be read by setting it
        try:
            save_file(dict(tensors), path, None if header is None else dict(header))
        except SafetensorError as error:
            raise OSError(errno.EIO, str(error), str(target)) from error
        path.chmod(usual)  # safetensors makes files that only their owner may read


def read_tensors(source: Path, error: type[Exception]) -> dict[str, Tensor]:
    """All tensors of a safetensors file, on the CPU; raises ``error`` with one sentence if it is none."""
    from safetensors import SafetensorError
    from safetensors.torch import load, load_file

    try:
        with suppress(UnicodeEncodeError):  # a name that is no UTF-8
            str(source).encode("utf-8")
            return load_file(source)
        return load(source.read_bytes())
    except (OSError, SafetensorError) as problem:
        raise error(f"{source}: expected a safetensors file, actual: {problem}") from None


def read_header(source: Path, error: type[Exception]) -> dict[str, str]:
    """The texts in a safetensors file's header; raises as `read_tensors` does."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(source, framework="pt") as file:
            return dict(file.metadata() or {})
    except (OSError, SafetensorError) as problem:
        raise error(f"{source}: expected a safetensors file, actual: {problem}") from None


@dataclass(frozen=True)
class ArraySize:
    """What an array of an `.npz` file takes once it is read."""

    entries: int
    num_bytes: int


def npz_sizes(source: Path) -> dict[str, ArraySize]:
    """Sizes of all arrays of an `.npz` file by their headers, without reading them; raises ValueError for damage.

    A small file may unpack to any size. No more is read of an entry than the archive's directory says, so an array
    whose header promises more is damaged.
    """
    with zipfile.ZipFile(source) as archive:
        return {entry.filename.removesuffix(".npy"): _unpacked(archive, entry) for entry in archive.infolist()}


def _unpacked(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> ArraySize:
    if not entry.filename.endswith(".npy"):
        return ArraySize(entry.file_size, entry.file_size)
    with archive.open(entry) as file:
        version = np.lib.format.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f"{entry.filename} is in version {version} of its format")
        shape, _, dtype = _HEADERS[version](file)
        size = ArraySize(math.prod(shape), math.prod(shape) * dtype.itemsize)
        if not dtype.hasobject and file.tell() + size.num_bytes > entry.file_size:
            raise ValueError(f"{entry.filename} ends before the {size.num_bytes} bytes that it promises")
    return size


_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def file_sha256(path: Path) -> str:
    """Hexadecimal sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_sha256(value: Any) -> str:
    """Hexadecimal sha256 of plain data, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
