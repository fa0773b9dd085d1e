"""The noisy-neighbour suite against SciPy, statsmodels, R's documentation and textbooks."""

from __future__ import annotations

import csv
import itertools
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.multitest import multipletests

from slicepilot.training.statistics.comparison import (
    P_VALUES,
    cliffs_delta,
    compare,
    describe,
    magnitude,
    noisy_neighbour,
)
from slicepilot.training.statistics.resampling import (
    Jackknife,
    bca,
    difference_interval,
    permutation_p,
    quantile,
    redrawn_quantile,
    shuffled_ranks,
    without_each,
)
from tests.effort import examples

# Permeability constants of the human chorioamnion, M. Hollander and D. Wolfe, "Nonparametric Statistical Methods",
# 1973, table 4.1; the first example of R's wilcox.test.
AT_TERM = [0.80, 0.83, 1.89, 1.04, 1.45, 1.38, 1.91, 1.64, 0.73, 1.46]
EARLY = [1.15, 0.88, 0.90, 0.74, 1.21]
# Ozone of May and of August in R's data set airquality; the second example there, with ties.
MAY = [41, 36, 12, 18, 28, 23, 19, 8, 7, 16, 11, 14, 18, 14, 34, 6, 30, 11, 1, 11, 4, 32, 23, 45, 115, 37]
AUGUST = [39, 9, 16, 78, 35, 66, 122, 89, 110, 44, 28, 65, 22, 59, 23, 31, 44, 21, 9, 45, 168, 73, 76, 118, 84, 85]

numbers = st.floats(-1e6, 1e6).map(lambda value: round(value, 3))
groups = st.lists(numbers, min_size=2, max_size=40)


