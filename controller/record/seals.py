"""Seals: what a controller says that it has recorded, in files that only root writes, beside the records.

Segments are written by the publisher, which talks to everybody and is trusted with nothing. What a promotion rests on
has to be the controller's own word: for every few seconds of a run it adds a line to ``seals.log`` in its state folder,
with the SHA-256 of those ticks as they are in the ring, and an HMAC-SHA256 (RFC 2104) over that line and the one
before, with a key that only root reads (``records.key``). `slicepilot.controller.record.sealed` holds segments against
them.

A line is ``KIND FIELD ... MAC``, fields without spaces:

- ``seals VERSION NONCE PREVIOUS``: how a file begins; PREVIOUS is the last MAC of the file before, or 0;
- ``run RUN GENERATION SHA256 BUNDLE``: a description of the run, by its canonical JSON, and its bundle's digest or -;
- ``ticks RUN GENERATION FIRST LAST SHA256``: ticks with sequences FIRST to LAST, all under that description.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import json
import os
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from slicepilot.configs import ConfigError
from slicepilot.data.files import PRIVATE, sync_folder

LOG, OLDER_LOG, KEY_FILE = "seals.log", "seals.1.log", "records.key"
VERSION, KEY_BYTES = 1, 32
MOST_BYTES = 1 << 26
"""Of one of the two files: some three weeks of lines five seconds apart."""
LONGEST_LINE = 512
ACCEPTED = "accepted: a state folder that only root, or who runs this, writes"


def canonical(description: dict[str, Any]) -> bytes:
    """A description's JSON as everybody writes it: what went through files and back has the same."""
    plain = json.loads(json.dumps(description))
    return json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()


def mac_of(key: bytes, previous: str, line: str) -> str:
    """HMAC-SHA256 of a line, chained to the MAC of the one before; hexadecimal."""
    return hmac.digest(key, f"{previous}\n{line}".encode(), "sha256").hex()


def open_private(path: Path, flags: int, secret: bool = True) -> int:
    """A descriptor of a file that nobody but root or this user can have written, and read where it is ``secret``.

    Raises:
        ConfigError: somebody else can; or it is no regular file.
        OSError: it cannot be opened.
    """
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, PRIVATE)
    found = os.fstat(descriptor)
    open_to_others = stat.S_IMODE(found.st_mode) & (0o077 if secret else 0o022)
    if not stat.S_ISREG(found.st_mode) or found.st_uid not in {0, os.geteuid()} or open_to_others:
        os.close(descriptor)
        mode = stat.S_IMODE(found.st_mode)
        raise ConfigError(f"{path}: uid {found.st_uid}, mode {mode:04o}; accepted: a file of root's, mode 0600")
    return descriptor


def check_folder(folder: Path) -> None:
    """Raise ConfigError where others than root or this user may write to a folder: they could put files in place."""
    found = folder.stat()
    if found.st_uid not in {0, os.geteuid()} or found.st_mode & 0o022:
        mode = stat.S_IMODE(found.st_mode)
        raise ConfigError(f"state {str(folder)!r}: uid {found.st_uid}, mode {mode:04o}; {ACCEPTED}")


def load_key(folder: Path, make: bool = False) -> bytes:
    """The key of a state folder, made if there is none and that is asked for.

    Raises:
        ConfigError: it is missing, damaged, or others can read it.
        OSError: it cannot be read or made.
    """
    check_folder(folder)
    path = folder / KEY_FILE
    if make and not path.is_symlink() and not path.exists():
        staging = path.with_name(f".{KEY_FILE}.{os.getpid()}")
        staging.unlink(missing_ok=True)
        descriptor = open_private(staging, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            os.write(descriptor, secrets.token_bytes(KEY_BYTES))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        staging.rename(path)
        sync_folder(folder)
    descriptor = open_private(path, os.O_RDONLY)
    try:
        key = os.read(descriptor, KEY_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(key) != KEY_BYTES:
        raise ConfigError(f"{path}: {len(key)} bytes; accepted: {KEY_BYTES}, as a controller makes it")
    return key


class SealLog:
    """The writing side: one per state folder at a time, see the lock of `slicepilot.controller.service.serve`.

    Args:
        folder: the state's; key and log are made there.
        most_bytes: of a file; then it takes the place of the older one.

    Raises:
        ConfigError: a folder or file that others can write to.
        OSError: it cannot be written.
    """

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self._folder, self._most_bytes = folder, most_bytes
        self._key = load_key(folder, make=True)
        self._path = folder / LOG
        self._described: set[tuple[str, int]] = set()
        self._descriptor = open_private(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self._previous, self._size = self._resume()
        if not self._size:
            self._begin()

    def describe(self, generation: int, description: dict[str, Any]) -> None:
        """Say what a run's description of a generation is, unless that was said; raises OSError."""
        run_id = description["run_id"]
        if (run_id, generation) in self._described:
            return
        bundle = description.get("bundle")
        digest = hashlib.sha256(canonical(description)).hexdigest()
        self._add(f"run {run_id} {generation} {digest} {'-' if bundle is None else bundle['digest']}")
        self._described.add((run_id, generation))

    def add(self, run_id: str, generation: int, first: int, last: int, digest: str) -> None:
        """Seal ticks ``first`` to ``last`` by the SHA-256 of their bytes; raises OSError."""
        self._add(f"ticks {run_id} {generation} {first} {last} {digest}")

    def close(self) -> None:
        """Give the file back; more than once does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _add(self, line: str) -> None:
        if self._size > self._most_bytes:
            self._rotate()
        self._append(line)

    def _append(self, line: str) -> None:
        mac = mac_of(self._key, self._previous, line)
        data = f"{line} {mac}\n".encode()
        written = os.write(self._descriptor, data)
        if written < len(data):  # a full disk: half a line would spoil the next one, too
            os.ftruncate(self._descriptor, self._size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        self._previous, self._size = mac, self._size + len(data)

    def _begin(self) -> None:
        self._append(f"seals {VERSION} {secrets.token_hex(16)} {self._previous}")

    def _rotate(self) -> None:
        self._path.replace(self._folder / OLDER_LOG)
        os.close(self._descriptor)
        self._descriptor = open_private(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self._size = 0
        self._described.clear()
        self._begin()

    def _resume(self) -> tuple[str, int]:
        """The last MAC, and the size without a line that a crash has cut."""
        size = os.fstat(self._descriptor).st_size
        tail = os.pread(self._descriptor, LONGEST_LINE, max(0, size - LONGEST_LINE))
        whole = tail.rfind(b"\n") + 1
        if whole < len(tail):
            size -= len(tail) - whole
            os.ftruncate(self._descriptor, size)
        lines = tail[:whole].splitlines()
        return (lines[-1].rpartition(b" ")[2].decode("ascii", "replace") if lines else "0"), size


def digest_of(parts: Iterable[bytes | memoryview]) -> str:
    """SHA-256 of ticks, as one after the other; hexadecimal."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
