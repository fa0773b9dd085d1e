"""Interval estimates over seeds: interquartile mean, stratified and paired bootstrap.

R. Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice", NeurIPS 2021 (and its
library, rliable): report the interquartile mean with a percentile bootstrap interval, and resample runs inside each
task, never across tasks. Where agents ran on the same seeds, differences are resampled by seed, so that what the seeds
have in common cancels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Statistic = Callable[[Array], Array]
"""Reduces the last axis: (..., N) to (...)."""

RESAMPLES = 2000
LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """A point estimate with the ends of its confidence interval."""

    value: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether the whole interval lies on one side of zero."""
        return self.low > 0 or self.high < 0


def mean(values: Array) -> Array:
    """Arithmetic mean over the last axis."""
    return np.asarray(np.mean(values, axis=-1), np.float64)


def median(values: Array) -> Array:
    """Middle value over the last axis."""
    return np.asarray(np.median(values, axis=-1), np.float64)


def interquartile_mean(values: npt.ArrayLike) -> Array:
    """Mean of the middle half over the last axis: floor(N / 4) values are cut at either end (a 25% trimmed mean)."""
    ordered = np.sort(np.asarray(values, np.float64), axis=-1)
    cut = ordered.shape[-1] // 4
    return mean(ordered[..., cut : ordered.shape[-1] - cut])


def resample_indices(
    size: int, resamples: int = RESAMPLES, seed: int = 0
) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Indices (resamples, size) drawn with replacement; the same seed gives the same draws, which pairs them."""
    return np.random.default_rng(seed).integers(0, size, (resamples, size))


def interval(
    values: npt.ArrayLike,
    statistic: Statistic = interquartile_mean,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    seed: int = 0,
) -> Interval:
    """Percentile bootstrap interval of a statistic of N values (N,), one per seed."""
    return stratified_interval([np.asarray(values, np.float64)], statistic, resamples, level, seed)


def stratified_interval(
    strata: Sequence[npt.ArrayLike],
    statistic: Statistic = interquartile_mean,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    seed: int = 0,
) -> Interval:
    """Interval of a statistic of all strata's values together, resampled inside each stratum.

    Args:
        strata: values of each task (scenario), (N_m,) each; scores must be on one scale.
        statistic: reduces the last axis.
        resamples: bootstrap draws.
        level: coverage, 0..1.
        seed: of the draws.

    Raises:
        ValueError: no values at all.
    """
    columns = [np.asarray(column, np.float64) for column in strata]
    if not columns or any(column.size == 0 for column in columns):
        raise ValueError("strata: at least one value each is needed")
    drawn = np.concatenate(
        [column[resample_indices(column.size, resamples, seed + m)] for m, column in enumerate(columns)], axis=-1
    )
    low, high = _percentiles(statistic(drawn), level)
    return Interval(float(statistic(np.concatenate(columns))), float(low), float(high))


def paired_differences(
    first: npt.ArrayLike, others: npt.ArrayLike, resamples: int = RESAMPLES, level: float = LEVEL, seed: int = 0
) -> list[Interval]:
    """Intervals of the mean difference ``first`` (N,) minus each row of ``others`` (R, N), resampled by seed."""
    difference = np.asarray(first, np.float64) - np.atleast_2d(np.asarray(others, np.float64))
    draws = mean(difference[:, resample_indices(difference.shape[-1], resamples, seed)])
    low, high = _percentiles(draws, level)
    return [Interval(float(v), float(a), float(b)) for v, a, b in zip(mean(difference), low, high, strict=True)]


def paired_ratio(
    numerator: npt.ArrayLike,
    denominator: npt.ArrayLike,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    seed: int = 0,
) -> Interval:
    """Interval of mean(numerator) / mean(denominator), (N,) each, resampled by seed.

    0 / 0 counts as 1 (no difference); anything else over 0 is infinite.
    """
    top, bottom = np.asarray(numerator, np.float64), np.asarray(denominator, np.float64)
    index = resample_indices(top.size, resamples, seed)
    low, high = _percentiles(_ratio(mean(top[index]), mean(bottom[index])), level)
    return Interval(float(_ratio(mean(top), mean(bottom))), float(low), float(high))


def _ratio(top: Array, bottom: Array) -> Array:
    safe = np.where(bottom == 0, 1.0, bottom)
    return np.where(bottom == 0, np.where(top == 0, 1.0, np.inf), top / safe)


def _percentiles(draws: Array, level: float) -> tuple[Array, Array]:
    """Lower and upper end over the last axis. The nearest drawn value is taken, so that infinite draws stay so."""
    tail = 50.0 * (1.0 - level)
    low, high = np.percentile(draws, [tail, 100.0 - tail], axis=-1, method="nearest")
    return low, high


def weighted_quantile(values: npt.ArrayLike, weights: npt.ArrayLike, q: float) -> Array:
    """Smallest value that at least ``q`` of the weight does not exceed, over axis 0: (T, ...) to (...).

    Columns without any weight give 0.
    """
    table = np.asarray(values, np.float64)
    order = np.argsort(table, axis=0, kind="stable")
    ordered = np.take_along_axis(table, order, axis=0)
    cumulative = np.cumsum(np.take_along_axis(np.asarray(weights, np.float64), order, axis=0), axis=0)
    total = cumulative[-1]
    reached = cumulative >= q * total
    found = np.take_along_axis(ordered, np.argmax(reached, axis=0)[None], axis=0)[0]
    return np.where(total > 0, found, 0.0)
