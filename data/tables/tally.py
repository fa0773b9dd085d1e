"""Many positive values in little memory: counts, sums, extremes and quantiles for each of several groups.

Quantiles come from a log-linear histogram with 256 buckets to every doubling. A value is known by the middle of its
bucket, which is within 1/512 (0.2%) of it; below 2^-10 (a nanosecond, for microseconds) within 2^-10. The bucket is
read off a number's bits: its exponent and the first eight bits of its fraction.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LOWEST = 2.0**-10
OCTAVES = 46  # up to 2^36: 19 hours in microseconds; what is greater counts in the last bucket
FRACTION_BITS = 8
BUCKETS = (OCTAVES << FRACTION_BITS) + 1  # the first one holds everything below LOWEST
RELATIVE_ERROR = 2.0 ** -(FRACTION_BITS + 1)

_SHIFT = 52 - FRACTION_BITS
_FIRST = (int(np.float64(LOWEST).view(np.int64)) >> _SHIFT) - 1


def buckets_of(values: Floats) -> Ints:
    """Bucket of each value (N,), 0 or greater."""
    results = values.view(np.int64) >> _SHIFT
    results -= _FIRST
    return np.clip(results, 0, BUCKETS - 1, out=results)


@cache
def edges() -> Floats:
    """Where each bucket begins, and where the last one ends: (BUCKETS + 1,)."""
    upper = (np.arange(BUCKETS, dtype=np.int64) + _FIRST + 1) << _SHIFT
    return np.concatenate([[0.0], upper.view(np.float64)])


@cache
def middles() -> Floats:
    """The middle of each bucket: (BUCKETS,)."""
    return (edges()[:-1] + edges()[1:]) / 2


def quantiles(buckets: Ints, counts: Ints, starts: Ints, levels: Sequence[float]) -> Floats:
    """Quantiles of several groups at once, interpolated between neighbours in rank as NumPy does by default.

    R. J. Hyndman, Y. Fan, "Sample Quantiles in Statistical Packages", The American Statistician 50(4), 1996, type 7.

    Args:
        buckets: (K,) the buckets that hold anything, group after group, ascending in each.
        counts: (K,) how many each of them holds, at least 1.
        starts: (G,) where each group begins in them; groups are not empty.
        levels: 0..1, L of them.

    Returns:
        (G, L)
    """
    cumulative = np.concatenate([[0], np.cumsum(counts)])
    before = cumulative[starts]
    sizes = np.diff(np.append(before, cumulative[-1]))
    ranks = (sizes - 1)[:, None] * np.asarray(levels)[None, :]
    below = np.floor(ranks).astype(np.int64)
    above = np.minimum(below + 1, (sizes - 1)[:, None])
    low, high = (
        middles()[buckets[np.searchsorted(cumulative, before[:, None] + rank, side="right") - 1]]
        for rank in (below, above)
    )
    return low + (high - low) * (ranks - below)


class Tally:
    """Figures of values by group; groups are numbered as they appear, and there may be more of them later.

    Attributes:
        count, total, least, greatest: (G,) how many values, their sum and extremes.
        histogram: (G, BUCKETS) how many in each bucket.
    """

    def __init__(self) -> None:
        self.histogram = np.zeros((0, BUCKETS), np.int64)
        self._sums = np.zeros((0, len(_EMPTY)))

    @property
    def count(self) -> Ints:
        return self._sums[:, _COUNT].astype(np.int64)

    @property
    def total(self) -> Floats:
        return self._sums[:, _TOTAL]

    @property
    def least(self) -> Floats:
        return self._sums[:, _LEAST]

    @property
    def greatest(self) -> Floats:
        return self._sums[:, _GREATEST]

    def add(self, groups: Ints, values: Floats, num_groups: int) -> None:
        """Count values (N,), 0 or greater, each in its group (N,)."""
        more = num_groups - len(self._sums)
        if more > 0:
            self.histogram = np.concatenate([self.histogram, np.zeros((more, BUCKETS), np.int64)])
            self._sums = np.concatenate([self._sums, np.tile(_EMPTY, (more, 1))])
        _add(groups, values, self.histogram, self._sums)

    def mean(self) -> Floats:
        """Arithmetic mean of each group (G,); NaN where it is empty."""
        return np.divide(self.total, self.count, out=np.full(len(self.count), np.nan), where=self.count > 0)

    def std(self) -> Floats:
        """Standard deviation of each group (G,), that of a sample (n - 1); 0 where there is but one value."""
        count = np.maximum(self.count, 1)
        spread = np.maximum(self._sums[:, _SQUARE] - self._sums[:, _OFFSET] ** 2 / count, 0.0)
        return np.sqrt(spread / np.maximum(count - 1, 1))

    def quantiles(self, levels: Sequence[float]) -> Floats:
        """Quantiles of each group (G, L), NaN where it is empty; levels 0 and 1 are exact."""
        some = self.count > 0
        least, greatest = self.least[some, None], self.greatest[some, None]
        group, bucket = np.nonzero(self.histogram)
        starts = np.searchsorted(group, np.flatnonzero(some))
        results = np.clip(quantiles(bucket, self.histogram[group, bucket], starts, levels), least, greatest)
        results = np.where(np.asarray(levels) <= 0, least, np.where(np.asarray(levels) >= 1, greatest, results))
        result = np.full((len(some), len(levels)), np.nan)
        result[some] = results
        return result


# What is summed up of a group; squares and offsets are about the first value, so that they do not cancel.
_COUNT, _TOTAL, _LEAST, _GREATEST, _PIVOT, _OFFSET, _SQUARE = range(7)
_EMPTY = np.asarray([0, 0, np.inf, 0, 0, 0, 0], np.float64)


def _add(groups: Ints, values: Floats, histogram: Ints, sums: Floats) -> None:
    """Add values (N,) to the rows of their groups."""
    if not len(values):
        return
    cells = np.bincount(groups * BUCKETS + buckets_of(values), minlength=histogram.size)
    histogram += cells.reshape(histogram.shape)
    order, starts, present = runs(groups)
    ordered, counts = values[order], np.diff(starts, append=len(values))
    own = sums[present]
    new = own[:, _COUNT] == 0
    own[new, _PIVOT] = ordered[starts[new]]
    offsets = ordered - np.repeat(own[:, _PIVOT], counts)
    own[:, _COUNT] += counts
    for column, added in ((_TOTAL, ordered), (_OFFSET, offsets), (_SQUARE, offsets * offsets)):
        own[:, column] += np.add.reduceat(added, starts)
    own[:, _LEAST] = np.minimum(own[:, _LEAST], np.minimum.reduceat(ordered, starts))
    own[:, _GREATEST] = np.maximum(own[:, _GREATEST], np.maximum.reduceat(ordered, starts))
    sums[present] = own


def runs(groups: Ints) -> tuple[Ints, Ints, Ints]:
    """The order that puts rows (N,), at least one, together by group as they came; where each begins; and which it is.

    With these, ``reduceat`` is several times faster than ``at`` is without.
    """
    small = groups.astype(np.uint16) if groups.max() < 1 << 16 else groups  # of which NumPy sorts few bits by radix
    order = np.argsort(small, kind="stable")
    ordered = groups[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    return order, starts, ordered[starts]
