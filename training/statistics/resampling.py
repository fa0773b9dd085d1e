"""Permutation tests and bootstrap intervals of quantiles, for samples of any size.

A quantile is made of two order statistics at most, and where these lie in the ordered data can be drawn by itself: a
resample costs some tens of random numbers, be it of a hundred values or of ten million. The draws have the very
distribution that shuffled or redrawn data give.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats
from scipy.special import comb, ndtr, ndtri

from slicepilot.data.intervals import LEVEL, Array, Interval

RESAMPLES = 10_000
TIE = 1e-14  # statistics this close, relative to the observed statistic, count as equal, as in SciPy
Indices = npt.NDArray[np.int64]


def quantile(ordered: Array, level: float) -> float:
    """Quantile of ordered values (N,), linear between neighbours: type 7 of R, the default of NumPy."""
    below, share = _position(len(ordered), level)
    return float(_between(ordered[below], ordered[min(below + 1, len(ordered) - 1)], share))


def _position(size: int, level: float) -> tuple[int, float]:
    """Index of the order statistic below a quantile, and the quantile's fractional distance to the next."""
    at = (size - 1) * level
    below = min(math.floor(at), size - 1)
    return below, at - below


def _between(low: npt.ArrayLike, high: npt.ArrayLike, share: float) -> Array:
    """Linear between two values, rounded as NumPy's quantile is: equal statistics are equal to the last bit."""
    low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
    return low + (high - low) * share if share < 0.5 else high - (high - low) * (1.0 - share)


# -- permutation tests ---------------------------------------------------------------------------------------------


def permutation_p(
    first: Array, second: Array, levels: Sequence[float], resamples: int = RESAMPLES, seed: int = 0
) -> list[float]:
    """Two-sided p values of the difference of quantiles between two groups, were their labels exchangeable.

    Twice the smaller tail, at most 1. All divisions into groups are tried where there are no more than ``resamples``
    of them; else random divisions and the observed division, so that p is never 0 (B. Phipson, G. Smyth,
    "Permutation p-values should never be zero", SAGMB 9(1), 2010).

    Both groups (N,), (M,) are ordered; levels of quantiles are 0..1.
    """
    pooled = np.concatenate([first, second])
    pooled.sort(kind="stable")  # merges what is in order already
    if comb(len(pooled), len(first)) <= resamples:
        return [_exact_p(first, second, level, resamples) for level in levels]
    positions = [_position(len(group), level) for group in (first, second) for level in levels]
    sizes = [len(group) for group in (first, second) for _ in levels]
    ranks = [min(below + step, size - 1) for (below, _), size in zip(positions, sizes, strict=True) for step in (0, 1)]
    ours = [side == 0 for side in (0, 1) for _ in range(2 * len(levels))]
    at = shuffled_ranks(len(first), len(pooled), ranks, ours, resamples, np.random.default_rng(seed))
    results = []
    for number, level in enumerate(levels):
        drawn = [
            _between(pooled[at[2 * row]], pooled[at[2 * row + 1]], positions[row][1])
            for row in (number, number + len(levels))
        ]
        results.append(_two_sided(drawn[0] - drawn[1], quantile(first, level) - quantile(second, level)))
    return results


def _two_sided(null: Array, observed: float) -> float:
    margin = TIE * abs(observed)
    tails = (np.count_nonzero(null <= observed + margin), np.count_nonzero(null >= observed - margin))
    return float(min(1.0, 2.0 * (min(tails) + 1) / (len(null) + 1)))


def _exact_p(first: Array, second: Array, level: float, resamples: int) -> float:
    def difference(x: Array, y: Array, axis: int) -> Array:
        return np.asarray(np.quantile(x, level, axis=axis) - np.quantile(y, level, axis=axis), np.float64)

    result: Any = stats.permutation_test((first, second), difference, vectorized=True, n_resamples=resamples)
    return float(result.pvalue)


def shuffled_ranks(
    labelled: int,
    total: int,
    ranks: Sequence[int],
    ours: Sequence[bool],
    resamples: int,
    rng: np.random.Generator,
) -> Indices:
    """Ranks of chosen members of two groups among all, when labels are dealt to ``total`` ranks at random.

    All ranks are halved recursively. The number of labels in the left half is hypergeometric given the number in both,
    and each wanted member is followed into its half. Members in the same half see the same draw, so that all members of
    a resample belong to the same deal.

    Args:
        labelled: members of the first group; the others make the second.
        total: members of both.
        ranks: wanted members, counted from 0 inside their group, (T,).
        ours: whether they are of the first group, (T,).
        resamples: deals.
        rng: the source of chance.

    Returns:
        Positions (T, resamples), 0..total-1.
    """
    shape = (len(ranks), resamples)
    low, high = np.zeros(shape, np.int64), np.full(shape, total, np.int64)
    labels, rank = np.full(shape, labelled, np.int64), np.repeat(np.asarray(ranks, np.int64)[:, None], resamples, 1)
    while np.any(high - low > 1):
        middle = (low + high) // 2
        left = _deal(low, middle, high, labels, rng)
        for t, mine in enumerate(ours):
            before = left[t] if mine else middle[t] - low[t] - left[t]
            goes_left = rank[t] < before
            rank[t] -= np.where(goes_left, 0, before)
            labels[t] = np.where(goes_left, left[t], labels[t] - left[t])
            low[t], high[t] = np.where(goes_left, low[t], middle[t]), np.where(goes_left, middle[t], high[t])
    return low


