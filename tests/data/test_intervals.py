import numpy as np
import pytest

from slicepilot.data.intervals import (
    Interval,
    interquartile_mean,
    interval,
    mean,
    paired_differences,
    paired_ratio,
    stratified_interval,
    weighted_quantile,
)


def test_interquartile_mean_of_known_values() -> None:
    assert interquartile_mean([1, 2, 3, 4, 5, 6, 7, 1000]) == pytest.approx(4.5)
    # floor(N / 4) values are cut at either end, as scipy.stats.trim_mean(0.25) does
    assert interquartile_mean([0, 0, 3, 6, 9, 9, 9]) == pytest.approx((0 + 3 + 6 + 9 + 9) / 5)
    assert interquartile_mean([7.0]) == 7.0
    rows = np.asarray([[4, 3, 2, 1], [40, 30, 20, 10]])
    assert interquartile_mean(rows).tolist() == [2.5, 25.0]


def test_interval_holds_the_point_and_shrinks_with_more_seeds() -> None:
    rng = np.random.default_rng(1)
    few, many = (interval(rng.normal(5, 1, n), mean) for n in (10, 1000))
    for found in (few, many):
        assert found.low <= found.value <= found.high
    assert many.high - many.low < 0.3 * (few.high - few.low)


def test_same_seed_same_interval() -> None:
    values = np.random.default_rng(2).normal(size=30)
    assert interval(values, seed=4) == interval(values, seed=4)
    assert interval(values, seed=4) != interval(values, seed=5)


@pytest.mark.parametrize("statistic", [mean, interquartile_mean])
def test_bootstrap_covers_the_truth_about_as_often_as_it_says(statistic: object) -> None:
    rng = np.random.default_rng(3)
    hits = 0
    for trial in range(300):
        found = interval(rng.normal(2.0, 1.0, 30), statistic, resamples=400, seed=trial)  # type: ignore[arg-type]
        hits += found.low <= 2.0 <= found.high
    assert 0.89 <= hits / 300 <= 0.99


def test_strata_are_resampled_inside_themselves() -> None:
    # Two tasks far apart, each without any spread: resampling across tasks would make the interval wide.
    found = stratified_interval([np.full(10, 0.0), np.full(10, 100.0)], mean)
    assert found == Interval(50.0, 50.0, 50.0)
    with pytest.raises(ValueError, match="at least one value"):
        stratified_interval([])


def test_pairing_removes_what_seeds_share() -> None:
    rng = np.random.default_rng(4)
    luck = rng.normal(0, 10, 40)
    a, b = luck + 1.0 + rng.normal(0, 0.1, 40), luck + rng.normal(0, 0.1, 40)
    [difference, nothing] = paired_differences(a, np.stack([b, a]))
    assert difference.excludes_zero
    assert difference.value == pytest.approx(1.0, abs=0.1)
    assert nothing == Interval(0.0, 0.0, 0.0)
    assert not nothing.excludes_zero
    unpaired = interval(a, mean).high - interval(a, mean).low
    assert difference.high - difference.low < 0.05 * unpaired


def test_ratio_of_means_and_its_edges() -> None:
    rng = np.random.default_rng(5)
    base = rng.uniform(5, 15, 50)
    found = paired_ratio(0.5 * base, base)
    assert found.value == pytest.approx(0.5)
    assert (found.low, found.high) == (pytest.approx(0.5), pytest.approx(0.5))
    assert paired_ratio(np.zeros(5), np.zeros(5)) == Interval(1.0, 1.0, 1.0)
    assert paired_ratio(np.ones(5), np.zeros(5)).value == np.inf


def test_weighted_quantile_counts_weight_not_rows() -> None:
    values = np.asarray([[10.0], [20.0], [30.0]])
    assert weighted_quantile(values, np.asarray([[98.0], [1.5], [0.5]]), 0.99)[0] == 20.0
    assert weighted_quantile(values, np.asarray([[0.0], [0.0], [1.0]]), 0.5)[0] == 30.0
    assert weighted_quantile(values, np.zeros((3, 1)), 0.99)[0] == 0.0
    same = weighted_quantile(np.arange(1.0, 101.0)[:, None], np.ones((100, 1)), 0.99)
    assert same[0] == 99.0
