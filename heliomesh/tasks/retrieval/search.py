"""The search for a dataset: the cache, then the addresses that its source knows; and what is in the cache.

The cache holds the dataset's own files, unpacked. Their checksums are in the code, so every load checks them.
"""

import logging
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from heliomesh.common.durable import alone_in, check_held
from heliomesh.tasks.dataset import DatasetError
from heliomesh.tasks.retrieval.source import Address, Package, Progress, Source, silent, take

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Found:
    """A dataset's files, verified, and how they got there."""

    folder: Path
    way: str | None = None  # the way that brought them just now; None: they were in the cache
    replaced: str | None = None  # what was wrong with the files that were in the cache before


def cache_folder() -> Path:
    """``$HELIOMESH_DATA``, else `heliomesh` in the user's cache folder."""
    own = os.environ.get("HELIOMESH_DATA")
    if own:
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "heliomesh"


def is_cached(source: Source) -> bool:
    """Whether the cache has a file of the right size for each of the dataset's; contents are not read."""
    sizes = {path.name: path.stat().st_size for path in _place(source).glob("*") if path.is_file()}
    return all(sizes.get(pinned.name) == pinned.num_bytes for pinned in source.files)


def is_started(source: Source) -> bool:
    """Whether the cache has any of the dataset's files, right or wrong."""
    return any((_place(source) / pinned.name).exists() for pinned in source.files)


def verify(source: Source) -> Found:
    """Check all cached files against their checksums; raises DatasetError naming the first that is wrong."""
    damage = _damage(source)
    DatasetError.when(damage is not None, f"{damage}; get it again by: heliomesh data get {source.name}", "")
    return Found(_place(source))


def _damage(source: Source) -> str | None:
    """What is wrong with the cached files."""
    try:
        source.check(_place(source))
    except (DatasetError, OSError) as error:
        return str(error)
    return None


def _place(source: Source) -> Path:
    return cache_folder() / source.name


def require(source: Source) -> Found:
    """Files of a dataset for use now: those in the cache, which must be right, else what the search finds.

    A search is never silent: a warning is logged with the way that succeeded.
    """
    if is_started(source):
        return verify(source)
    found = retrieve(source)
    _log.warning("dataset %s: fetched by way %r to %s", source.name, found.way, found.folder)
    return found


def retrieve(source: Source, way: str | None = None, progress: Progress = silent) -> Found:
    """Get a dataset's files into the cache, by the first of its ways that works; wrong files there are replaced.

    With ``way``, the name of one of the source's ways or a path, only this one is tried, even if the cache is right.
    """
    ways = source.ways if way is None else (_chosen(source, way),)
    folder = _place(source)
    if way is None and _damage(source) is None:  # before the lock: a cache that is right may be read-only
        return Found(folder)
    try:
        with alone_in(folder, wait=True):  # other processes wait
            damage = _damage(source)
            if way is None and damage is None:  # another process was faster
                return Found(folder)
            return _first(source, ways, folder, damage if is_started(source) else None, progress)
    except OSError as error:
        actual = f": {error.strerror}; choose another by the environment variable HELIOMESH_DATA"
        raise DatasetError(folder, "a writable cache folder", actual) from None


def _chosen(source: Source, way: str) -> Address | Package | Path:
    known = {address.name: address for address in source.ways}
    if way not in known and not Path(way).exists():
        raise DatasetError("--from", f"one of {', '.join(known)} or an existing path", f"value {way!r}")
    return known.get(way) or Path(way)


def _first(
    source: Source, ways: tuple[Address | Package | Path, ...], folder: Path, replaced: str | None, progress: Progress
) -> Found:
    """Let the first way that works bring the files."""
    reasons = []
    for way in ways:
        name, place = (str(way), way) if isinstance(way, Path) else (way.name, way.place)
        try:
            _fetch(source, way, folder, progress)
            return Found(folder, name, replaced)
        except (DatasetError, OSError) as error:
            reasons.append(f"{name} ({place}): {error}")
    files = ", ".join(pinned.name for pinned in source.files)
    archives = "".join(f", or with {archive.name}" for archive in source.archives)
    by_hand = f"heliomesh data get {source.name} --from FOLDER: a folder with {files}, plain or .gz{archives}"
    lines = [f"{source.name}: expected one of these ways to work, actual: none did", *reasons, by_hand]
    raise DatasetError("\n  - ".join(lines))


def _fetch(source: Source, way: Address | Package | Path, folder: Path, progress: Progress) -> None:
    """Bring the files, verify them and only then give them their names."""
    incoming = folder / "incoming"
    shutil.rmtree(incoming, ignore_errors=True)  # of a process that was killed: we hold the lock
    incoming.mkdir()
    try:
        if isinstance(way, Path):
            take(source, way, incoming)
        else:
            with tempfile.TemporaryDirectory(dir=incoming) as downloads:
                way.bring(Path(downloads), progress)
                take(source, Path(downloads), incoming)
        source.check(incoming)
        check_held()
        for pinned in source.files:
            with (incoming / pinned.name).open("rb") as file:
                os.fsync(file.fileno())
            (incoming / pinned.name).replace(folder / pinned.name)
    finally:
        shutil.rmtree(incoming, ignore_errors=True)