def published(name: str) -> list[dict[str, str]]:
    text = resources.files("slicepilot.data.reference").joinpath(f"{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def ordered(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    return np.sort(np.asarray(values, np.float64))


# -- descriptions --------------------------------------------------------------------------------------------------


@given(groups)
def test_description_is_that_of_numpy_and_scipy(values: list[float]) -> None:
    result = describe("any", ordered(values), resamples=100)
    p25, p50, p75, p90, p95, p99 = np.quantile(values, [0.25, 0.5, 0.75, 0.9, 0.95, 0.99])
    assert result.n == len(values)
    assert (result.median.value, result.p90, result.p95.value, result.p99) == (p50, p90, p95, p99)
    assert result.iqr == pytest.approx(p75 - p25, rel=1e-12, abs=1e-9)
    assert result.mad == pytest.approx(stats.median_abs_deviation(values), rel=1e-12, abs=1e-9)


# -- Mann-Whitney and Cliff ----------------------------------------------------------------------------------------


def test_mann_whitney_is_that_of_r() -> None:
    exact = compare("at term", ordered(AT_TERM), ordered(EARLY), resamples=100)
    assert exact.mann_whitney_p == pytest.approx(2 * 382 / 3003, abs=1e-9)  # R prints 0.1272 for one side
    tied = compare("may", ordered(MAY), ordered(AUGUST), resamples=100)
    assert tied.mann_whitney_p == pytest.approx(0.0001208, abs=5e-8)  # normal, with corrections for ties and continuity


@given(groups, groups)
def test_delta_by_definition_and_by_u(first: list[float], second: list[float]) -> None:
    pairs = [np.sign(x - y) for x, y in itertools.product(first, second)]
    delta = cliffs_delta(first, second)
    assert delta == pytest.approx(np.mean(pairs), abs=1e-12)
    assert delta == pytest.approx(-cliffs_delta(second, first), abs=1e-12)
    u: Any = stats.mannwhitneyu(first, second).statistic
    assert delta == pytest.approx(2 * u / (len(first) * len(second)) - 1, abs=1e-9)


def test_magnitudes_are_those_of_romano_and_of_the_study() -> None:
    assert [magnitude(d) for d in (0.0, -0.1469, 0.147, -0.3299, 0.33, 0.474, -1.0)] == [
        *("negligible", "negligible", "small", "small", "medium", "large", "large")
    ]
    for row in published("moreira_group_tests"):
        assert magnitude(float(row["cliffs_delta"])) == row["magnitude"]


# -- permutation tests ---------------------------------------------------------------------------------------------


def by_hand(first: list[float], second: list[float], level: float) -> float:
    """Two-sided p over all divisions, counted one by one."""
    pooled, count = np.asarray([*first, *second]), len(first)
    every = []
    for chosen in itertools.combinations(range(len(pooled)), count):
        rest = [i for i in range(len(pooled)) if i not in chosen]
        every.append(np.quantile(pooled[list(chosen)], level) - np.quantile(pooled[rest], level))
    observed = np.quantile(first, level) - np.quantile(second, level)
    less, more = np.mean(np.asarray(every) <= observed + 1e-9), np.mean(np.asarray(every) >= observed - 1e-9)
    return float(min(1.0, 2 * min(less, more)))


@pytest.mark.parametrize("level", [0.5, 0.95])
def test_few_values_are_divided_in_all_ways(level: float) -> None:
    assert permutation_p(ordered(AT_TERM), ordered(EARLY), [level]) == pytest.approx(
        [by_hand(AT_TERM, EARLY, level)], abs=1e-9
    )


@pytest.mark.parametrize(("first", "second"), [(AT_TERM, [*EARLY, 0.95, 1.02, 1.5, 1.31]), (MAY, AUGUST)])
def test_random_divisions_are_as_those_of_scipy(first: list[float], second: list[float]) -> None:
    ours = permutation_p(ordered(first), ordered(second), (0.5, 0.95), 9_000)
    for level, p in zip((0.5, 0.95), ours, strict=True):

        def difference(x: np.ndarray, y: np.ndarray, axis: int, level: float = level) -> np.ndarray:
            return np.quantile(x, level, axis=axis) - np.quantile(y, level, axis=axis)

        theirs: Any = stats.permutation_test((first, second), difference, vectorized=True, n_resamples=20_000, rng=1)
        assert p == pytest.approx(theirs.pvalue, abs=float(6 * np.sqrt(2 * theirs.pvalue / 9_000)) + 1e-3)


def test_no_random_p_is_zero() -> None:
    p = permutation_p(np.arange(40.0), np.arange(100.0, 140.0), [0.5, 0.95], resamples=10_000)
    assert p == pytest.approx([2 / 10_001] * 2)
    assert permutation_p(np.ones(40), np.ones(50), [0.5], resamples=100) == [1.0]


def test_p_values_are_those_of_shuffled_labels() -> None:
    # All 20 ways to give 3 of 6 indices a label, each as likely: those of its second member, and of the other's first.
    every = {}
    for ours in itertools.combinations(range(6), 3):
        theirs = [i for i in range(6) if i not in ours]
        every[ours[1], theirs[0]] = every.get((ours[1], theirs[0]), 0) + 1
    drawn = shuffled_ranks(3, 6, [1, 0], [True, False], 40_000, np.random.default_rng(7))
    result: dict[tuple[int, int], int] = {}
    for pair in drawn.T.tolist():
        result[tuple(pair)] = result.get(tuple(pair), 0) + 1
    assert result.keys() == every.keys()
    keys = sorted(every)
    assert stats.chisquare([result[k] for k in keys], [2_000 * every[k] for k in keys]).pvalue > 1e-3


@settings(max_examples=examples(30))
@given(groups, groups, st.randoms(use_true_random=False))
def test_order_changes_nothing(first: list[float], second: list[float], random: object) -> None:
    suite = noisy_neighbour({"a": first, "b": second}, "a", "us", resamples=200)
    random.shuffle(first)  # type: ignore[attr-defined]
    random.shuffle(second)  # type: ignore[attr-defined]
    assert noisy_neighbour({"a": first, "b": second}, "a", "us", resamples=200) == suite
    [result] = suite.comparisons
    assert all(0 < getattr(result, name) <= 1 for name in P_VALUES)
    assert all(result.holm[name] == getattr(result, name) for name in P_VALUES)


# -- bootstrap -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 5, 20, 21])
@pytest.mark.parametrize("level", [0.05, 0.5, 0.9, 0.95, 0.99])
def test_intervals_are_those_of_scipy(size: int, level: float) -> None:
    values = np.sort(np.random.default_rng(size).lognormal(size=size))
    theirs = stats.bootstrap(
        (values,), lambda x, axis: np.quantile(x, level, axis=axis), n_resamples=2_000, method="BCa", rng=3
    )
    draws = theirs.bootstrap_distribution
    ours = bca(quantile(values, level), draws, [without_each(values, level)])
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs.confidence_interval), abs=1e-9)
    redrawn = redrawn_quantile(values, level, 2_000, np.random.default_rng(4))
    alike: Any = stats.ks_2samp(redrawn, draws)
    assert alike.pvalue > 1e-3


