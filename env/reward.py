"""The reward: separate terms, each in 0..1 or -1..0, summed with weights from YAML."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Annotated

import numpy as np
from pydantic import ConfigDict, Field

from slicepilot.configs import load

from .arrays import FloatArray
from .backend import Context
from .compiled import njit
from .knobs import Knobs
from .promises import RATE_TOLERANCE
from .telemetry import Telemetry

DELAY_FULL_SCALE_MS = 1e4
TINY = np.float32(1e-6)
KEPT_SHARE, RATE_SHARE, DELAY_SHARE = 0.3, 0.5, 0.2

Weight = Annotated[float, Field(ge=0)]


@dataclass(frozen=True)
class RewardWeights:
    """How much each term counts; `RewardModel` says what it measures."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)
    sla: Weight
    carried: Weight
    delay: Weight
    cpu_held: Weight
    churn: Weight
    best_effort: Weight = 0.0
    cpu_wasted: Weight = 0.0

    @classmethod
    def from_yaml(cls, name_or_path: str = "default") -> RewardWeights:
        """Load ``configs/reward/NAME.yaml`` or a user's file."""
        return load("reward", name_or_path, cls)


TERMS = tuple(f.name for f in fields(RewardWeights))


class RewardModel:
    """Terms per lane, (L,) each.

    sla: share of the weight whose promise is kept: 30% by yes or no, 50% by how much of the owed rate is carried, 20%
        by delay bound over p99 delay (`slicepilot.env.promises.promise_scores`). The parts by degree go on counting
        where a promise cannot be kept: a slice that is late anyway is not given up.
    carried: what the slices other than the priority slice carry of what they offer.
    delay: minus the weighted p99 delay on a logarithmic scale (0 at none, -1 at 10 s).
    cpu_held: minus what the limits hold over what they could hold: what the UPFs can use, or the node if that is more.
    churn: minus the mean change of the encoded knobs (full range = 2).
    best_effort: what the slices carry beyond their promises, over what they offer beyond them.
    cpu_wasted: minus what the limits hold and the slices do not use, over what the node has.
    """

    def __init__(self, weights: RewardWeights, context: Context) -> None:
        self.weights, self.context = weights, context
        promises = context.promises
        weight = promises.weight
        others = np.arange(len(weight))[:, None] != np.argmax(weight, axis=0)
        share = weight / weight.sum(axis=0)
        facts = [share, promises.committed_mbps, promises.delay_bound_us, context.threads, others]
        self._facts = np.asarray(facts, np.float32)
        self._factors = np.asarray([getattr(weights, name) for name in TERMS], np.float32)

    def __call__(
        self, telemetry: Telemetry, knobs: Knobs, knob_rows: FloatArray, previous_rows: FloatArray
    ) -> tuple[FloatArray, dict[str, FloatArray]]:
        """Reward (L,) and its unweighted terms for one period; knob rows are (3, S, L) as the decoder encodes them."""
        table = np.empty((len(TERMS) + 1, self._facts.shape[2]), np.float32)
        _score(
            telemetry.slices,
            telemetry.valid,
            self._facts,
            self.context.logical_cpus,
            knobs.cpu_limit_mcpu,
            knob_rows,
            previous_rows,
            self._factors,
            table,
        )
        return table[-1], dict(zip(TERMS, table, strict=False))


ZERO, HALF, ONE, MILLI = np.float32(0), np.float32(0.5), np.float32(1), np.float32(1e-3)
KEPT, RATE, DELAY = np.float32(KEPT_SHARE), np.float32(RATE_SHARE), np.float32(DELAY_SHARE)
PER_FULL_SCALE = np.float32(1.0 / math.log1p(DELAY_FULL_SCALE_MS))
SQRT_2, LN_2, TWO = np.float32(math.sqrt(2.0)), np.float32(math.log(2.0)), np.float32(2.0)
THIRD, FIFTH, SEVENTH = np.float32(1 / 3), np.float32(1 / 5), np.float32(1 / 7)
MANTISSA, ONE_BITS, EXPONENT_AT = np.int32(0x7FFFFF), np.int32(0x3F800000), np.int32(23)
SHARE, COMMITTED, BOUND, THREADS, OTHERS = range(5)
# Working rows: the terms in the order of `TERMS`, what two of them are ratios to, and the reward.
SLA, CARRIED, DELAYED, HELD, CHURN, BEST_EFFORT, WASTED = range(7)
OTHERS_OFFERED, COULD_HOLD, BEYOND, OFFERED, USED, REWARD = range(7, 13)
LEAST_BEYOND = np.float32(0.01)  # of all that is offered: where next to nothing is beyond promises, little counts
LANE_CHUNK = 64


