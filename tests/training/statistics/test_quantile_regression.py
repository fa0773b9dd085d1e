"""Quantile regression against R's quantreg, statsmodels and what must hold for it."""

from __future__ import annotations

import csv
from importlib import resources
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.datasets import engel
from statsmodels.regression.quantile_regression import QuantReg

from slicepilot.configs import ConfigError
from slicepilot.training.statistics.quantile_regression import Regression, regress, solve, standard_errors
from tests.effort import examples


def engel_data() -> tuple[np.ndarray, np.ndarray]:
    """Food expenditure and income of 235 Belgian households (E. Engel, 1857), as R's quantreg ships them."""
    data: Any = engel.load_pandas().data
    return data["foodexp"].to_numpy(), data["income"].to_numpy()


def run_like_the_study(seed: int = 0, size: int = 240) -> tuple[np.ndarray, dict[str, Any]]:
    rng = np.random.default_rng(seed)
    traffic = rng.choice(["Anomaly", "Baseline", "Constant-Rate", "Multimedia"], size)
    cpu, packets = rng.uniform(5, 60, size), rng.uniform(0, 3000, size)
    delays = 14 - 0.05 * cpu - 3.0 * (traffic == "Constant-Rate") + rng.gamma(2.0, 2.0, size)
    qfi = rng.choice(["1", "9"], size)
    return delays, {"cpu": cpu, "packets": packets, "qfi": qfi, "traffic_class": traffic}


def slopes(result: Regression, index: int = 0) -> dict[str, float]:
    return {c.term.name: c.slope for c in result.fits[index].coefficients}


@pytest.mark.parametrize("level", [0.25, 0.5, 0.75, 0.95])
def test_coefficients_and_errors_are_those_of_statsmodels(level: float) -> None:
    food, income = engel_data()
    design = np.column_stack([np.ones_like(income), income])
    theirs = QuantReg(food, design).fit(level)
    assert solve(food, design, level) == pytest.approx(theirs.params, rel=1e-6)
    # Theirs are of residuals of which those on the line have either sign; ours are 0.
    ours = standard_errors(food, design, food - design @ theirs.params, level)
    assert ours[1] == pytest.approx(theirs.bse[1], rel=1e-6)


def test_p_values_are_those_of_statsmodels() -> None:
    delays, covariates = run_like_the_study(3)
    cpu, packets = covariates["cpu"], covariates["packets"]
    [fit] = regress(delays, {"cpu": cpu, "packets": packets}, quantiles=[0.5]).fits
    theirs = QuantReg(delays, np.column_stack([np.ones_like(cpu), cpu, packets])).fit(0.5)
    for own, slope, p in zip(fit.coefficients, theirs.params[1:], theirs.pvalues[1:], strict=True):
        # Their iteration stops a hundred-thousandth before ours arrives.
        assert own.slope == pytest.approx(slope, rel=2e-5)
        assert own.p == pytest.approx(p, rel=2e-5)
        assert own.stderr is not None
        assert own.p == pytest.approx(2 * stats.t.sf(abs(own.slope) / own.stderr, len(delays) - 3), rel=1e-9)


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.1, 0.5, 0.95]))
def test_no_other_line_fits_better(seed: int, level: float) -> None:
    rng = np.random.default_rng(seed)
    design = np.column_stack([np.ones(60), rng.normal(size=60), rng.integers(0, 2, 60).astype(np.float64)])
    y = rng.exponential(size=60)

    def loss(coefficients: np.ndarray) -> float:
        residuals = y - design @ coefficients
        return float(np.mean(residuals * (level - (residuals < 0))))

    best = solve(y, design, level)
    assert all(loss(best) <= loss(best + rng.normal(0, 10.0 ** -rng.integers(1, 6), 3)) + 1e-9 for _ in range(50))
    # As many residuals as the quantile says lie below, but for those on the line.
    assert np.mean(y < design @ best - 1e-7) <= level <= np.mean(y <= design @ best + 1e-7)


