"""How long things take: log-linear histograms that a hot path can fill without allocating."""

from __future__ import annotations

from array import array

SUB_BITS = 5  # 32 buckets to a power of two: at most 3.2% wide
_SUB = 1 << SUB_BITS
MAX_BITS = 40  # 2**40 ns are 18 minutes; what is longer counts as that
_LAST = (MAX_BITS - SUB_BITS + 1) * _SUB - 1


class DurationHistogram:
    """Counts durations in nanoseconds; linear below 32 ns, logarithmic with linear sub-buckets above (as HdrHistogram).

    Attributes:
        count: durations recorded.
        max_ns: the longest of them, exactly.
    """

    def __init__(self) -> None:
        self._buckets = array("q", bytes(8 * (_LAST + 1)))
        self.count = 0
        self.max_ns = 0

    def record(self, duration_ns: int) -> None:
        """Count one duration; a negative one counts as 0."""
        if duration_ns < _SUB:
            bucket = max(duration_ns, 0)
        else:
            shift = duration_ns.bit_length() - SUB_BITS - 1
            bucket = min((shift << SUB_BITS) + (duration_ns >> shift), _LAST)
        self._buckets[bucket] += 1
        self.count += 1
        if duration_ns > self.max_ns:  # noqa: PLR1730 (max() costs a call on the hot path)
            self.max_ns = duration_ns

    def percentile_ns(self, percent: float) -> float:
        """The duration that ``percent`` of all do not exceed, interpolated inside its bucket; NaN without any."""
        if not self.count:
            return float("nan")
        rank = percent / 100 * self.count
        below = 0
        for bucket, here in enumerate(self._buckets):
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
        """Forget everything."""
        self.__init__()  # type: ignore[misc]


def _bounds_ns(bucket: int) -> tuple[int, int]:
    """Lower bound and width of a bucket."""
    if bucket < _SUB:
        return bucket, 1
    shift, offset = (bucket >> SUB_BITS) - 1, bucket & (_SUB - 1)
    return (_SUB + offset) << shift, 1 << shift
