"""A shared uplink with a class for each slice: an HTB hierarchy on the device by which all of them leave.

The link is the inner class at the top, at the uplink's rate; each slice's class below it has a guarantee (HTB's rate),
a ceiling and a priority. A class within its guarantee leaves before all that is borrowed; what guarantees leave over is
lent by priority, and among equals by deficit round robin of one quantum each (tc-htb(8), net/sched/sch_htb.c).

Messages: linux/pkt_sched.h, linux/pkt_cls.h.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from slicepilot.controller.system.net.qdisc import HANDLE_MAJOR, QDISC, RootQdisc
from slicepilot.controller.system.net.rtnetlink import (
    NLM_F_CREATE,
    NLM_F_DUMP,
    NLM_F_EXCL,
    RTM_NEWQDISC,
    TCA_KIND,
    TCA_OPTIONS,
    TCMSG,
    RouteSocket,
    attribute,
    attributes,
    request,
)
from slicepilot.controller.system.net.tc import RTM_NEWTFILTER

from .egress import (
    FIFO_LIMIT,
    HTB_GLOB,
    HTB_OPT,
    HTB_VERSION,
    LINKLAYER_ETHERNET,
    NS_PER_TICK,
    RTM_GETTCLASS,
    RTM_NEWTCLASS,
    TCA_HTB_CEIL64,
    TCA_HTB_INIT,
    TCA_HTB_PARMS,
    TCA_HTB_RATE64,
    bytes_per_s,
)

LINK = 1
"""Number of the class that is the whole link; slices have higher ones."""
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
        classes: one for each slice; what belongs to none passes unpaced.

    Raises:
        ActuatorError: no such namespace or device, no HTB or u32 in the kernel, or somebody's qdisc on the device.
    """

    def __init__(self, device: str, netns: Path | None, rate_mbps: float, classes: Sequence[SliceClass]) -> None:
        self._socket = RouteSocket(netns)
        self._rate_mbps, self._classes = rate_mbps, list(classes)
        try:
            self._qdisc = RootQdisc(self._socket, device)
            self._qdisc.put("htb", attribute(TCA_HTB_INIT, HTB_GLOB.pack(HTB_VERSION, 10, 0, 0, 0)))
            self._write(create=True)
            for priority, each in enumerate(self._classes, start=1):
                self._queue(each, NLM_F_CREATE | NLM_F_EXCL)
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
        self._send_class(self._classes[at], QDISC | LINK, 0)

    def counters(self) -> npt.NDArray[np.float64]:
        """Bytes sent, bytes dropped and bytes that wait, of the classes in order, (C, 3); raises ActuatorError.

        The kernel counts dropped packets: they are taken to be as long as those that were sent.
        """
        result = np.zeros((len(self._classes), 3))
        places = {QDISC | each.number: at for at, each in enumerate(self._classes)}
        message = self._qdisc.message(RTM_GETTCLASS, NLM_F_DUMP, 0, 0)
        for _, payload in self._socket.dump(message, f"{self._qdisc.device}: list classes"):
            at = places.get(TCMSG.unpack_from(payload)[2])
            if at is not None:
                stats = attributes(attributes(payload[TCMSG.size :])[TCA_STATS2])
                sent, packets = STATS_BASIC.unpack_from(stats[TCA_STATS_BASIC])
                _, backlog, drops = STATS_QUEUE.unpack_from(stats[TCA_STATS_QUEUE])
                result[at] = sent, drops * (sent / packets if packets else FRAME_BYTES), backlog
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
        self._send_class(whole, QDISC, flags)
        for each in self._classes:
            self._send_class(each, QDISC | LINK, flags)

    def _send_class(self, each: SliceClass, parent: int, flags: int) -> None:
        rates = each.guarantee_mbps, min(each.ceiling_mbps, self._rate_mbps)
        # As in `egress.class_message`: 64-bit rates, the 32-bit ones only have to be positive.
        spec = (0, LINKLAYER_ETHERNET, 0, 0, 0, 1)
        ticks = round(each.burst_ms * 1e6 / NS_PER_TICK)
        parms = HTB_OPT.pack(*spec, *spec, ticks, ticks, each.quantum_bytes, 0, each.priority)
        wide = zip((TCA_HTB_RATE64, TCA_HTB_CEIL64), rates, strict=True)
        options = attribute(TCA_HTB_PARMS, parms)
        for kind, rate in wide:
            options += attribute(kind, struct.pack("=Q", bytes_per_s(rate)))
        payload = attribute(TCA_KIND, b"htb\0") + attribute(TCA_OPTIONS, options)
        self._qdisc.send(RTM_NEWTCLASS, flags, QDISC | each.number, parent, payload, f"class {each.number}")

    def _queue(self, each: SliceClass, flags: int) -> None:
        limit = attribute(TCA_OPTIONS, FIFO_LIMIT.pack(each.queue_packets))
        fifo = attribute(TCA_KIND, b"pfifo\0") + limit
        handle = (HANDLE_MAJOR + each.number) << 16
        self._qdisc.send(RTM_NEWQDISC, flags, handle, QDISC | each.number, fifo, f"queue of class {each.number}")

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
    """What a socket sets as ``SO_PRIORITY`` so that its packets are of this class (net/sched/sch_htb.c)."""
    return QDISC | number
