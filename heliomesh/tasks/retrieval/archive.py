"""Unpacking without trust: an archive chooses neither where nor how much is written."""

import gzip
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from heliomesh.tasks.dataset import DatasetError
from heliomesh.tasks.retrieval.pinned import CHUNK_BYTES

_OTHER_MEMBERS_BYTES = 16 << 20  # room for headers and for members that are not wanted


def gunzip(path: Path, target: Path, max_bytes: int) -> None:
    """Decompress a gzip file; refuses more than ``max_bytes`` and anything incomplete."""
    try:
        with gzip.open(path, "rb") as packed:
            copy(cast(IO[bytes], packed), target, max_bytes, path.name)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DatasetError(path, "a complete gzip file", f": {error}") from None


def untar(path: Path, wanted: Mapping[str, int], folder: Path) -> None:
    """Write the wanted members of a .tar.gz into ``folder``, each under the last part of its name.

    ``wanted`` maps a member's full name to the largest size allowed [byte]. Other members are skipped, but one that
    points outside, a link, a device or too much data makes the whole archive refused.
    """
    missing = set(wanted)
    try:
        with gzip.open(path, "rb") as packed:
            limited = _Limited(cast(IO[bytes], packed), sum(wanted.values()) + _OTHER_MEMBERS_BYTES, path)
            with tarfile.open(fileobj=cast(Any, limited), mode="r|") as archive:
                for member in archive:
                    _refuse_hostile(member, path)
                    if member.name not in wanted:
                        continue
                    content = archive.extractfile(member)
                    if content is None or member.name not in missing:
                        raise DatasetError(path, f"one file {member.name!r}", ": more than one")
                    missing.remove(member.name)
                    target = folder / PurePosixPath(member.name).name
                    copy(content, target, wanted[member.name], f"{path.name}: {member.name}")
    except (EOFError, gzip.BadGzipFile, zlib.error, tarfile.TarError) as error:
        raise DatasetError(path, "a complete .tar.gz archive", f": {error}") from None
    if missing:
        raise DatasetError(f"{path}: the member {min(missing)!r} is missing.")


def copy(content: IO[bytes], target: Path, max_bytes: int, name: str) -> None:
    """Write a stream to a file; refuses more than ``max_bytes``."""
    written = 0
    with target.open("wb") as out:
        while chunk := content.read(CHUNK_BYTES):
            written += len(chunk)
            DatasetError.when(written > max_bytes, name, f"at most {max_bytes} bytes", ": more")
            out.write(chunk)


def _refuse_hostile(member: tarfile.TarInfo, path: Path) -> None:
    parts = PurePosixPath(member.name)
    if parts.is_absolute() or ".." in parts.parts:
        raise DatasetError(path, "members inside the archive's folder", f"member {member.name!r}")
    if not (member.isreg() or member.isdir()):
        actual = f"member {member.name!r} of type {member.type!r}"
        raise DatasetError(path, "plain files and folders only", actual)


class _Limited:
    """A stream that ends with an error instead of filling memory or disk."""

    def __init__(self, stream: IO[bytes], max_bytes: int, path: Path) -> None:
        self._stream, self._left, self._path = stream, max_bytes, path

    def read(self, size: int) -> bytes:
        chunk = self._stream.read(size)
        self._left -= len(chunk)
        DatasetError.when(self._left < 0, self._path, "the archive unpacks to more data than the dataset has.")
        return chunk
