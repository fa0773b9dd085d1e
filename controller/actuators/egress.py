"""Egress rate of one slice: an HTB shaper on the device through which its UPF sends towards N6.

HTB and not TBF, because the rate moves all the time: `tbf_change` fills the bucket at every change, so that a rate
rewritten every few milliseconds leaks a burst each time, while `htb_change_class` keeps what tokens there are (both in
net/sched). HTB also passes segments larger than its burst, which TBF drops.

Slices whose UPF is one process leave by the same device: each has a class of the same HTB then, which a BPF program
chooses by the packets' slice. Packets of no slice pass unpaced.

"No rate" is a rate that no device reaches, not a removed qdisc: replacing a root qdisc waits for an RCU grace period.
"""

from __future__ import annotations

import errno
import math
import struct
from dataclasses import dataclass
from pathlib import Path

from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.controller.system.net import htb, tc
from slicepilot.controller.system.net.htb import UNPACED_BYTES_PER_S, bytes_per_s, mbps
from slicepilot.controller.system.net.qdisc import QDISC, RootQdisc
from slicepilot.controller.system.net.rtnetlink import NLM_F_CREATE, NLM_F_EXCL, RouteSocket

ONLY = 1  # number of the class that takes all packets that no other is chosen for
FILTER = "slicepilot/shaper"
QUANTUM_BYTES = 60_000  # irrelevant with one class; given, or the kernel warns of high rates
BURST_MS = 1.0
"""Depth of the token bucket, in time at the configured rate."""
QUEUE_PACKETS = 200
"""What may wait; beyond, packets are dropped. Bounds the delay that shaping adds."""
DEAD_BAND_RATIO = 0.005
"""Relative change below which a rate stays."""


@dataclass(frozen=True)
class ShaperClass:
    """A slice's class of the shaper on a device by which other slices leave as well.

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
        part: of the packets; none: all.

    Raises:
        ActuatorError: no such namespace or device, no HTB in the kernel, not permitted, or a qdisc on the device that
            somebody has configured: it could not be brought back.
    """

    def __init__(self, device: str, netns: Path | None = None, part: ShaperClass | None = None) -> None:
        self.device, self._part = device, part
        self._number = ONLY if part is None else part.number
        self._bytes_per_s = UNPACED_BYTES_PER_S
        self._socket = RouteSocket(netns)
        try:
            self._qdisc = RootQdisc(self._socket, device)
            self._change = _class_message(self._qdisc, self._number)
            self._install()
        except BaseException:
            self._socket.close()
            raise

    @property
    def mbps(self) -> float:
        """The rate that was set last; inf without pacing."""
        return mbps(self._bytes_per_s)

    def set(self, egress_mbps: float) -> float:
        """Set the rate; returns what holds (dead band, a floor of 1 kbit/s)."""
        wanted = bytes_per_s(egress_mbps)
        held = self._bytes_per_s
        if wanted == UNPACED_BYTES_PER_S == held:
            return egress_mbps
        if abs(wanted - held) <= DEAD_BAND_RATIO * held:
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
        """Take the rate that another program has set as the current rate: no limit where there is no shaper, or where
        packets bypass it."""
        self._bytes_per_s = (None if self._led_past() else self._rate()) or UNPACED_BYTES_PER_S
        return mbps(self._bytes_per_s)

    def reassert(self) -> float:
        """Set the held rate again; raises ActuatorError if another program's qdisc has replaced the shaper, or another
        program's filter leads packets past it."""
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
        htb.set_queue(self._qdisc, self._number, packets)

    def restore(self) -> None:
        """Take the shaper off: the device has its default qdisc again. A device that is gone is not an error."""
        self._qdisc.remove()

    def close(self) -> None:
        self._socket.close()

    def _write(self, rate_bytes_per_s: int) -> None:
        for offset in htb.RATES_AT:
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
                htb.put(self._qdisc, ONLY)
                if self._part is not None:
                    self._add_class(ONLY, UNPACED_BYTES_PER_S)
                    self._add_classifier(self._part)
            self._add_class(self._number, self._bytes_per_s)
        except ActuatorError:
            self.restore()
            raise

    def _shared(self) -> bool:
        """Whether another slice of this device has put the qdisc and its classifier there."""
        return self._qdisc.check() and bool(self._filters()) and self._rate() is None

    def _filters(self) -> list[tc.Filter]:
        """Filters that choose a class of the qdisc, in the order in which the kernel applies them."""
        return tc.filters(self._socket, self._qdisc.index, QDISC)

    def _led_past(self) -> str | None:
        """Why packets may bypass the shaper: no filter chooses it, or a filter of another program comes first."""
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

    def _add_class(self, number: int, rate_bytes_per_s: int) -> None:
        create = NLM_F_CREATE | NLM_F_EXCL
        add = _class_message(self._qdisc, number, rate_bytes_per_s, create)
        self._socket.send(add, f"{self.device}: add class htb")
        htb.set_queue(self._qdisc, number, QUEUE_PACKETS, create)

    def _rate(self) -> int | None:
        """Bytes per second in the kernel; None where the shaper is gone."""
        return htb.rate_of(self._qdisc, self._number)


def _class_message(qdisc: RootQdisc, number: int, rate: int = UNPACED_BYTES_PER_S, flags: int = 0) -> bytearray:
    return htb.class_message(qdisc, number, (rate, rate), BURST_MS, QUANTUM_BYTES, flags=flags)


def unpace(qdisc: RootQdisc) -> None:
    """Let everything through at once that an HTB of ours holds back; no such class is not an error."""
    try:
        for number, _ in htb.classes(qdisc):
            qdisc.route.send(_class_message(qdisc, number), f"{qdisc.device}: pace nothing")
    except ActuatorError as error:
        if not error.vanished:
            raise


def words(rate_bytes_per_s: int) -> str:
    """The rate for people."""
    rate = mbps(rate_bytes_per_s)
    return "an unpaced shaper" if rate == math.inf else f"{rate:g} Mbit/s"
