import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicepilot.data.tables.tally import BUCKETS, LOWEST, RELATIVE_ERROR, Tally, buckets_of, edges, middles

LEVELS = (0.0, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0)
values_strategy = st.lists(st.floats(0, 2.0**35, allow_subnormal=False), min_size=1, max_size=60)


@given(values_strategy)
def test_a_value_lies_in_its_bucket_and_near_the_middle(given_values: list[float]) -> None:
    values = np.asarray(given_values)
    bucket = buckets_of(values)
    assert (edges()[bucket] <= values).all()
    assert (values < edges()[bucket + 1]).all()
    tolerance = np.where(values < LOWEST, LOWEST, RELATIVE_ERROR * values)
    assert (np.abs(middles()[bucket] - values) <= tolerance).all()


def test_what_is_greater_than_all_buckets_counts_in_the_last() -> None:
    assert buckets_of(np.asarray([1e300, 2.0**36])).tolist() == [BUCKETS - 1] * 2


@given(values_strategy, st.integers(0, 2**32 - 1), st.integers(1, 4))
def test_figures_are_those_of_numpy(given_values: list[float], seed: int, batches: int) -> None:
    values = np.asarray(given_values)
    groups = np.random.default_rng(seed).integers(0, 3, len(values))
    tally = Tally()
    for part in np.array_split(np.arange(len(values)), batches):
        tally.add(groups[part], values[part], 1 + int(groups[part].max(initial=0)))
    quantiles, mean, std = tally.quantiles(LEVELS), tally.mean(), tally.std()
    for group in range(len(tally.count)):
        own = values[groups == group]
        assert tally.count[group] == len(own)
        if not len(own):
            assert np.isnan(quantiles[group]).all()
            assert np.isnan(mean[group])
            continue
        assert (tally.least[group], tally.greatest[group]) == (own.min(), own.max())
        assert tally.histogram[group].sum() == len(own)
        assert mean[group] == pytest.approx(own.mean(), rel=1e-12, abs=1e-12)
        expected = own.std(ddof=1) if len(own) > 1 else 0.0
        underflow = 1e-150  # squares of less are no numbers with all their digits
        assert std[group] == pytest.approx(expected, rel=1e-6, abs=1e-6 * own.max() + underflow)
        assert_near(quantiles[group], np.quantile(own, LEVELS))


def assert_near(result: npt.NDArray[np.float64], exact: npt.NDArray[np.float64]) -> None:
    assert (np.abs(result - exact) <= 2 * RELATIVE_ERROR * exact + LOWEST).all()
    assert (np.diff(result) >= 0).all()


def test_squares_do_not_cancel() -> None:
    values = 1e6 + np.asarray([1.0, 2.0, 3.0, 4.0] * 1000)
    tally = Tally()
    tally.add(np.zeros(len(values), np.int64), values, 1)
    assert tally.std()[0] == pytest.approx(values.std(ddof=1), rel=1e-12)


def test_nothing_counted_is_nothing() -> None:
    assert Tally().quantiles(LEVELS).shape == (0, len(LEVELS))
