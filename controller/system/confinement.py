"""Restricts a process after its start: system calls (seccomp) and files (Landlock), without a library.

A filter refuses calls that a process never needs and an attacker does: starting programs, tracing, mounting, entering
namespaces, loading code into the kernel, becoming another user. It does not list what is allowed, so a new Python or
ONNX Runtime does not need a new list. The supervisor runs without site-packages: this needs the standard library alone.

Sources: linux/seccomp.h, linux/filter.h, linux/audit.h, linux/landlock.h;
Documentation/userspace-api/seccomp_filter.rst and landlock.rst.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import errno
import os
import platform
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .bpf.libc import PR_SET_NO_NEW_PRIVS, prctl
from .bpf.pinned import ELEMENTS

OFF = "off (harden: false)"


class NotConfinedError(Exception):
    """The kernel or the processor does not have it; the message says why."""


# -- rules -------------------------------------------------------------------------------------------------------------

NEWEST = 450
"""System call of Linux 6.1 with the highest number; higher numbers fail with ENOSYS, and libc does without them."""
# By name: numbers of x86-64 and of arm64 (asm/unistd_64.h, asm-generic/unistd.h).
_TABLE = """
    socket 41 198, socketpair 53 199, clone 56 220, fork 57 -, vfork 58 -, execve 59 221, kill 62 129, ptrace 101 117,
    syslog 103 116, setuid 105 146, setgid 106 144, setreuid 113 145, setregid 114 143, setgroups 116 159,
    setresuid 117 147, setresgid 119 149, setfsuid 122 151, setfsgid 123 152, capset 126 91, setpriority 141 140,
    sched_setparam 142 118, sched_setscheduler 144 119, pivot_root 155 41, prctl 157 167, chroot 161 51, acct 163 89,
    settimeofday 164 170, mount 165 40, umount2 166 39, swapon 167 224, swapoff 168 225, reboot 169 142,
    sethostname 170 161, setdomainname 171 162, iopl 172 -, ioperm 173 -, init_module 175 105, delete_module 176 106,
    quotactl 179 60, tkill 200 130, clock_settime 227 112, kexec_load 246 104, add_key 248 217, request_key 249 218,
    keyctl 250 219, unshare 272 97, perf_event_open 298 241, open_by_handle_at 304 265, setns 308 268,
    process_vm_readv 310 270, process_vm_writev 311 271, finit_module 313 273, sched_setattr 314 274,
    kexec_file_load 320 294, bpf 321 280, execveat 322 281, userfaultfd 323 282, io_uring_setup 425 425,
    open_tree 428 428, move_mount 429 429, fsopen 430 430, fsmount 432 432, fspick 433 433, clone3 435 435,
    pidfd_getfd 438 438, mount_setattr 442 442
"""
_NUMBERS_OF = {"x86_64": 1, "aarch64": 2}
NUMBERS = {
    machine: {words[0]: int(words[column]) for words in map(str.split, _TABLE.split(",")) if words[column] != "-"}
    for machine, column in _NUMBERS_OF.items()
}
"""Numbers of system calls, by processor and name."""

CLONE_NEWNET, _CLONE_THREAD = 0x40000000, 0x00010000
_NEW_NAMESPACES = 0x7E020080  # CLONE_NEW*: uts, ipc, user, pid, net, cgroup, mount, time


@dataclass(frozen=True)
class Only:
    """A call is allowed if an argument, which the kernel takes as 32 bits, has one of some values.

    Attributes:
        argument: its index, from 0.
        values: after masking.
        mask: bits that are looked at.
    """

    argument: int
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF


@dataclass(frozen=True)
class Rules:
    """Rules of a process.

    Attributes:
        refused: calls that fail with EPERM.
        fatal: calls that end the process.
        conditions: calls that are allowed with some arguments only; else EPERM.
    """

    refused: frozenset[str]
    conditions: Mapping[str, Only]
    fatal: frozenset[str] = frozenset()


def _calls(*lists: str) -> frozenset[str]:
    return frozenset(name for words in lists for name in words.split())


def _sockets(*families: socket.AddressFamily) -> dict[str, Only]:
    local = Only(0, (int(socket.AF_UNIX),))
    return {"socket": Only(0, tuple(map(int, families))), "socketpair": local}


# Debugging others, mounts and roots, namespaces, modules, keys, io_uring, the machine's own settings.
_NEVER = """
    ptrace process_vm_readv process_vm_writev pidfd_getfd perf_event_open userfaultfd io_uring_setup
    mount mount_setattr move_mount open_tree fsopen fsmount fspick pivot_root chroot unshare open_by_handle_at
    init_module finit_module delete_module kexec_load kexec_file_load add_key request_key keyctl
    iopl ioperm reboot swapon swapoff acct quotactl settimeofday clock_settime sethostname setdomainname syslog
