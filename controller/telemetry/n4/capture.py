"""The program that copies PFCP messages from N4 (``bpf/n4.bpf.c``), and what it has copied."""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import Any

import numpy.typing as npt

from slicepilot.controller.system.bpf.libbpf import BpfObject
from slicepilot.controller.system.bpf.ringbuf import RecordRing
from slicepilot.controller.telemetry import layout
from slicepilot.controller.telemetry.attachments import Hook, Hooks
from slicepilot.controller.telemetry.layout import FOLDER, mapped
from slicepilot.controller.telemetry.points import NetPoint

from .sessions import Datagram

Address = IPv4Address | IPv6Address
RING_OCTETS = 1 << 20
"""Some two thousand messages of usual length."""


class Capture:
    """Copies the messages of UPFs from their N4, both directions.

    Messages that are fragmented or longer than `layout.N4_OCTETS` are counted and not copied, and so are those that
    find the buffer full. Nothing waits for a reader.

    Args:
        n4: where it is watched.
        ring_octets: of the buffer, a power of two from a page.

    Attributes:
        counters: `layout.N4_COUNTERS` by point (P,).

    Raises:
        ProbeError: something that is needed is missing; nothing stays attached.
    """

    def __init__(self, n4: Sequence[NetPoint], ring_octets: int = RING_OCTETS) -> None:
        self._watched: dict[bytes, int] = {}
        self._object = BpfObject(FOLDER / "n4.bpf.o", max_entries={"n4_counters": len(n4), "n4_messages": ring_octets})
        try:
            self.counters: npt.NDArray[Any] = mapped(self._object, "n4_counters", layout.N4_COUNTERS)
            self._addresses = self._object.map("n4_addresses")
            self._ring = RecordRing(self._object.map("n4_messages"))
            received, sent = (self._object.program(name).fd for name in ("n4_received", "n4_sent"))
            self.hooks = Hooks(
                hook
                for index, point in enumerate(n4)
                for hook in (
                    Hook(point.facing("ingress"), received, "n4-received", index),
                    Hook(point.facing("egress"), sent, "n4-sent", index),
                )
            )
        except BaseException:
            self._object.close()
            raise

    def watch(self, upf: int, point: int, addresses: Collection[Address]) -> None:
        """Set the addresses of a UPF at a point; raises OSError."""
        wanted = {struct.pack("=2H16s", point, address.version, address.packed) for address in addresses}
        for key in [key for key, whose in self._watched.items() if whose == upf and key not in wanted]:
            self._addresses.delete(key)
            del self._watched[key]
        for key in wanted:
            self._addresses.update(key, struct.pack("=I", upf))
            self._watched[key] = upf

    def next(self) -> Datagram | None:
        """The oldest message that was not taken yet; None where there is none."""
        record = self._ring.next()
        if record is None:
            return None
        head = layout.N4_HEADER.unpack_from(record)
        seen_ns, unread, lost, source, destination, source_port, destination_port, upf, length, _, sent = head
        own, other = (source, destination) if sent else (destination, source)
        own_port, other_port = (source_port, destination_port) if sent else (destination_port, source_port)
        octets = record[layout.N4_HEADER.size : layout.N4_HEADER.size + length]
        return Datagram(upf, bool(sent), own, other, own_port, other_port, seen_ns, octets, unread, lost)

    def heal(self) -> tuple[set[int], dict[int, str]]:
        """Attach again what was lost: points where that was done, and where it cannot be, and why."""
        missing = {hook.classid: why for hook, why in self.hooks.heal().items()}
        return {hook.classid for hook in self.hooks.renewed}, missing

    def close(self) -> None:
        try:
            self.hooks.close()
        finally:
            self._ring.close()
            self._object.close()
