"""Egress rate of one slice by earliest departure time: a BPF program stamps packets, sch_fq lets them wait.

What Cilium's bandwidth manager does for pods. The rate lies in memory shared with the program, so that changing it is a
store: no system call, no lock on the data path. It needs sch_fq in the kernel (CONFIG_NET_SCH_FQ) and the compiled
program (``make bpf``).
"""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

from ..system.bpf.errors import ProbeError
from ..system.bpf.libbpf import BpfObject
from ..system.kernel_file import ActuatorError
from ..system.net.qdisc import RootQdisc
from ..system.net.rtnetlink import RouteSocket
from ..system.net.tc import add_clsact, add_filter
from .edt_filters import FILTER_NAME, edt_filters, remove_edt_filters
from .egress import UNPACED_BYTES_PER_S, EgressConfig, bytes_per_s, mbps, words

PROGRAM = Path(__file__).parent / "bpf" / "edt.bpf.o"
FILTER_PRIORITY, FILTER_HANDLE = 0x51CE, 1
RATE = struct.Struct("=Q")  # struct edt in bpf/edt.bpf.c: bytes_per_s, last_ns, dropped
LAST_NS_AT, DROPPED_AT = 8, 16


class EdtRate:
    """Sets the rate in Mbit/s; inf or 0 paces nothing.

    sch_fq and the program are put on the device at construction, pacing nothing, and taken off by `restore`.

    Args:
        device: where the slice leaves towards N6.
        netns: path of its network namespace, or none for this process's own.
        config: dead band.

    Raises:
        ActuatorError: no such namespace or device, no sch_fq in the kernel, no compiled program, not permitted, or a
            qdisc on the device that somebody has configured.
    """

    def __init__(self, device: str, netns: Path | None = None, config: EgressConfig | None = None) -> None:
        self.device, self.config = device, config or EgressConfig(mode="edt")
        self._bytes_per_s = UNPACED_BYTES_PER_S
        with contextlib.ExitStack() as undo:
            self._route = RouteSocket(netns)
            undo.callback(self._route.close)
            self._qdisc = RootQdisc(self._route, device)
            self._put_fq()
            undo.callback(self._qdisc.remove)
            self._stamps = Stamps(self._route, self._qdisc.index)
            undo.pop_all()

    def set(self, egress_mbps: float) -> float:
        """Set the rate; returns the one that holds (dead band, a floor of 1 kbit/s)."""
        wanted, held = bytes_per_s(egress_mbps), self._bytes_per_s
        if wanted == UNPACED_BYTES_PER_S == held:
            return egress_mbps
        if abs(wanted - held) <= self.config.dead_band_ratio * held:
            return mbps(held)
        self._stamps.set_rate(0 if wanted == UNPACED_BYTES_PER_S else wanted)
        self._bytes_per_s = wanted
        return egress_mbps if wanted == UNPACED_BYTES_PER_S else mbps(wanted)

    def read(self) -> float:
        """The rate the program uses; inf where nothing is paced."""
        rate = 0 if self.deviation() else self._stamps.rate()
        return mbps(rate or UNPACED_BYTES_PER_S)

    def deviation(self) -> str | None:
        """Whether somebody else has taken program or qdisc off; None where both are there."""
        there = {"program": self._stamps.attached(), "sch_fq": self._qdisc.present()}
        missing = [what for what, is_there in there.items() if not is_there]
        if missing:
            self._qdisc.require_device()
        return f"no {' and no '.join(missing)} in place of {words(self._bytes_per_s)}" if missing else None

    def adopt(self) -> float:
        """Without program or qdisc nothing is paced."""
        if self.deviation() is not None:
            self._bytes_per_s = UNPACED_BYTES_PER_S
        return mbps(self._bytes_per_s)

    def reassert(self) -> float:
        """Program and qdisc on again; raises ActuatorError where somebody's own qdisc is there."""
        if not self._qdisc.present():
            self._put_fq()
        if not self._stamps.attached():
            self._stamps.attach()
        held = self._bytes_per_s
        self._stamps.set_rate(0 if held == UNPACED_BYTES_PER_S else held)
        return mbps(held)

    def restore(self) -> None:
        """Program and qdisc off; a device that is gone is not an error."""
        try:
            self._stamps.detach()
        except ActuatorError as error:
            if not error.vanished:
                raise
        self._qdisc.remove()

    def close(self) -> None:
        """Release program and socket."""
        self._stamps.close()
        self._route.close()

    def _put_fq(self) -> None:
        try:
            self._qdisc.put("fq")
        except ActuatorError as error:
            if error.vanished and "fq" in str(error):
                raise ActuatorError(
                    f"egress mode edt: this kernel has no sch_fq (CONFIG_NET_SCH_FQ); accepted: mode htb ({error})",
                    error.errno,
                ) from error
            raise


class Stamps:
    """The program on the egress hook of one device.

    Args:
        route: a socket in the device's namespace.
        index: of the device.

    Raises:
        ActuatorError: no compiled program, or the kernel refuses it.
    """

    def __init__(self, route: RouteSocket, index: int) -> None:
        self._route, self._index = route, index
        try:
            self._object = BpfObject(PROGRAM)
        except ProbeError as error:
            raise ActuatorError(f"egress mode edt: {error}") from error
        try:
            self._memory = self._object.map("edt").memory(writable=True)
            self._own_hook = False
            self.attach()
        except BaseException:
            self.close()
            raise

    def attach(self) -> None:
        """Put the program on, in place of one that a crash has left; raises ActuatorError."""
        self._own_hook = self._add_hook() or self._own_hook
        remove_edt_filters(self._route, self._index, own_hook=False)
        add_filter(
            self._route,
            self._index,
            "egress",
            priority=FILTER_PRIORITY,
            handle=FILTER_HANDLE,
            program=self._object.program("pace").fd,
            name=FILTER_NAME,
            classid=0,
        )

    def attached(self) -> bool:
        """Whether the program is on the hook; raises ActuatorError."""
        return any(edt_filters(self._route, self._index))

    def set_rate(self, rate_bytes_per_s: int) -> None:
        """The program uses it from the next packet on; 0 paces nothing."""
        RATE.pack_into(self._memory, 0, rate_bytes_per_s)

    def rate(self) -> int:
        """What the program uses."""
        return int(RATE.unpack_from(self._memory, 0)[0])

    def dropped(self) -> int:
        """Packets that would have left beyond the horizon of 2 s."""
        return int(RATE.unpack_from(self._memory, DROPPED_AT)[0])

    def last_ns(self) -> int:
        """When the newest packet may leave (CLOCK_MONOTONIC)."""
        return int(RATE.unpack_from(self._memory, LAST_NS_AT)[0])

    def detach(self) -> None:
        """Take the program off, and the hook if it was ours and nobody else uses it; raises ActuatorError."""
        if remove_edt_filters(self._route, self._index, self._own_hook):
            self._own_hook = False

    def close(self) -> None:
        """Unload; more than once does nothing."""
        memory = self.__dict__.pop("_memory", None)
        if memory is not None:
            memory.close()
        self._object.close()

    def _add_hook(self) -> bool:
        """Whether the hook is ours: somebody, for instance a probe, may have made it before."""
        try:
            add_clsact(self._route, self._index)
        except ActuatorError as error:
            if error.exists:
                return False
            raise
        return True