"""
_PROGRAMS = "execve execveat fork vfork umount2"
_IDENTITY = "setuid setgid setreuid setregid setresuid setresgid setgroups setfsuid setfsgid capset"
_OTHERS = "kill tkill sched_setparam sched_setattr"
_THREADS_ALONE = {"clone": Only(0, (_CLONE_THREAD,), _NEW_NAMESPACES | _CLONE_THREAD)}
_NETWORK_NAMESPACES = {"setns": Only(1, (CLONE_NEWNET,))}
# Names of threads and of memory, and whether a capability is in the bounding set.
_PRCTL = {"prctl": Only(0, (15, 16, 23, 0x53564D41))}
_INTERNET = (socket.AF_UNIX, socket.AF_NETLINK, socket.AF_INET, socket.AF_INET6)

CONTROLLER = Rules(
    _calls(_NEVER, "umount2"),
    {"clone": Only(0, (0,), _NEW_NAMESPACES), **_NETWORK_NAMESPACES, **_sockets(*_INTERNET)},
)
"""Child processes inherit the rules, so these permit starting them. Refused calls fail with EPERM: killing the
controller would stop control."""
SUPERVISOR = Rules(
    _calls(_NEVER, _PROGRAMS, _IDENTITY, _OTHERS, "bpf"),
    {**_THREADS_ALONE, **_NETWORK_NAMESPACES, **_sockets(socket.AF_UNIX, socket.AF_NETLINK), **_PRCTL},
)
"""Refused calls do not kill the supervisor, since a killed supervisor restores nothing."""
SUPERVISOR_OF_MAPS = Rules(SUPERVISOR.refused - {"bpf"}, {**SUPERVISOR.conditions, "bpf": Only(0, ELEMENTS)})
"""A supervisor with Cilium's maps open: it may read and write their elements, but not open, create or load objects."""
PUBLISHER = Rules(
    _calls(_OTHERS, "setpriority sched_setscheduler"),
    {**_THREADS_ALONE, **_sockets(socket.AF_UNIX), **_PRCTL},
    _calls(_NEVER, _PROGRAMS, _IDENTITY, "bpf setns"),
)
"""The publisher talks to any client, so system calls that it never makes kill it; it is started again then."""


# -- processes ---------------------------------------------------------------------------------------------------------

