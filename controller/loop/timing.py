"""How long things take: log-linear histograms, and notes for them that cost a hot path next to nothing."""

from __future__ import annotations

import struct
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

SUB_BITS = 5  # 32 buckets to a power of two: at most 3.2% wide
_SUB = 1 << SUB_BITS
MAX_BITS = 40  # 2**40 ns are 18 minutes; what is longer counts as that
_LAST = (MAX_BITS - SUB_BITS + 1) * _SUB - 1
ROWS = 512  # noted before they are counted


class DurationHistogram:
    """Counts durations in nanoseconds; linear below 32 ns, logarithmic with linear sub-buckets above (as HdrHistogram).

    Attributes:
        count: durations recorded.
        max_ns: the longest of them, exactly.
    """

    def __init__(self) -> None:
        self._buckets = np.zeros(_LAST + 1, np.int64)
        self.count = 0
        self.max_ns = 0

    def record(self, durations_ns: npt.ArrayLike) -> None:
        """Count a duration, or several; what is negative counts as 0."""
        durations = np.maximum(np.atleast_1d(np.asarray(durations_ns, np.int64)), 0)
        if not len(durations):
            return
        bits = np.frexp(durations.astype(np.float64))[1]  # exact below 2**53 ns, which are 104 days
        shift = np.maximum(bits - SUB_BITS - 1, 0)
        buckets = np.minimum((shift << SUB_BITS) + (durations >> shift), _LAST)
        self._buckets += np.bincount(buckets, minlength=_LAST + 1)
        self.count += len(durations)
        self.max_ns = max(self.max_ns, int(durations.max()))

    def percentile_ns(self, percent: float) -> float:
        """The duration that ``percent`` of all do not exceed, interpolated inside its bucket; NaN without any."""
        if not self.count:
            return float("nan")
        rank = percent / 100 * self.count
        below = 0
        for bucket, here in enumerate(self._buckets.tolist()):
            if here and below + here >= rank:
                if bucket == _LAST:
                    break
                low, width = _bounds_ns(bucket)
                return min(low + width * (rank - below) / here, float(self.max_ns))
            below += here
        return float(self.max_ns)

    def summary_us(self) -> dict[str, float]:
        """``p50``, ``p99`` and ``p999`` in microseconds."""
        return {name: self.percentile_ns(p) / 1e3 for name, p in (("p50", 50.0), ("p99", 99.0), ("p999", 99.9))}

    def clear(self) -> None:
        self.__init__()  # type: ignore[misc]


class DurationNotes:
    """Durations that come in rows, such as a tick's stages: noted row by row, counted many at once.

    Args:
        histograms: of each column; up to date after `count`.
    """

    def __init__(self, histograms: Mapping[str, DurationHistogram]) -> None:
        self._histograms = tuple(histograms.values())
        row = struct.Struct(f"={len(self._histograms)}q")
        self._pack, self._row_bytes = row.pack_into, row.size
        self._rows, self._end = bytearray(ROWS * row.size), 0

    def note(self, *durations_ns: int) -> None:
        self._pack(self._rows, self._end, *durations_ns)
        self._end += self._row_bytes
        if self._end == len(self._rows):
            self.count()

    def count(self) -> None:
        """Take what was noted into the histograms."""
        rows = np.frombuffer(self._rows, np.int64, self._end // 8).reshape(-1, len(self._histograms))
        for histogram, durations in zip(self._histograms, rows.T, strict=True):
            histogram.record(durations)
        self._end = 0


def _bounds_ns(bucket: int) -> tuple[int, int]:
    """Lower bound and width of a bucket."""
    if bucket < _SUB:
        return bucket, 1
    shift, offset = (bucket >> SUB_BITS) - 1, bucket & (_SUB - 1)
    return (_SUB + offset) << shift, 1 << shift
