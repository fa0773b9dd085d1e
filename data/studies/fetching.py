"""Downloads that end in a whole file or in none.

The files of the releases are of a few megabytes: a transfer that is cut off begins anew.
"""

from __future__ import annotations

import hashlib
import http.client
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from slicepilot.data.files import replacing

CHUNK_BYTES = 1 << 18
ATTEMPTS = 5
TIMEOUT_S = 30.0
"""Longest wait for the server."""
PAUSE_S = 1.0
"""Before the second attempt; doubled before each further attempt."""
WORTH_ANOTHER_TRY = frozenset({408, 425, 429, 500, 502, 503, 504})

OnProgress = Callable[[int, int | None], None]
"""Called with the bytes that have arrived, and with all there are if that is known."""


class FetchError(RuntimeError):
    """A failed transfer; the message has the address and what to do."""


def fetch(address: str, target: Path, on_progress: OnProgress = lambda done, total: None) -> str:
    """Download a file over HTTP(S), and return its SHA-256; a file that is already there is kept.

    Raises:
        FetchError: not HTTP(S), refused by the server, or cut off or unanswered in `ATTEMPTS` attempts; nothing is
            kept then.
    """
    if not address.startswith(("http://", "https://")):
        raise FetchError(f"{address}: expected an address that starts with http:// or https://")
    try:
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            with replacing(target) as file:
                _transfer(address, file, on_progress)
        with target.open("rb") as there:
            return hashlib.file_digest(there, "sha256").hexdigest()
    except OSError as error:
        raise FetchError(f"{error.filename or target}: {error.strerror or error}") from error


def _transfer(address: str, file: BinaryIO, on_progress: OnProgress) -> None:
    """Write the whole file, in several attempts if need be."""
    reason = ""
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE_S * 2 ** (attempt - 1))
        try:
            return _attempt(address, file, on_progress)
        except urllib.error.HTTPError as error:
            error.close()
            reason = f"the server answers {error.code} {error.reason}"
            if error.code not in WORTH_ANOTHER_TRY:
                raise FetchError(f"{address}: {reason}") from error
        except http.client.IncompleteRead:
            reason = "the transfer was cut off"
        except (urllib.error.URLError, http.client.HTTPException, ssl.SSLError, TimeoutError, ConnectionError) as error:
            cause = getattr(error, "reason", None) or error
            reason = f"no answer: {getattr(cause, 'strerror', None) or cause}"
    raise FetchError(f"{address}: {reason}, {ATTEMPTS} times in a row")


def _attempt(address: str, file: BinaryIO, on_progress: OnProgress) -> None:
    request = urllib.request.Request(address, headers={"Accept-Encoding": "identity", "User-Agent": "slicepilot"})
    file.seek(0)
    file.truncate()  # of what an earlier attempt has left
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        length = response.headers.get("Content-Length", "")
        total, size = int(length) if length.isdigit() else None, 0
        while chunk := response.read(CHUNK_BYTES):
            file.write(chunk)
            size += len(chunk)
            on_progress(size, total)
        if total is not None and size < total:
            raise http.client.IncompleteRead(b"", total - size)
