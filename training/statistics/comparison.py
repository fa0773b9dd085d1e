"""The noisy-neighbour suite: how much the delays of groups differ from a baseline's, and how sure that is.

The figures of R. Moreira et al., "Noisy Neighbor Influence in the Data Plane of Beyond 5G Networks": quantiles and
spread of every group; against the baseline permutation tests of median and p95, Mann-Whitney's U and Cliff's delta.
Intervals of the quantiles and of their differences, and p values corrected for the number of groups, are added.

All tests take values as independent. Delays of packets in a row are not, so p is too small for them, and with many
values a difference of no consequence has a small p too: Cliff's delta says how large it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from slicepilot.configs import ConfigError
from slicepilot.data.intervals import Array, Interval

from .resampling import RESAMPLES, difference_interval, permutation_p, quantile, quantile_interval

COMPARED = (0.5, 0.95)
MAGNITUDES = ((0.147, "negligible"), (0.33, "small"), (0.474, "medium"), (np.inf, "large"))
"""J. Romano et al., "Appropriate statistics for ordinal level data", FAIR 2006: |delta| below each bound."""


@dataclass(frozen=True)
class Description:
    """One group's distribution, in the unit of its values.

    Attributes:
        median: with its BCa interval, as ``p95``.
        iqr: p75 - p25.
        mad: median of |value - median|, not scaled (1.4826 of it is a normal distribution's standard deviation).
    """

    group: str
    n: int
    median: Interval
    p90: float
    p95: Interval
    p99: float
    iqr: float
    mad: float


@dataclass(frozen=True)
class Comparison:
    """One group against the baseline; differences are group minus baseline.

    Attributes:
        median: difference of medians with its BCa interval; ``p95``: of the 95th percentiles.
        p_perm_median, p_perm_p95: of permutation tests on these differences.
        mann_whitney_p: of Mann-Whitney's test that neither group tends to be larger.
        cliffs_delta: P(group > baseline) - P(group < baseline), -1..1.
        holm: the three p values, by name, after Holm's correction over all groups compared (S. Holm, "A simple
            sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6, 1979).
    """

    group: str
    median: Interval
    p_perm_median: float
    p95: Interval
    p_perm_p95: float
    mann_whitney_p: float
    cliffs_delta: float
    holm: Mapping[str, float]

    @property
    def magnitude(self) -> str:
        """Cliff's delta in a word."""
        return magnitude(self.cliffs_delta)


P_VALUES: tuple[str, ...] = ("p_perm_median", "p_perm_p95", "mann_whitney_p")


@dataclass(frozen=True)
class Suite:
    """All groups, and all but the baseline against it.

    Attributes:
        unit: of the delays; resamples, seed: of intervals and permutation tests.
    """

    unit: str
    baseline: str
    descriptions: tuple[Description, ...]
    comparisons: tuple[Comparison, ...]
    resamples: int
    seed: int

    def description_rows(self, by: str) -> list[dict[str, Any]]:
        """The study's table of a grouping: ``by``, n, median, p90, p95, p99, iqr, then further columns."""
        return [
            {by: d.group, "n": d.n, "median": d.median.value, "p90": d.p90, "p95": d.p95.value, "p99": d.p99}
            | {"iqr": d.iqr, "mad": d.mad}
            | _ends("median", d.median)
            | _ends("p95", d.p95)
            for d in self.descriptions
        ]

    def comparison_rows(self) -> list[dict[str, Any]]:
        """The study's table of tests against the baseline, differences with their unit, then further columns."""
        median, p95 = ("_".join(filter(None, ["delta", name, self.unit])) for name in ("median", "p95"))
        return [
            {"comparison": c.group, median: c.median.value, "p_perm_median": c.p_perm_median}
            | {p95: c.p95.value, "p_perm_p95": c.p_perm_p95, "mann_whitney_p": c.mann_whitney_p}
            | {"cliffs_delta": c.cliffs_delta, "magnitude": c.magnitude}
            | {f"{name}_holm": c.holm[name] for name in P_VALUES}
            | _ends(median, c.median)
            | _ends(p95, c.p95)
            for c in self.comparisons
        ]


def _ends(name: str, interval: Interval) -> dict[str, float]:
    return {f"{name}_low": interval.low, f"{name}_high": interval.high}


