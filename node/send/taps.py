"""Copies of the packets that pass an interface, of one UDP port (packet(7)); nothing of their way is changed."""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slicepilot.controller.system.net.namespaces import inside

_ETH_P_ALL, _OUTGOING = 3, 4
_SO_ATTACH_FILTER, _SO_RCVBUFFORCE = 26, 33
_CAPTURED_OCTETS = 512
_MOST_AT_ONCE = 4096


@dataclass(frozen=True)
class Place:
    """An interface of a network namespace, which is given by its file."""

    netns: Path
    device: str


class Tap:
    """Keeps copies of packets to a UDP port, from their IP header on, in both directions of an interface.

    What does not fit into the buffer is not seen, which costs the interface next to nothing.

    Args:
        place: where; a device that is down shows nothing.
        port: of UDP.
        longest: packets of more octets are left out.
        buffer_bytes: of kernel memory.

    Raises:
        OSError: namespace or device are not there, or this is not permitted.
    """

    def __init__(self, place: Place, port: int, longest: int, buffer_bytes: int) -> None:
        self.place, self.port = place, port
        self._socket = inside(place.netns, lambda: _open(place.device, _filter(port, longest), buffer_bytes))

    def fileno(self) -> int:
        """For select(2)."""
        return self._socket.fileno()

    def take(self) -> Iterator[tuple[bytes, bool]]:
        """What has come so far; with each packet whether it went out of the interface, or came in."""
        for _ in range(_MOST_AT_ONCE):
            try:
                packet, sender = self._socket.recvfrom(_CAPTURED_OCTETS)
            except OSError:  # nothing there, or the device has gone down
                return
            yield packet, sender[2] == _OUTGOING

    def close(self) -> None:
        """See no more."""
        self._socket.close()


def _open(device: str, program: list[tuple[int, int, int, int]], buffer_bytes: int) -> socket.socket:
    # Without a protocol nothing is taken until the filter is there. SOCK_DGRAM: without headers of the link.
    tap = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, 0)
    try:
        code = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
        held = ctypes.create_string_buffer(code, len(code))
        tap.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", len(program), ctypes.addressof(held)))
        tap.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, buffer_bytes)
        tap.bind((device, _ETH_P_ALL))
    except BaseException:
        tap.close()
        raise
    return tap


def _filter(port: int, longest: int) -> list[tuple[int, int, int, int]]:
    """Classic BPF (linux/filter.h): operation, jumps if true and false, operand. Offsets are from the IP header on.

    IPv6 with extension headers is left out, and fragments but for first ones.
    """
    ld_len, ldb, ldh, ldh_x, ldx_ihl = 0x80, 0x30, 0x28, 0x48, 0xB1
    and_, jeq, jgt, jset, ret = 0x54, 0x15, 0x25, 0x45, 0x06
    return [
        (ld_len, 0, 0, 0),
        (jgt, 16, 0, longest),
        (ldb, 0, 0, 0),
        (and_, 0, 0, 0xF0),
        (jeq, 1, 0, 0x40),
        (jeq, 7, 12, 0x60),
        (ldb, 0, 0, 9),
        (jeq, 0, 10, socket.IPPROTO_UDP),
        (ldh, 0, 0, 6),
        (jset, 8, 0, 0x1FFF),
        (ldx_ihl, 0, 0, 0),
        (ldh_x, 0, 0, 2),
        (jeq, 4, 5, port),
        (ldb, 0, 0, 6),
        (jeq, 0, 3, socket.IPPROTO_UDP),
        (ldh, 0, 0, 42),
        (jeq, 0, 1, port),
        (ret, 0, 0, _CAPTURED_OCTETS),
        (ret, 0, 0, 0),
    ]
