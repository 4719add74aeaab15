"""Resumable downloads: bytes gather in a `.part` file, and the name appears only when all have arrived."""

import http.client
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO

from heliomesh.common.durable import unlinked
from heliomesh.tasks.dataset import DatasetError
from heliomesh.tasks.retrieval.pinned import CHUNK_BYTES, Progress

_TIMEOUT_SECOND = 30.0
_ATTEMPTS = 4  # an interrupted download goes on from where it broke


def part_of(target: Path) -> Path:
    """Where the bytes of an unfinished download are."""
    return target.with_name(f"{target.name}.part")


def download(address: str, target: Path, max_bytes: int, progress: Progress) -> None:
    """Fetch ``address`` to ``target``, going on with what an earlier attempt left; raises DatasetError.

    What arrives is complete, but only its checksum says whether it is right. Refuses more than ``max_bytes``.
    """
    part = part_of(target)
    for attempt in range(_ATTEMPTS):
        before = _size(part)
        try:
            _continue(address, part, max_bytes, progress)
            part.replace(target)
            return
        except DatasetError:
            part.unlink(missing_ok=True)  # nothing to go on with
            raise
        except (http.client.HTTPException, urllib.error.URLError, OSError, _TruncatedError) as error:
            stuck = _size(part) <= before and attempt > 0
            if stuck or attempt == _ATTEMPTS - 1 or not isinstance(error, _TruncatedError | ConnectionError):
                raise DatasetError(address, "a complete download", f": {_reason(error)}") from None


class _TruncatedError(Exception):
    """The connection ended before all announced bytes had arrived."""


def _continue(address: str, part: Path, max_bytes: int, progress: Progress) -> None:
    have = _size(part)
    # the addresses are constants of the datasets' files, never text of the user
    request = urllib.request.Request(address, headers={"User-Agent": "heliomesh"})  # noqa: S310
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECOND) as answer:  # noqa: S310
            if address.startswith("https:") and not answer.url.startswith("https:"):
                raise DatasetError(address, "a redirect to https", f"address {answer.url}")
            resumed = answer.status == http.HTTPStatus.PARTIAL_CONTENT
            if resumed and not answer.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
                raise _TruncatedError("the server sent another range than it was asked for")
            # a server without ranges starts over
            with open(part, "ab" if resumed else "wb", opener=unlinked) as out:
                _receive(answer, out, have if resumed else 0, max_bytes, progress)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        if error.headers.get("Content-Range", "") != f"bytes */{have}":  # else: all bytes were there already
            part.unlink()
            raise _TruncatedError("the unfinished download did not belong to this file") from None


def _receive(answer: http.client.HTTPResponse, out: IO[bytes], have: int, max_bytes: int, progress: Progress) -> None:
    """Write an answer's body after the first ``have`` bytes."""
    length = answer.headers.get("Content-Length", "")
    total = have + int(length) if length.isdecimal() else None
    while True:
        progress(answer.url.rpartition("/")[2], have, total)
        chunk = answer.read(CHUNK_BYTES)
        if not chunk:
            break
        have += len(chunk)
        DatasetError.when(have > max_bytes, answer.url, f"at most {max_bytes} bytes", ": more")
        out.write(chunk)
    if total is not None and have < total:
        raise _TruncatedError(f"truncated after {have} of {total} bytes")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _reason(error: Exception) -> str:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    strerror = getattr(reason, "strerror", None)
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP status {error.code} {error.reason}"
    return str(strerror or reason or type(error).__name__)