@njit(cache=True, error_model="numpy", inline="always")
def natural_log(x: float | np.float32) -> np.float32:
    """ln(x) of a positive finite float32, to its precision; the C library's is a call per number, this is SIMD code."""
    bits = np.float32(x).view(np.int32)
    exponent = np.float32((bits - ONE_BITS) >> EXPONENT_AT)
    mantissa = np.int32((bits & MANTISSA) | ONE_BITS).view(np.float32)
    exponent += ONE if mantissa > SQRT_2 else ZERO
    mantissa *= HALF if mantissa > SQRT_2 else ONE
    # ln m = 2 artanh((m - 1) / (m + 1)), of which |argument| < 0.172 here.
    ratio = (mantissa - ONE) / (mantissa + ONE)
    square = ratio * ratio
    return exponent * LN_2 + TWO * ratio * (ONE + square * (THIRD + square * (FIFTH + square * SEVENTH)))


@njit(cache=True, error_model="numpy")
def _score(
    telemetry: np.ndarray,
    valid: np.ndarray,
    facts: np.ndarray,
    logical_cpus: np.ndarray,
    limit_mcpu: np.ndarray,
    rows: np.ndarray,
    previous: np.ndarray,
    factors: np.ndarray,
    table: np.ndarray,
) -> None:
    """Fill ``table`` (8, L): the terms in the order of `TERMS`, and the reward.

    ``facts`` (5, S, L) is fixed for a run: share of the weight, committed rate, delay bound, threads, 1 where a slice
    is not the priority slice. Loops are cut as `slicepilot.env.simulator.kernels` says.
    """
    num_slices, lanes = valid.shape
    mean_change = np.float32(-0.5 / (len(rows) * num_slices))
    for first in range(0, lanes, LANE_CHUNK):
        stop = min(first + LANE_CHUNK, lanes)
        v = np.zeros((13, LANE_CHUNK), np.float32)
        for s in range(num_slices):
            for lane in range(first, stop):
                i = lane - first
                offered, carried, p99_us = telemetry[0, s, lane], telemetry[1, s, lane], telemetry[3, s, lane]
                owed = RATE_TOLERANCE * min(offered, facts[COMMITTED, s, lane])
                rate = min((carried + TINY) / (owed + TINY), ONE)
                delay = min(facts[BOUND, s, lane] / (p99_us + TINY), ONE)
                kept = KEPT if min(rate, delay) >= ONE else ZERO
                v[SLA, i] += facts[SHARE, s, lane] * (kept + RATE * rate + DELAY * delay)
                v[DELAYED, i] += facts[SHARE, s, lane] * natural_log(ONE + MILLI * p99_us)
            for lane in range(first, stop):
                i = lane - first
                v[CARRIED, i] += facts[OTHERS, s, lane] * telemetry[1, s, lane]
                v[OTHERS_OFFERED, i] += facts[OTHERS, s, lane] * telemetry[0, s, lane]
                threads = facts[THREADS, s, lane] if valid[s, lane] else ZERO
                v[HELD, i] += min(MILLI * limit_mcpu[s, lane], threads)
                v[COULD_HOLD, i] += threads
            for lane in range(first, stop):
                i = lane - first
                v[BEST_EFFORT, i] += max(telemetry[1, s, lane] - facts[COMMITTED, s, lane], ZERO)
                v[BEYOND, i] += max(telemetry[0, s, lane] - facts[COMMITTED, s, lane], ZERO)
                v[OFFERED, i] += telemetry[0, s, lane]
                v[USED, i] += MILLI * telemetry[5, s, lane]
            for knob in range(len(rows)):
                for lane in range(first, stop):
                    v[CHURN, lane - first] += abs(rows[knob, s, lane] - previous[knob, s, lane])
        for lane in range(first, stop):
            i = lane - first
            v[SLA, i] = min(v[SLA, i], ONE)
            v[CARRIED, i] = min((v[CARRIED, i] + TINY) / (v[OTHERS_OFFERED, i] + TINY), ONE)
            v[DELAYED, i] = max(-PER_FULL_SCALE * v[DELAYED, i], -ONE)
            beyond = max(v[BEYOND, i], LEAST_BEYOND * v[OFFERED, i])
            v[BEST_EFFORT, i] = min(v[BEST_EFFORT, i] / (beyond + TINY), ONE)
            held = min(v[HELD, i], logical_cpus[lane])
            v[WASTED, i] = -max(held - v[USED, i], ZERO) / logical_cpus[lane]
            v[HELD, i] = -v[HELD, i] / max(v[COULD_HOLD, i], logical_cpus[lane])
            v[CHURN, i] = max(mean_change * v[CHURN, i], -ONE)
        for term in range(len(factors)):
            for lane in range(first, stop):
                table[term, lane] = v[term, lane - first]
            if factors[term] > ZERO:  # a term that was not measured is no number
                for i in range(stop - first):
                    v[REWARD, i] += factors[term] * v[term, i]
        for lane in range(first, stop):
            table[len(factors), lane] = v[REWARD, lane - first]
