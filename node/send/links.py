"""What sending has to know of interfaces and routes (rtnetlink(7))."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute, NetlinkError

from slicepilot.controller.system.net.namespaces import inside

from .packets import Address
from .taps import Place

_UP, _RUNNING = 0x1, 0x40  # IFF_UP, IFF_RUNNING (linux/if.h)
_UNICAST, _LOCAL = 1, 2  # RTN_ (linux/rtnetlink.h)


@dataclass(frozen=True)
class Interface:
    """An interface.

    Attributes:
        hardware: its address; empty for one without, such as a TUN device.
        addresses: of IP, its own and those of the bridge that it is a port of; link-local ones left out.
        up: whether it is switched on; carrier: whether its link is.
    """

    hardware: bytes
    addresses: tuple[Address, ...]
    up: bool
    carrier: bool

    def address_of(self, family: int) -> Address | None:
        """The first of a family, 4 or 6."""
        return next((one for one in self.addresses if one.version == family), None)


def interface(place: Place) -> Interface | None:
    """What it is like now; None where it has gone. Raises OSError where the namespace cannot be entered."""
    return inside(place.netns, lambda: _interface(place.device))


def _interface(device: str) -> Interface | None:
    with IPRoute() as route:
        link: Any = next((one for one in route.get_links() if one.get_attr("IFLA_IFNAME") == device), None)
        if link is None:
            return None
        indices = [link["index"], link.get_attr("IFLA_MASTER")]
        found = [entry for index in indices if index for entry in route.get_addr(index=index)]
    texts = [str(entry.get_attr("IFA_LOCAL") or entry.get_attr("IFA_ADDRESS")) for entry in found]
    hardware = bytes.fromhex(str(link.get_attr("IFLA_ADDRESS") or "").replace(":", ""))
    addresses = tuple(one for one in map(ip_address, texts) if not one.is_link_local)
    flags = int(link["flags"])
    return Interface(hardware, addresses, bool(flags & _UP), bool(flags & _RUNNING))


@dataclass(frozen=True)
class Route:
    """Where a namespace sends packets.

    Attributes:
        device: the interface; None for nowhere.
        gateway: the next hop; None where the destination is a neighbour.
        refused: errno of the kernel's where it sends them nowhere.
    """

    device: str | None
    gateway: Address | None = None
    refused: int = 0


def route_to(netns: Path, destination: Address, source: Address | None = None, via: str | None = None) -> Route:
    """As packets are routed that come in by ``via``, or that the namespace sends itself; raises OSError as above."""
    return inside(netns, lambda: _route_to(destination, source, via))


def _route_to(destination: Address, source: Address | None, via: str | None) -> Route:
    with IPRoute() as route:
        names = {link["index"]: str(link.get_attr("IFLA_IFNAME")) for link in route.get_links()}
        asked: dict[str, Any] = {"dst": str(destination)}
        if source is not None:
            asked["src"] = str(source)
        if via is not None:
            index = next((number for number, name in names.items() if name == via), None)
            if index is None:
                return Route(None, refused=errno.ENODEV)
            asked["iif"] = index
        try:
            answer: Any = next(iter(route.route("get", **asked)))
        except NetlinkError as error:
            return Route(None, refused=int(error.code))
    if answer["type"] not in {_UNICAST, _LOCAL}:  # of IPv6, whose answers say so
        return Route(None, refused=int(answer.get_attr("RTA_ERROR") or 0) or errno.ENETUNREACH)
    gateway = answer.get_attr("RTA_GATEWAY")
    return Route(names.get(answer.get_attr("RTA_OIF")), None if gateway is None else ip_address(str(gateway)))


def setting(netns: Path, family: int, device: str, name: str) -> int | None:
    """One of IP's for an interface (Documentation/networking/ip-sysctl.rst); None where there is none."""
    path = Path(f"/proc/sys/net/ipv{family}/conf/{device}/{name}")
    try:
        return int(inside(netns, path.read_text))
    except (OSError, ValueError):
        return None
