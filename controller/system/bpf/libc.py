"""Functions of libc that the standard library does not have."""

from __future__ import annotations

import ctypes
import os

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_READ, PR_CAPBSET_DROP = 1, 4, 23, 24  # linux/prctl.h
PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 38, 47


def call(function: str, *arguments: int) -> int:
    """Call a function of longs that returns -1 on failure; raises OSError with the function's name."""
    result = int(getattr(ctypes.CDLL(None, use_errno=True), function)(*map(ctypes.c_ulong, arguments)))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), function)
    return result


def prctl(option: int, argument: int) -> int:
    """prctl(2) with an argument; raises OSError."""
    return call("prctl", option, argument, 0, 0, 0)
