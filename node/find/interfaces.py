"""Interfaces of a network namespace: their addresses, which one leads to everywhere else, and what is behind it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute, NetlinkError

from ...controller.system.net.namespaces import inside

LOOPBACK = "lo"
NO_NUMBER = 0x7FFFFFFF  # NETNSA_NSID_NOT_ASSIGNED is -1, as a number without sign


@dataclass(frozen=True)
class FarEnd:
    """The other end of a veth pair: an interface in a network namespace, by a file of that."""

    netns: Path
    device: str


@dataclass(frozen=True)
class Interfaces:
    """What a namespace has.

    Attributes:
        kinds: of each interface what it was made as ("veth", "tun", "gtp5g", ...; empty for hardware).
        addresses: interface by address.
        default: interface of the default route; None without one.
        xdp: number of the XDP program by interface, for those that have one; 0 where drivers do not say.
        behind: networks that are routed to each tunnel to a process, which are those of its UEs.
    """

    kinds: dict[str, str]
    addresses: dict[str, str]
    default: str | None
    xdp: dict[str, int]
    behind: dict[str, tuple[str, ...]]

    @property
    def carriers(self) -> list[str]:
        """Those that packets come and go by: neither loopback nor tunnels to a process."""
        return [name for name, kind in self.kinds.items() if name != LOOPBACK and kind not in {"tun", "gtp", "gtp5g"}]


def interfaces(netns: Path) -> Interfaces:
    """Of a namespace; raises OSError where it cannot be entered."""
    return inside(netns, _list)


def _list() -> Interfaces:
    with IPRoute() as route:
        names, kinds, xdp = {}, {}, {}
        for link in route.get_links():
            name = names[link["index"]] = str(link.get_attr("IFLA_IFNAME"))
            info, program = link.get_attr("IFLA_LINKINFO"), link.get_attr("IFLA_XDP")
            kinds[name] = str(info.get_attr("IFLA_INFO_KIND") or "") if info else ""
            if program and program.get_attr("IFLA_XDP_ATTACHED"):
                xdp[name] = int(program.get_attr("IFLA_XDP_PROG_ID") or 0)
        addresses = {
            str(entry.get_attr("IFA_LOCAL") or entry.get_attr("IFA_ADDRESS")): names[entry["index"]]
            for entry in route.get_addr()
            if entry["index"] in names
        }
        routes = list(route.get_routes(table=254))
    ways = [entry.get_attr("RTA_OIF") for entry in routes if not entry["dst_len"]]
    behind: dict[str, tuple[str, ...]] = {}
    for entry in routes:
        name, network = names.get(entry.get_attr("RTA_OIF"), ""), str(entry.get_attr("RTA_DST"))
        if kinds.get(name) == "tun" and entry["dst_len"] and not ip_address(network).is_link_local:
            behind[name] = (*behind.get(name, ()), f"{network}/{entry['dst_len']}")
    default = next((names[index] for index in ways if index in names and names[index] != LOOPBACK), None)
    return Interfaces(kinds, addresses, default, xdp, behind)


def far_end(netns: Path, device: str, namespaces: Iterable[Path]) -> FarEnd | None:
    """The other end of a veth device; None where it is none, or its peer is in none of these namespaces.

    What a shaper on the device holds back shows there only: its own egress hook comes before its queue. Raises OSError
    where a namespace cannot be entered.
    """
    peer = inside(netns, lambda: _peer(device))
    if peer is None:
        return None
    index, number = peer
    if number is None:
        name = inside(netns, lambda: _name(index))
        return None if name is None else FarEnd(netns, name)
    for path in namespaces:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # it has ended
            continue
        try:
            here = inside(netns, partial(_number, descriptor))
        finally:
            os.close(descriptor)
        if here == number and (name := inside(path, lambda: _name(index))) is not None:
            return FarEnd(path, name)
    return None


def _peer(device: str) -> tuple[int, int | None] | None:
    """Index of a veth's peer, and by what number its namespace goes in this one; None for this one itself."""
    with closing(IPRoute()) as route:
        found: list[Any] = [link for link in route.get_links() if link.get_attr("IFLA_IFNAME") == device]
    info = found[0].get_attr("IFLA_LINKINFO") if found else None
    if info is None or info.get_attr("IFLA_INFO_KIND") != "veth" or not found[0].get_attr("IFLA_LINK"):
        return None
    return int(found[0].get_attr("IFLA_LINK")), found[0].get_attr("IFLA_LINK_NETNSID")


def _number(descriptor: int) -> int | None:
    """By what number a namespace goes in this one (rtnetlink(7), RTM_GETNSID); None for none."""
    with closing(IPRoute()) as route:
        try:
            answer: Any = route.get_netnsid(fd=descriptor)
        except NetlinkError:
            return None
    number = answer["nsid"]
    return None if number is None or not 0 <= number < NO_NUMBER else int(number)


def _name(index: int) -> str | None:
    with closing(IPRoute()) as route:
        return next((str(link.get_attr("IFLA_IFNAME")) for link in route.get_links() if link["index"] == index), None)
