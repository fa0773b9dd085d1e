"""Locks on slices and state folders, and the folder that only root can open, for locks and copies of journals.

A lock is flock(2) on a file in that folder, named by the file system and inode of what is locked, because any user who
can open a cgroup's folder could lock that for ever. The lock belongs to the open file description, so that a supervisor
that inherits the descriptor keeps it until it has restored. The empty files stay until the next boot.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import stat
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from slicepilot.configs import ConfigError
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.controller.system.processes import start_ticks

FOR_ROOT = Path("/run/slicepilot-private")


def private_folder() -> Path:
    """The folder, made if it is missing; users other than root have their own, in their home if that can be written.

    Not in a folder that all users can write to, such as /tmp, as long as there is another: its name could be taken.

    Raises:
        ActuatorError: it cannot be made, belongs to another user, or other users can open it.
    """
    user = os.geteuid()
    path = FOR_ROOT if user == 0 else _of_user(user)
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
    except OSError as error:
        raise ActuatorError.of(f"{path}: make a folder for locks", error) from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != user or status.st_mode & 0o077:
        raise ActuatorError(
            f"{path}: {stat.filemode(status.st_mode)} of user {status.st_uid}; expected a folder that only user "
            f"{user} can open; remove it"
        )
    return path


def _of_user(user: int) -> Path:
    """All processes of a user have to agree on it: the home is what the user database says, whatever HOME is."""
    try:
        cache = Path(pwd.getpwuid(user).pw_dir) / ".cache"
        cache.mkdir(parents=True, exist_ok=True)
        if os.access(cache, os.W_OK):
            return cache / "slicepilot-private"
    except (KeyError, OSError):
        pass  # a user that only a container knows, or without a home
    return Path(tempfile.gettempdir()) / f"slicepilot-private-{user}"


LOCK_TABLE = Path("/proc/locks")
RETRY_S = 0.01


class Locks:
    """Takes all locks or none. Use as a context manager or `close`.

    Args:
        folders: what is locked, by its name in messages: slices' cgroups, a controller's state folder.
        patience_s: how long to wait for the supervisor of a controller that has ended.

    Raises:
        ConfigError: another controller has one of them; names the process if it is known.
        ActuatorError: see `private_folder`.
        OSError: a folder does not exist.
    """

    def __init__(self, folders: Mapping[str, Path], patience_s: float = 2.0) -> None:
        self.descriptors: list[int] = []
        deadline = time.monotonic() + patience_s
        try:
            for name, folder in folders.items():
                self._take(name, folder, deadline)
        except BaseException:
            self.close()
            raise

    def add(self, name: str, folder: Path) -> None:
        """Lock another folder; a running supervisor does not hold that lock. Raises as the class does."""
        self._take(name, folder, time.monotonic())

    def _take(self, name: str, folder: Path, deadline: float) -> None:
        self.descriptors.append(descriptor := _open(private_folder(), folder))
        _lock(descriptor, name, folder, deadline)

    def close(self) -> None:
        """Release them, unless a supervisor still has them; more than once does nothing."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []

    def __enter__(self) -> Locks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _open(private: Path, folder: Path) -> int:
    status = folder.stat()
    path = private / f"lock-{status.st_dev:x}-{status.st_ino:x}"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _lock(descriptor: int, name: str, folder: Path, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            holder = holder_of(descriptor)
        # The process that has locked it, even if only its supervisor is left.
        if (holder is None or start_ticks(holder) is not None) or time.monotonic() > deadline:
            process = f"process {holder}" if holder is not None else "a process that cannot be seen from here"
            raise ConfigError(f"{name}: {folder} is controlled by {process}; expected one controller at a time")
        time.sleep(RETRY_S)


def holder_of(descriptor: int) -> int | None:
    """The process that has locked a descriptor's file, from proc_locks(5); None if it is unknown."""
    stat = os.fstat(descriptor)
    wanted = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:{stat.st_ino}"
    for line in LOCK_TABLE.read_text().splitlines():
        words = line.split()
        if len(words) > 5 and words[1] == "FLOCK" and words[5] == wanted and int(words[4]) > 0:
            return int(words[4])
    return None
