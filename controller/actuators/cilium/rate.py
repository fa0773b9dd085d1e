"""Egress rate of a pod that Cilium's bandwidth manager paces: `bps` of its endpoint's entry, read and written back.

Cilium's program on the host's devices gives each packet a time of departure (EDT), which sch_fq keeps; what would have
to wait for its drop horizon (2 s) or longer is dropped (bpf/lib/edt.h, ``edt_sched_departure``). No entry is ever made:
the annotation ``kubernetes.io/egress-bandwidth`` comes first, so that the entry is the agent's, which takes away what
it does not know. And no rate is set above the original rate, since that is what the pod was given.

The program writes the last departure into the same value. bpf(2) puts whole values, so what the program writes between
our look and our write is lost, and a pod may send early what left meanwhile.
"""

from __future__ import annotations

import errno
import math
import socket
from dataclasses import dataclass
from pathlib import Path

from slicepilot.controller.system.kernel_file import ActuatorError

from .layout import Entry, changed, entry_of
from .throttle import ThrottleMap, pinned_id

BYTES_PER_S_PER_MBPS = 125_000.0
LARGEST_SEGMENT_BYTES = 65_536
DEAD_BAND_RATIO = 0.005  # relative change below which a rate stays, as a shaper's


@dataclass(frozen=True)
class OriginalThrottle:
    """An endpoint's entry as it was originally, to be put back.

    Attributes:
        pin: path of the map; map_id: which map that was.
        endpoint: of the pod on this node.
        bytes_per_s: its rate; 0 paced nothing.
        horizon_ns: its drop horizon.
        link: name of the host's end of the pod's pair; ifindex: its number. Numbers of endpoints and of namespaces are
            used again, the kernel's for links count on: where the link has gone, the entry is another pod's.
    """

    pin: str
    map_id: int
    endpoint: int
    bytes_per_s: int
    horizon_ns: int
    link: str
    ifindex: int

    @property
    def pod_lives(self) -> bool:
        """Whether its pair is still there, which goes with either end. Asked by an ioctl (netdevice(7)), which does not
        wait for the kernel's lock of interfaces."""
        try:
            return socket.if_nametoindex(self.link) == self.ifindex
        except OSError:
            return False


