"""Egress rate of one slice: an HTB shaper on the device through which its UPF sends towards N6.

HTB and not TBF, because the rate moves all the time: `tbf_change` fills the bucket at every change, so that a rate
rewritten every few milliseconds leaks a burst each time, while `htb_change_class` keeps what tokens there are (both in
net/sched). HTB also passes segments larger than its burst, which TBF drops.

Slices whose UPF is one process leave by one device, too: each has a class of the same HTB then, chosen by a BPF program
that knows whose packets are whose, and what is nobody's passes unpaced.

"No rate" is a rate that no device reaches, not a removed qdisc: replacing a root qdisc waits for an RCU grace period.
Messages: linux/pkt_sched.h, tc-htb(8).
"""

from __future__ import annotations

import errno
import math
import struct
from dataclasses import dataclass
from pathlib import Path

from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.controller.system.net import rtnetlink, tc
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
)

RTM_NEWTCLASS, RTM_GETTCLASS = 40, 42
TC_H_MAJ = 0xFFFF0000
TCA_HTB_PARMS, TCA_HTB_INIT, TCA_HTB_RATE64, TCA_HTB_CEIL64 = 1, 2, 6, 7
HTB_GLOB = struct.Struct("=IIIII")  # tc_htb_glob: version, rate2quantum, defcls, debug, direct_pkts
# tc_htb_opt: rate and ceil (tc_ratespec: cell_log, linklayer, overhead, cell_align, mpu, rate), buffer, cbuffer,
# quantum, level, prio.
HTB_OPT = struct.Struct("=BBHhHIBBHhHIIIIII")
FIFO_LIMIT = struct.Struct("=I")
HTB_VERSION, LINKLAYER_ETHERNET = 3, 1
ONLY = 1  # number of the class that takes all packets that no other is chosen for
FILTER = "slicepilot/shaper"
NS_PER_TICK = 64  # include/net/pkt_sched.h, PSCHED_SHIFT
QUANTUM_BYTES = 60_000  # irrelevant with one class; given, or the kernel warns of high rates
UNPACED_BYTES_PER_S = 125_000_000_000  # 1 Tbit/s
MIN_BYTES_PER_S = 125  # 1 kbit/s
BYTES_PER_S_PER_MBPS = 125_000.0


@dataclass(frozen=True)
class EgressConfig:
    """How HTB enforces a rate.

    Attributes:
        burst_ms: depth of the token bucket, in time at the configured rate.
        queue_packets: what may wait; beyond, packets are dropped. Bounds the delay that shaping adds.
        dead_band_ratio: relative change below which the rate stays.
        drop_horizon_ms: where Cilium paces a slice, how long its packets may have to wait at most; None leaves what is
            there. See docs/cilium.md for what that does to large segments.
    """

    burst_ms: float = 1.0
    queue_packets: int = 200
    dead_band_ratio: float = 0.005
    drop_horizon_ms: float | None = None


@dataclass(frozen=True)
class ShaperClass:
    """Which part of a device's packets a slice's shaper paces, where others leave by the same device.

    Attributes:
        number: of its class, 2 or more.
        classifier: descriptor of a loaded BPF program that chooses a class for each packet (tc-bpf(8), direct action).
    """

    number: int
    classifier: int


