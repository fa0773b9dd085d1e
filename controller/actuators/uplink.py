"""A shared uplink with a class for each slice: an HTB hierarchy on the device by which all of them leave.

The link is the inner class at the top, at the uplink's rate; each slice's class below it has a guarantee (HTB's rate),
a ceiling and a priority. A class within its guarantee leaves before all that is borrowed; what guarantees leave over is
lent by priority, and among equals by deficit round robin of one quantum each (tc-htb(8), net/sched/sch_htb.c).

Messages: linux/pkt_cls.h, linux/gen_stats.h.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from slicepilot.controller.system.net import htb
from slicepilot.controller.system.net.qdisc import QDISC, RootQdisc
from slicepilot.controller.system.net.rtnetlink import (
    NLM_F_CREATE,
    NLM_F_EXCL,
    TCA_KIND,
    TCA_OPTIONS,
    TCMSG,
    RouteSocket,
    attribute,
    attributes,
    request,
)
from slicepilot.controller.system.net.tc import RTM_NEWTFILTER

LINK = 1
"""Number of the class that is the whole link; the classes of slices have higher numbers."""
BURST_MS = 1.0
FRAME_BYTES = 1514
TCA_U32_CLASSID, TCA_U32_SEL = 1, 5
U32_TERMINAL = 1
TCA_STATS2, TCA_STATS_BASIC, TCA_STATS_QUEUE = 7, 1, 3
STATS_BASIC = struct.Struct("=QI")  # gnet_stats_basic: bytes, packets
STATS_QUEUE = struct.Struct("=III")  # the first three of gnet_stats_queue: packets and bytes that wait, drops
# tc_u32_sel with one key: flags, offshift, nkeys, offmask, off, offoff, hoff, hmask; mask, value, offset, offmask.
U32_SEL = struct.Struct("=BBBxHHhhI4s4sii")
IPV4_SOURCE = 12
ETH_P_IP = 0x0008  # network byte order


@dataclass(frozen=True)
class SliceClass:
    """A slice's class.

    Attributes:
        number: 2 or more, below 65536; a socket chooses it by ``SO_PRIORITY`` (`priority_of`).
        guarantee_mbps: leaves whatever others do, as long as all guarantees fit.
        ceiling_mbps: what it gets at most.
        priority: 0 to 7, the lowest borrows first.
        queue_packets: what may wait.
        sources: IPv4 prefix whose packets are the slice's; None: only those whose socket says so.
        quantum_bytes: what it sends in a row when it takes turns with others.
        burst_ms: depth of its token buckets, in time at its rates.
    """

    number: int
    guarantee_mbps: float
    ceiling_mbps: float
    priority: int
    queue_packets: int
    sources: str | None = None
    quantum_bytes: int = FRAME_BYTES
    burst_ms: float = BURST_MS


class ClassfulUplink:
    """The hierarchy; it is put on the device at construction and taken off by `restore`.

    Args:
        device: where all slices leave.
        netns: path of its network namespace, or none for this process's own.
        rate_mbps: of the link.
        classes: one for each slice; packets of no slice pass unpaced.

    Raises:
        ActuatorError: no such namespace or device, no HTB or u32 in the kernel, or somebody's qdisc on the device.
    """

    def __init__(self, device: str, netns: Path | None, rate_mbps: float, classes: Sequence[SliceClass]) -> None:
        self._socket = RouteSocket(netns)
        self._rate_mbps, self._classes = rate_mbps, list(classes)
        try:
            self._qdisc = RootQdisc(self._socket, device)
            htb.put(self._qdisc)
            self._write(create=True)
            for priority, each in enumerate(self._classes, start=1):
                htb.set_queue(self._qdisc, each.number, each.queue_packets, NLM_F_CREATE | NLM_F_EXCL)
                if each.sources is not None:
                    self._match(each.sources, each.number, priority)
        except BaseException:
            self._socket.close()
            raise

    def set_rate(self, rate_mbps: float) -> None:
        """Change the link's rate; guarantees stay, ceilings are cut to it; raises ActuatorError."""
        self._rate_mbps = rate_mbps
        self._write(create=False)

    def set_ceiling(self, number: int, ceiling_mbps: float) -> None:
        """Change what a class gets at most; inf: the link's rate. Raises ActuatorError."""
        at = next(at for at, each in enumerate(self._classes) if each.number == number)
        self._classes[at] = replace(self._classes[at], ceiling_mbps=ceiling_mbps)
        self._send_class(self._classes[at], LINK, 0)

    def counters(self) -> npt.NDArray[np.float64]:
        """Bytes sent, bytes dropped and bytes that wait, of the classes in order, (C, 3); raises ActuatorError.

        The kernel counts dropped packets: they are taken to be as long as those that were sent.
        """
        result = np.zeros((len(self._classes), 3))
        rows = {each.number: row for row, each in enumerate(self._classes)}
        for number, there in htb.classes(self._qdisc):
            row = rows.get(number)
            if row is not None:
                stats = attributes(there[TCA_STATS2])
                sent, packets = STATS_BASIC.unpack_from(stats[TCA_STATS_BASIC])
                _, backlog, drops = STATS_QUEUE.unpack_from(stats[TCA_STATS_QUEUE])
                result[row] = sent, drops * (sent / packets if packets else FRAME_BYTES), backlog
        return result

    def restore(self) -> None:
        """Take the hierarchy off."""
        self._qdisc.remove()

    def close(self) -> None:
        """Release the socket; the hierarchy stays."""
        self._socket.close()

    def _write(self, create: bool) -> None:
        flags = NLM_F_CREATE | NLM_F_EXCL if create else 0
        whole = SliceClass(LINK, self._rate_mbps, self._rate_mbps, 0, 0)
        self._send_class(whole, 0, flags)
        for each in self._classes:
            self._send_class(each, LINK, flags)

    def _send_class(self, each: SliceClass, parent: int, flags: int) -> None:
        rates = htb.bytes_per_s(each.guarantee_mbps), htb.bytes_per_s(min(each.ceiling_mbps, self._rate_mbps))
        message = htb.class_message(
            self._qdisc,
            each.number,
            rates,
            each.burst_ms,
            each.quantum_bytes,
            parent=parent,
            priority=each.priority,
            flags=flags,
        )
        self._socket.send(message, f"{self._qdisc.device}: class {each.number}")

    def _match(self, sources: str, number: int, priority: int) -> None:
        """A u32 filter that leads what comes from a prefix to a class."""
        network = ipaddress.IPv4Network(sources)
        key = network.netmask.packed, network.network_address.packed, IPV4_SOURCE, 0
        selector = U32_SEL.pack(U32_TERMINAL, 0, 1, 0, 0, 0, 0, 0, *key)
        options = attribute(TCA_U32_CLASSID, struct.pack("=I", QDISC | number)) + attribute(TCA_U32_SEL, selector)
        payload = attribute(TCA_KIND, b"u32\0") + attribute(TCA_OPTIONS, options)
        info = priority << 16 | ETH_P_IP
        message = TCMSG.pack(0, self._qdisc.index, 0, QDISC, info) + payload
        self._socket.send(request(RTM_NEWTFILTER, NLM_F_CREATE | NLM_F_EXCL, message), f"filter of class {number}")


def priority_of(number: int) -> int:
    """The ``SO_PRIORITY`` of a socket whose packets are of this class (net/sched/sch_htb.c)."""
    return QDISC | number
