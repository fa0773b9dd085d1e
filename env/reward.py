"""The reward: five separate terms, each in 0..1 or -1..0, summed with weights from YAML."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Annotated

import numpy as np
from numba import njit
from pydantic import ConfigDict, Field

from ..configs import load
from .backend import Context
from .knobs import Knobs
from .promises import RATE_TOLERANCE
from .slices import FloatArray
from .telemetry import Telemetry

DELAY_FULL_SCALE_MS = 1e4
TINY = 1e-6
KEPT_SHARE, RATE_SHARE, DELAY_SHARE = 0.5, 0.3, 0.2

Weight = Annotated[float, Field(ge=0)]


@dataclass(frozen=True)
class RewardWeights:
    """How much each term counts; `RewardModel` says what it measures."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)
    sla: Weight = 3.0
    carried: Weight = 2.0
    delay: Weight = 0.1
    cpu_held: Weight = 0.5
    churn: Weight = 0.02

    @classmethod
    def from_yaml(cls, name_or_path: str) -> RewardWeights:
        """Load ``configs/reward/NAME.yaml`` or a user's file."""
        return load("reward", name_or_path, cls)


TERMS = tuple(f.name for f in fields(RewardWeights))


class RewardModel:
    """Terms per lane, (L,) each.

    sla: share of the weight whose promise is kept: 50% by yes or no, 30% by how much of the owed rate is carried, 20%
        by delay bound over p99 delay (`slicepilot.env.promises.promise_scores`). The parts by degree go on counting
        where a promise cannot be kept: a slice that is late anyway is not given up.
    carried: what the slices other than the priority slice carry of what they offer.
    delay: minus the weighted p99 delay on a logarithmic scale (0 at none, -1 at 10 s).
    cpu_held: minus what the limits hold over what they could hold: what the UPFs can use, or the node if that is more.
    churn: minus the mean change of the encoded knobs (full range = 2).
    """

    def __init__(self, weights: RewardWeights, context: Context) -> None:
        self.weights, self.context = weights, context
        weight = context.promises.weight
        self._share = np.ascontiguousarray(weight / weight.sum(axis=0))
        self._priority = np.argmax(weight, axis=0)
        self._factors = np.asarray([getattr(weights, name) for name in TERMS])

    def __call__(
        self, telemetry: Telemetry, knobs: Knobs, knob_rows: FloatArray, previous_rows: FloatArray
    ) -> tuple[FloatArray, dict[str, FloatArray]]:
        """Reward (L,) and its unweighted terms for one period; knob rows are (3, S, L) as the decoder encodes them."""
        lanes = self._share.shape[1]
        reward, terms = np.empty(lanes, np.float32), np.empty((len(TERMS), lanes), np.float32)
        context = self.context
        _score(
            telemetry.slices,
            telemetry.valid,
            context.promises.committed_mbps,
            context.promises.delay_bound_us,
            self._share,
            self._priority,
            knobs.cpu_limit_mcpu,
            context.threads,
            context.logical_cpus,
            knob_rows,
            previous_rows,
            self._factors,
            terms,
            reward,
        )
        return reward, {name: terms[i] for i, name in enumerate(TERMS)}


@njit(cache=True, error_model="numpy")
def _score(
    telemetry: np.ndarray,
    valid: np.ndarray,
    committed_mbps: np.ndarray,
    bound_us: np.ndarray,
    share: np.ndarray,
    priority: np.ndarray,
    limit_mcpu: np.ndarray,
    threads: np.ndarray,
    logical_cpus: np.ndarray,
    rows: np.ndarray,
    previous: np.ndarray,
    factors: np.ndarray,
    terms: np.ndarray,
    reward: np.ndarray,
) -> None:
    """Fill ``terms`` (5, L) in the order of `TERMS` and ``reward`` (L,); all other arrays as in `RewardModel`."""
    num_slices, lanes = share.shape
    for lane in range(lanes):
        sla = others_offered = others_carried = log_delay = held = could_hold = churn = 0.0
        for s in range(num_slices):
            offered, carried = telemetry[0, s, lane], telemetry[1, s, lane]
            p99_us = telemetry[3, s, lane]
            owed = RATE_TOLERANCE * min(offered, committed_mbps[s, lane])
            rate = min((carried + TINY) / (owed + TINY), 1.0)
            delay = min(bound_us[s, lane] / (p99_us + TINY), 1.0)
            kept = KEPT_SHARE if min(rate, delay) >= 1.0 else 0.0
            sla += share[s, lane] * (kept + RATE_SHARE * rate + DELAY_SHARE * delay)
            log_delay += share[s, lane] * math.log1p(1e-3 * p99_us)
            if s != priority[lane]:
                others_offered += offered
                others_carried += carried
            if valid[s, lane]:
                held += min(1e-3 * limit_mcpu[s, lane], threads[s, lane])
                could_hold += threads[s, lane]
            for knob in range(rows.shape[0]):
                churn += abs(rows[knob, s, lane] - previous[knob, s, lane])
        terms[0, lane] = sla
        terms[1, lane] = min((others_carried + TINY) / (others_offered + TINY), 1.0)
        terms[2, lane] = max(-log_delay / math.log1p(DELAY_FULL_SCALE_MS), -1.0)
        terms[3, lane] = -held / max(could_hold, logical_cpus[lane])
        terms[4, lane] = -0.5 * churn / (rows.shape[0] * num_slices)
        total = 0.0
        for i in range(len(factors)):
            total += factors[i] * terms[i, lane]
        reward[lane] = total
