"""An agent's place on its machine: one process at a time has it, and whoever comes next is known by the same name."""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from pathlib import Path

from slicepilot.configs import FailureError
from slicepilot.data.files import replace_file

LOCK, NAME, READY = "agent.lock", "agent.name", "ready"


class AgentPlace:
    """A folder that only root can open, with a lock that goes with the process that has it (flock(2)).

    The name that is left there is the one by which a Lease knows the agent: an agent that was killed is followed by one
    that has the Lease at once, and need not wait until it has run out.

    Args:
        folder: made where it is not there.

    Raises:
        FailureError: it cannot be had.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.chmod(0o700)
            self._lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise FailureError(f"{folder}: {error.strerror or error}") from error

    def take(self) -> bool:
        """Whether it is ours now."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        self.tell_ready(False)  # what one that was killed has left
        return True

    def tell_ready(self, ready: bool = True) -> None:
        """Whether the agent acts for its node and knows what is declared, by a file: a probe of the kubelet looks."""
        path = self.folder / READY
        with contextlib.suppress(OSError):  # a full disk; it is tried again
            if not ready:
                path.unlink(missing_ok=True)
            elif not path.exists():
                path.touch(0o600)

    def name(self) -> str:
        """Of whoever has the place; made up once."""
        path = self.folder / NAME
        try:
            found = path.read_text().strip()
        except OSError:
            found = ""
        if not found.isalnum():
            found = uuid.uuid4().hex
            replace_file(path, found.encode(), 0o600)
        return found

    def close(self) -> None:
        """Leave it to others."""
        os.close(self._lock)
