"""seccomp(2): allow-lists of system calls as BPF programs, built and installed without a library.

The supervisor runs without site-packages, so this needs the standard library alone. Structures and constants:
linux/seccomp.h, linux/filter.h, linux/audit.h; Documentation/userspace-api/seccomp_filter.rst.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .calls import NEWEST, NUMBERS

ALLOW, ERRNO, KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32_BIT = 0x40000000
"""Of the numbers of x86-64's second ABI, which the kernel reports as the same architecture."""
SET_MODE_FILTER, TSYNC = 1, 1
PR_SET_NO_NEW_PRIVS = 38
_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_GREATER, _JUMP_IF_NOT_LESS, _AND, _RETURN = 0x20, 0x15, 0x25, 0x35, 0x54, 0x06
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data, of which the low half comes first
_SECCOMP = {"x86_64": 317, "aarch64": 277}


@dataclass(frozen=True)
class Only:
    """A call is allowed if an argument, which the kernel takes as 32 bits, has one of some values.

    Attributes:
        argument: which one, from 0.
        values: after masking.
        mask: bits that are looked at.
    """

    argument: int
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF


@dataclass(frozen=True)
class Rules:
    """Of one process.

    Attributes:
        allowed: calls by name.
        conditions: calls that are allowed with some arguments only.
        fatal: calls that end the process.
        otherwise: what becomes of all other calls; EPERM, but for those who look which calls there are.
    """

    allowed: frozenset[str]
    conditions: Mapping[str, Only]
    fatal: frozenset[str] = frozenset()
    otherwise: int = ERRNO | errno.EPERM


class NoSeccompError(Exception):
    """The filter cannot be had here; the message says why."""


def program(rules: Rules, machine: str) -> bytes:
    """The filter for a processor: ``struct sock_filter`` by ``struct sock_filter``.

    Another ABI than the processor's own ends the process: nothing here uses one, and their numbers mean other calls.
    Calls that are newer than this table fail with ENOSYS, so that libc does without them; so does clone3(2), whose
    flags no filter can see.

    Args:
        machine: as `platform.machine` names it; raises KeyError for one that is not known here.
    """
    column = list(AUDIT_ARCH).index(machine)
    numbers = {name: number for name, pair in NUMBERS.items() if (number := pair[column]) is not None}
    code = [
        _step(_LOAD, _ARCH),
        _step(_JUMP_IF_EQUAL, AUDIT_ARCH[machine], 1, 0),
        _step(_RETURN, KILL_PROCESS),
        _step(_LOAD, _NUMBER),
        _step(_JUMP_IF_NOT_LESS, X32_BIT, 0, 1),
        _step(_RETURN, KILL_PROCESS),
        _step(_JUMP_IF_GREATER, NEWEST, 0, 1),
        _step(_RETURN, ERRNO | errno.ENOSYS),
    ]
    for name, condition in rules.conditions.items():
        if name in numbers:
            code += _conditional(numbers[name], condition)
    for names, action in ((("clone3",), ERRNO | errno.ENOSYS), (sorted(rules.fatal), KILL_PROCESS)):
        for name in names:
            if name in numbers:
                code += [_step(_JUMP_IF_EQUAL, numbers[name], 0, 1), _step(_RETURN, action)]
    # What has a condition was decided above.
    for first, last in _ranges(numbers[name] for name in rules.allowed if name in numbers):
        code += [
            _step(_JUMP_IF_GREATER, last, 2, 0),
            _step(_JUMP_IF_NOT_LESS, first, 0, 1),
            _step(_RETURN, ALLOW),
        ]
    code.append(_step(_RETURN, rules.otherwise))
    return b"".join(code)


def install(rules: Rules) -> None:
    """Put the calling process's threads, and all that it starts, under these rules for good.

    Raises:
        NoSeccompError: a kernel or a processor that does not have it, or a thread that cannot follow.
    """
    machine = platform.machine()
    if machine not in AUDIT_ARCH:
        raise NoSeccompError(f"no list of system calls for {machine}")
    code = program(rules, machine)
    buffer = ctypes.create_string_buffer(code, len(code))
    pointer = struct.pack("@HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_NO_NEW_PRIVS, *(ctypes.c_ulong(value) for value in (1, 0, 0, 0)))
    libc.syscall.restype = ctypes.c_long
    arguments = (_SECCOMP[machine], SET_MODE_FILTER, TSYNC)
    result = libc.syscall(*map(ctypes.c_long, arguments), ctypes.c_char_p(pointer))
    if result:
        number = ctypes.get_errno()
        why = f"thread {result} cannot follow" if result > 0 else os.strerror(number)
        raise NoSeccompError(f"seccomp: {why}")


def available() -> str:
    """Why the kernel or this processor has no filters; empty where it has them."""
    machine = platform.machine()
    if machine not in AUDIT_ARCH:
        return f"no list of system calls for {machine}"
    libc = ctypes.CDLL(None, use_errno=True)
    # Without a program the kernel that has filters says EFAULT.
    libc.syscall(*map(ctypes.c_long, (_SECCOMP[machine], SET_MODE_FILTER, 0, 0)))
    number = ctypes.get_errno()
    return "" if number == errno.EFAULT else f"seccomp: {os.strerror(number)}"


def _conditional(number: int, only: Only) -> list[bytes]:
    """Allow it with one of the values, else EPERM. The number is in the accumulator before, and after where skipped."""
    tests = [step for value in only.values for step in (_step(_JUMP_IF_EQUAL, value, 0, 1), _step(_RETURN, ALLOW))]
    body = [
        _step(_LOAD, _ARGUMENTS + 8 * only.argument),
        _step(_AND, only.mask),
        *tests,
        _step(_RETURN, ERRNO | errno.EPERM),
    ]
    return [_step(_JUMP_IF_EQUAL, number, 0, len(body)), *body]


def _ranges(numbers: Iterable[int]) -> Sequence[tuple[int, int]]:
    """Runs of consecutive numbers, ascending."""
    found: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("@HBBI", code, if_true, if_false, value)
