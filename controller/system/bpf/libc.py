"""Functions of libc that the standard library does not have."""

from __future__ import annotations

import ctypes
import errno
import os
import platform

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_READ, PR_CAPBSET_DROP = 1, 4, 23, 24  # linux/prctl.h
_BPF = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361, "s390x": 351}  # asm/unistd.h
PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 38, 47


def call(function: str, *arguments: int) -> int:
    """Call a function of longs that returns -1 on failure; raises OSError with the function's name."""
    result = int(getattr(ctypes.CDLL(None, use_errno=True), function)(*map(ctypes.c_ulong, arguments)))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), function)
    return result


def bpf(command: int, attribute: ctypes.Array[ctypes.c_char] | ctypes.Structure) -> int:
    """bpf(2) with a ``union bpf_attr``, which the kernel may write to; raises OSError."""
    number = _BPF.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"bpf(2) is not known for {platform.machine()}")
    return call("syscall", number, command, ctypes.addressof(attribute), ctypes.sizeof(attribute))


def prctl(option: int, argument: int) -> int:
    """prctl(2) with an argument; raises OSError."""
    return call("prctl", option, argument, 0, 0, 0)