def _deal(low: Indices, middle: Indices, high: Indices, labels: Indices, rng: np.random.Generator) -> Indices:
    """Labels in the left half of each stretch (T, R), equal for equal stretches of a resample; 0 for a single rank."""
    left = np.zeros_like(low)
    for t in range(len(low)):
        fresh = high[t] - low[t] > 1
        for earlier in range(t):
            same = fresh & (low[t] == low[earlier]) & (high[t] == high[earlier])
            left[t][same] = left[earlier][same]
            fresh &= ~same
        size, inside = (high[t] - low[t])[fresh], labels[t][fresh]
        left[t][fresh] = rng.hypergeometric(inside, size - inside, (middle[t] - low[t])[fresh])
    return left


# -- bootstrap -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Jackknife:
    """A statistic with each value left out in turn: its distinct results (K,) and how many values give each (K,)."""

    values: Array
    counts: Array


def quantile_interval(ordered: Array, level: float, resamples: int = RESAMPLES, seed: int = 0) -> Interval:
    """A quantile of ordered values (N,) with its BCa bootstrap interval, see `bca`; N must be at least 2."""
    value = quantile(ordered, level)
    draws = redrawn_quantile(ordered, level, resamples, np.random.default_rng(seed))
    return bca(value, draws, [without_each(ordered, level)])


def difference_interval(
    first: Array, second: Array, level: float, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """First minus second of two groups' quantiles with its BCa interval; the groups are redrawn independently."""
    rng = np.random.default_rng(seed)
    draws = [redrawn_quantile(group, level, resamples, rng) for group in (first, second)]
    less = without_each(second, level)
    changes = [without_each(first, level), Jackknife(-less.values, less.counts)]
    return bca(quantile(first, level) - quantile(second, level), draws[0] - draws[1], changes)


def redrawn_quantile(ordered: Array, level: float, resamples: int, rng: np.random.Generator) -> Array:
    """The quantile of data redrawn with replacement, (resamples,).

    The k-th of N ordered uniform numbers has the distribution Beta(k, N + 1 - k), and the next lies beyond it as the
    smallest of the N - k others does (H. David, H. Nagaraja, "Order Statistics", 3rd ed., 2003, sections 2.1 and 2.5).
    """
    size = len(ordered)
    below, share = _position(size, level)
    at = rng.beta(below + 1, size - below, resamples)
    low = ordered[np.minimum((at * size).astype(np.int64), size - 1)]
    if below == size - 1:
        return low
    at = at + (1.0 - at) * rng.beta(1, size - below - 1, resamples)
    return _between(low, ordered[np.minimum((at * size).astype(np.int64), size - 1)], share)


def without_each(ordered: Array, level: float) -> Jackknife:
    """A quantile's jackknife: it only matters whether the value left out lies below, between or above."""
    size = len(ordered)
    below, share = _position(size - 1, level)
    following = min(below + 1, size - 2)
    removed = [i for i in (0, below + 1, below + 2) if i < size]
    counts = np.diff([*removed, size])
    # Leaving out a value moves all later values forward by one.
    values = [_between(ordered[below + (i <= below)], ordered[following + (i <= following)], share) for i in removed]
    return Jackknife(np.asarray(values), counts.astype(np.float64))


def bca(value: float, draws: Array, changes: Sequence[Jackknife]) -> Interval:
    """Bias-corrected and accelerated interval (B. Efron, R. Tibshirani, "An Introduction to the Bootstrap", ch. 14.3).

    Args:
        value: the statistic of the data.
        draws: the statistic of data redrawn with replacement, (B,).
        changes: jackknife of each group that the statistic is of.
    """
    middle = (np.count_nonzero(draws < value) + np.count_nonzero(draws <= value)) / (2.0 * len(draws))
    half = 0.5 / len(draws)
    bias = ndtri(np.clip(middle, half, 1.0 - half))  # finite, also where all draws lie on one side
    ends = bias + ndtri(np.asarray([0.5 - LEVEL / 2.0, 0.5 + LEVEL / 2.0]))
    shares = ndtr(bias + ends / (1.0 - acceleration(changes) * ends))
    low, high = np.quantile(draws, shares)
    return Interval(value, float(low), float(high))


def acceleration(changes: Sequence[Jackknife]) -> float:
    """How fast a statistic's spread changes with the statistic (eq. 14.15 there), over all groups; 0 without spread."""
    cubes = squares = 0.0
    for change in changes:
        size = change.counts.sum()
        influence = (size - 1.0) / size * (np.average(change.values, weights=change.counts) - change.values)
        cubes += float(change.counts @ influence**3)
        squares += float(change.counts @ influence**2)
    return cubes / (6.0 * squares**1.5) if squares > 0 else 0.0