class ThrottleRate:
    """One pod's rate. Nothing is written before the first `set` of another rate.

    Args:
        original: the entry.
        horizon_ms: drop horizon to set with the first rate; None leaves what is there.

    Raises:
        ActuatorError: another map is pinned there now, or none (`vanished`); or it cannot be opened.
    """

    def __init__(self, original: OriginalThrottle, horizon_ms: float | None = None) -> None:
        self.original = original
        self._map = ThrottleMap(Path(original.pin))
        if self._map.info.id != original.map_id:
            self._map.close()
            raise self._gone("another map is pinned there now")
        self._horizon_ns = None if horizon_ms is None else round(1e6 * horizon_ms)
        self._bytes_per_s, self._moved = original.bytes_per_s, False

    @property
    def mbps(self) -> float:
        """The rate that holds, as far as it is known; inf without pacing."""
        return mbps(self._bytes_per_s)

    @property
    def least_mbps(self) -> float:
        """The lowest rate that lets anything through: below it the largest segment would have to wait for the whole
        drop horizon, and be dropped each time."""
        horizon_ns = self._horizon_ns or self.original.horizon_ns
        return LARGEST_SEGMENT_BYTES * 1e9 / max(horizon_ns, 1) / BYTES_PER_S_PER_MBPS

    def set(self, egress_mbps: float) -> float:
        """Set the rate, at most the original rate; returns what holds.

        Raises:
            ActuatorError: the entry is gone, or another program has changed it and the change was not handled yet.
        """
        wanted, held = self._within(egress_mbps), self._bytes_per_s
        close = held > 0 and abs(wanted - held) <= DEAD_BAND_RATIO * held
        if wanted == held or (wanted != self.original.bytes_per_s and close):
            return mbps(held)
        value, entry = self._read()
        if not self._ours(entry):
            raise ActuatorError(f"{self}: {self._difference(entry)}")
        self._write(value, wanted)
        return mbps(wanted)

    def read(self) -> float:
        """The rate in the map; inf where nothing is paced. Raises ActuatorError."""
        return mbps(self._read()[1].bytes_per_s)

    def waits_ms(self, now_ns: int) -> float:
        """How long a packet that came now (CLOCK_MONOTONIC) would wait at least, by what is ahead; raises
        ActuatorError."""
        return max(self._read()[1].last_ns - now_ns, 0) / 1e6

    def deviation(self) -> str | None:
        """The map's value if it differs from the value that was set last, else None. Raises ActuatorError if the entry
        or the map is gone."""
        if pinned_id(self._map.path) != self.original.map_id:
            raise self._gone("Cilium has taken the map away, or made it anew")
        entry = self._read()[1]
        return None if self._ours(entry) else self._difference(entry)

    def adopt(self) -> float:
        self._bytes_per_s = self._read()[1].bytes_per_s
        return mbps(self._bytes_per_s)

    def reassert(self) -> float:
        """Set again what holds here; raises ActuatorError."""
        self._write(self._read()[0], self._bytes_per_s)
        return mbps(self._bytes_per_s)

    def restore(self) -> None:
        """Restore the original; raises ActuatorError (`vanished`) where the pod, its entry or the map is gone."""
        put_back(self._map, self.original)
        self._bytes_per_s, self._moved = self.original.bytes_per_s, False

    def close(self) -> None:
        self._map.close()

    def __str__(self) -> str:
        return f"{self._map.path}: endpoint {self.original.endpoint}"

    def _within(self, egress_mbps: float) -> int:
        """Bytes per second: none is the original rate, and more than that is not given."""
        most = self.original.bytes_per_s
        if egress_mbps <= 0 or egress_mbps == math.inf:
            return most
        wanted = round(max(egress_mbps, self.least_mbps) * BYTES_PER_S_PER_MBPS)
        return min(wanted, most) if most else wanted

    def _ours(self, entry: Entry) -> bool:
        horizon = self._horizon_ns if self._moved and self._horizon_ns is not None else entry.horizon_ns
        return (entry.bytes_per_s, entry.horizon_ns) == (self._bytes_per_s, horizon)

    def _difference(self, entry: Entry) -> str:
        current, ours = words(entry.bytes_per_s), words(self._bytes_per_s)
        if entry.bytes_per_s != self._bytes_per_s:
            return f"{current} instead of {ours}"
        return f"a drop horizon of {entry.horizon_ns / 1e6:g} ms instead of {(self._horizon_ns or 0) / 1e6:g} ms"

    def _read(self) -> tuple[bytes, Entry]:
        value = self._map.value(self.original.endpoint)
        if value is None:
            raise self._gone("its entry is gone")
        return value, entry_of(value)

    def _write(self, value: bytes, bytes_per_s: int) -> None:
        if not self._map.replace(self.original.endpoint, changed(value, bytes_per_s, self._horizon_ns)):
            raise self._gone("its entry is gone")
        self._bytes_per_s, self._moved = bytes_per_s, True

    def _gone(self, why: str) -> ActuatorError:
        return ActuatorError(f"{self}: {why}", errno.ENOENT)


def put_back(throttle: ThrottleMap, original: OriginalThrottle, dry_run: bool = False) -> str:
    """Write the original where something else is; what was done, or nothing to say.

    Args:
        throttle: the map that it was read from; a map with another number holds nothing of ours.
        dry_run: look, and write nothing.

    Raises:
        ActuatorError: the map, the entry or the pod is gone (`vanished`), or it cannot be written.
    """
    where = f"{original.pin}: endpoint {original.endpoint}"
    if throttle.info.id != original.map_id:
        raise ActuatorError(f"{where}: Cilium has made the map anew", errno.ENOENT)
    if not original.pod_lives:
        raise ActuatorError(f"{where}: its pod is gone", errno.ENOENT)
    value = throttle.value(original.endpoint)
    if value is None:
        raise ActuatorError(f"{where}: its entry is gone", errno.ENOENT)
    entry = entry_of(value)
    if (entry.bytes_per_s, entry.horizon_ns) == (original.bytes_per_s, original.horizon_ns):
        return ""
    if not dry_run and not throttle.replace(
        original.endpoint, changed(value, original.bytes_per_s, original.horizon_ns)
    ):
        raise ActuatorError(f"{where}: its entry is gone", errno.ENOENT)
    return f"Cilium's endpoint {original.endpoint}: {words(entry.bytes_per_s)} -> {words(original.bytes_per_s)}"


def mbps(bytes_per_s: int) -> float:
    """A rate in Mbit/s; inf for 0, which means no pacing."""
    return bytes_per_s / BYTES_PER_S_PER_MBPS if bytes_per_s else math.inf


def words(bytes_per_s: int) -> str:
    """The rate for people."""
    return f"{mbps(bytes_per_s):g} Mbit/s" if bytes_per_s else "no rate"