def test_interval_of_a_difference_is_that_of_scipy() -> None:
    first, second = ordered(MAY), ordered(AUGUST)

    def difference(x: np.ndarray, y: np.ndarray, axis: int) -> np.ndarray:
        return np.median(x, axis=axis) - np.median(y, axis=axis)

    theirs = stats.bootstrap((first, second), difference, n_resamples=3_000, method="BCa", rng=5)
    less = without_each(second, 0.5)
    changes = [without_each(first, 0.5), Jackknife(-less.values, less.counts)]
    ours = bca(float(difference(first, second, 0)), theirs.bootstrap_distribution, changes)
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs.confidence_interval), abs=1e-9)
    whole = difference_interval(first, second, 0.5, resamples=20_000)
    assert whole.value == ours.value
    assert (whole.low, whole.high) == pytest.approx((ours.low, ours.high), abs=6)


# -- the suite -----------------------------------------------------------------------------------------------------


def delays_like_the_study(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shifts = {"Anomaly": 0.0, "Baseline": 0.0, "Constant-Rate": -4.0, "Multimedia": -1.5}
    return {name: np.round(14 + shift + rng.gamma(2.0, 2.0, 60), 2) for name, shift in shifts.items()}


def test_tables_have_the_figures_of_groups_and_differences() -> None:
    suite = noisy_neighbour(delays_like_the_study(), "Baseline", "ns")
    own_tests, own_classes = suite.comparison_rows(), suite.description_rows("ue_traffic")
    constant = own_tests[1]
    assert constant["magnitude"] == "large"
    assert constant["delta_median_ns"] == pytest.approx(own_classes[2]["median"] - own_classes[1]["median"])
    assert constant["delta_median_ns_low"] < constant["delta_median_ns"] < constant["delta_median_ns_high"] < 0
    # With 10^4 random divisions the least p is that of the published table.
    assert constant["p_perm_median"] == pytest.approx(
        float(published("moreira_group_tests")[1]["p_perm_median"]), abs=1e-6
    )


def test_p_values_are_corrected_over_the_groups() -> None:
    groups = delays_like_the_study(1)
    suite = noisy_neighbour(groups, "Baseline", "ns", resamples=2_000)
    base = np.sort(groups["Baseline"])
    for name in P_VALUES:
        alone = [getattr(compare(c.group, np.sort(groups[c.group]), base, 2_000), name) for c in suite.comparisons]
        assert [getattr(c, name) for c in suite.comparisons] == alone
        assert [c.holm[name] for c in suite.comparisons] == pytest.approx(multipletests(alone, method="holm")[1])


def test_many_values_take_little_time_and_memory() -> None:
    rng = np.random.default_rng(9)
    groups = {"a": rng.lognormal(3.0, 0.5, 400_000), "b": rng.lognormal(3.01, 0.5, 300_000)}
    done: list[float] = []
    [result] = noisy_neighbour(groups, "a", "us", on_progress=done.append).comparisons
    assert done == sorted(done)
    assert done[-1] == 1.0
    assert result.p_perm_median == pytest.approx(2 / 10_001)
    assert result.magnitude == "negligible"
    truth = np.exp(3.01) - np.exp(3.0)
    assert result.median.low < truth < result.median.high
