"""A BPF program as a clsact filter: the way onto a hook that every kernel has.

The filter's name says whose it is: ``slicepilot/ROLE pid=... start=... pidns=...``. A process that was killed leaves
its filters behind; the next process to attach there sees by the name that their owner is dead, and removes them. The
clsact qdisc is removed with our last filter if we made it, which the name says too.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from slicepilot.controller.system.bpf.errors import ProbeError
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.controller.system.net import namespaces, tc
from slicepilot.controller.system.net.rtnetlink import RouteSocket
from slicepilot.controller.system.processes import start_ticks

from .points import NetPoint

PREFIX, MADE_CLSACT = "slicepilot/", " made-clsact"
PRIORITIES = range(1, 9)
_NAME = re.compile(r"slicepilot/\S+ pid=(\d+) start=(\d+) pidns=(\d+)")
_GONE = (errno.ENODEV, errno.ENOENT, errno.EINVAL)  # EINVAL: the qdisc, and so the hook, is not there any more
_serial = itertools.count(1)


@dataclass(frozen=True)
class Owner:
    """A process: start time and PID namespace distinguish it from others of the same number."""

    pid: int
    start: int
    pidns: int

    @classmethod
    def current(cls) -> Owner:
        return cls(os.getpid(), start_ticks(os.getpid()) or -1, _pid_namespace())

    def dead(self) -> bool:
        """Whether it has ended; False for a process of another PID namespace, as that is not visible."""
        return self.pidns == _pid_namespace() and start_ticks(self.pid) != self.start

    def __str__(self) -> str:
        return f"pid={self.pid} start={self.start} pidns={self.pidns}"


def _pid_namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino


class ClsactFilter:
    """One attached filter. Detach in the reverse order of attaching.

    Args:
        route: a socket in the device's namespace, for now.
        point, ifindex: where.
        program: descriptor of a loaded ``tc`` program.
        role: a word for the filter's name.
        classid: what the program reads as ``skb->tc_classid``.

    Raises:
        ProbeError, ActuatorError: it cannot be attached.
    """

    def __init__(
        self, route: RouteSocket, point: NetPoint, ifindex: int, program: int, role: str, classid: int
    ) -> None:
        self._where, self._index, self._hook = namespaces.identity(point.netns), ifindex, point.direction
        self._name = f"{PREFIX}{role} {Owner.current()} #{next(_serial)}"
        self._names = self._name, self._name + MADE_CLSACT
        made = _add_clsact(route, ifindex) or _remove_stale(route, ifindex)
        priority, handle = self._free_position(route, point)
        tc.add_filter(
            route,
            ifindex,
            self._hook,
            priority=priority,
            handle=handle,
            program=program,
            name=self._name + MADE_CLSACT * made,
            classid=classid,
        )

    def before(self, route: RouteSocket) -> list[str] | None:
        """Descriptions of other programs' filters that packets pass before this filter; None where this filter is not
        attached any more.

        Any of them may end a packet's way through the hook (tc-bpf(8), ``direct-action``, or a matching filter without
        an action). Filters with our names pass every packet on.
        """
        result: list[str] = []
        for item in tc.filters(route, self._index, self._hook):
            if item.name in self._names:
                return result
            if not item.name.startswith(PREFIX):
                result.append(f"the {item.kind} filter {item.name or f'{item.handle:x}'} of priority {item.priority}")
        return None

    def close(self) -> None:
        """Take exactly this filter away, and the hooks with it if we made them and nothing else uses them; raises
        ActuatorError. What has gone already is fine."""
        where = namespaces.find(self._where)
        if where is None:
            return
        try:
            with closing(RouteSocket(where)) as route:
                mine = [item for item in tc.filters(route, self._index, self._hook) if item.name in self._names]
                for item in mine:
                    tc.remove_filter(route, self._index, self._hook, item)
                in_use = any(tc.filters(route, self._index, hook) for hook in tc.HOOKS)
                if any(item.name.endswith(MADE_CLSACT) for item in mine) and not in_use:
                    tc.remove_clsact(route, self._index)
        except ActuatorError as error:
            if error.errno not in _GONE:
                raise

    def _free_position(self, route: RouteSocket, point: NetPoint) -> tuple[int, int]:
        """Priority and handle, as early as possible, since a filter before ours may take packets away."""
        there = tc.filters(route, self._index, self._hook)
        for priority in PRIORITIES:
            same = [item for item in there if item.priority == priority]
            # All filters of a priority have the same kind and protocol.
            if all(item.kind == "bpf" and item.protocol == tc.ETH_P_ALL for item in same):
                return priority, max((item.handle for item in same), default=0) + 1
        raise ProbeError(f"{point}: other tc filters hold the priorities {PRIORITIES[0]} to {PRIORITIES[-1]}")


def without_hooks(error: ActuatorError) -> ProbeError | None:
    """The error if the kernel refuses clsact because it has no such kind of qdisc; None for other refusals."""
    if error.errno not in {errno.ENOENT, errno.EOPNOTSUPP}:
        return None
    return ProbeError(
        "this kernel has neither TCX (Linux 6.6) nor clsact (CONFIG_NET_SCH_INGRESS): packets cannot be measured; "
        "UPFs can be listed (slicepilot node discover), and simulations run"
    )


def _add_clsact(route: RouteSocket, index: int) -> bool:
    """Make sure of the hooks; true if they were not there."""
    try:
        tc.add_clsact(route, index)
    except ActuatorError as error:
        if (report := without_hooks(error)) is not None:
            raise report from error
        if error.errno != errno.EEXIST:
            raise
        return False
    return True


def _remove_stale(route: RouteSocket, index: int) -> bool:
    """Remove what dead processes left on the interface; true if they had made the hooks."""
    made = False
    for hook in tc.HOOKS:
        for item in tc.filters(route, index, hook):
            owner = _NAME.match(item.name)
            if owner and Owner(*map(int, owner.groups())).dead():
                tc.remove_filter(route, index, hook, item)
                made |= item.name.endswith(MADE_CLSACT)
    return made