class EgressRate:
    """A shaper. It is put on the device at construction, pacing nothing, and taken off by `restore`.

    The socket kept in the namespace keeps a deleted namespace alive until `close`.

    Args:
        device: where the slice leaves towards N6.
        netns: path of its network namespace, or none for this process's own.
        config: burst, queue, dead band.
        part: of the packets; none: all.

    Raises:
        ActuatorError: no such namespace or device, no HTB in the kernel, not permitted, or a qdisc on the device that
            somebody has configured: it could not be brought back.
    """

    def __init__(
        self,
        device: str,
        netns: Path | None = None,
        config: EgressConfig | None = None,
        part: ShaperClass | None = None,
    ) -> None:
        self.device, self.config, self._part = device, config or EgressConfig(), part
        self._number = ONLY if part is None else part.number
        self._socket = RouteSocket(netns)
        try:
            self._qdisc = RootQdisc(self._socket, device)
            self._change, self._rate_offsets = class_message(self._qdisc, self._number, self.config.burst_ms)
            self._install()
        except BaseException:
            self._socket.close()
            raise
        self._bytes_per_s = UNPACED_BYTES_PER_S

    @property
    def mbps(self) -> float:
        """What was set last; inf where nothing is paced."""
        return mbps(self._bytes_per_s)

    def set(self, egress_mbps: float) -> float:
        """Set the rate; returns what holds (dead band, a floor of 1 kbit/s)."""
        wanted = bytes_per_s(egress_mbps)
        held = self._bytes_per_s
        if wanted == UNPACED_BYTES_PER_S == held:
            return egress_mbps
        if abs(wanted - held) <= self.config.dead_band_ratio * held:
            return mbps(held)
        self._write(wanted)
        return egress_mbps if wanted == UNPACED_BYTES_PER_S else mbps(wanted)

    def read(self) -> float:
        rate = self._rate()
        if rate is None:
            raise self._gone()
        return mbps(rate)

    def deviation(self) -> str | None:
        current = self._rate()
        if current == self._bytes_per_s:
            return self._led_past()
        if current is None:
            self._qdisc.require_device()
        return f"{'no shaper' if current is None else words(current)} instead of {words(self._bytes_per_s)}"

    def adopt(self) -> float:
        """Take what somebody else has set for what holds; no shaper paces nothing, nor does one that packets are led
        past."""
        self._bytes_per_s = (None if self._led_past() else self._rate()) or UNPACED_BYTES_PER_S
        return mbps(self._bytes_per_s)

    def reassert(self) -> float:
        """Set again what holds here; raises ActuatorError where somebody's own qdisc has replaced the shaper, or where
        somebody's filter leads packets past it."""
        if self._rate() is None:
            self._install()
        elif self._part is not None and not self._filters():
            self._add_classifier(self._part)
        if (past := self._led_past()) is not None:
            raise ActuatorError(f"{self._socket}: {self.device}: {past}")
        self._write(self._bytes_per_s)
        return mbps(self._bytes_per_s)

    def set_queue(self, packets: int) -> None:
        """Set how many packets may wait before the shaper; raises ActuatorError."""
        limit = attribute(TCA_OPTIONS, FIFO_LIMIT.pack(packets))
        change = attribute(TCA_KIND, b"pfifo\0") + limit
        self._qdisc.send(RTM_NEWQDISC, 0, _queue(self._number), QDISC | self._number, change, f"queue of {packets}")

    def restore(self) -> None:
        """Take the shaper off: the device has its default qdisc again. A device that is gone is not an error."""
        self._qdisc.remove()

    def close(self) -> None:
        self._socket.close()

    def _write(self, rate_bytes_per_s: int) -> None:
        for offset in self._rate_offsets:
            struct.pack_into("=Q", self._change, offset, rate_bytes_per_s)
        try:
            self._socket.send(self._change, f"{self.device}: egress rate {mbps(rate_bytes_per_s):g} Mbit/s")
        except ActuatorError as error:
            if error.errno == errno.ENOENT:  # not ENODEV: the device is still there
                raise self._gone() from error
            raise
        self._bytes_per_s = rate_bytes_per_s

    def _gone(self) -> ActuatorError:
        return ActuatorError(f"{self._socket}: {self.device}: the shaper is gone")

    def _install(self) -> None:
        """Root qdisc, the class, and a short queue behind it; of what slices share, what is not there yet."""
        try:
            if self._part is None or not self._shared():
                self._qdisc.put("htb", attribute(TCA_HTB_INIT, HTB_GLOB.pack(HTB_VERSION, 10, ONLY, 0, 0)))
                if self._part is not None:
                    self._add_class(ONLY, class_message(self._qdisc, ONLY, self.config.burst_ms)[0])
                    self._add_classifier(self._part)
            self._add_class(self._number, self._change)
        except ActuatorError:
            self.restore()
            raise

    def _shared(self) -> bool:
        """Whether another slice of this device has put the qdisc and its classifier there."""
        return self._qdisc.check() and bool(self._filters()) and self._rate() is None

    def _filters(self) -> list[tc.Filter]:
        """Which choose a class of the qdisc, in the order in which they are asked."""
        return tc.filters(self._socket, self._qdisc.index, QDISC)

    def _led_past(self) -> str | None:
        """Why packets may go past the shaper: no filter chooses it, or somebody's is asked first."""
        first = next((item.name or f"of kind {item.kind}" for item in self._filters()), None)
        if first == (None if self._part is None else FILTER):
            return None
        if first is None:
            return "no filter that leads packets to the shaper"
        return f"the filter {first} of somebody else, which may lead packets past the shaper"

    def _add_classifier(self, part: ShaperClass) -> None:
        tc.add_filter(
            self._socket,
            self._qdisc.index,
            QDISC,
            priority=1,
            handle=1,
            program=part.classifier,
            name=FILTER,
            classid=QDISC,
        )

    def _add_class(self, number: int, change: bytearray) -> None:
        create = NLM_F_CREATE | NLM_F_EXCL
        add = bytearray(change)
        struct.pack_into("=H", add, 6, rtnetlink.NLM_F_REQUEST | rtnetlink.NLM_F_ACK | create)
        self._socket.send(add, f"{self.device}: add class htb")
        limit = attribute(TCA_OPTIONS, FIFO_LIMIT.pack(self.config.queue_packets))
        fifo = attribute(TCA_KIND, b"pfifo\0") + limit
        self._qdisc.send(RTM_NEWQDISC, create, _queue(number), QDISC | number, fifo, "add qdisc pfifo")

    def _rate(self) -> int | None:
        """Bytes per second in the kernel; None where the shaper is gone."""
        options = self._class_options()
        parms = options.get(TCA_HTB_PARMS, b"")
        if len(parms) < HTB_OPT.size:
            return None
        rate = int.from_bytes(options[TCA_HTB_RATE64], "little") if TCA_HTB_RATE64 in options else 0
        return rate or int(HTB_OPT.unpack_from(parms)[5])

    def _class_options(self) -> dict[int, bytes]:
        message = self._qdisc.message(RTM_GETTCLASS, NLM_F_DUMP, 0, 0)
        for _, payload in self._socket.dump(message, f"{self.device}: list classes"):
            if TCMSG.unpack_from(payload)[2] == QDISC | self._number:
                return attributes(attributes(payload[TCMSG.size :]).get(TCA_OPTIONS, b""))
        return {}


