"""PI control of CPU limits: each slice gets what keeps its p99 delay and its rate where they are promised."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated

import numpy as np
from pydantic import ConfigDict, Field

from slicepilot.agents.bounds import most_cpu_mcpu, smoothing, within_bounds
from slicepilot.configs import load
from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Context
from slicepilot.env.knobs import Knobs
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry

Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
# A slice that carries this share of its offered rate carries everything, within the accuracy of a measurement.
ALL_OF_IT = np.float32(0.995)
TINY = np.float32(1e-3)
# Errors are clipped to +- this: seven times the set point, or a seventh.
ERROR_LIMIT = 2.0


@dataclass(frozen=True)
class PiGains:
    """The gains that `slicepilot.training.tuning.tune_pi` tunes. Errors and limits are natural logarithms.

    Attributes:
        setpoint: p99 delay aimed at, as a share of the bound.
        rate: weight of a missing rate (log of owed over carried) against that of a delay.
        error_s: time constant of the average over the error.
        proportional: of the limit's logarithm to the error.
        integral_s: integral time: a lasting error of 1 moves the limit by a factor of e in this time.
        release: speed of taking CPU away relative to giving it.
        give_way: how much the error of a slice of higher weight lowers the limits of those below it; 0: not at all.
        nice: levels between the slice of the highest weight and that of the lowest.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)
    setpoint: Positive
    rate: NonNegative
    error_s: Positive
    proportional: NonNegative
    integral_s: Positive
    release: NonNegative
    give_way: NonNegative
    nice: NonNegative


@dataclass(frozen=True)
class TunedPi:
    """``configs/heuristics/NAME.yaml``: gains, and what they come from."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)
    gains: PiGains
    provenance: dict[str, str | int | float]


GAINS = tuple(field.name for field in fields(PiGains))


class Pi:
    """One PI controller a slice, on the logarithm of its CPU limit over all the CPU that it can use.

    The error is e = log(p99 / (setpoint x bound)), or ``rate`` times log(owed / carried) where that is more, with
    owed as promised; averaged. From it a slice takes off what slices of higher weight lack,
    d_i = e_i - give_way max over j of max(e_j, 0) (1 - w_i / w_j). Then

        u = proportional d + integral of d / integral_s, and limit = all it can use x exp(u),

    with u kept between the least limit and 0, at which there is no limit. Anti-windup: the integral is clamped to that
    range too, so that it leaves its end in the first period in which the error changes its sign. Taking away, d < 0,
    goes at ``release`` of the speed. Gains per time are scaled by the control period as 1 - exp(-T / integral_s).

    Nice is by the order of the weights: spread evenly over ``nice`` levels around 0, equal weights at one level.

    Unlike `slicepilot.agents.heuristics.reactive.ReactiveSla`, which moves nice by the error and limits only slices
    that others suffer from, each slice here is given as little CPU as keeps its own promise.

    Args:
        gains: None for the shipped gains, tuned on the training mixture.
    """

    name = "pi"
    request_mcpu: FloatArray | None = None

    def __init__(self, gains: PiGains | None = None) -> None:
        self.gains = gains or load("heuristics", "pi", TunedPi).gains

    def reset(self, slices: SliceSet, context: Context, seed: int) -> None:
        """No limits."""
        gains = self.gains
        self._slices, self._promises = slices, context.promises
        weight = context.promises.weight
        # [i, j, lane]: how much more slice j counts than slice i.
        self._precedence = np.maximum(1.0 - weight[:, None] / weight[None], 0.0).astype(np.float32)
        self._most = most_cpu_mcpu(slices, context)
        self._lowest = np.log(slices.bound("cpu_limit_mcpu", 0) / self._most).astype(np.float32)
        self._per_period = smoothing(context.period_s, gains.integral_s)
        self._error_alpha = smoothing(context.period_s, gains.error_s)
        self._error = np.zeros(weight.shape, np.float32)
        self.integral = np.zeros(weight.shape, np.float32)
        self._nice = np.rint(gains.nice * (0.5 - _rank(weight))).astype(np.float32)

    def decide(self, telemetry: Telemetry, knobs: Knobs) -> Knobs:
        """One step of every loop."""
        gains = self.gains
        self._error += self._error_alpha * (self._measure(telemetry) - self._error)
        missed = np.maximum(self._error, 0.0)
        drive = self._error - np.float32(gains.give_way) * (self._precedence * missed[None]).max(axis=1)
        drive = np.where(drive < 0, np.float32(gains.release) * drive, drive)
        self.integral = np.clip(self.integral + self._per_period * drive, self._lowest, np.float32(0.0))
        wanted = np.clip(self.integral + np.float32(gains.proportional) * drive, self._lowest, np.float32(0.0))
        limit = np.where(wanted < 0, self._most * np.exp(wanted), np.float32(np.inf)).astype(np.float32)
        return within_bounds(Knobs.of(limit, self._nice, np.full_like(limit, np.inf)), self._slices)

    def _measure(self, telemetry: Telemetry) -> FloatArray:
        """This period's error, (S, L); an absent slice has none, so that its limit stays until it is there."""
        gains, promises = self.gains, self._promises
        delay = np.log(np.maximum(telemetry.delay_p99_us, 1.0) / (gains.setpoint * promises.delay_bound_us))
        owed = np.minimum(ALL_OF_IT * telemetry.offered_mbps, promises.committed_mbps)
        missing = np.log(np.maximum(owed, TINY) / np.maximum(telemetry.carried_mbps, TINY))
        error = np.where(missing > 0, np.maximum(delay, gains.rate * missing), delay)
        error = np.where(telemetry.valid, np.clip(error, -ERROR_LIMIT, ERROR_LIMIT), 0.0)
        return np.asarray(error, np.float32)


def _rank(weight: FloatArray) -> FloatArray:
    """Rank by weight from 0 (lowest) to 1 (highest), (S, L); equal weights have the same rank."""
    higher = (weight[:, None] > weight[None]).sum(axis=1)
    lower = (weight[:, None] < weight[None]).sum(axis=1)
    others = np.maximum(len(weight) - 1, 1)
    return np.asarray(0.5 + 0.5 * (higher - lower) / others, np.float32)
