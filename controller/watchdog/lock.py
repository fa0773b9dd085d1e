"""Locks on slices and state folders, and the folder that only root can open, for locks and copies of journals.

A lock is flock(2) on a file in that folder, named by the file system and inode of what is locked, because any user who
can open a cgroup's folder could lock that for ever. The lock belongs to the open file description, so that a supervisor
that inherits the descriptor keeps it until it has restored. Whoever takes or releases locks removes the empty files
that nobody has locked (`sweep`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
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
SWEEP_S = 0.2  # a process that removes files holds the lock of each for microseconds


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
            sweep()
        except BaseException:
            self.close()
            raise

    def add(self, name: str, folder: Path) -> None:
        """Lock another folder; a running supervisor does not hold that lock. Raises as the class does."""
        self._take(name, folder, time.monotonic())

    def _take(self, name: str, folder: Path, deadline: float) -> None:
        take = partial(_lock, name=name, folder=folder, deadline=deadline)
        self.descriptors.append(locked_file(_path_of(folder), take))

    def close(self) -> None:
        """Release them, unless a supervisor still has them; more than once does nothing."""
        if not self.descriptors:
            return
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []
        sweep()

    def __enter__(self) -> Locks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


PREFIX = "lock-"


def _path_of(folder: Path) -> Path:
    status = folder.stat()
    return private_folder() / f"{PREFIX}{status.st_dev:x}-{status.st_ino:x}"


def locked_file(path: Path, lock: Callable[[int], object]) -> int:
    """A descriptor of the file at a path, made if it is missing, that ``lock`` has locked.

    Such files are removed while they are locked: one that was removed between opening and locking is opened again.

    Raises:
        ConfigError: there is anything but a regular file of this user.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    while True:
        descriptor = os.open(path, flags, 0o600)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                raise ConfigError(f"{path}: {stat.filemode(status.st_mode)} of user {status.st_uid}: remove it")
            lock(descriptor)
            if _is_at(descriptor, path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False


def sweep() -> None:
    """Remove the files of locks that nobody holds.

    A file is locked before it is removed, so no lock is lost: a process that opened the file before sees after locking
    that it is not at its path any more, and opens it again. Files that cannot be removed stay.
    """
    with contextlib.suppress(OSError, ActuatorError):
        for path in private_folder().glob(f"{PREFIX}*"):
            with contextlib.suppress(OSError):
                descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if _is_at(descriptor, path):
                        path.unlink()
                finally:
                    os.close(descriptor)


def _lock(descriptor: int, name: str, folder: Path, deadline: float) -> None:
    swept_until = time.monotonic() + SWEEP_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            holder = holder_of(descriptor)
        # The process that has locked it, even if only its supervisor is left.
        lives = holder is None or start_ticks(holder) is not None
        if time.monotonic() > (swept_until if lives else max(deadline, swept_until)):
            raise ConfigError(
                f"{name}: {folder} is controlled by {_described(descriptor, holder)}; expected one controller at a time"
            )
        time.sleep(RETRY_S)


def _described(descriptor: int, holder: int | None) -> str:
    """Who holds a lock, in words: of a controller that has ended, the supervisor that has inherited its lock."""
    if holder is None:
        return "a process that cannot be seen from here"
    if start_ticks(holder) is not None:
        return f"process {holder}"
    heir = next(_heirs(descriptor), None)
    if heir is None:
        return f"process {holder}, which has ended"
    state = _state(heir)
    stopped = f"; it is stopped: continue it (kill -CONT {heir}), and it restores" if state in {"T", "t"} else ""
    return f"process {heir}, the supervisor of process {holder}, which has ended{stopped}"


def _heirs(descriptor: int) -> Iterator[int]:
    """Living processes that share the open file description which a descriptor's file is locked by (proc_pid_fdinfo(5)
    has a line for a lock only there)."""
    wanted = os.fstat(descriptor)
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        with contextlib.suppress(OSError):  # it has ended, or may not be looked at
            for entry in (folder / "fd").iterdir():
                with contextlib.suppress(OSError):
                    same = os.path.samestat(entry.stat(), wanted)
                    if same and "FLOCK" in (folder / "fdinfo" / entry.name).read_text():
                        yield int(folder.name)
                        break


def _state(pid: int) -> str:
    """One letter, see proc_pid_stat(5); empty for a process that has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return ""


def controller_of(folder: Path) -> str | None:
    """Who has locked a folder, in words; None if nobody has, or if that cannot be seen. Takes no lock itself."""
    try:
        descriptor = os.open(_path_of(folder), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (OSError, ActuatorError):
        return None
    try:
        holder = holder_of(descriptor)
        return None if holder is None else _described(descriptor, holder)
    finally:
        os.close(descriptor)


def holder_of(descriptor: int) -> int | None:
    """The process that has locked a descriptor's file, from proc_locks(5); None if it is unknown."""
    stat = os.fstat(descriptor)
    wanted = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:{stat.st_ino}"
    for line in LOCK_TABLE.read_text().splitlines():
        words = line.split()
        if len(words) > 5 and words[1] == "FLOCK" and words[5] == wanted and int(words[4]) > 0:
            return int(words[4])
    return None
