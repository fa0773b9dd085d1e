"""A kept rtnetlink socket inside another network namespace, and fixed messages sent through it.

A socket belongs to the namespace it was made in for as long as it is open, so only its making has to enter the
namespace, in a thread of its own. Messages are built once and patched in place: a request and its acknowledgement take
a few microseconds, where a subprocess takes milliseconds. Formats: rtnetlink(7), linux/netlink.h, linux/rtnetlink.h.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from slicepilot.controller.system.kernel_file import ActuatorError

from .namespaces import inside

NLMSG_ERROR, NLMSG_DONE = 2, 3
NLM_F_REQUEST, NLM_F_ACK, NLM_F_REPLACE, NLM_F_EXCL, NLM_F_CREATE, NLM_F_DUMP = 1, 4, 0x100, 0x200, 0x400, 0x300
SOL_NETLINK, NETLINK_CAP_ACK, NETLINK_EXT_ACK = 270, 10, 11
NLMSGERR_ATTR_MSG = 1
RTM_GETLINK, RTM_NEWQDISC, RTM_DELQDISC, RTM_GETQDISC = 18, 36, 37, 38
TCA_KIND, TCA_OPTIONS = 1, 2
IFLA_IFNAME = 3
HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
ATTRIBUTE = struct.Struct("=HH")  # nlattr: length, type
IFINFOMSG = struct.Struct("=BxHiII")  # ifinfomsg: family, type, index, flags, change mask
TCMSG = struct.Struct("=BxxxiIII")  # tcmsg: family, ifindex, handle, parent, info
ANSWER_BYTES = 1 << 16
ANSWER_TIMEOUT_S = 1.0


def attribute(kind: int, payload: bytes) -> bytes:
    """One netlink attribute, padded to four bytes."""
    length = ATTRIBUTE.size + len(payload)
    return ATTRIBUTE.pack(length, kind) + payload + bytes(-length % 4)


def attributes(data: bytes | memoryview) -> dict[int, bytes]:
    """The attributes in a payload by type; of a type that repeats, the last."""
    result, offset = {}, 0
    while offset + ATTRIBUTE.size <= len(data):
        length, kind = ATTRIBUTE.unpack_from(data, offset)
        if length < ATTRIBUTE.size:
            break
        result[kind & 0x3FFF] = bytes(data[offset + ATTRIBUTE.size : offset + length])
        offset += (length + 3) & ~3
    return result


def text(value: bytes) -> str:
    """A name, which may consist of any bytes and be malicious: bytes that are no UTF-8 are escaped."""
    return value.rstrip(b"\0").decode(errors="backslashreplace")


def request(kind: int, flags: int, payload: bytes) -> bytearray:
    """A whole message that asks for an acknowledgement; its sequence number is filled in when it is sent."""
    header = HEADER.pack(HEADER.size + len(payload), kind, NLM_F_REQUEST | NLM_F_ACK | flags, 0, 0)
    return bytearray(header + payload)


class RouteSocket:
    """A NETLINK_ROUTE socket in a network namespace.

    Args:
        netns: path of the namespace (``/run/netns/NAME``, ``/proc/PID/ns/net``), or none for this thread's own.
        protocol: another of netlink's, which has the same messages (netlink(7)).

    Raises:
        ActuatorError: the namespace cannot be entered.
    """

    def __init__(self, netns: Path | None = None, protocol: int = socket.NETLINK_ROUTE) -> None:
        self.netns = netns
        try:
            # A socket stays in the namespace that it was made in.
            self._socket = (
                _netlink_socket(protocol) if netns is None else inside(netns, lambda: _netlink_socket(protocol))
            )
        except OSError as error:
            raise ActuatorError.of(f"network namespace {netns or 'of this process'}", error) from error
        self._sequence = 0
        self._answer = bytearray(ANSWER_BYTES)
        self._view = memoryview(self._answer)

    def index_of(self, device: str) -> int:
        """Interface index of a device of the namespace.

        Raises:
            ActuatorError: there is none of that name.
        """
        indices = self._indices()
        if device not in indices:
            raise ActuatorError(
                f"device {device!r} in {self}: not there; expected {', '.join(sorted(indices)) or 'none'}"
            )
        return indices[device]

    def name_of(self, index: int) -> str | None:
        """Name of the device of this number, None where there is none; raises ActuatorError."""
        return next((name for name, number in self._indices().items() if number == index), None)

    def send(self, message: bytearray, what: str) -> None:
        """Send one request and wait for its acknowledgement, which the kernel gives before the send returns.

        Raises:
            ActuatorError: the kernel refused it; the message says what, and the kernel's own words where it has any.
        """
        try:
            self._post(message)
            while True:
                size = self._socket.recv_into(self._answer)
                _, kind, _, sequence, _ = HEADER.unpack_from(self._answer)
                if sequence == self._sequence and kind == NLMSG_ERROR:
                    break
        except OSError as error:
            raise ActuatorError.of(f"{self}: {what}", error) from error
        (code,) = struct.unpack_from("=i", self._answer, HEADER.size)
        if code:
            raise self._refusal(code, size, what)

    def ask(self, message: bytearray, what: str) -> bytes:
        """Send one request that is answered by one message, and by its acknowledgement; returns the answer's payload.

        Raises:
            ActuatorError: as `send`; or no answer.
        """
        answers = self.dump(message, what)
        return answers[-1][1] if answers else b""

    def dump(self, message: bytearray, what: str) -> list[tuple[int, bytes]]:
        """Send a request; returns (type, payload) of every message of the answer, of which NLM_F_DUMP brings many."""
        result: list[tuple[int, bytes]] = []
        for kind, payload in self._answers(message, what):
            if kind in {NLMSG_DONE, NLMSG_ERROR}:
                break
            result.append((kind, payload))
        return result

    def _answers(self, message: bytearray, what: str) -> Iterator[tuple[int, bytes]]:
        """Send a request; (type, payload) of what is answered, without end: acknowledgements are errors of code 0."""
        try:
            self._post(message)
            while True:
                size, offset = self._socket.recv_into(self._answer), 0
                while offset + HEADER.size <= size:
                    length, kind, _, sequence, _ = HEADER.unpack_from(self._answer, offset)
                    payload = bytes(self._view[offset + HEADER.size : offset + length])
                    offset += (length + 3) & ~3
                    if sequence != self._sequence:
                        continue
                    if kind == NLMSG_ERROR and (code := struct.unpack_from("=i", payload)[0]):
                        raise self._refusal(code, size, what)
                    yield kind, payload
        except OSError as error:
            raise ActuatorError.of(f"{self}: {what}", error) from error

    def close(self) -> None:
        self._socket.close()

    def __str__(self) -> str:
        return f"network namespace {self.netns}" if self.netns else "this network namespace"

    def _indices(self) -> dict[str, int]:
        """Indices of devices by name, without ``socket.if_nameindex``, which holds the interpreter while it waits."""
        answer = self.dump(request(RTM_GETLINK, NLM_F_DUMP, IFINFOMSG.pack(0, 0, 0, 0, 0)), "list links")
        result = {}
        for _, payload in answer:
            result[text(attributes(payload[IFINFOMSG.size :])[IFLA_IFNAME])] = IFINFOMSG.unpack_from(payload)[2]
        return result

    def _post(self, message: bytearray) -> None:
        self._sequence = (self._sequence + 1) & 0xFFFFFFFF
        struct.pack_into("=I", message, 8, self._sequence)
        self._socket.send(message)

    def _refusal(self, code: int, size: int, what: str) -> ActuatorError:
        # nlmsgerr: error, the request's header, then (NETLINK_EXT_ACK) attributes.
        report = attributes(self._view[HEADER.size + 4 + HEADER.size : size]).get(NLMSGERR_ATTR_MSG, b"")
        words = f" ({report.rstrip(bytes(1)).decode(errors='replace')})" if report else ""
        return ActuatorError.of(f"{self}: {what}{words}", OSError(-code, ""))


def _netlink_socket(protocol: int) -> socket.socket:
    route = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
    try:
        route.bind((0, 0))
        # Answers without a copy of the request, with the kernel's words for what it refuses.
        route.setsockopt(SOL_NETLINK, NETLINK_CAP_ACK, 1)
        route.setsockopt(SOL_NETLINK, NETLINK_EXT_ACK, 1)
        # As an option of the kernel's: Python's own time-out would poll before every receive.
        whole_s, part_s = divmod(ANSWER_TIMEOUT_S, 1.0)
        route.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", int(whole_s), int(part_s * 1e6)))
    except OSError:
        route.close()
        raise
    return route
