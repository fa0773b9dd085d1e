"""Tower's warm-up: the regression within lanes, and what the command writes."""

import sys
from pathlib import Path

import numpy as np
import pytest

from slicepilot.agents.heuristics.tower import LADDER, NUM_FEATURES, UNIT, TowerPrior, TowerStep, features
from slicepilot.configs import load
from slicepilot.training.tuning import warm_up_tower
from slicepilot.training.tuning.warm_up_tower import fit

TRUTH = np.asarray([0.0, 0.5, 0.2, -0.3, -0.1, 0.8, 0.1, 0.2, 0.3, -0.2])


def steps_of(rng: np.random.Generator, lanes: int, per_lane: int) -> list[TowerStep]:
    """Costs by `TRUTH`, on lanes that differ by far more than choices do, the more loaded being cheaper."""
    steps = []
    for lane in range(lanes):
        base = rng.uniform(0.2, 1.5)
        for _ in range(per_lane):
            load_, (first, second) = base + rng.normal(0, 0.1), rng.integers(0, len(LADDER), 2)
            seen = features(np.asarray([load_]), UNIT[[first]], UNIT[[second]])[0]
            cost = float(seen @ TRUTH) + 5.0 - 3.0 * base + rng.normal(0, 0.01)
            steps.append(TowerStep(lane, float(load_), int(first), int(second), cost))
    return steps


def test_differences_between_lanes_do_not_pass_for_effects_of_choices() -> None:
    prior = fit([steps_of(np.random.default_rng(k), 200, 20) for k in range(2)], "use", 30.0)
    # Of the choice; coefficients of the load alone change nothing about which is best.
    np.testing.assert_allclose(prior.mean[3:], TRUTH[3:], atol=0.06)
    precision = np.asarray(prior.precision)
    np.testing.assert_array_equal(precision, precision.T)
    assert np.linalg.eigvalsh(precision).min() > 0


def test_a_prior_counts_for_so_many_steps() -> None:
    steps = [steps_of(np.random.default_rng(0), 100, 20)]
    once, tenfold = (np.asarray(fit(steps, "use", steps_of_prior).precision) for steps_of_prior in (10.0, 100.0))
    np.testing.assert_allclose(tenfold[5, 5] / once[5, 5], 10.0, rtol=0.2)


@pytest.mark.slow
def test_command_writes_a_prior_that_repeats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_up_tower, "STEPS", 120)
    priors = []
    for name in ("one.yaml", "two.yaml"):
        out = tmp_path / name
        monkeypatch.setattr(sys, "argv", ["warm_up_tower", "--lanes", "16", "--runs", "1", "-o", str(out)])
        warm_up_tower.main()
        priors.append(load("heuristics", out, TowerPrior))
    assert priors[0] == priors[1]
    assert len(priors[0].mean) == NUM_FEATURES
    assert priors[0].provenance["lanes"] == 16