@pytest.mark.parametrize("factor", [1e-9, 1e-3, 1e6])
def test_units_change_nothing_but_the_unit(factor: float) -> None:
    delays, covariates = run_like_the_study()
    plain, scaled = regress(delays, covariates), regress(factor * delays, covariates)
    for item, other in zip(plain.fits, scaled.fits, strict=True):
        for own, their in zip(item.coefficients, other.coefficients, strict=True):
            assert their.slope == pytest.approx(factor * own.slope, rel=1e-5, abs=1e-7 * factor)
            assert their.p == (None if own.p is None else pytest.approx(own.p, rel=1e-3, abs=1e-6))


def test_table_has_the_form_of_the_published_one() -> None:
    text = resources.files("slicepilot.data.reference").joinpath("moreira_quantile_regression_ns.csv").read_text()
    published = list(csv.DictReader(text.splitlines()))
    delays, covariates = run_like_the_study()
    result = regress(delays, covariates, {"traffic_class": "Baseline", "qfi": "1"})
    rows = result.rows()
    assert [column for column in rows[0] if column in published[0]] == list(published[0])
    assert [row["quantile"] for row in rows] == [float(row["quantile"]) for row in published]
    assert [row["n"] for row in rows] == [int(row["n"]) for row in published]
    # Where the study has no p, nor has this: 240 values are too few for the density at 0.99.
    assert [[row["cpu_p"] is None, row["constant_rate_p"] is None] for row in rows] == [
        [not row["cpu_p"], not row["constant_rate_p"]] for row in published
    ]
    assert rows[0]["constant_rate_beta"] < -2
    assert rows[0]["constant_rate_p"] < 0.001
    assert result.references == {"qfi": "1", "traffic_class": "Baseline"}


def test_columns_that_say_nothing_new_are_dropped_and_named() -> None:
    delays, covariates = run_like_the_study()
    extra = {"twice": 2 * covariates["cpu"] + 7e6, "still": np.full(240, 3.0)}
    # What is far from zero but varies is kept.
    extra["clock"] = 1.7e18 + 1e9 * np.arange(240.0)
    same = np.char.lower(covariates["traffic_class"].astype(str))
    result = regress(delays, {**covariates, **extra, "condition": same})
    assert result.dropped["still"] == "constant"
    assert result.dropped["twice"] == "collinear with cpu"
    assert len(set(result.dropped) - {"still", "twice"}) == 3  # each level of the same words
    assert "condition" not in {c.term.covariate for c in result.fits[0].coefficients}
    assert "clock" in slopes(result)
    plain = regress(delays, {**covariates, "clock": extra["clock"]})
    assert slopes(result) == pytest.approx(slopes(plain), rel=1e-4, abs=1e-9)


def test_a_number_that_only_tells_groups_apart_gives_way_to_them() -> None:
    names = np.repeat(["embb", "mmtc", "urllc"], 31)
    sizes = np.repeat([1512.0, 66.0, 218.0], 31)
    result = regress(np.arange(93.0), {"packet_bytes": sizes, "slice": names}, {"slice": "urllc"}, quantiles=[0.5])
    assert slopes(result) == pytest.approx({"embb": -62.0, "mmtc": -31.0}, abs=1e-6)
    assert result.dropped == {"packet_bytes": "collinear with embb, mmtc"}


def test_levels_of_one_name_say_what_they_are_levels_of() -> None:
    delays, covariates = run_like_the_study()
    again = {"condition": np.roll(covariates["traffic_class"], 7)}
    references = {"qfi": "1", "traffic_class": "Baseline", "condition": "Baseline"}
    result = regress(delays, {**covariates, **again}, references)
    assert {"anomaly", "condition_anomaly", "qfi9"} <= slopes(result).keys()


@pytest.mark.parametrize(
    ("delays", "covariates", "references", "reported"),
    [
        (np.ones(2), {"a": np.asarray(["x", "y"])}, {"a": "z"}, "a = 'z': expected a reference of x, y"),
        (np.ones(2), {"cpu": np.arange(2.0)}, {}, "delays: 2 values: expected more than 2, the number of terms"),
    ],
)
def test_bad_input_is_reported(delays: Any, covariates: Any, references: Any, reported: str) -> None:
    with pytest.raises(ConfigError) as error:
        regress(delays, covariates, references)
    assert str(error.value) == reported
