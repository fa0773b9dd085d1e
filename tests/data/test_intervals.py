from collections.abc import Callable

import numpy as np
import pytest

from slicepilot.data.intervals import (
    Array,
    Interval,
    crossed_interval,
    interquartile_mean,
    interval,
    mean,
    median,
    paired_differences,
    paired_ratio,
    stratified_interval,
    weighted_quantile,
)

Rng = np.random.Generator
Draw = Callable[[Rng, tuple[int, ...]], Array]
NORMAL, SKEWED, MORE_SKEWED, TAILED = "normal", "log-normal", "log-normal, more skewed", "heavy tail"


def tailed(rng: Rng, shape: tuple[int, ...]) -> Array:
    """One in ten spreads ten times as far."""
    return np.where(rng.random(shape) < 0.1, 10.0, 1.0) * rng.normal(0, 1, shape)


DRAWS: dict[str, Draw] = {
    NORMAL: lambda rng, shape: rng.normal(0, 1, shape),
    SKEWED: lambda rng, shape: rng.lognormal(0, 0.5, shape),
    MORE_SKEWED: lambda rng, shape: rng.lognormal(0, 1, shape),
    TAILED: tailed,
}
TRIALS = 1500
SIZES = (5, 15, 30)


def covered(result: list[Interval], truth: float) -> float:
    """Share of intervals that hold the truth."""
    return float(np.mean([item.low <= truth <= item.high for item in result]))


def true_value(draw: Draw, statistic: Callable[[Array], Array]) -> float:
    """Of the distribution itself, from so many values that its own error does not count."""
    return float(statistic(draw(np.random.default_rng(0), (1_000_000,))))


def test_interquartile_mean_of_known_values() -> None:
    assert interquartile_mean([1, 2, 3, 4, 5, 6, 7, 1000]) == pytest.approx(4.5)
    # floor(N / 4) values are cut at either end, as scipy.stats.trim_mean(0.25) does
    assert interquartile_mean([0, 0, 3, 6, 9, 9, 9]) == pytest.approx((0 + 3 + 6 + 9 + 9) / 5)
    assert interquartile_mean([7.0]) == 7.0
    rows = np.asarray([[4, 3, 2, 1], [40, 30, 20, 10]])
    assert interquartile_mean(rows).tolist() == [2.5, 25.0]


def test_a_value_alone_and_values_alike_have_no_spread() -> None:
    for statistic in (mean, interquartile_mean, median):
        assert interval([7.0], statistic) == Interval(7.0, 7.0, 7.0)
        assert interval([-7.0] * 5, statistic) == Interval(-7.0, -7.0, -7.0)
    assert paired_differences([3.0], [1.0]) == [Interval(2.0, 2.0, 2.0)]
    assert paired_ratio([3.0], [1.5]) == Interval(2.0, 2.0, 2.0)
    with pytest.raises(ValueError, match="at least one value"):
        interval([], mean)


def test_the_mean_has_students_t_and_times_have_it_on_a_logarithm() -> None:
    # t of 4 degrees of freedom is 2.7764; the deviation is 1.5811, of the mean 0.7071.
    result = interval([-2.0, -1.0, 0.0, 1.0, 2.0], mean)
    assert (result.low, result.high) == (pytest.approx(-1.9633, abs=1e-4), pytest.approx(1.9633, abs=1e-4))
    [difference] = paired_differences([11.0, 12.0, 13.0, 14.0, 15.0], [10.0] * 5)
    assert difference.high - difference.value == pytest.approx(1.9633, abs=1e-4)
    times = interval([8.0, 9.0, 10.0, 11.0, 12.0], mean)
    assert times.high / times.value == pytest.approx(np.exp(0.196325), abs=1e-4)
    assert times.value / times.low == pytest.approx(np.exp(0.196325), abs=1e-4)
    assert interval([0.0] * 5, mean) == Interval(0.0, 0.0, 0.0)


