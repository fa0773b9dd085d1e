"""Sockets that put packets on their way, in the network namespace where that begins."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from typing import Protocol

from slicepilot.controller.system.net.namespaces import inside

from .links import interface
from .packets import Address, frame
from .taps import Place

_TRANSPARENT = {4: (socket.IPPROTO_IP, 19), 6: (socket.IPPROTO_IPV6, 75)}  # IP_TRANSPARENT, IPV6_TRANSPARENT
_HOPS = {4: (socket.IPPROTO_IP, socket.IP_TTL), 6: (socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS)}
_FAMILY = {4: socket.AF_INET, 6: socket.AF_INET6}


class Sender(Protocol):
    """Whatever sends."""

    def send(self, packet: bytes) -> None:
        """Send one; raises OSError where it cannot even begin its way."""

    def close(self) -> None:
        """Release the socket."""


class LinkSender:
    """Sends IP packets from one end of a veth pair to the other, whatever the routes and firewall at the start say.

    Raises:
        OSError: one of them has gone.
    """

    def __init__(self, start: Place, end: Place) -> None:
        here, there = interface(start), interface(end)
        if here is None or there is None:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        self._from, self._to = here.hardware, there.hardware
        self._socket = inside(start.netns, lambda: _bound(start.device))

    def send(self, packet: bytes) -> None:
        """As `Sender.send`."""
        self._socket.send(frame(self._to, self._from, packet))

    def close(self) -> None:
        """As `Sender.close`."""
        self._socket.close()


class DatagramSender:
    """Sends UDP payloads from a namespace, as that routes them.

    Args:
        netns: file of the namespace.
        to, port: where they go.
        hops: of their IP header; none: as usual.
        source: address that they come from, which need not be there (IP_TRANSPARENT, ip(7)); none: as routes say.

    Raises:
        OSError: there is no route.
    """

    def __init__(
        self, netns: Path, to: Address, port: int, *, hops: int | None = None, source: Address | None = None
    ) -> None:
        self._socket = inside(netns, lambda: _connected(to, port, hops, source))

    def send(self, packet: bytes) -> None:
        """As `Sender.send`; an ICMP error that an earlier one has met with is none of this one's."""
        try:
            self._socket.send(packet)
        except ConnectionRefusedError:
            self._socket.send(packet)

    def close(self) -> None:
        """As `Sender.close`."""
        self._socket.close()


def _bound(device: str) -> socket.socket:
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
    try:
        made.bind((device, 0))
    except BaseException:
        made.close()
        raise
    return made


def _connected(to: Address, port: int, hops: int | None, source: Address | None) -> socket.socket:
    made = socket.socket(_FAMILY[to.version], socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    try:
        if hops is not None:
            made.setsockopt(*_HOPS[to.version], hops)
        if source is not None:
            made.setsockopt(*_TRANSPARENT[to.version], 1)
            made.bind((str(source), 0))
        made.connect((str(to), port))
    except BaseException:
        made.close()
        raise
    return made
