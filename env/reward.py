"""The reward: five separate terms, each in 0..1 or -1..0, summed with weights from YAML."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated

import numpy as np
from pydantic import ConfigDict, Field

from ..configs import load
from .backend import Context
from .knobs import Knobs
from .slices import FloatArray
from .telemetry import Telemetry

RATE_TOLERANCE = np.float32(0.99)
TINY = np.float32(1e-6)
DELAY_FULL_SCALE_MS = 1e4

Weight = Annotated[float, Field(ge=0)]


@dataclass(frozen=True)
class RewardWeights:
    """How much each term counts; `RewardModel` says what it measures."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)
    sla: Weight = 1.0
    carried: Weight = 0.5
    delay: Weight = 0.1
    cpu_held: Weight = 0.1
    churn: Weight = 0.02

    @classmethod
    def from_yaml(cls, name_or_path: str) -> RewardWeights:
        """Load ``configs/reward/NAME.yaml`` or a user's file."""
        return load("reward", name_or_path, cls)


TERMS = tuple(f.name for f in fields(RewardWeights))


def promise_scores(telemetry: Telemetry, context: Context) -> tuple[FloatArray, FloatArray]:
    """How far each slice's promise is kept, (S, L) each: carried over what was owed, and bound over p99 delay.

    Owed is the committed rate, or all that is offered when that is less. Both are capped at 1 (kept).
    """
    promises = context.promises
    owed = np.minimum(telemetry.offered_mbps, promises.committed_mbps)
    owed += TINY
    rate = telemetry.carried_mbps + TINY
    rate /= owed
    np.minimum(rate, 1.0, out=rate)
    delay = telemetry.delay_p99_us + TINY
    np.divide(promises.delay_bound_us, delay, out=delay)
    np.minimum(delay, 1.0, out=delay)
    return rate, delay


def violated(telemetry: Telemetry, context: Context) -> FloatArray:
    """1 where a present slice's promise is broken in this period (under 99% of the owed rate, or p99 over its bound)."""
    rate, delay = promise_scores(telemetry, context)
    broken = ((rate < RATE_TOLERANCE) | (delay < 1.0)) & telemetry.valid
    return np.asarray(broken, np.float32)


def cpu_held(knobs: Knobs, context: Context, valid: np.ndarray) -> FloatArray:
    """CPUs that the limits hold, (L,): a present slice holds its limit, or all its UPF can use when that is less; together no
    more than the node has. What is not held is left to other work on the node."""
    held = np.minimum(knobs.cpu_limit_mcpu * np.float32(1e-3), context.threads)
    held *= valid
    return np.asarray(np.minimum(np.add.reduce(held, axis=0), context.logical_cpus), np.float32)


class RewardModel:
    """Terms per lane, (L,) each.

    sla: share of the weight of present slices whose promise is kept, half as a hard yes or no and half by degree
        (the lesser of the rate and the delay score).
    carried: what the slices other than the priority slice carry of what they offer.
    delay: minus the weighted p99 delay on a logarithmic scale (0 at none, -1 at 10 s).
    cpu_held: minus the share of the node's CPUs that limits hold.
    churn: minus the mean change of the encoded knobs (full range = 2).
    """

    def __init__(self, weights: RewardWeights, context: Context) -> None:
        self.weights, self.context = weights, context
        weight = context.promises.weight
        self._weight = weight
        self._others = (np.arange(len(weight))[:, None] != np.argmax(weight, axis=0)).astype(np.float32)
        self._delay_scale = np.float32(-1.0 / np.log1p(DELAY_FULL_SCALE_MS))

    def __call__(
        self, telemetry: Telemetry, knobs: Knobs, knob_rows: FloatArray, previous_rows: FloatArray
    ) -> tuple[FloatArray, dict[str, FloatArray]]:
        """Reward (L,) and its unweighted terms for one period; knob rows are (3, S, L) as the decoder encodes them."""
        rate, delay = promise_scores(telemetry, self.context)
        kept = np.minimum(rate, delay)
        broken = (rate < RATE_TOLERANCE) | (delay < 1.0)
        kept -= broken
        kept += 1.0
        weight = self._weight * telemetry.valid
        total = np.add.reduce(weight, axis=0)
        total += TINY
        kept *= weight
        sla = np.add.reduce(kept, axis=0)
        sla /= total
        sla *= 0.5
        others = self._others * telemetry.slices[:2]
        sums = np.add.reduce(others, axis=1)
        carried = (sums[1] + TINY) / (sums[0] + TINY)
        np.minimum(carried, 1.0, out=carried)
        log_delay = telemetry.delay_p99_us * np.float32(1e-3)
        np.log1p(log_delay, out=log_delay)
        log_delay *= weight
        delay_term = np.add.reduce(log_delay, axis=0)
        delay_term /= total
        delay_term *= self._delay_scale
        np.maximum(delay_term, -1.0, out=delay_term)
        held = cpu_held(knobs, self.context, telemetry.valid)
        held /= -self.context.logical_cpus
        change = knob_rows - previous_rows
        np.abs(change, out=change)
        churn = np.add.reduce(change, axis=(0, 1))
        churn *= np.float32(-0.5 / (change.shape[0] * change.shape[1]))
        w = self.weights
        reward = w.sla * sla
        reward += w.carried * carried
        reward += w.delay * delay_term
        reward += w.cpu_held * held
        reward += w.churn * churn
        return reward, {"sla": sla, "carried": carried, "delay": delay_term, "cpu_held": held, "churn": churn}
