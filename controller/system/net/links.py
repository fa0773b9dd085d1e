"""Which link is the other end of a device, by the kernel's word.

Attributes: linux/if_link.h (``IFLA_LINK``, ``IFLA_LINK_NETNSID``), linux/net_namespace.h (``RTM_GETNSID``).
"""

from __future__ import annotations

import contextlib
import os
import struct
from dataclasses import dataclass
from pathlib import Path

from ..kernel_file import ActuatorError
from .rtnetlink import (
    IFINFOMSG,
    IFLA_IFNAME,
    NLM_F_DUMP,
    RTM_GETLINK,
    RouteSocket,
    attribute,
    attributes,
    request,
)

IFLA_LINK, IFLA_LINK_NETNSID = 5, 37
RTM_GETNSID, NETNSA_NSID, NETNSA_FD = 90, 1, 3
_RTGENMSG = struct.Struct("=Bxxx")


@dataclass(frozen=True)
class Pair:
    """The end in this namespace of a pair whose other end is a device elsewhere.

    Attributes:
        name: of the link here; ifindex: its number.
        device_ifindex: number of the device there, in its namespace.
    """

    name: str
    ifindex: int
    device_ifindex: int


def peer_of(device: str, netns: Path) -> Pair | None:
    """Where a device of another namespace ends in this one; None where it does not.

    Both ends have to name each other: a number alone may be that of another namespace's link.

    Raises:
        ActuatorError: no such namespace, or no such device in it.
    """
    with contextlib.closing(RouteSocket(netns)) as there:
        number = there.index_of(device)
        other = next((link for index, _, link, _ in _links(there) if index == number), None)
    if other is None:
        return None
    with contextlib.closing(RouteSocket()) as here:
        named = _number_of(here, netns)
        for index, name, link, namespace in _links(here):
            if index == other and link == number and namespace is not None and namespace == named:
                return Pair(name, index, number)
    return None


def _links(route: RouteSocket) -> list[tuple[int, str, int | None, int | None]]:
    """Number and name of each; number of its other end, and that of the namespace which it is in, where it says so."""
    found = []
    for _, payload in route.dump(request(RTM_GETLINK, NLM_F_DUMP, IFINFOMSG.pack(0, 0, 0, 0, 0)), "list links"):
        told = attributes(payload[IFINFOMSG.size :])
        name = os.fsdecode(told[IFLA_IFNAME].rstrip(b"\0"))
        link, namespace = (
            struct.unpack("=i", told[kind])[0] if kind in told else None for kind in (IFLA_LINK, IFLA_LINK_NETNSID)
        )
        found.append((IFINFOMSG.unpack_from(payload)[2], name, link, namespace))
    return found


def _number_of(route: RouteSocket, netns: Path) -> int | None:
    """What a namespace is called where a socket is; None where it has no name there, so that no link leads to it."""
    try:
        descriptor = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ActuatorError.of(f"network namespace {netns}", error) from error
    try:
        asked = request(RTM_GETNSID, 0, _RTGENMSG.pack(0) + attribute(NETNSA_FD, struct.pack("=I", descriptor)))
        answer = route.ask(asked, f"name of {netns}")
    finally:
        os.close(descriptor)
    told = attributes(answer[_RTGENMSG.size :]).get(NETNSA_NSID)
    number = -1 if told is None else struct.unpack("=i", told)[0]
    return None if number < 0 else int(number)
