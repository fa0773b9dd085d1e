"""Downloads that go on where they were cut off, and that end in a whole, checked file or in none.

A transfer is written to ``NAME.part``; what the server said about the file lies beside it in ``NAME.part.json``. The
next attempt, of this call or of a later one, asks for the rest (RFC 9110, 14.2 Range and 13.1.5 If-Range): a server
whose file has changed meanwhile sends all of it, and the transfer starts over.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import http.client
import json
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from slicepilot.data.files import replace_file, sync_folder

CHUNK_BYTES = 1 << 18
ATTEMPTS = 5  # in a row without a single byte
PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
WORTH_ANOTHER_TRY = frozenset({408, 425, 429, 500, 502, 503, 504})
RANGE_NOT_SATISFIABLE = 416

OnProgress = Callable[[int, int | None], None]
"""Told how many bytes are there, of how many if that is known."""


class FetchError(RuntimeError):
    """A transfer that did not succeed: one line with the address and what to do."""


@dataclass(frozen=True)
class Fetched:
    """A file that is there, whole.

    Attributes:
        resumed_from: bytes that were there before this call; all of them where nothing had to be transferred.
        checked: its SHA-256 was compared with a published one.
    """

    path: Path
    num_bytes: int
    sha256: str
    resumed_from: int
    checked: bool


@dataclass(frozen=True)
class _Known:
    """What the server said of the file that a part is of."""

    address: str
    validator: str | None  # for If-Range
    total: int | None


def fetch(
    address: str,
    target: Path,
    sha256: str | None = None,
    num_bytes: int | None = None,
    on_progress: OnProgress | None = None,
    timeout_s: float = 30.0,
    pause_s: float = PAUSE_S,
) -> Fetched:
    """Download a file over HTTP(S); a file that is already there is checked and kept.

    Args:
        address: where it lies.
        target: where to put it; folders are made.
        sha256, num_bytes: what it must be, where that is published.
        on_progress: called after every chunk.
        timeout_s: longest wait for the server.
        pause_s: before the second attempt; doubled before each further one.

    Raises:
        FetchError: not HTTP(S), being fetched by another process, refused by the server, `ATTEMPTS` attempts in a row
            without a byte (what there is stays for the next call), or not what was published (nothing is kept).
    """
    if not address.startswith(("http://", "https://")):
        raise FetchError(f"{address}: expected an address that starts with http:// or https://")
    try:
        if target.exists():
            present = target.stat().st_size
            return Fetched(target, present, _checked(address, target, target, sha256, num_bytes), present, bool(sha256))
        target.parent.mkdir(parents=True, exist_ok=True)
        part = _Part(target)
        with part.held():
            before = _persist(address, part, on_progress, timeout_s, pause_s)
            digest = _checked(address, part.path, target, sha256, num_bytes)
            part.path.replace(target)
            part.forget()
            sync_folder(target.parent)
    except (urllib.error.URLError, http.client.HTTPException) as error:
        raise FetchError(f"{address}: {_reason(error)}") from error
    except OSError as error:
        raise FetchError(f"{error.filename or target}: {error.strerror or error}") from error
    return Fetched(target, target.stat().st_size, digest, before, bool(sha256))


class _Part:
    """The file under way and what is known of it."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self.path = target.with_name(f"{target.name}.part")
        self._facts = target.with_name(f"{target.name}.part.json")

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keeps others from transferring the same file meanwhile; raises FetchError where another does, or just did."""
        busy = f"{self._target}: is being fetched by another process; expected to wait for it"
        with self.path.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise FetchError(busy) from None
            try:
                # The file may have been replaced or removed, between opening and locking.
                if self._target.exists() or not self._is(file):
                    raise FetchError(busy)
                yield
            finally:
                if self._is(file) and not self.path.stat().st_size:
                    self.path.unlink()

    def _is(self, file: IO[bytes]) -> bool:
        """Whether an open file is the part that lies there."""
        return self.path.exists() and os.path.samestat(os.fstat(file.fileno()), self.path.stat())

    def restart(self) -> None:
        """Nothing is there of the file any longer; who holds it goes on holding it."""
        os.truncate(self.path, 0)
        self._facts.unlink(missing_ok=True)

    def resume(self, address: str) -> tuple[int, _Known | None]:
        """How many bytes there are of the address's file, and what the server had said; (0, None) for a fresh start."""
        try:
            known = _Known(**json.loads(self._facts.read_text(encoding="utf-8")))
            size = self.path.stat().st_size
        except (OSError, ValueError, TypeError):
            return 0, None
        usable = known.address == address and known.validator is not None and size
        return (size, known) if usable else (0, None)

    def remember(self, known: _Known) -> None:
        replace_file(self._facts, json.dumps(asdict(known)).encode())

    def forget(self) -> None:
        for path in (self.path, self._facts):
            path.unlink(missing_ok=True)


