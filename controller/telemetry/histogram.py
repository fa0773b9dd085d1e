"""The log-linear histogram of ``bpf/histogram.h``: its buckets, and quantiles of what was counted."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from .layout import BUCKETS

UNIT_NS = 64
SUB_BUCKETS = 16


@cache
def edges_ns() -> npt.NDArray[np.int64]:
    """Where each bucket begins, and where the last one ends: (BUCKETS + 1,)."""
    index = np.arange(BUCKETS + 1, dtype=np.int64)
    octave, top = np.divmod(index, SUB_BUCKETS)
    return UNIT_NS * np.where(octave < 1, index, (SUB_BUCKETS + top) << np.maximum(octave - 1, 0))


def quantiles_us(counts: npt.ArrayLike, levels: Sequence[float]) -> list[float | None]:
    """Quantiles of one histogram (BUCKETS,), interpolated inside a bucket; None each where nothing was counted."""
    cumulative = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    if not cumulative[-1]:
        return [None] * len(levels)
    targets = np.asarray(levels) * cumulative[-1]
    bucket = np.clip(np.searchsorted(cumulative, targets) - 1, 0, BUCKETS - 1)
    inside = (targets - cumulative[bucket]) / np.maximum(cumulative[bucket + 1] - cumulative[bucket], 1)
    low, high = edges_ns()[bucket], edges_ns()[bucket + 1]
    return [float(value) for value in (low + (high - low) * inside) / 1e3]
