"""Links of a network namespace, and which link is the other end of a device, as the kernel reports it.

Attributes: linux/if_link.h (``IFLA_``), linux/net_namespace.h (``RTM_GETNSID``).
"""

from __future__ import annotations

import contextlib
import os
import struct
from dataclasses import dataclass
from pathlib import Path

from slicepilot.controller.system.kernel_file import ActuatorError

from . import namespaces
from .rtnetlink import (
    IFINFOMSG,
    IFLA_IFNAME,
    NLM_F_DUMP,
    RTM_GETLINK,
    RouteSocket,
    attribute,
    attributes,
    request,
    text,
)

IFLA_LINK, IFLA_LINKINFO, IFLA_STATS64, IFLA_LINK_NETNSID, IFLA_XDP = 5, 18, 23, 37, 43
IFLA_INFO_KIND, IFLA_XDP_ATTACHED, IFLA_XDP_PROG_ID = 1, 2, 4
ARPHRD_ETHER, ARPHRD_LOOPBACK = 1, 772
RTM_GETNSID, NETNSA_NSID, NETNSA_FD = 90, 1, 3
OWN = Path("/proc/thread-self/ns/net")
_RTGENMSG = struct.Struct("=Bxxx")


@dataclass(frozen=True)
class Link:
    """One interface.

    Attributes:
        index: its number; name.
        kind: what it was made as ("veth", "tun", "gtp5g", ...); empty for hardware.
        hardware: its ARPHRD type (linux/if_arp.h).
        received: packets, since it was made.
        peer: number of the link that it leads to, of a veth its other end; None for none.
        netnsid: number of the namespace which that is in, as it is numbered here; None for this namespace.
        xdp: number of its XDP program, 0 where drivers do not say; None without a program.
    """

    index: int
    name: str
    kind: str
    hardware: int
    received: int
    peer: int | None
    netnsid: int | None
    xdp: int | None

    @property
    def bare_ip(self) -> bool:
        """Whether packets start with the IP header; Ethernet and loopback put 14 bytes before it."""
        return self.hardware not in (ARPHRD_ETHER, ARPHRD_LOOPBACK)


def other_end(netns: Path, device: str, far: Path | None = None) -> Link | None:
    """The other end, in namespace ``far`` (None: this thread's), of a pair's interface in ``netns``; None if it is not
    there.

    It has to lead back to ``netns``. Numbers of links do not say that: they are counted anew in each namespace, so the
    interfaces of containers often have the same number (cilium/cilium#23787).

    Raises:
        ActuatorError: a namespace cannot be entered.
        OSError: a namespace has gone.
    """
    with contextlib.closing(RouteSocket(netns)) as route:
        own = links(route).get(device)
    if own is None:
        return None
    with contextlib.closing(RouteSocket(far)) as route:
        number, there = number_of(route, netns), links(route).values()
    if number is None and namespaces.identity(netns) != namespaces.identity(far or OWN):
        return None
    wanted = own.peer, own.index, number
    return next((item for item in there if (item.index, item.peer, item.netnsid) == wanted), None)


def links(route: RouteSocket) -> dict[str, Link]:
    """All that there are where a socket is, by name; raises ActuatorError."""
    answer = route.dump(request(RTM_GETLINK, NLM_F_DUMP, IFINFOMSG.pack(0, 0, 0, 0, 0)), "list links")
    return {link.name: link for link in (_link(payload) for _, payload in answer)}


def link_at(route: RouteSocket, index: int) -> Link | None:
    """The one of this number where a socket is; None where there is none. Raises ActuatorError."""
    try:
        return _link(route.ask(request(RTM_GETLINK, 0, IFINFOMSG.pack(0, 0, index, 0, 0)), f"find link {index}"))
    except ActuatorError as error:
        if error.vanished:
            return None
        raise


def _link(payload: bytes) -> Link:
    _, hardware, index, _, _ = IFINFOMSG.unpack_from(payload)
    report = attributes(payload[IFINFOMSG.size :])
    (received,) = struct.unpack_from("=Q", report.get(IFLA_STATS64, bytes(8)))  # first of rtnl_link_stats64
    xdp = attributes(report.get(IFLA_XDP, b""))
    return Link(
        index,
        text(report[IFLA_IFNAME]),
        text(attributes(report.get(IFLA_LINKINFO, b"")).get(IFLA_INFO_KIND, b"")),
        hardware,
        received,
        _number(report.get(IFLA_LINK)),
        _number(report.get(IFLA_LINK_NETNSID)),
        (_number(xdp.get(IFLA_XDP_PROG_ID)) or 0) if any(xdp.get(IFLA_XDP_ATTACHED, b"")) else None,
    )


def _number(value: bytes | None) -> int | None:
    return None if value is None else int(struct.unpack("=i", value)[0])


def netnsid(route: RouteSocket, descriptor: int) -> int | None:
    """The id of an opened namespace in the socket's namespace; None if it has none, so that no link leads to it.

    Raises:
        ActuatorError: the descriptor is of no namespace.
    """
    requested = request(RTM_GETNSID, 0, _RTGENMSG.pack(0) + attribute(NETNSA_FD, struct.pack("=I", descriptor)))
    answer = route.ask(requested, "number of a namespace")
    number = _number(attributes(answer[_RTGENMSG.size :]).get(NETNSA_NSID))
    return None if number is None or number < 0 else number


def number_of(route: RouteSocket, netns: Path) -> int | None:
    """The id of a namespace in the socket's namespace; None if it has none, and for the socket's own namespace.

    Raises:
        ActuatorError: no such namespace.
    """
    try:
        descriptor = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ActuatorError.of(f"network namespace {netns}", error) from error
    try:
        return netnsid(route, descriptor)
    finally:
        os.close(descriptor)