_PACKAGE = Path(__file__).resolve().parents[2]  # in an editable installation `sys.path` leads to links to it
_READABLE = ("/etc", "/proc", "/sys/devices/system", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/lib", "/lib64")


def confine_controller(own_testbed: bool = False) -> str:
    """Confine the loop, and the processes that it starts; returns the result as a text.

    Args:
        own_testbed: it has brought up a testbed, whose namespaces (mounts) it removes at the end.
    """
    refused = CONTROLLER.refused - ({"umount2"} if own_testbed else set())
    return _outcome(lambda: filter_calls(dataclasses.replace(CONTROLLER, refused=refused)))


def confine_supervisor(maps: bool = False) -> str:
    """Confine the process that restores knobs; returns the result as a text.

    Args:
        maps: it has BPF maps open in which it has to put something back.
    """
    return _outcome(lambda: filter_calls(SUPERVISOR_OF_MAPS if maps else SUPERVISOR))


def confine_publisher(writable: Sequence[Path]) -> str:
    """Confine the process that answers clients and writes records; returns the result as a text.

    Args:
        writable: folders it writes in; Python, its packages and what libc looks up it may read.
    """
    readable = {sys.prefix, sys.base_prefix, *filter(None, sys.path), str(_PACKAGE), *_READABLE}
    files = _outcome(lambda: f"landlock {restrict_files(map(Path, sorted(readable)), writable)}")
    return f"{_outcome(lambda: filter_calls(PUBLISHER))}, {files}"


def _outcome(action: Callable[[], str | None]) -> str:
    """The result of an action as a text for the log and the status, also if the kernel does not support it."""
    try:
        return action() or "seccomp"
    except NotConfinedError as error:
        return f"NOT CONFINED ({error})"


# -- seccomp -----------------------------------------------------------------------------------------------------------

ALLOW, ERRNO, KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32_BIT = 0x40000000
"""Bit in the numbers of x86-64's second ABI (x32), which the kernel reports as the same architecture."""
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SET_MODE_FILTER, _TSYNC = 1, 1
_LOAD, _IF_EQUAL, _IF_GREATER, _IF_NOT_LESS, _AND, _RETURN = 0x20, 0x15, 0x25, 0x35, 0x54, 0x06
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data, of which the low half comes first


def program(rules: Rules, machine: str) -> bytes:
    """The filter for a processor: ``struct sock_filter`` by ``struct sock_filter``.

    Another ABI than the processor's own ends the process: nothing here uses another, and its numbers mean other calls.
    clone3(2), whose flags no filter can see, fails with ENOSYS, so that libc uses clone(2).

    Args:
        machine: as `platform.machine` names it; raises KeyError for a processor that is not known here.
    """
    numbers = NUMBERS[machine]
    code = [
        *(_step(_LOAD, _ARCH), _step(_IF_EQUAL, AUDIT_ARCH[machine], 1, 0), _step(_RETURN, KILL_PROCESS)),
        *(_step(_LOAD, _NUMBER), _step(_IF_NOT_LESS, X32_BIT, 0, 1), _step(_RETURN, KILL_PROCESS)),
        *(_step(_IF_GREATER, NEWEST, 0, 1), _step(_RETURN, ERRNO | errno.ENOSYS)),
        *(_step(_IF_EQUAL, numbers["clone3"], 0, 1), _step(_RETURN, ERRNO | errno.ENOSYS)),
    ]
    for name, only in rules.conditions.items():
        body = [_step(_LOAD, _ARGUMENTS + 8 * only.argument), _step(_AND, only.mask)]
        for value in only.values:
            body += [_step(_IF_EQUAL, value, 0, 1), _step(_RETURN, ALLOW)]
        body.append(_step(_RETURN, ERRNO | errno.EPERM))
        code += [_step(_IF_EQUAL, numbers[name], 0, len(body)), *body]
    for names, action in ((rules.refused, ERRNO | errno.EPERM), (rules.fatal, KILL_PROCESS)):
        for name in sorted(names & numbers.keys()):
            code += [_step(_IF_EQUAL, numbers[name], 0, 1), _step(_RETURN, action)]
    return b"".join([*code, _step(_RETURN, ALLOW)])


def filter_calls(rules: Rules) -> None:
    """Put the process's threads, and all that it starts, under these rules for good; raises NotConfinedError."""
    if reason := without_seccomp():
        raise NotConfinedError(reason)
    code = program(rules, platform.machine())
    buffer = ctypes.create_string_buffer(code, len(code))
    pointer = struct.pack("@HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    result = _call(_SECCOMP[platform.machine()], _SET_MODE_FILTER, _TSYNC, pointer)
    if result:
        reason = f"thread {result} cannot follow" if result > 0 else os.strerror(ctypes.get_errno())
        raise NotConfinedError(f"seccomp: {reason}")


def without_seccomp() -> str:
    """Why the kernel or this processor has no filters; empty where it has them."""
    machine = platform.machine()
    if machine not in AUDIT_ARCH:
        return f"no list of system calls for {machine}"
    # Without a program the kernel that has filters says EFAULT.
    _call(_SECCOMP[machine], _SET_MODE_FILTER, 0, None)
    number = ctypes.get_errno()
    return "" if number == errno.EFAULT else f"seccomp: {os.strerror(number)}"


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("@HBBI", code, if_true, if_false, value)


# -- Landlock: Linux 5.13 and newer ------------------------------------------------------------------------------------

# A process under it may look at no process outside, not even at its namespaces (``/proc/PID/ns/net``).
# Controller and supervisor find UPFs that have moved that way, so it is for the others alone.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # on every processor
_VERSION, _PATH_BENEATH = 1, 1
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | 1 << 14 | 1 << 15
_KINDS_BY_VERSION = {1: 13, 2: 14, 3: 15, 5: 16}
"""How many kinds of access to files there are; 2 brought renames between folders, 3 truncating, 5 ioctl on devices."""
_NETWORK_VERSION, _SCOPE_VERSION = 4, 6
_TCP, _SCOPES = 0b11, 0b11  # binding and connecting; abstract sockets of processes outside, and signals to them


def landlock_version() -> int:
    """Version of the kernel's Landlock interface; 0 if it is missing or switched off."""
    return max(0, _call(_CREATE_RULESET, None, 0, _VERSION))


def handled(interface: int) -> tuple[int, int, int]:
    """Accesses that are forbidden unless a rule allows them: bits for files, for the network, for scopes."""
    count = max((bits for since, bits in _KINDS_BY_VERSION.items() if since <= interface), default=0)
    return (1 << count) - 1, _TCP * (interface >= _NETWORK_VERSION), _SCOPES * (interface >= _SCOPE_VERSION)


def restrict_files(readable: Iterable[Path], writable: Iterable[Path]) -> int:
    """Leave the calling thread, and threads and processes that it starts, these folders and files alone, for good.

    No TCP connection can be made or port bound any more, and no signal be sent to a process outside. What is open stays
    usable. Call it before other threads start: they would go on as they were.

    Args:
        readable: to be read with all that is below them.
        writable: folders in which files are made, written, renamed and removed, too. What is not there, or what the
            user cannot reach anyway, is left out.

    Returns:
        the version of the kernel's interface, by which it forbids more or less.

    Raises:
        NotConfinedError: a kernel without it.
        OSError: a rule that the kernel refuses.
    """
    interface = landlock_version()
    if not interface:
        raise NotConfinedError("landlock: not in this kernel, or switched off")
    files, network, scopes = handled(interface)
    size = 8 if interface < _NETWORK_VERSION else 16 if interface < _SCOPE_VERSION else 24
    ruleset = _checked(_CREATE_RULESET, struct.pack("@QQQ", files, network, scopes), size, 0)
    try:
        rules = [(path, READ_FILE | READ_DIR) for path in readable]
        rules += [(path, files & ~EXECUTE) for path in writable]
        for path, access in rules:
            with contextlib.suppress(FileNotFoundError, PermissionError):
                _allow(ruleset, path, access)
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        _checked(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
    return interface


def _allow(ruleset: int, path: Path, access: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        access &= ~0 if path.is_dir() else _OF_FILES
        # struct landlock_path_beneath_attr is packed.
        _checked(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", access, descriptor), 0)
    finally:
        os.close(descriptor)


def _checked(number: int, *arguments: int | bytes | None) -> int:
    result = _call(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "landlock")
    return result


def _call(number: int, *arguments: int | bytes | None) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    values = (ctypes.c_char_p(value) if isinstance(value, bytes) else ctypes.c_void_p(value) for value in arguments)
    return int(libc.syscall(ctypes.c_long(number), *values))
