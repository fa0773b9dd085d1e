"""The lock of a machine's agent: one process at a time holds it, and its successors keep its identity."""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from pathlib import Path

from slicepilot.configs import FailureError
from slicepilot.data.files import replace_file

LOCK, IDENTITY, READY = "agent.lock", "agent.name", "ready"


class AgentLock:
    """A folder that only root can open, with a lock that ends with the process that holds it (flock(2)).

    The identity stored there is that of the agent's Leases: an agent that was killed is followed by an agent that has
    them at once, without waiting until they expire.

    Args:
        folder: made if it does not exist.

    Raises:
        FailureError: it cannot be made or opened.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.chmod(0o700)
            self._lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise FailureError(f"{folder}: {error.strerror or error}") from error

    def acquire(self) -> bool:
        """Try to take the lock; returns whether this process holds it now."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        self.mark_ready(False)  # the file of an agent that was killed
        return True

    def mark_ready(self, ready: bool = True) -> None:
        """Set, by a file for the kubelet's probe, whether the agent acts for its node and knows the SliceSets."""
        path = self.folder / READY
        with contextlib.suppress(OSError):  # a full disk; it is tried again
            if not ready:
                path.unlink(missing_ok=True)
            elif not path.exists():
                path.touch(0o600)

    def identity(self) -> str:
        """Identity of the agents that hold this lock in succession; drawn once."""
        path = self.folder / IDENTITY
        try:
            text = path.read_text().strip()
        except OSError:
            text = ""
        if not text.isalnum():
            text = uuid.uuid4().hex
            replace_file(path, text.encode(), 0o600)
        return text

    def close(self) -> None:
        os.close(self._lock)