def _queue(number: int) -> int:
    """Handle of the queue behind a class."""
    return (HANDLE_MAJOR + number) << 16


def class_message(qdisc: RootQdisc, number: int, burst_ms: float) -> tuple[bytearray, tuple[int, int]]:
    """The message that changes a class, to a rate that paces nothing, and where in it the two rates stand."""
    # With 64-bit rates the 32-bit rates only have to be positive (psched_ratecfg_precompute takes the larger): 1
    # byte/s, so that no other field has to be patched.
    spec = (0, LINKLAYER_ETHERNET, 0, 0, 0, 1)
    burst_ticks = round(burst_ms * 1e6 / NS_PER_TICK)
    parms = HTB_OPT.pack(*spec, *spec, burst_ticks, burst_ticks, QUANTUM_BYTES, 0, 0)
    rate = struct.pack("=Q", UNPACED_BYTES_PER_S)
    rates = attribute(TCA_HTB_RATE64, rate) + attribute(TCA_HTB_CEIL64, rate)
    options = attribute(TCA_OPTIONS, attribute(TCA_HTB_PARMS, parms) + rates)
    message = qdisc.message(RTM_NEWTCLASS, 0, QDISC | number, QDISC, attribute(TCA_KIND, b"htb\0") + options)
    first = len(message) - len(rates) + rtnetlink.ATTRIBUTE.size
    return message, (first, first + len(rates) // 2)


def unpace(qdisc: RootQdisc) -> None:
    """Let everything through at once that an HTB of ours holds back; no such class is not an error."""
    message = qdisc.message(RTM_GETTCLASS, NLM_F_DUMP, 0, 0)
    try:
        for _, payload in qdisc.route.dump(message, f"{qdisc.device}: list classes"):
            handle = TCMSG.unpack_from(payload)[2]
            if handle & TC_H_MAJ == QDISC:
                change, _ = class_message(qdisc, handle & ~TC_H_MAJ, EgressConfig.burst_ms)
                qdisc.route.send(change, f"{qdisc.device}: pace nothing")
    except ActuatorError as error:
        if not error.vanished:
            raise


def bytes_per_s(egress_mbps: float) -> int:
    """The rate in bytes per second; `UNPACED_BYTES_PER_S` for inf and 0."""
    if egress_mbps <= 0 or egress_mbps == math.inf:
        return UNPACED_BYTES_PER_S
    return min(max(round(egress_mbps * BYTES_PER_S_PER_MBPS), MIN_BYTES_PER_S), UNPACED_BYTES_PER_S)


def mbps(rate_bytes_per_s: int) -> float:
    """The inverse; inf for what paces nothing."""
    return math.inf if rate_bytes_per_s >= UNPACED_BYTES_PER_S else rate_bytes_per_s / BYTES_PER_S_PER_MBPS


def words(rate_bytes_per_s: int) -> str:
    """The rate for people."""
    rate = mbps(rate_bytes_per_s)
    return "an unpaced shaper" if rate == math.inf else f"{rate:g} Mbit/s"