def noisy_neighbour(
    groups: Mapping[str, npt.ArrayLike],
    baseline: str,
    unit: str,
    resamples: int = RESAMPLES,
    seed: int = 0,
    on_progress: Callable[[float], None] = lambda fraction: None,
) -> Suite:
    """The whole suite of a table of delays.

    Args:
        groups: delays (N,) of each group, finite, at least two of them, in any order.
        baseline: the group that the others are held against.
        resamples, seed: of each interval and permutation test.
        on_progress: called with the part that is done, 0..1.

    Raises:
        ConfigError: a group with fewer than two values.
    """
    ordered = {name: _ordered(name, values) for name, values in groups.items()}
    steps = 2 * len(ordered) - 1
    descriptions = []
    for done, (name, values) in enumerate(ordered.items(), 1):
        descriptions.append(describe(name, values, resamples, seed))
        on_progress(done / steps)
    comparisons = []
    for done, name in enumerate((name for name in ordered if name != baseline), len(ordered) + 1):
        comparisons.append(compare(name, ordered[name], ordered[baseline], resamples, seed))
        on_progress(done / steps)
    return Suite(unit, baseline, tuple(descriptions), tuple(_corrected(comparisons)), resamples, seed)


def _ordered(name: str, values: npt.ArrayLike) -> Array:
    ordered = np.sort(np.asarray(values, np.float64), axis=None)
    if len(ordered) < 2:
        raise ConfigError(f"group = {name!r}: {len(ordered)} values: expected at least 2")
    return ordered


def describe(group: str, ordered: Array, resamples: int = RESAMPLES, seed: int = 0) -> Description:
    """The figures of a group's ordered delays (N,)."""
    median, p95 = (quantile_interval(ordered, level, resamples, seed) for level in COMPARED)
    p25, p75, p90, p99 = (quantile(ordered, level) for level in (0.25, 0.75, 0.9, 0.99))
    mad = float(np.median(np.abs(ordered - median.value)))
    return Description(group, len(ordered), median, p90, p95, p99, p75 - p25, mad)


def compare(group: str, ordered: Array, baseline: Array, resamples: int = RESAMPLES, seed: int = 0) -> Comparison:
    """One group's ordered delays (N,) against those of the baseline (M,); alone, Holm's correction changes nothing."""
    median, p95 = (difference_interval(ordered, baseline, level, resamples, seed) for level in COMPARED)
    p_median, p_p95 = permutation_p(ordered, baseline, COMPARED, resamples, seed)
    # As SciPy chooses, p is exact where a group has at most 8 values and none are tied, else normal with corrections.
    test: Any = stats.mannwhitneyu(ordered, baseline, alternative="two-sided", method="auto")
    p = float(test.pvalue)
    adjusted = dict(zip(P_VALUES, (p_median, p_p95, p), strict=True))
    return Comparison(group, median, p_median, p95, p_p95, p, cliffs_delta(ordered, baseline), adjusted)


def _corrected(comparisons: Sequence[Comparison]) -> list[Comparison]:
    if not comparisons:
        return []
    adjusted = {name: _holm(np.asarray([getattr(c, name) for c in comparisons], np.float64)) for name in P_VALUES}
    return [
        replace(c, holm={name: float(adjusted[name][index]) for name in P_VALUES})
        for index, c in enumerate(comparisons)
    ]


def _holm(p: Array) -> Array:
    """p values (N,) corrected for their number (S. Holm, Scandinavian Journal of Statistics 6(2), 1979).

    statsmodels does the same and collects all garbage of the process at each call, most of a suite's time.
    """
    order, corrected = np.argsort(p), np.empty_like(p)
    corrected[order] = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    return np.minimum(corrected, 1.0)


def cliffs_delta(first: npt.ArrayLike, second: npt.ArrayLike) -> float:
    """P(first > second) - P(first < second) over all pairs of values, -1..1, in O(n log n)."""
    x, y = np.asarray(first, np.float64).ravel(), np.sort(np.asarray(second, np.float64), axis=None)
    less, not_more = np.searchsorted(y, x, "left"), np.searchsorted(y, x, "right")
    return float((int(less.sum()) + int(not_more.sum()) - len(x) * len(y)) / (len(x) * len(y)))


def magnitude(delta: float) -> str:
    """Cliff's delta in a word of `MAGNITUDES`."""
    return next(word for bound, word in MAGNITUDES if abs(delta) < bound)
