"""Giving up what a process does not need: capabilities(7), the way back to them, and the user it started as.

The loop process starts as root, attaches and opens everything, then keeps `LOOP` alone. It stays user 0:
cgroup files and namespaces of others are root's, and owning them needs no capability. The publisher keeps nothing.
Numbers and structures: linux/capability.h, linux/prctl.h; no library beside libc.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import struct
from collections.abc import Iterable
from pathlib import Path

from slicepilot.configs import ConfigError, FailureError

from .bpf.libc import (
    PR_CAP_AMBIENT,
    PR_CAPBSET_DROP,
    PR_CAPBSET_READ,
    PR_SET_DUMPABLE,
    PR_SET_NO_NEW_PRIVS,
    call,
    prctl,
)
from .kernel_file import kernel_lines

_IN_ORDER = """
chown dac_override dac_read_search fowner fsetid kill setgid setuid setpcap linux_immutable net_bind_service
net_broadcast net_admin net_raw ipc_lock ipc_owner sys_module sys_rawio sys_chroot sys_ptrace sys_pacct sys_admin
sys_boot sys_nice sys_resource sys_time sys_tty_config mknod lease audit_write audit_control setfcap mac_override
mac_admin syslog wake_alarm block_suspend audit_read perfmon bpf checkpoint_restore
"""
CAPABILITIES = tuple(f"CAP_{name.upper()}" for name in _IN_ORDER.split())
"""Names by number."""

LOOP = {
    "CAP_IPC_LOCK": "grow with all memory locked; a supervisor that locks its own",
    "CAP_KILL": "end a publisher that runs as another user",
    "CAP_NET_ADMIN": "egress rates; attach programs to the devices of a UPF again, where the kernel has no TCX",
    "CAP_SETGID": "start a publisher without root's groups",
    "CAP_SETUID": "start a publisher as another user",
    "CAP_SYS_ADMIN": "enter the network namespace of a UPF that has restarted; load programs for it",
    "CAP_SYS_NICE": "nice of the UPFs' threads; SCHED_FIFO for the loop's thread and for a supervisor",
    "CAP_SYS_PTRACE": "look at the network namespace of a UPF that is known by its process",
}
"""Capabilities of a loop once everything is attached, with their use; a loop that only measures needs all of them, too.

CAP_BPF and CAP_PERFMON are not among them: CAP_SYS_ADMIN, which setns(2) asks for, includes both (linux/capability.h).
It starts with CAP_SETPCAP, to take all others out of the bounding set, and CAP_CHOWN, where it has to give a folder to
its publisher's user.
"""

PR_CAP_AMBIENT_CLEAR_ALL = 4
CAPABILITY_VERSION_3 = 0x20080522
NOBODY = "nobody"


class PrivilegeError(FailureError):
    """Something that was to be given up is still there; the message names it."""


def keep_only(names: Iterable[str]) -> None:
    """Give up every capability but these (of `CAPABILITIES`), for good, in this process and in all that it starts.

    Permitted, effective, inheritable, ambient and bounding set, and no_new_privs: no program that is started gives any
    back. Without CAP_SETPCAP the bounding set stays; the process cannot gain from it anyway. Capabilities belong to
    threads, and a thread can only drop its own: call it before others have started (OpenBLAS's, which NumPy's import
    starts, are ended here; they come back, without privileges, when needed).

    Raises:
        PrivilegeError: another thread still has more.
        OSError: the kernel refuses.
    """
    _end_blas_threads()
    kept = _mask(_status("self"), "CapPrm") & _bits(set(names))
    _drop_bounds(kept)
    _set_capabilities(kept)
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    _check_threads(kept)


def drop_all(user: str | None = None) -> None:
    """Give up everything: all capabilities, all groups, and root.

    Other processes of that user can neither trace this process nor read its memory afterwards (PR_SET_DUMPABLE).

    Args:
        user: to run as; none is ``nobody`` for a process of root, and the present user for any other.

    Raises:
        ConfigError: no such user, root itself, or another user without the permission to become it.
        PrivilegeError, OSError: as `keep_only`.
    """
    entry = _entry(user)
    _end_blas_threads()
    _drop_bounds(0)
    if entry is not None:
        # libc has all threads follow. Groups first: as another user it would not be permitted any more.
        os.setgroups([])
        os.setresgid(entry.pw_gid, entry.pw_gid, entry.pw_gid)
        os.setresuid(entry.pw_uid, entry.pw_uid, entry.pw_uid)
        if os.getresuid() != (entry.pw_uid,) * 3 or os.getresgid() != (entry.pw_gid,) * 3 or os.getgroups():
            raise PrivilegeError(f"user {entry.pw_name}: the process kept another user or group")
    _set_capabilities(0)
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    prctl(PR_SET_DUMPABLE, 0)
    _check_threads(0)


def _entry(user: str | None) -> pwd.struct_passwd | None:
    """The user to become; None to stay."""
    if user is None and os.geteuid() != 0:
        return None
    name = NOBODY if user is None else user
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise ConfigError(f"user = {name!r}: unknown; expected a user of this machine") from None
    if entry.pw_uid == 0:
        raise ConfigError(f"user = {name!r}: is root; expected a user without privileges, for instance {NOBODY}")
    if os.getresuid() == (entry.pw_uid,) * 3:
        return None
    if not _mask(_status("self"), "CapEff") & _bits({"CAP_SETUID"}):
        raise ConfigError(f"user = {name!r}: needs CAP_SETUID; expected the user this runs as, or start it as root")
    return entry


def _set_capabilities(mask: int) -> None:
    """Set the calling thread's capabilities: permitted and effective as given, inheritable and ambient empty."""
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    header = ctypes.create_string_buffer(struct.pack("=Ii", CAPABILITY_VERSION_3, 0), 8)
    # __user_cap_data_struct, twice: effective, permitted, inheritable.
    sets = ctypes.create_string_buffer(struct.pack("=6I", low, low, 0, high, high, 0), 24)
    call("capset", ctypes.addressof(header), ctypes.addressof(sets))


