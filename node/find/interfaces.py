"""Interfaces of a network namespace: their addresses, the default route, and the networks behind tunnels."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address, ip_network
from pathlib import Path
from socket import AF_INET, AF_INET6
from typing import TypeVar

from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.controller.system.net.links import Link, links, netnsid
from slicepilot.controller.system.net.rtnetlink import NLM_F_DUMP, RouteSocket, attributes, request

LOOPBACK = "lo"
# linux/if_addr.h: family, prefix length, flags, scope, index.
RTM_GETADDR, IFADDRMSG, IFA_ADDRESS, IFA_LOCAL = 22, struct.Struct("=BBBBI"), 1, 2
# linux/rtnetlink.h: family, length of destination, of source, TOS, table, protocol, scope, type, flags.
RTM_GETROUTE, RTMSG, RTA_DST, RTA_OIF, RT_TABLE_MAIN = 26, struct.Struct("=BBBBBBBBI"), 1, 4, 254
T = TypeVar("T")


@dataclass(frozen=True)
class FarEnd:
    """The other end of a veth pair: an interface in a network namespace, by a file of that."""

    netns: Path
    device: str


@dataclass(frozen=True)
class Interfaces:
    """The interfaces of a namespace.

    Attributes:
        kinds: of each interface what it was made as ("veth", "tun", "gtp5g", ...; empty for hardware).
        addresses: interface by address.
        default: interface of the default route; None if there is none.
        xdp: id of the XDP program by interface, of interfaces that have a program; 0 where drivers do not report it.
        behind: networks that are routed to each tunnel to a process, which are those of its UEs.
    """

    kinds: dict[str, str]
    addresses: dict[str, str]
    default: str | None
    xdp: dict[str, int]
    behind: dict[str, tuple[str, ...]]

    @property
    def carriers(self) -> list[str]:
        """Interfaces that carry packets to and from other machines: neither loopback nor tunnels to a process."""
        return [name for name, kind in self.kinds.items() if name != LOOPBACK and kind not in {"tun", "gtp", "gtp5g"}]


def interfaces(netns: Path) -> Interfaces:
    """The interfaces of a namespace; raises OSError if it cannot be entered, or does not answer."""
    return _ask(netns, _list)


def _list(route: RouteSocket) -> Interfaces:
    present = {link.index: link for link in links(route).values()}
    listed = route.dump(request(RTM_GETADDR, NLM_F_DUMP, IFADDRMSG.pack(0, 0, 0, 0, 0)), "list addresses")
    routes = _routes(route)
    addresses = {}
    for _, payload in listed:
        text = attributes(payload[IFADDRMSG.size :])
        index = IFADDRMSG.unpack_from(payload)[4]
        if index in present and (address := text.get(IFA_LOCAL) or text.get(IFA_ADDRESS)):
            addresses[str(ip_address(address))] = present[index].name
    ways = [present[index].name for index, network in routes if index in present and network is None]
    behind: dict[str, tuple[str, ...]] = {}
    for index, network in routes:
        if index in present and present[index].kind == "tun" and network and not ip_network(network).is_link_local:
            name = present[index].name
            behind[name] = (*behind.get(name, ()), network)
    return Interfaces(
        kinds={link.name: link.kind for link in present.values()},
        addresses=addresses,
        default=next((name for name in ways if name != LOOPBACK), None),
        xdp={link.name: link.xdp for link in present.values() if link.xdp is not None},
        behind=behind,
    )


def _routes(route: RouteSocket) -> list[tuple[int, str | None]]:
    """Routes of the main tables of IPv4 and IPv6: index of the interface, and network; None for the default route."""
    result = []
    wanted = request(RTM_GETROUTE, NLM_F_DUMP, RTMSG.pack(0, 0, 0, 0, 0, 0, 0, 0, 0))
    for _, payload in route.dump(wanted, "list routes"):
        family, length, _, _, table, *_ = RTMSG.unpack_from(payload)
        text = attributes(payload[RTMSG.size :])
        if family in {AF_INET, AF_INET6} and table == RT_TABLE_MAIN and RTA_OIF in text:
            (index,) = struct.unpack("=I", text[RTA_OIF])
            result.append((index, f"{ip_address(text[RTA_DST])}/{length}" if length else None))
    return result


def far_end(netns: Path, device: str, namespaces: Iterable[Path]) -> FarEnd | None:
    """The other end of a veth device; None where it is none, or its peer is in none of these namespaces.

    What a shaper on the device holds back shows there only: its own egress hook comes before its queue. Raises OSError
    where a namespace cannot be entered, or does not answer.
    """
    here = _ask(netns, links)
    link = here.get(device)
    if link is None or link.kind != "veth" or link.peer is None:
        return None
    if link.netnsid is None:
        return _end(netns, here, link.peer)
    for path in namespaces:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # it has ended
            continue
        try:
            number = _ask(netns, partial(_number, descriptor))
        finally:
            os.close(descriptor)
        if number == link.netnsid and (end := _end(path, _ask(path, links), link.peer)) is not None:
            return end
    return None


def _end(netns: Path, present: dict[str, Link], index: int) -> FarEnd | None:
    return next((FarEnd(netns, link.name) for link in present.values() if link.index == index), None)


def _number(descriptor: int, route: RouteSocket) -> int | None:
    """The id of a namespace in this namespace; None if it has none, or if the descriptor is of another kind of file."""
    try:
        return netnsid(route, descriptor)
    except ActuatorError:
        return None


def _ask(netns: Path, question: Callable[[RouteSocket], T]) -> T:
    try:
        with closing(RouteSocket(netns)) as route:
            return question(route)
    except ActuatorError as error:
        raise OSError(error.errno, os.strerror(error.errno), str(netns)) from error