def test_the_interquartile_mean_has_yuens_interval() -> None:
    # By hand: 2, 3, 4 are kept, 2, 2, 3, 4, 4 is what the deviation is of, t of 2 degrees of freedom is 4.3027.
    result = interval([1.0, 2.0, 3.0, 4.0, 50.0], interquartile_mean)
    assert result.value == 3.0
    assert result.high - result.value == pytest.approx(4.3027 * (4.0 / (3 * 2)) ** 0.5, abs=1e-3)


# The least that is required: the docstring of the module has what was measured with more trials.
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("statistic", "kind", "least"),
    [
        *zip([mean] * 4, DRAWS, (0.93, 0.91, 0.86, 0.94), strict=True),
        *((statistic, kind, 0.9) for statistic in (interquartile_mean, median) for kind in DRAWS),
    ],
)
def test_intervals_cover_what_they_say(statistic: Callable[[Array], Array], kind: str, least: float, size: int) -> None:
    rng, draw = np.random.default_rng(3), DRAWS[kind]
    rows = draw(rng, (TRIALS // 3 if statistic is median else TRIALS, size))
    result = [interval(row, statistic, 400, seed=trial) for trial, row in enumerate(rows)]
    assert least <= covered(result, true_value(draw, statistic)) <= 0.99


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", [NORMAL, SKEWED, MORE_SKEWED, TAILED])
def test_intervals_of_paired_differences_cover_what_they_say(kind: str, size: int) -> None:
    """Both rivals share their luck, and each has its own of the same kind, the first twice as much."""
    rng, draw = np.random.default_rng(6), DRAWS[kind]
    luck, own, other = (draw(rng, (TRIALS, size)) for _ in range(3))
    result = [paired_differences(a, b)[0] for a, b in zip(luck + 2.0 * own, luck + other, strict=True)]
    assert (0.88 if kind == MORE_SKEWED else 0.92) <= covered(result, true_value(draw, mean)) <= 0.99


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("kind", "least"), [(NORMAL, 0.93), (SKEWED, 0.9), (MORE_SKEWED, 0.83), (TAILED, 0.9)])
def test_intervals_of_ratios_of_means_cover_what_they_say(kind: str, least: float, size: int) -> None:
    """Both rivals share their luck. Of the heavy tail one run in ten takes thrice as long, for either by itself."""
    rng, shape = np.random.default_rng(7), (TRIALS, size)
    if kind == NORMAL:
        luck = rng.normal(10, 2, shape)
        first, second = luck + rng.normal(0, 1, shape), luck + rng.normal(0, 1, shape)
    elif kind == TAILED:
        luck = rng.normal(10, 1, shape)
        first, second = (luck * np.where(rng.random(shape) < 0.1, 3.0, 1.0) for _ in range(2))
    else:
        spread = {SKEWED: 0.5, MORE_SKEWED: 1.0}[kind]
        luck = rng.lognormal(0, spread, shape)
        first, second = (luck * rng.lognormal(0, 0.5 * spread, shape) for _ in range(2))
    result = [paired_ratio(a, b) for a, b in zip(first, second, strict=True)]
    assert least <= covered(result, 1.0) <= 0.992


def test_strata_count_with_the_spread_inside_them_alone() -> None:
    # Two tasks far apart, each without any spread: that between tasks would make the interval wide.
    result = stratified_interval([np.full(10, 0.0), np.full(10, 100.0)])
    assert result == Interval(50.0, 50.0, 50.0)
    assert stratified_interval([[1.0], [3.0]]) == Interval(2.0, 2.0, 2.0)
    with pytest.raises(ValueError, match="at least one value"):
        stratified_interval([])


@pytest.mark.parametrize(("strata", "size"), [(3, 5), (8, 5), (8, 15)])
@pytest.mark.parametrize("kind", [NORMAL, MORE_SKEWED])
def test_intervals_of_strata_cover_what_they_say(kind: str, strata: int, size: int) -> None:
    rng, draw, at = np.random.default_rng(8), DRAWS[kind], 0.5 * np.arange(strata)
    truth = float(interquartile_mean(np.concatenate([centre + draw(rng, (300_000,)) for centre in at])))
    tasks = draw(rng, (TRIALS // 3, strata, size)) + at[:, None]
    assert 0.92 <= covered([stratified_interval(list(item)) for item in tasks], truth) <= 0.99


@pytest.mark.parametrize(("seeds", "scenarios"), [(10, 32), (3, 32), (3, 6)])
@pytest.mark.parametrize("spread", [(0.1, 0.3, 0.1), (0.2, 0.2, 0.1), (0.3, 0.1, 0.1), (0.05, 0.4, 0.5)])
def test_crossed_intervals_cover_other_seeds_and_other_scenarios(
    spread: tuple[float, float, float], seeds: int, scenarios: int
) -> None:
    """Logarithms of ratios are sums of a seed's effect, a scenario's, and one of both together."""
    rng, result = np.random.default_rng(9), []
    of_seed, of_scenario, of_both = spread
    for trial in range(400):
        logs = of_seed * rng.normal(size=(seeds, 1)) + of_scenario * rng.normal(size=scenarios)
        logs += of_both * rng.normal(size=(seeds, scenarios))
        result.append(crossed_interval(np.exp(logs), median, 300, seed=trial))
    # Means over seeds of what is log-normal: the median scenario's is that much above 1.
    truth = float(np.exp((of_seed**2 + of_both**2) / 2.0))
    assert (0.91 if seeds == 10 else 0.88) <= covered(result, truth) <= (0.985 if seeds == 10 else 1.0)


def test_crossed_intervals_need_two_of_each_and_see_seeds_that_scenarios_share() -> None:
    alike = crossed_interval(np.full((3, 4), 2.0))
    assert (alike.value, alike.high - alike.low) == (2.0, pytest.approx(0.0, abs=1e-12))
    for table in (np.ones((1, 5)), np.ones((5, 1)), np.zeros((3, 3))):
        with pytest.raises(ValueError, match="at least 2 x 2"):
            crossed_interval(table)
    # Seeds that are lucky everywhere are no news about scenarios: a median over scenarios knows nothing of them.
    table = np.repeat([[0.5], [1.0], [2.0]], 30, axis=1)
    alone = interval(table.mean(axis=0), median)
    assert alone.low == alone.high == pytest.approx(3.5 / 3)
    assert crossed_interval(table).high > 2.0


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
    result = paired_ratio(0.5 * base, base)
    assert result.value == pytest.approx(0.5)
    assert (result.low, result.high) == (pytest.approx(0.5), pytest.approx(0.5))
    assert paired_ratio(np.zeros(5), np.zeros(5)) == Interval(1.0, 1.0, 1.0)
    assert paired_ratio(np.ones(5), np.zeros(5)) == Interval(np.inf, np.inf, np.inf)
    assert paired_ratio(np.zeros(5), np.ones(5)) == Interval(0.0, 0.0, 0.0)
    # A rule that broke promises once, against one that always does: less, however little is known of how much less.
    once = paired_ratio([0.0, 0.0, 0.1, 0.0, 0.0], [9.0, 10.0, 11.0, 10.0, 10.0])
    assert 0.0 < once.low < once.value < once.high < 0.1


def test_weighted_quantile_counts_weight_not_rows() -> None:
    values = np.asarray([[10.0], [20.0], [30.0]])
    assert weighted_quantile(values, np.asarray([[98.0], [1.5], [0.5]]), 0.99)[0] == 20.0
    assert weighted_quantile(values, np.asarray([[0.0], [0.0], [1.0]]), 0.5)[0] == 30.0
    assert weighted_quantile(values, np.zeros((3, 1)), 0.99)[0] == 0.0
    same = weighted_quantile(np.arange(1.0, 101.0)[:, None], np.ones((100, 1)), 0.99)
    assert same[0] == 99.0
