"""Atomic writes: to a temporary file, which is flushed to disk and renamed; and types of files.

All files are written with these functions, which replace an existing file and never write to it, since in another
user's folder it may be a link to anything.

Only the standard library is imported: the supervisor, which must stay tiny, writes with these functions too.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

READABLE, PRIVATE = 0o644, 0o600
LEFTOVERS = ".*.[0-9]*"  # glob of what a writer that was killed leaves behind


def what_else(path: Path) -> str | None:
    """Type of a path that is neither a regular file nor a folder, such as ``is a FIFO (named pipe)``; else None.

    The path is not opened, because opening a FIFO waits for a writer and a device may have no end.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return "is a symbolic link to nothing" if path.is_symlink() else "does not exist"
    except OSError as error:
        return "is a symbolic link loop" if error.errno == errno.ELOOP else f"cannot be read ({error.strerror})"
    except ValueError:
        return "is no path"  # it holds a NUL
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return None
    if stat.S_ISFIFO(mode):
        return "is a FIFO (named pipe)"
    return "is a socket" if stat.S_ISSOCK(mode) else "is a device"


def write_synced(path: Path, data: bytes, mode: int = READABLE) -> None:
    """Write a new file and wait until it is on disk; raises OSError, also for an existing path.

    An existing path is not written to, because in another user's folder it may be a link to anything.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes, mode: int = READABLE) -> None:
    """Replace a file's contents in one step: readers see the old or the new contents, never half of either.

    Raises:
        OSError: it cannot be written; the old file is untouched and nothing else is left behind.
    """
    with replacing(path, mode) as file:
        file.write(data)


@contextlib.contextmanager
def replacing(path: Path, mode: int = READABLE) -> Iterator[io.BufferedRandom]:
    """A new file to write to and read from, in pieces, which in the end replaces ``path``, or is removed on failure.

    Raises:
        OSError: as `replace_file`.
    """
    file, staging = _staged(path, mode)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        staging.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            staging.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def created(path: Path) -> io.BufferedRandom:
    """A new, empty file that replaces any older file, and that others may read while it grows; raises OSError."""
    file, staging = _staged(path, READABLE)
    try:
        staging.replace(path)
    except BaseException:
        file.close()
        with contextlib.suppress(OSError):
            staging.unlink(missing_ok=True)
        raise
    return file


def appended(path: Path) -> BinaryIO:
    """A file to add to, made if it is not there; raises OSError, also where it is a link."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, READABLE), "a+b")


def _staged(path: Path, mode: int) -> tuple[io.BufferedRandom, Path]:
    """A new file beside ``path`` and its path."""
    problem = what_else(path)
    if (problem is not None and path.exists()) or os.path.realpath(path.parent) == "/dev":
        # Replacing a device such as /dev/null or the link /dev/stdout would remove it for all users.
        raise FileExistsError(errno.EEXIST, f"{problem or 'is no regular file'}; expected a regular file", str(path))
    staging = path.with_name(f".{path.name}.{os.getpid()}")
    staging.unlink(missing_ok=True)  # of a writer of this process id that was killed
    descriptor = os.open(staging, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    return os.fdopen(descriptor, "w+b"), staging


def remove_file(path: Path) -> None:
    """Remove a file, if it is there, and wait until that is on disk; raises OSError."""
    path.unlink(missing_ok=True)
    sync_folder(path.parent)


def replace_folder(target: Path, parts: Mapping[str, bytes]) -> None:
    """Write a folder of files, in place of the folder that is there, which is kept until that has succeeded.

    Raises:
        OSError: it cannot be written; what was at the target is untouched.
    """
    import shutil  # with zlib and its like, which the supervisor has no use for
    import tempfile

    target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    old = staging.with_name(f"{staging.name}.old")
    try:
        for name, data in parts.items():
            write_synced(staging / name, data)
        staging.chmod(0o755)
        sync_folder(staging)
        if target.exists():
            target.rename(old)
        try:
            staging.rename(target)
        except BaseException:
            if old.exists():
                old.rename(target)
            raise
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    sync_folder(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Wait until the folder's entries are on disk; raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
