"""Offered load of a slice over time, as rates in bins or as packets."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
MBIT_PER_BYTE = 8e-6


@dataclass(frozen=True, eq=False)
class RateTrace:
    """Rates that are constant in each of N bins.

    Attributes:
        edges_s: begin of each bin and the end of the last (N+1,), from 0.
        mbps: Mbit/s of inner IP packets (N,).
    """

    edges_s: Array
    mbps: Array

    @property
    def duration_s(self) -> float:
        """When it ends."""
        return float(self.edges_s[-1])

    @property
    def mean_mbps(self) -> float:
        """Mean rate over the whole trace."""
        return float(self._mbit[-1] / self.duration_s)

    @cached_property
    def _mbit(self) -> Array:
        return np.concatenate([[0.0], np.cumsum(self.mbps * np.diff(self.edges_s))])

    def mbit_before(self, time_s: Array) -> Array:
        """Mbit offered from 0 to each time, 0 <= time <= ``duration_s``; of any shape."""
        bins = np.clip(np.searchsorted(self.edges_s, time_s, "right") - 1, 0, len(self.mbps) - 1)
        return self._mbit[bins] + (time_s - self.edges_s[bins]) * self.mbps[bins]

    def faster(self, speed: float) -> RateTrace:
        """The same rates in shorter bins: all in 1/``speed`` of the time."""
        return self if speed == 1.0 else RateTrace(self.edges_s / speed, self.mbps)


@dataclass(frozen=True, eq=False)
class PacketTrace:
    """Packets as they were captured; see `RateTrace` for the methods.

    Attributes:
        times_s: of each packet (N,), from 0, in order.
        sizes: octets of the (inner) IP packets (N,).
    """

    times_s: Array
    sizes: npt.NDArray[np.int64]
    duration_s: float

    @property
    def mean_mbps(self) -> float:
        return float(MBIT_PER_BYTE * self.sizes.sum() / self.duration_s)

    @property
    def mean_packet_bytes(self) -> float:
        return float(self.sizes.mean())

    def mbit_before(self, time_s: Array) -> Array:
        return self._mbit[np.searchsorted(self.times_s, time_s, "left")]

    @cached_property
    def _mbit(self) -> Array:
        return np.concatenate([[0.0], np.cumsum(MBIT_PER_BYTE * self.sizes)])

    def faster(self, speed: float) -> PacketTrace:
        if speed == 1.0:
            return self
        return PacketTrace(self.times_s / speed, self.sizes, self.duration_s / speed)


Trace = RateTrace | PacketTrace
"""Rates or packets of a slice, from 0 s to ``duration_s``."""


@dataclass(frozen=True)
class Replay:
    """A trace as it is played.

    Attributes:
        start_s: when it begins.
        end_s: when it is cut off.
        scale: factor on its rates.
        loop: begin again at its end, for ever.
    """

    trace: Trace
    start_s: float = 0.0
    end_s: float = math.inf
    scale: float = 1.0
    loop: bool = False

    def mean_mbps(self, edges_s: Array) -> Array:
        """Mean rate (K,) between K+1 times since the start of the run."""
        mbit = self.scale * self._mbit_before(np.minimum(edges_s, self.end_s) - self.start_s)
        return np.diff(mbit) / np.diff(edges_s)

    def _mbit_before(self, time_s: Array) -> Array:
        duration_s, before = self.trace.duration_s, self.trace.mbit_before
        if not self.loop:
            return before(np.clip(time_s, 0.0, duration_s))
        rounds, within = np.divmod(np.maximum(time_s, 0.0), duration_s)
        return rounds * float(before(np.asarray(duration_s))) + before(within)


def as_csv(trace: Trace) -> bytes:
    """As the load program reads it (``load --help``): ``time_s,mbps`` or ``time_s,bytes``."""
    if isinstance(trace, PacketTrace):
        name, times, values = "bytes", trace.times_s.tolist(), trace.sizes.tolist()
    else:
        name, times, values = "mbps", trace.edges_s[:-1].tolist(), trace.mbps.tolist()
    lines = [f"time_s,{name}", *(f"{time!r},{value!r}" for time, value in zip(times, values, strict=True))]
    return ("\n".join(lines) + "\n").encode()
