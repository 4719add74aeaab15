"""Files known by their content: size and sha256 are written in the code, so no source has to be trusted."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from heliomesh.common.durable import file_sha256
from heliomesh.tasks.dataset import DatasetError

CHUNK_BYTES = 1 << 20

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
        actual = path.stat().st_size
        if actual != self.num_bytes:
            kind = "truncated, " if actual < self.num_bytes else ""
            raise DatasetError(path, f"{self.num_bytes} bytes", f": {kind}{actual} bytes")
        check_sha256(path, self.sha256)


def check_sha256(path: Path, expected: str) -> None:
    """Raise DatasetError, naming the file, unless its hexadecimal sha256 is the expected one."""
    actual = file_sha256(path)
    DatasetError.when(actual != expected, path, f"sha256 {expected}", f"sha256 {actual}")
