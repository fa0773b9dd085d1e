"""Landlock: which files a process may still open, whatever its user could. Linux 5.13 and newer.

Documentation/userspace-api/landlock.rst, linux/landlock.h; no library. What a process has open stays usable.

A process under Landlock may look at no process outside of its own rules, not even at the namespaces of one
(``/proc/PID/ns/net``). Controller and supervisor find UPFs that have moved that way, so it is for the publisher alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path

# The same on every processor: linux/unistd.h, numbers from 424 on.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _PATH_BENEATH = 1, 1
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_BY_VERSION = {1: 13, 2: 14, 3: 15, 5: 16}
"""How many kinds of access to files there are; 2 brought renames between folders, 3 truncating, 5 ioctl on devices."""
_NETWORK_VERSION, _SCOPE_VERSION = 4, 6
_NETWORK = 0b11
"""Binding and connecting by TCP."""
_SCOPES = 0b11
"""Connecting to abstract sockets of, and signals to, processes outside."""
_OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | 1 << 14 | 1 << 15
PR_SET_NO_NEW_PRIVS = 38


class NoLandlockError(Exception):
    """It cannot be had here; the message says why."""


def version() -> int:
    """Of the kernel's interface; 0 where it has none, or has it switched off."""
    return max(0, _call(_CREATE_RULESET, None, 0, _VERSION))


def handled(interface: int) -> tuple[int, int, int]:
    """What a set of rules forbids unless a rule allows it: bits of access to files, to the network, of scopes."""
    count = max((bits for since, bits in _BY_VERSION.items() if since <= interface), default=0)
    network = _NETWORK if interface >= _NETWORK_VERSION else 0
    return (1 << count) - 1, network, _SCOPES if interface >= _SCOPE_VERSION else 0


def restrict(readable: Iterable[Path], writable: Iterable[Path], connects: bool = False) -> int:
    """Leave the calling thread, and threads and processes that it starts, these folders and files alone, for good.

    No TCP connection can be made or port bound any more, and no signal be sent to a process outside. Call it before
    other threads start: they would go on as they were.

    Args:
        readable: to be read with all that is below them.
        writable: folders in which files are made, written, renamed and removed, too. What is not there, or what the
            user cannot reach anyway, is left out.
        connects: leave the network as it is.

    Returns:
        the version of the kernel's interface, by which it forbids more or less.

    Raises:
        NoLandlockError: a kernel without it.
        OSError: a rule that the kernel refuses.
    """
    interface = version()
    if not interface:
        raise NoLandlockError("landlock: not in this kernel, or switched off")
    files, network, scopes = handled(interface)
    if connects:
        network = 0
    attributes = struct.pack("@QQQ", files, network, scopes)
    size = 8 if interface < _NETWORK_VERSION else 16 if interface < _SCOPE_VERSION else 24
    ruleset = _checked(_CREATE_RULESET, attributes, size, 0)
    try:
        rules = [(path, READ_FILE | READ_DIR) for path in readable]
        rules += [(path, files & ~EXECUTE) for path in writable]
        for path, access in rules:
            with contextlib.suppress(FileNotFoundError, PermissionError):
                _allow(ruleset, path, access)
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_NO_NEW_PRIVS, *(ctypes.c_ulong(value) for value in (1, 0, 0, 0)))
        _checked(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
    return interface


def _allow(ruleset: int, path: Path, access: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not path.is_dir():
            access &= _OF_FILES
        # struct landlock_path_beneath_attr is packed.
        _checked(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", access, descriptor), 0)
    finally:
        os.close(descriptor)


def _checked(number: int, *arguments: int | bytes | None) -> int:
    result = _call(number, *arguments)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), "landlock")
    return result


def _call(number: int, *arguments: int | bytes | None) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    values = (ctypes.c_char_p(one) if isinstance(one, bytes) else ctypes.c_void_p(one) for one in arguments)
    return int(libc.syscall(ctypes.c_long(number), *values))
