"""Kubernetes' Vertical Pod Autoscaler: CPU limits from a percentile of the CPU use so far."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slicepilot.agents.bounds import most_cpu_mcpu, within_bounds
from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Context
from slicepilot.env.knobs import Knobs
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry

# Buckets of the CPU histogram, `cpuHistogramOptions` in model/aggregations_config.go.
FIRST_BUCKET_MCPU, BUCKET_GROWTH = 10.0, 1.05
MIN_SAMPLE_WEIGHT_CPUS = 0.1  # model/aggregate_container_state.go

Histogram = npt.NDArray[np.float64]


@dataclass(frozen=True)
class VpaConfig:
    """Constants of the recommender and the updater, by their flags; only time is another (see `Vpa`).

    Attributes:
        half_life_s: ``--cpu-histogram-decay-half-life``, 24 h there: the age at which a sample counts half.
        target_percentile: ``--target-cpu-percentile``.
        lower_percentile, upper_percentile: ``--recommendation-lower-bound-cpu-percentile`` and ``-upper-``.
        margin: ``--recommendation-margin-fraction``, added to all three.
        least_mcpu: ``--pod-recommendation-min-cpu-millicores``.
        change: ``--pod-update-threshold``; a limit between the bounds moves only by more than this share,
        lifetime_half_lives: and only after this time, in half-lives: 12 h of 24 h,
            ``--in-recommendation-bounds-eviction-lifetime-threshold``.
    """

    half_life_s: float = 60.0
    target_percentile: float = 0.9
    lower_percentile: float = 0.5
    upper_percentile: float = 0.95
    margin: float = 0.15
    least_mcpu: float = 25.0
    change: float = 0.1
    lifetime_half_lives: float = 0.5


class Vpa:
    """Limit = 90th percentile of the CPU use + 15%, once the present limit lies outside of the recommended bounds.

    From the documentation and sources of kubernetes/autoscaler, vertical-pod-autoscaler/pkg: a histogram of CPU use
    with buckets that grow by 5% (``recommender/model/aggregations_config.go``), in which a sample's weight is the
    present request, at least 0.1 CPUs, and halves with each half-life (``recommender/util/decaying_histogram.go``); a
    percentile is the upper end of its bucket. The bounds are the 50th and 95th percentiles, with the margin, times
    (1 + 0.001 / c)^-2 and (1 + 1 / c), with the confidence c = days of history, or minutes with a sample / 1440
    (``recommender/logic/recommender.go``, ``estimator.go``). The updater moves a pod whose request lies outside of the
    bounds, or a pod that is half a day old and off by a tenth (``updater/priority/update_priority_calculator.go``).

    In real time it could not act in a run of minutes: with 24 h as half-life and unit of confidence the upper bound is
    1440 times the 95th percentile after a minute and 145 times after ten, so a limit that is too high stays. So time
    runs 1440 times faster here: a minute counts as a day, in the half-life, in the confidence and in the updater's
    12 h. ``half_life_s = 86400`` is real time. Samples and decisions, once a minute there and so once in 42 ms here,
    come with each control period; the confidence goes by time alone.

    What differs besides: it sets limits, where VPA sets requests and scales limits along; a pod moves without a
    restart, as in its mode InPlace; buckets are never dropped for holding too little. No use above the limit is ever
    seen, so a slice that is short of CPU gets out of that by the margin and the width of a bucket, some 20% each time.

    Args:
        config: constants.
    """

    name = "vpa"
    request_mcpu: FloatArray | None = None

    def __init__(self, config: VpaConfig | None = None) -> None:
        self.config = config or VpaConfig()

    def reset(self, slices: SliceSet, context: Context, seed: int) -> None:
        """Forget the history; every slice has all the CPU that it can use."""
        self._slices, self._most = slices, most_cpu_mcpu(slices, context)
        self._limit = np.array(self._most, np.float32)
        shape = self._limit.shape
        most = float(self._most.max())
        count = int(np.ceil(np.log1p(most * (BUCKET_GROWTH - 1.0) / FIRST_BUCKET_MCPU) / np.log(BUCKET_GROWTH))) + 2
        self._ends_mcpu = FIRST_BUCKET_MCPU * np.expm1(np.log(BUCKET_GROWTH) * np.arange(1, count + 1))
        self._ends_mcpu /= BUCKET_GROWTH - 1.0
        self.weights: Histogram = np.zeros((count, *shape))
        self._decay = np.exp2(-np.asarray(context.period_s, np.float64) / self.config.half_life_s)
        self._period_days = np.asarray(context.period_s, np.float64) / self.config.half_life_s
        self._samples = np.zeros(shape)
        self._row, self._lane = np.indices(shape)

    def decide(self, telemetry: Telemetry, knobs: Knobs) -> Knobs:
        """Take the period's CPU use in, recommend, and move the limits that lie outside of the bounds."""
        self._remember(telemetry)
        target, lower, upper = self.recommendation()
        limit = self._limit
        old = self._samples * self._period_days >= self.config.lifetime_half_lives
        moves = (limit < lower) | (limit > upper) | (old & (np.abs(target - limit) >= self.config.change * limit))
        moves &= telemetry.valid & (self._samples > 0)
        self._limit = np.where(moves, np.clip(target, self._slices.bound("cpu_limit_mcpu", 0), self._most), limit)
        self._limit = self._limit.astype(np.float32)
        return within_bounds(Knobs.of(self._limit, np.zeros_like(limit), np.full_like(limit, np.inf)), self._slices)

    def recommendation(self) -> tuple[Histogram, Histogram, Histogram]:
        """Target, lower and upper bound in mCPU, (S, L) each."""
        cfg = self.config
        target, lower, upper = (
            np.maximum((1.0 + cfg.margin) * self.percentile(part), cfg.least_mcpu)
            for part in (cfg.target_percentile, cfg.lower_percentile, cfg.upper_percentile)
        )
        # Days of history are measured from the first sample to the last.
        confidence = np.maximum((self._samples - 1) * self._period_days, 1e-9)
        return np.ceil(target), lower * (1.0 + 0.001 / confidence) ** -2.0, upper * (1.0 + 1.0 / confidence)

    def percentile(self, part: float) -> Histogram:
        """Upper end of the bucket up to which ``part`` of the weight lies, in mCPU, (S, L); 0 without samples."""
        reached = np.cumsum(self.weights, axis=0)
        bucket = np.argmax(reached >= part * reached[-1], axis=0)
        return np.where(reached[-1] > 0, self._ends_mcpu[bucket], 0.0)

    def _remember(self, telemetry: Telemetry) -> None:
        """One sample of every slice that is there, weighted by its limit."""
        use = np.maximum(telemetry.cpu_use_mcpu, 0.0)
        bucket = np.minimum(np.searchsorted(self._ends_mcpu, use, side="right"), len(self._ends_mcpu) - 1)
        self.weights *= self._decay
        weight = np.maximum(1e-3 * self._limit, MIN_SAMPLE_WEIGHT_CPUS) * telemetry.valid
        self.weights[bucket, self._row, self._lane] += weight
        self._samples += telemetry.valid
