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
PAUSE_S = 1.0
WORTH_ANOTHER_TRY = frozenset({408, 425, 429, 500, 502, 503, 504})

OnProgress = Callable[[int, int | None], None]
"""Called with the bytes that have arrived, and with all there are if that is known."""


class FetchError(RuntimeError):
    """A failed transfer; the message has the address and what to do."""


def fetch(
    address: str,
    target: Path,
    on_progress: OnProgress | None = None,
    timeout_s: float = 30.0,
    pause_s: float = PAUSE_S,
) -> str:
    """Download a file over HTTP(S); a file that is already there is kept.

    Args:
        target: where to put it; folders are made.
        timeout_s: longest wait for the server.
        pause_s: before the second attempt; doubled before each further attempt.

    Returns:
        The file's SHA-256.

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
                _transfer(address, file, on_progress, timeout_s, pause_s)
        with target.open("rb") as there:
            return hashlib.file_digest(there, "sha256").hexdigest()
    except OSError as error:
        raise FetchError(f"{error.filename or target}: {error.strerror or error}") from error


def _transfer(address: str, file: BinaryIO, on_progress: OnProgress | None, timeout_s: float, pause_s: float) -> None:
    """Write the whole file, in several attempts if need be."""
    reason = ""
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(pause_s * 2 ** (attempt - 1))
        try:
            return _attempt(address, file, on_progress, timeout_s)
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


def _attempt(address: str, file: BinaryIO, on_progress: OnProgress | None, timeout_s: float) -> None:
    request = urllib.request.Request(address, headers={"Accept-Encoding": "identity", "User-Agent": "slicepilot"})
    file.seek(0)
    file.truncate()  # of what an earlier attempt has left
    with urllib.request.urlopen(request, timeout=timeout_s) as response:
        length = response.headers.get("Content-Length", "")
        total, size = int(length) if length.isdigit() else None, 0
        while chunk := response.read(CHUNK_BYTES):
            file.write(chunk)
            size += len(chunk)
            if on_progress is not None:
                on_progress(size, total)
        if total is not None and size < total:
            raise http.client.IncompleteRead(b"", total - size)
