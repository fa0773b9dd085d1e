"""Who writes to the knobs, from the kernel's own mouth: fanotify on control files, rtnetlink on qdiscs and classes.

Independent of anything a controller says of itself. fanotify(7) reports every write(2) to a marked file with the pid
that did it; the group RTNLGRP_TC (rtnetlink(7)) every change of a qdisc, class or filter in a namespace. Thread nice
has no such notification: it is read.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from slicepilot.controller.actuators.node import SliceTargets
from slicepilot.controller.system.cgroup import CpuGroup
from slicepilot.controller.system.net.namespaces import inside

FAN_CLASS_NOTIF, FAN_CLOEXEC, FAN_NONBLOCK = 0x0, 0x1, 0x2  # linux/fanotify.h
FAN_MARK_ADD, FAN_MODIFY, FAN_Q_OVERFLOW = 0x1, 0x2, 0x4000
EVENT = struct.Struct("=IBBHQii")  # fanotify_event_metadata
AT_FDCWD = -100
SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, RTNLGRP_TC = 270, 1, 4
NLMSG = struct.Struct("=IHHII")
QDISC_AND_CLASS = {36: "new qdisc", 37: "qdisc removed", 40: "new class", 41: "class removed"}  # RTM_*
KNOB_FILES = {
    1: ("cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.shares"),
    2: ("cpu.max", "cpu.weight", "cpu.weight.nice"),
}
POLL_S = 0.2
LIBC = ctypes.CDLL(None, use_errno=True)


class WriteWatch:
    """Counts writes to the knobs of slices inside a ``with`` block.

    Args:
        targets: the slices' knobs.

    Attributes:
        writes: how often each was seen, by the process's id (0: not known) and what was written.

    Raises:
        AssertionError: no fanotify (CONFIG_FANOTIFY, CAP_SYS_ADMIN), or a file that cannot be watched.
    """

    def __init__(self, targets: Sequence[SliceTargets]) -> None:
        self._targets = tuple(targets)
        self.writes: Counter[tuple[int, str]] = Counter()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="write-watch", daemon=True)

    def __enter__(self) -> WriteWatch:
        with contextlib.ExitStack() as undo:
            self._events = _fanotify()
            undo.callback(os.close, self._events)
            for target in self._targets:
                for name in KNOB_FILES[CpuGroup.at(target.group).version]:
                    if (target.group / name).exists():
                        _mark(self._events, target.group / name)
            self._tc = [(target.name, _listen(target.netns)) for target in self._targets if target.egress_device]
            for _, listener in self._tc:
                undo.callback(listener.close)
            self._nice = self._levels()
            self._undo = undo.pop_all()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self._look()
        self._undo.close()

    @property
    def total(self) -> int:
        """All writes that were seen."""
        return sum(self.writes.values())

    def _run(self) -> None:
        while not self._end.wait(POLL_S):
            self._look()

    def _look(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._events, 1 << 16):
                self._files(data)
        for name, listener in self._tc:
            with contextlib.suppress(BlockingIOError):
                while True:
                    self._messages(name, listener.recv(1 << 16))
        levels = self._levels()
        for thread, nice in levels.items():
            if self._nice.get(thread, nice) != nice:
                self.writes[0, f"nice of thread {thread}"] += 1
        self._nice = levels

    def _files(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            length, _, _, _, mask, descriptor, pid = EVENT.unpack_from(data, at)
            at += length
            if mask & FAN_Q_OVERFLOW:
                self.writes[0, "more than could be counted"] += 1
            if descriptor >= 0:
                path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
                os.close(descriptor)
                self.writes[pid, path] += 1

    def _messages(self, name: str, data: bytes) -> None:
        at = 0
        while at + NLMSG.size <= len(data):
            length, kind, *_ = NLMSG.unpack_from(data, at)
            at += max((length + 3) & ~3, NLMSG.size)
            if kind in QDISC_AND_CLASS:
                self.writes[0, f"{name}: {QDISC_AND_CLASS[kind]}"] += 1

    def _levels(self) -> dict[int, int]:
        """Nice of every thread of the slices."""
        result = {}
        for target in self._targets:
            with contextlib.suppress(OSError):
                for word in CpuGroup.at(target.group).threads_file.read_text().split():
                    with contextlib.suppress(ProcessLookupError):
                        result[int(word)] = os.getpriority(os.PRIO_PROCESS, int(word))
        return result


def _fanotify() -> int:
    descriptor = int(LIBC.fanotify_init(FAN_CLASS_NOTIF | FAN_CLOEXEC | FAN_NONBLOCK, os.O_RDONLY | os.O_CLOEXEC))
    assert descriptor >= 0, f"fanotify_init: {os.strerror(ctypes.get_errno())}"
    return descriptor


def _mark(descriptor: int, path: Path) -> None:
    LIBC.fanotify_mark.argtypes = (ctypes.c_int, ctypes.c_uint, ctypes.c_uint64, ctypes.c_int, ctypes.c_char_p)
    failed = LIBC.fanotify_mark(descriptor, FAN_MARK_ADD, FAN_MODIFY, AT_FDCWD, os.fsencode(path))
    assert not failed, f"fanotify_mark {path}: {os.strerror(ctypes.get_errno())}"


def _listen(netns: Path | None) -> socket.socket:
    """A netlink socket in a namespace that hears of every change of its traffic control."""

    def open_socket() -> socket.socket:
        listener = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
        listener.bind((0, 0))
        listener.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, RTNLGRP_TC)
        listener.setblocking(False)
        return listener

    return open_socket() if netns is None else inside(netns, open_socket)
