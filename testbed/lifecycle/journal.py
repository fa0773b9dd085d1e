"""A journal of everything that a testbed creates, so that exactly that can be removed after any crash."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slicepilot.configs import ConfigError

FILE, LOCK = "made.jsonl", "lock"


class TestbedJournal:
    """Append-only list of things made; each record is on file before the thing exists.

    Args:
        folder: the testbed's state folder; on a tmpfs, so that a reboot, which removes the things, removes it too.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / FILE

    @property
    def exists(self) -> bool:
        """Whether a testbed is (or was, before a crash) there."""
        return self._path.exists()

    def record(self, kind: str, **facts: Any) -> None:
        """Note a thing; raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"kind": kind, **facts}) + "\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def entries(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Entries, oldest first; without a last line that a crash has cut off, whose object was not created yet."""
        if not self.exists:
            return []
        result = []
        for line in self._path.read_text().splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                entry = json.loads(line)
                if kind is None or entry["kind"] == kind:
                    result.append(entry)
        return result

    def forget(self) -> None:
        """Everything is removed: remove the folder too, except for the lock that is held."""
        for path in self.folder.iterdir() if self.folder.exists() else ():
            if path.name != LOCK:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One ``up`` or ``down`` at a time; raises ConfigError where another is at work."""
        self.folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"testbed {self.folder.name!r} is being set up or taken down by another process; "
                    "use another name, or wait"
                ) from None
            yield
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """A Ctrl-C meanwhile is raised at the end: half a removal would leave the other half behind."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread only
        return
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt
