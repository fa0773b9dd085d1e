"""Files that others may have a hand in, opened without being led astray: links, pipes, devices, sizes.

A path is walked component by component (openat(2), O_NOFOLLOW), so what is looked at is what is opened. A program of
root follows links of root alone: whoever owns a link may point it elsewhere between two looks. Below `Roots` no link
leads out. What is read is a regular file of bounded size, and reading a pipe does not wait for whoever writes.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .errors import ConfigError

MOST_LINKS = 40
"""On the way to one file, as the kernel's own limit (path_resolution(7))."""


@dataclass(frozen=True)
class Roots:
    """Folders that a path given by somebody else must not leave; absolute.

    Attributes:
        folders: each with all that is below it.
        declared: where an operator changes them, for errors.
    """

    folders: tuple[Path, ...]
    declared: str = "reload_roots in the run's configuration"

    def descriptor(self, path: Path, what: str) -> int:
        """What lies at a path below one of them (O_PATH, to be closed); raises ConfigError, OSError."""
        for folder in self.folders:
            for start in (folder, Path(os.path.realpath(folder))):
                if path.is_relative_to(start):
                    root = _walk(_parts(str(start)), None, what)
                    try:
                        return _walk(_parts(str(path.relative_to(start))), root, what)
                    finally:
                        os.close(root)
        accepted = ", ".join(map(str, self.folders)) or "none"
        raise ConfigError(f"{what}: accepted: an absolute path below {accepted} ({self.declared})")


@contextlib.contextmanager
def opened_folder(path: Path, what: str, roots: Roots | None = None) -> Iterator[int]:
    """A folder (O_PATH) for `read_in`, the same one whatever becomes of its path.

    Args:
        path: of the folder.
        what: begins errors.
        roots: where it has to be; None: anywhere.

    Raises:
        ConfigError: not there, not a folder, not below the roots, or reached by somebody else's link.
    """
    missing = f"{what}: no such folder; accepted: a folder that is there"
    with _told(what, missing):
        descriptor = _descriptor(path, what, roots)
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise ConfigError(missing)
        yield descriptor
    finally:
        os.close(descriptor)


def place_of(descriptor: int) -> Path:
    """Where an open folder is now."""
    return Path(f"/proc/self/fd/{descriptor}").readlink()


def read_file(path: Path, most_bytes: int, what: str, roots: Roots | None = None) -> bytes:
    """The contents of a regular file; arguments and errors as `opened_folder`, and no more than ``most_bytes``."""
    with _told(what):
        descriptor = _descriptor(path, what, roots)
        try:
            return _contents(descriptor, most_bytes, what)
        finally:
            os.close(descriptor)


def read_in(folder: int, name: str, most_bytes: int, what: str) -> bytes | None:
    """A regular file of an open folder; None where there is none of that name.

    Raises:
        ConfigError: a link, a pipe, anything but a regular file, or more than ``most_bytes``.
    """
    with _told(what):
        try:
            descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        except FileNotFoundError:
            return None
        try:
            return _contents(descriptor, most_bytes, what)
        finally:
            os.close(descriptor)


def _descriptor(path: Path, what: str, roots: Roots | None) -> int:
    if roots is not None:
        return roots.descriptor(path, what)
    return _walk(_parts(str(Path.cwd() / path)), None, what)


def _contents(descriptor: int, most_bytes: int, what: str) -> bytes:
    """Read an O_PATH descriptor; its kind and size are looked at first."""
    status = os.fstat(descriptor)
    if stat.S_ISDIR(status.st_mode):
        raise ConfigError(f"{what}: Is a directory; accepted: a file")
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{what}: accepted: a file, and no link, pipe or device")
    too_long = ConfigError(f"{what}: more than {most_bytes} bytes; accepted: {most_bytes}")
    if status.st_size > most_bytes:
        raise too_long
    # The same file again, to be read; opening it by name could find another one.
    file = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with os.fdopen(file, "rb") as readable:
        data = readable.read(most_bytes + 1)  # files of /proc have no size, others may grow
    if len(data) > most_bytes:
        raise too_long
    return data


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _walk(parts: list[str], beneath: int | None, what: str) -> int:
    """Descriptor (O_PATH) of what a path leads to from ``/``, or from a folder that it must not leave."""
    start = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
    stack = [os.open("/", start) if beneath is None else os.dup(beneath)]
    pending, links = parts[::-1], 0
    try:
        while pending:
            name = pending.pop()
            if name == "..":  # of where it is, not of where the folder may have gone
                if len(stack) > 1:
                    os.close(stack.pop())
                elif beneath is not None:
                    raise ConfigError(f"{what}: leads out of the declared folders")
                continue
            found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=stack[-1])
            stack.append(found)
            status = os.fstat(found)
            if not stat.S_ISLNK(status.st_mode):
                continue
            if os.geteuid() == 0 != status.st_uid:
                raise ConfigError(f"{what}: {name!r} is a link of user {status.st_uid}; accepted: links of root")
            links += 1
            target = os.readlink("", dir_fd=found)
            os.close(stack.pop())
            if links > MOST_LINKS:
                raise ConfigError(f"{what}: Too many levels of symbolic links")
            if target.startswith("/"):
                if beneath is not None:
                    raise ConfigError(f"{what}: {name!r} is a link out of the declared folders")
                while len(stack) > 1:
                    os.close(stack.pop())
            pending += _parts(target)[::-1]
        return stack.pop()
    finally:
        for descriptor in stack:
            os.close(descriptor)


@contextlib.contextmanager
def _told(what: str, missing: str | None = None) -> Iterator[None]:
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
