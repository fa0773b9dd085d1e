"""Rows of Andrade and Wickboldt (2025), and their figures from samples of throughput and round trips."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from slicepilot.data.reference import published_settings
from slicepilot.training.studies.study import Figure, figure_over

Array = npt.NDArray[np.float64]
EXPERIMENTS = tuple(setting.experiment for setting in published_settings())
METRICS = {"throughput": "Mbit/s", "latency": "ms"}
STATISTICS = ("mean", "median", "std", "iqr")


def key(experiment: int | str, group: str, metric: str, statistic: str) -> str:
    """Of a row."""
    return f"{experiment}/{group}/{metric}/{statistic}"


def _statistics(samples: Array) -> dict[str, float]:
    """As the study's tables have them, of any number of samples."""
    low, middle, high = np.quantile(samples, [0.25, 0.5, 0.75])
    spread = float(samples.std(ddof=1)) if samples.size > 1 else math.nan
    return {"mean": float(samples.mean()), "median": float(middle), "std": spread, "iqr": float(high - low)}


def figures_of_samples(name: int | str, group: str, metric: str, samples: Array) -> Iterator[tuple[str, Figure]]:
    """Rows of a group's samples (T, S, repetitions): statistics of all samples together.

    The interval is that of the mean over repetitions, of means and medians alone.
    """
    whole = _statistics(samples.ravel())
    for statistic in STATISTICS:
        figure = Figure(whole[statistic])
        if statistic in ("mean", "median") and samples.shape[-1] > 1:
            each = [_statistics(samples[..., k].ravel())[statistic] for k in range(samples.shape[-1])]
            figure = figure_over(whole[statistic], each)
        yield key(name, group, metric, statistic), figure
