"""The log-linear histogram of ``bpf/histogram.h``: its buckets, and quantiles of what was counted."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from .layout import BUCKETS

UNIT_NS = 64
SUB_BUCKETS = 16


@cache
def edges_ns() -> npt.NDArray[np.int64]:
    """The lower edge of each bucket, and the upper edge of the last: (BUCKETS + 1,)."""
    index = np.arange(BUCKETS + 1, dtype=np.int64)
    octave, top = np.divmod(index, SUB_BUCKETS)
    return UNIT_NS * np.where(octave < 1, index, (SUB_BUCKETS + top) << np.maximum(octave - 1, 0))


def counts_of(durations_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Histograms (C, BUCKETS) of the columns of durations (N, C); what is negative counts as 0."""
    columns = durations_ns.shape[1]
    bucket = np.clip(np.searchsorted(edges_ns(), durations_ns, side="right") - 1, 0, BUCKETS - 1)
    bucket += np.arange(columns) * BUCKETS
    return np.bincount(bucket.ravel(), minlength=columns * BUCKETS).reshape(columns, BUCKETS)


def quantiles_us(counts: npt.NDArray[Any], levels: Sequence[float]) -> npt.NDArray[np.float64]:
    """Quantiles (..., levels) of histograms (..., BUCKETS), interpolated inside a bucket; NaN where nothing was
    counted."""
    below = np.zeros((*counts.shape[:-1], BUCKETS + 1), np.int64)
    np.cumsum(counts, axis=-1, out=below[..., 1:])
    targets = np.asarray(levels) * below[..., -1:]
    bucket = (below[..., None, 1:] >= targets[..., None]).argmax(axis=-1)
    low, high = (np.take_along_axis(below, bucket + end, axis=-1) for end in (0, 1))
    inside = (targets - low) / np.maximum(high - low, 1)
    edges = edges_ns()
    quantiles = (edges[bucket] + inside * (edges[bucket + 1] - edges[bucket])) / 1e3
    return np.where(below[..., -1:] == 0, np.nan, quantiles)
