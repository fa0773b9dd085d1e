"""An estimate: a figure with its interval, or why the data cannot say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from slicepilot.data.intervals import LEVEL, RESAMPLES, resample_indices

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """Mean reward per control period of a policy.

    Attributes:
        value: the figure; NaN where there is none.
        low, high: ends of its interval; infinite where a single episode has all or nearly all of the weight, because
            the variation between episodes is then not known.
        diagnostics: plain values that say how it came about, such as ``held_out_error``: by how much the estimator was
            off, root mean square, on policies whose reward is known and whose episodes it did not see.
        refused: why there is no figure, in a few words; empty if there is a figure.
    """

    value: float
    low: float
    high: float
    diagnostics: Mapping[str, Any] = field(default_factory=dict)
    refused: str = ""

    @property
    def answered(self) -> bool:
        """Whether there is a figure."""
        return not self.refused

    def to_json(self) -> dict[str, Any]:
        """The same for JSON, which has no NaN."""
        if self.refused:
            return {"refused": self.refused, "diagnostics": dict(self.diagnostics)}
        return {"value": self.value, "ci95": finite_ends(self.low, self.high), "diagnostics": dict(self.diagnostics)}


def finite_ends(low: float, high: float) -> list[float] | None:
    """Ends of an interval for JSON, which has no infinity: None where they are not known."""
    return [low, high] if math.isfinite(high - low) else None


def widened(
    value: float, draws: Array, independent: int, error: float, groups: int, diagnostics: Mapping[str, Any]
) -> Estimate:
    """A figure whose 95% interval holds two independent errors.

    Both are known from few draws or policies, so their law is Student's.

    Args:
        value: the figure.
        draws: bootstrap draws of it (R,): their deviation is the sample's error.
        independent: number of independent episodes, as `episodes_that_count` says. The degrees of freedom are one less,
            or one less than the draws where these are fewer.
        error: the estimator's own, root mean square over policies whose reward is known.
        groups: how many of these are independent of each other, its degrees of freedom; 0 where there are none.
        diagnostics: further plain values, which the estimate keeps.
    """
    facts = {**diagnostics, "groups": groups, "independent_episodes": independent}
    if independent < 2:
        return Estimate(value, -math.inf, math.inf, {**facts, "sampling_sd": None})
    sampling = float(np.std(draws, ddof=1)) if len(draws) > 1 else 0.0
    half = math.hypot(_reach(min(len(draws), independent) - 1) * sampling, _reach(groups) * error)
    return Estimate(value, value - half, value + half, {**facts, "sampling_sd": sampling})


def episodes_that_count(counts: npt.ArrayLike) -> int:
    """Kish's effective size of episodes (E,) with so many steps each, or such weights: E if they are alike."""
    size = np.asarray(counts, np.float64)
    return round(float(size.sum() ** 2 / np.square(size).sum()))


def _reach(degrees: int) -> float:
    """Standard deviations from the middle of Student's law to an end of the interval; 0 without a degree of freedom."""
    return float(stats.t.ppf(0.5 + 0.5 * LEVEL, degrees)) if degrees > 0 else 0.0


def bootstrap_ratio(sums: npt.ArrayLike, counts: npt.ArrayLike, resamples: int = RESAMPLES, seed: int = 0) -> Array:
    """Draws (R,) of sum over sum, where whole episodes are drawn with replacement.

    Drawn from E episodes, a mean varies by sqrt((E - 1) / E) of what it should (B. Efron, R. Tibshirani, "An
    Introduction to the Bootstrap", 1993, section 5.3). Draws are moved away from the figure by as much.

    Args:
        sums, counts: (E,) of each episode, for instance of rewards and of steps.
        resamples: draws, R.
        seed: of the draws.
    """
    top, bottom = np.asarray(sums, np.float64), np.asarray(counts, np.float64)
    index = resample_indices(len(top), resamples, seed)
    below = bottom[index].sum(axis=1)
    draws = top[index].sum(axis=1)[below != 0] / below[below != 0]
    value = top.sum() / bottom.sum()
    return np.asarray(value + (draws - value) * math.sqrt(len(top) / max(len(top) - 1, 1)), np.float64)
