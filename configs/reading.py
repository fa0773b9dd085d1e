"""Opening files that other users can influence: their links, pipes, devices and sizes cannot mislead the reader.

A path is walked component by component (openat(2), O_NOFOLLOW), so that what is checked is what is opened. Root follows
only links of root, because the owner of a link can retarget it at any time. Below `Roots` no link leads outside. Only
regular files of bounded size are read, and a pipe is never waited for.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .errors import ConfigError

MOST_LINKS = 40  # on one path, as in the kernel (path_resolution(7))


@dataclass(frozen=True)
class Roots:
    """Folders that a path from an untrusted client must not leave.

    Attributes:
        folders: absolute; everything below them is allowed.
        declared: where an operator configures them, for errors.
    """

    folders: tuple[Path, ...]
    declared: str = "reload_roots in the run's configuration"


@contextlib.contextmanager
def opened_folder(path: Path, what: str, roots: Roots | None = None) -> Iterator[int]:
    """A folder (O_PATH) for `read_in`, which stays the same whatever happens to its path.

    Args:
        path: of the folder.
        what: begins errors.
        roots: where it has to be; None: anywhere.

    Raises:
        ConfigError: it does not exist, is not a folder, is outside the roots, or was reached by another user's link.
    """
    missing = f"{what}: no such folder"
    with _one_line_errors(what, missing):
        descriptor = _open_path(path, what, roots)
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise ConfigError(missing)
        yield descriptor
    finally:
        os.close(descriptor)


def path_of(descriptor: int) -> Path:
    """The current path of an open folder."""
    return Path(f"/proc/self/fd/{descriptor}").readlink()


def read_file(path: Path, most_bytes: int, what: str, roots: Roots | None = None) -> bytes:
    """The contents of a regular file of at most ``most_bytes``; arguments and errors as `opened_folder`."""
    with _one_line_errors(what):
        return _contents(_open_path(path, what, roots), most_bytes, what)


def read_in(folder: int, name: str, most_bytes: int, what: str) -> bytes | None:
    """A regular file of an open folder; None if it does not exist.

    Raises:
        ConfigError: a link, a pipe, anything but a regular file, or more than ``most_bytes``.
    """
    with _one_line_errors(what):
        try:
            descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        except FileNotFoundError:
            return None
        return _contents(descriptor, most_bytes, what)


def _open_path(path: Path, what: str, roots: Roots | None) -> int:
    """Descriptor (O_PATH) of a path, which is below one of the roots if there are some."""
    if roots is None:
        return _walk(str(Path.cwd() / path), None, what)
    for folder in roots.folders:
        for start in (folder, Path(os.path.realpath(folder))):
            if path.is_relative_to(start):
                root = _walk(str(start), None, what)
                try:
                    return _walk(str(path.relative_to(start)), root, what)
                finally:
                    os.close(root)
    below = ", ".join(map(str, roots.folders)) or "none"
    raise ConfigError(f"{what}: expected an absolute path below {below} ({roots.declared})")


def _contents(descriptor: int, most_bytes: int, what: str) -> bytes:
    """Read an O_PATH descriptor after a look at its kind and size, and close it."""
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise ConfigError(f"{what}: Is a directory; expected a file")
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"{what}: expected a regular file, not a link, pipe or device")
        # Reopened through the descriptor: opening the name again could find another file.
        file = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with os.fdopen(file, "rb") as readable:
            data = readable.read(most_bytes + 1)  # the size says nothing: /proc has none, other files may grow
        if len(data) > most_bytes:
            raise ConfigError(f"{what}: more than {most_bytes} bytes, which is the limit")
        return data
    finally:
        os.close(descriptor)


def _walk(path: str, beneath: int | None, what: str) -> int:
    """Descriptor (O_PATH) of what a path leads to from ``/``, or from a folder that it must not leave."""
    stack = [os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) if beneath is None else os.dup(beneath)]
    pending, links = path.split("/")[::-1], 0
    try:
        while pending:
            name = pending.pop()
            if name in ("", "."):
                continue
            if name == "..":  # the parent by which we came; the folder itself may have been moved
                if len(stack) > 1:
                    os.close(stack.pop())
                elif beneath is not None:
                    raise ConfigError(f"{what}: leads out of the declared folders")
                continue
            stack.append(os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=stack[-1]))
            status = os.fstat(stack[-1])
            if not stat.S_ISLNK(status.st_mode):
                continue
            if os.geteuid() == 0 != status.st_uid:
                raise ConfigError(
                    f"{what}: {name!r} is a link of user {status.st_uid}; root follows only links of root"
                )
            links += 1
            target = os.readlink("", dir_fd=stack[-1])
            os.close(stack.pop())
            if links > MOST_LINKS:
                raise ConfigError(f"{what}: Too many levels of symbolic links")
            if target.startswith("/"):
                if beneath is not None:
                    raise ConfigError(f"{what}: {name!r} is a link out of the declared folders")
                while len(stack) > 1:
                    os.close(stack.pop())
            pending += target.split("/")[::-1]
        return stack.pop()
    finally:
        for descriptor in stack:
            os.close(descriptor)


@contextlib.contextmanager
def _one_line_errors(what: str, missing: str | None = None) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ConfigError(missing or f"{what}: {error.strerror}") from error
    except OSError as error:
        raise ConfigError(f"{what}: {error.strerror}") from error
    except ConfigError:
        raise
    except ValueError as error:  # a path that no file can have
        raise ConfigError(missing or f"{what}: no path") from error
