"""Files of the kernel: files that control something, kept open, and lines with names that others have chosen.

Kept descriptors make a write under a microsecond where open, write and close take ten, and `os.pwrite` reports the
kernel's EINVAL, which ``open(path, "w").write(value)`` loses in the flush.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from slicepilot.configs import FailureError

# A cgroup that was removed answers ENODEV on descriptors that are still open, and ENOENT on its path.
VANISHED = frozenset({errno.ENODEV, errno.ENOENT})
READ_BYTES = 1 << 16


class ActuatorError(FailureError):
    """A knob could not be read, set or restored; the message names the file or device, the value and the reason.

    Attributes:
        errno: the kernel's error number, or 0.
    """

    def __init__(self, message: str, number: int = 0) -> None:
        super().__init__(message)
        self.errno = number

    @classmethod
    def of(cls, what: str, error: OSError) -> ActuatorError:
        """``what: Invalid argument (EINVAL)``."""
        number = error.errno or 0
        return cls(f"{what}: {os.strerror(number)} ({errno.errorcode.get(number, number)})", number)

    @property
    def exists(self) -> bool:
        """Whether what was to be made is there already."""
        return self.errno == errno.EEXIST

    @property
    def vanished(self) -> bool:
        """Whether the thing is gone: there is nothing left to set or restore."""
        return self.errno in VANISHED


def kernel_lines(path: Path, errors: str = "surrogateescape") -> list[str]:
    """Lines of a file under /proc, with names of processes, groups and mounts in them; raises OSError.

    An attacker takes a name that is no text, or a name with what Python takes for the end of a line and the kernel
    does not (`str.splitlines`): a line of its own.

    Args:
        path: of the file.
        errors: what becomes of bytes that are no UTF-8: as they come, they are the same again where a name is used as a
            path (PEP 383), and cannot be printed.
    """
    text = path.read_bytes().decode("utf-8", errors)
    return text.removesuffix("\n").split("\n") if text else []


class KernelFile:
    """A file under /sys or /proc, read and written at offset 0 through one descriptor.

    Raises:
        ActuatorError: it cannot be opened, read or written.
    """

    def __init__(self, path: Path, *, writable: bool = True) -> None:
        self.path = path
        try:
            self._fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        except OSError as error:
            raise ActuatorError.of(f"{os.path.realpath(path)}: open", error) from error

    def read(self) -> bytes:
        try:
            return os.pread(self._fd, READ_BYTES, 0)
        except OSError as error:
            raise ActuatorError.of(f"{self._real_path()}: read", error) from error

    def write(self, value: bytes) -> None:
        """Replace the content; the kernel takes a value whole or refuses it."""
        try:
            os.pwrite(self._fd, value, 0)
        except OSError as error:
            raise ActuatorError.of(f"{self._real_path()}: write {value.decode()!r}", error) from error

    def _real_path(self) -> str:
        """Without links, for errors: those to UPFs (`slicepilot.node.find.links`) are of no use to an operator."""
        try:
            return str(Path(f"/proc/self/fd/{self._fd}").readlink())
        except OSError:
            return str(self.path)

    def close(self) -> None:
        """Release the descriptor; more than once does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