def _persist(address: str, part: _Part, on_progress: OnProgress | None, timeout_s: float, pause_s: float) -> int:
    """Transfer until all is there; returns how many bytes were there at the start."""
    before, _ = part.resume(address)
    failures = 0
    while True:
        size, _ = part.resume(address)
        try:
            if _transfer(address, part, on_progress, timeout_s):
                return before
            problem: Exception = http.client.IncompleteRead(b"")
        except urllib.error.HTTPError as error:
            error.close()
            if error.code not in WORTH_ANOTHER_TRY:
                raise
            problem = error
        except (urllib.error.URLError, http.client.HTTPException, ssl.SSLError, TimeoutError, ConnectionError) as error:
            problem = error
        failures = 1 if part.resume(address)[0] > size else failures + 1
        if failures >= ATTEMPTS:
            there = part.resume(address)[0]
            kept = f"; {there:,} bytes are kept for the next attempt" if there else ""
            raise FetchError(f"{address}: {_reason(problem)}, {ATTEMPTS} times in a row{kept}") from problem
        time.sleep(min(pause_s * 2 ** (failures - 1), LONGEST_PAUSE_S))


def _transfer(address: str, part: _Part, on_progress: OnProgress | None, timeout_s: float) -> bool:
    """One request; returns whether the file is whole."""
    size, known = part.resume(address)
    # Bytes as they lie there: a range of a compressed transfer would be of another length.
    headers = {"Accept-Encoding": "identity", "User-Agent": "slicepilot"}
    if known is not None:
        if size == known.total:
            return True
        headers |= {"Range": f"bytes={size}-", "If-Range": str(known.validator)}
    try:
        response = urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=timeout_s)
    except urllib.error.HTTPError as error:
        if error.code == RANGE_NOT_SATISFIABLE and known is not None:
            error.close()
            part.restart()
            raise http.client.HTTPException("the file has become shorter than what is there of it") from error
        raise
    with response:
        start, total = _span(response)
        if start not in (0, size):
            part.restart()
            raise http.client.HTTPException(f"requested bytes from {size} on, got them from {start} on")
        with part.path.open("r+b" if start else "wb") as file:
            # Only now, with bytes of another version gone, may the file be said to be of this one.
            part.remember(_Known(address, _validator(response), total))
            file.seek(start)
            size = _copy(response, file, start, total, on_progress)
            os.fsync(file.fileno())
    return total is None or size == total


def _copy(response: Any, file: Any, size: int, total: int | None, on_progress: OnProgress | None) -> int:
    """Write what comes; returns the file's length. Whatever cuts the transfer off, what came is written."""
    while chunk := response.read(CHUNK_BYTES):
        file.write(chunk)
        size += len(chunk)
        if on_progress is not None:
            on_progress(size, total)
    return size


def _span(response: Any) -> tuple[int, int | None]:
    """Where in the file a response begins and how long the file is, None if the server does not say."""
    if response.status == http.client.PARTIAL_CONTENT:
        unit, _, span = response.headers.get("Content-Range", "").partition(" ")
        first_last, _, total = span.partition("/")
        first = first_last.partition("-")[0]
        if unit != "bytes" or not first.isdigit():
            raise http.client.HTTPException(f"Content-Range = {response.headers.get('Content-Range')!r}")
        return int(first), int(total) if total.isdigit() else None
    length = response.headers.get("Content-Length", "")
    return 0, int(length) if length.isdigit() else None


def _validator(response: Any) -> str | None:
    """What tells this version of the file from others: a strong entity tag, else its date (RFC 9110, 8.8)."""
    tag: str = response.headers.get("ETag", "")
    return tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified")


def _checked(address: str, path: Path, target: Path, sha256: str | None, num_bytes: int | None) -> str:
    """The file's SHA-256, as published if it is published; a part that differs is removed."""
    size = path.stat().st_size
    with path.open("rb") as file:
        result = hashlib.file_digest(file, "sha256").hexdigest()
    wrong = None
    if num_bytes is not None and size != num_bytes:
        wrong = f"{size:,} bytes; published: {num_bytes:,}"
    elif sha256 is not None and result != sha256:
        wrong = f"SHA-256 is {result}; published: {sha256}"
    if wrong is None:
        return result
    if path == target:
        raise FetchError(f"{target}: {wrong}; remove it to fetch {address} again")
    with contextlib.suppress(OSError):
        _Part(target).forget()
    raise FetchError(f"{address}: {wrong}; nothing was kept")


def _reason(error: Exception) -> str:
    """What went wrong in a few words."""
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answers {error.code} {error.reason}"
    if isinstance(error, http.client.IncompleteRead):
        return "the transfer was cut off"
    reason = getattr(error, "reason", None) or error
    return f"no answer: {getattr(reason, 'strerror', None) or reason}"