def _drop_bounds(kept: int) -> None:
    """Take all but ``kept`` out of the bounding set, where that is permitted."""
    number = 0
    with contextlib.suppress(OSError):  # EINVAL beyond the kernel's last, EPERM for any
        while True:
            if prctl(PR_CAPBSET_READ, number) and not kept >> number & 1:
                prctl(PR_CAPBSET_DROP, number)
            number += 1


def _check_threads(kept: int) -> None:
    for task in Path("/proc/self/task").iterdir():
        try:
            status = _status(f"self/task/{task.name}")
        except (FileNotFoundError, ProcessLookupError):  # has ended
            continue
        more = 0
        for held in ("CapPrm", "CapEff", "CapInh", "CapAmb"):
            more |= _mask(status, held) & ~kept
        if more or status["NoNewPrivs"] != "1":
            held_names = ", ".join(_names(more)) or "the way to new privileges"
            raise PrivilegeError(f"thread {task.name} ({status['Name']}) keeps {held_names}: drop before threads start")


def _end_blas_threads() -> None:
    """End the idle threads of every OpenBLAS that is loaded; it starts new threads at its next need."""
    maps = kernel_lines(Path("/proc/self/maps"))
    for path in {line.split(maxsplit=5)[5] for line in maps if "openblas" in line}:
        shutdown = getattr(ctypes.CDLL(path), "blas_thread_shutdown_", None)
        if shutdown is not None:
            shutdown()


def lacking(names: Iterable[str]) -> list[str]:
    """The capabilities among these that the calling thread does not have in effect."""
    have = _mask(_status("thread-self"), "CapEff")
    return [name for name in names if not have & _bits({name})]


def _status(task: str) -> dict[str, str]:
    """Fields of proc_pid_status(5)."""
    lines = kernel_lines(Path(f"/proc/{task}/status"))
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _mask(status: dict[str, str], name: str) -> int:
    return int(status.get(name, "0"), 16)


def _bits(names: Iterable[str]) -> int:
    return sum(1 << CAPABILITIES.index(name) for name in names)


def _names(mask: int) -> list[str]:
    """Names of capabilities, sorted; an unknown capability has its number."""
    numbers = (number for number in range(mask.bit_length()) if mask >> number & 1)
    return sorted(CAPABILITIES[n] if n < len(CAPABILITIES) else f"CAP_{n}" for n in numbers)
