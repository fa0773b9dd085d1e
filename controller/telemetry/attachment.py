"""A BPF program on one hook of one interface in another namespace, put there and taken away again."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from slicepilot.controller.system.bpf.errors import ProbeError
from slicepilot.controller.system.bpf.libbpf import RunStats
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.controller.system.net import namespaces
from slicepilot.controller.system.net.links import Link, links
from slicepilot.controller.system.net.rtnetlink import RouteSocket

from .clsact import ClsactFilter
from .layout import CLASS_BARE_IP
from .points import NetPoint
from .tcx import TcxProgram, Unsupported


def other_end(netns: Path, device: str, there: Mapping[str, Link]) -> Link | None:
    """That of a veth interface of a namespace, among the interfaces of another; None where it is not there.

    Raises:
        ActuatorError: the namespace cannot be entered.
    """
    with closing(RouteSocket(netns)) as route:
        own = links(route).get(device)
    if own is None or own.kind != "veth":
        return None
    return next((one for one in there.values() if (one.index, one.peer) == (own.peer, own.index)), None)


class Attachment:
    """One attached program: by TCX where the kernel has it, else as a clsact filter. Detach in the reverse order of
    attaching.

    Args:
        point: where.
        program: descriptor of a loaded ``tc`` program.
        role: a word for what it does, for people who list filters.
        classid: what the program reads as ``skb->tc_classid``; whether packets start with IP is added here.
        tcx: try TCX at all?

    Raises:
        ProbeError: the namespace or the device is missing, or the kernel refuses.
    """

    def __init__(self, point: NetPoint, program: int, role: str, classid: int, *, tcx: bool = True) -> None:
        self.point = point
        try:
            self._where = namespaces.identity(point.netns)
            with closing(RouteSocket(namespaces.path_of(point.netns))) as route:
                there = links(route)
                link = there.get(point.device) if point.behind is None else other_end(*point.behind, there)
                if link is None:
                    raise ProbeError(f"{point}: no such device; there: {', '.join(sorted(there)) or 'none'}")
                self._name, self._index = link.name, link.index
                classid |= CLASS_BARE_IP * link.bare_ip
                self._attached = self._attach(route, program, role, classid, tcx)
        except FileNotFoundError as error:
            raise ProbeError(f"{point}: no such network namespace") from error
        except PermissionError as error:
            raise ProbeError(f"{point}: the network namespace cannot be entered: run as root") from error
        except (ActuatorError, OSError) as error:
            raise ProbeError(f"{point}: {error}") from error

    def _attach(
        self, route: RouteSocket, program: int, role: str, classid: int, tcx: bool
    ) -> TcxProgram | ClsactFilter:
        if tcx:
            try:
                return TcxProgram(self.point, self._index, program, classid)
            except Unsupported:
                pass
        return ClsactFilter(route, self.point, self._index, program, role, classid)

    def entry_cost(self) -> RunStats:
        """What runs before the program and includes it; nothing where the program is attached itself."""
        return self._attached.cost() if isinstance(self._attached, TcxProgram) else RunStats()

    def lost(self) -> str | None:
        """Why this no longer measures (namespace, device or filter gone or replaced); None where it does."""
        try:
            if namespaces.identity(self.point.netns) != self._where:
                return f"{self.point}: the network namespace was replaced"
            if isinstance(self._attached, TcxProgram):
                return None if self._attached.attached() else f"{self.point}: the device has gone"
            with closing(RouteSocket(namespaces.path_of(self.point.netns))) as route:
                link = links(route).get(self._name)
                if link is None or link.index != self._index:
                    return f"{self.point}: the device has gone"
                if not self._attached.attached(route):
                    return f"{self.point}: somebody removed the filter"
        except (OSError, ActuatorError):
            return f"{self.point}: the network namespace has gone"
        return None

    def detach(self) -> None:
        """Take the program away, and nothing else; raises ProbeError. What has gone by itself is fine."""
        try:
            self._attached.close()
        except ActuatorError as error:
            raise ProbeError(f"{self.point}: {error}") from error
