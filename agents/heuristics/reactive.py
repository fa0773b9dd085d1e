"""Reactive SLA control: proportional-integral feedback on how far each slice is from its delay bound."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slicepilot.agents.bounds import most_cpu_mcpu, smoothing, within_bounds
from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Context
from slicepilot.env.knobs import Knobs
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry

# Rates fall by per cents when delays grow by factors: this brings both errors to the same scale.
RATE_GAIN = np.float32(4.0)
# Using this share of what its threads can use, a slice is as good as saturated.
SATURATED = np.float32(0.98)
# A slice that carries this share of its offered rate carries everything, within the accuracy of a measurement.
ALL_OF_IT = np.float32(0.995)


@dataclass(frozen=True)
class ReactiveConfig:
    """Gains and limits. Errors are natural logarithms: 0.69 is a delay twice the set point.

    Attributes:
        setpoint: p99 delay aimed at, as a share of the bound; below 1, so that the loop acts before the promise breaks.
        rate_margin: what is aimed at above the committed rate, as a share of it, for the same reason.
        error_s: time constant of the average over the error (matters below about a second).
        integral_s: time constant that turns the integral gains into steps; gains are per time constant.
        error_limit: errors are clipped to +- this.
        slack: a slice this far below its set points can give CPU away.
        nice_proportional, nice_integral: nice levels per unit of error.
        limit_integral: logarithm of the CPU limit per unit of the errors above.
        saturated: how much the error of a slice counts for others when it has all the CPU that its threads can use:
            they can then help it only by leaving SMT siblings idle, which on some nodes is much, on others nothing.
        release: speed of giving back relative to taking.
        nice_slew_per_s: nice levels per second, at least one level a period.
        limit_step: most that a limit may shrink or grow in one period, as a logarithm.
    """

    setpoint: float = 0.7
    rate_margin: float = 0.02
    error_s: float = 0.2
    integral_s: float = 5.0
    error_limit: float = 1.0
    slack: float = 0.2
    nice_proportional: float = 2.0
    nice_integral: float = 10.0
    limit_integral: float = 1.0
    saturated: float = 0.05
    release: float = 0.15
    nice_slew_per_s: float = 10.0
    limit_step: float = 0.5


class ReactiveSla:
    """PI control of the group weight of slices that miss their promise, and of the CPU limits of those below them.

    e = log(p99 / (setpoint x bound)), or the logarithm of the missing rate where that is worse, averaged. Slice i is
    under pressure from the slices of higher weight w that miss: a_i = max over j of max(e_j, 0) (1 - w_i / w_j), less
    where the threads of j are saturated already. Then

    - boost = Kp (e - a) + Ki sum(e - a), kept in the nice range (anti-windup: the sum is clamped to that range), and
      nice = -boost: a slice that misses gains weight, a slice under pressure loses it. Below its set point, and without
      pressure, a slice returns to nice 0 slowly, so that the loop does not hunt across the bound.
    - a slice under pressure has its CPU limit set at its present use, then shrunk in proportion to the pressure, at
      half speed if it has no slack to give; without pressure the limit grows back slowly, and vanishes.

    All gains scale with the control period as 1 - exp(-T / integral_s), so that 2 ms and 30 s loops move alike.
    """

    name = "reactive-sla"
    request_mcpu: FloatArray | None = None
    config = ReactiveConfig()

    def reset(self, slices: SliceSet, context: Context, seed: int) -> None:
        """Zero integrals, no limits."""
        cfg = self.config
        self._slices, self._promises = slices, context.promises
        weight = context.promises.weight
        shape = weight.shape
        # [i, j, lane]: how much more slice j counts than slice i.
        self._precedence = np.maximum(1.0 - weight[:, None] / weight[None], 0.0)
        self._nice_low, self._nice_high = slices.bound("nice", 0), slices.bound("nice", 1)
        self._most, self._least = most_cpu_mcpu(slices, context), slices.bound("cpu_limit_mcpu", 0)
        self._usable = np.float32(1e3) * np.minimum(context.threads, context.logical_cpus)
        self._gain = smoothing(context.period_s, cfg.integral_s)
        self._error_alpha = smoothing(context.period_s, cfg.error_s)
        self._nice_step = np.maximum(cfg.nice_slew_per_s * context.period_s, 1.0)
        self._error = np.full(shape, -cfg.error_limit, np.float32)
        self._use = np.zeros(shape, np.float32)
        self._integral = np.zeros(shape, np.float32)
        self._boost = np.zeros(shape, np.float32)
        self._limit = np.full(shape, np.inf, np.float32)

    def decide(self, telemetry: Telemetry, knobs: Knobs) -> Knobs:
        """One step of the loop."""
        self._measure(telemetry)
        missed = np.maximum(self._error, 0.0)
        saturated = self._use >= SATURATED * self._usable
        heard = np.where(saturated, np.float32(self.config.saturated) * missed, missed)
        pressure = (self._precedence * heard[None]).max(axis=1)
        self._weigh(missed, pressure)
        self._limit_those_below(pressure)
        nice = -np.rint(self._boost)
        return within_bounds(Knobs.of(self._limit, nice, np.full_like(nice, np.inf)), self._slices)

    def _measure(self, telemetry: Telemetry) -> None:
        """Update the averaged error and CPU use; an absent slice has all the slack there is."""
        cfg, promises = self.config, self._promises
        delay = np.log(np.maximum(telemetry.delay_p99_us, 1.0) / (cfg.setpoint * promises.delay_bound_us))
        owed = np.minimum(ALL_OF_IT * telemetry.offered_mbps, (1.0 + cfg.rate_margin) * promises.committed_mbps)
        missing = np.log(np.maximum(owed, 1e-3) / np.maximum(telemetry.carried_mbps, 1e-3))
        error = np.where(missing > 0, np.maximum(delay, RATE_GAIN * missing), delay)
        error = np.where(telemetry.valid, np.clip(error, -cfg.error_limit, cfg.error_limit), -cfg.error_limit)
        self._error += self._error_alpha * (error.astype(np.float32) - self._error)
        self._use += self._error_alpha * (telemetry.cpu_use_mcpu - self._use)

    def _weigh(self, missed: FloatArray, pressure: FloatArray) -> None:
        """Move boosts, nice levels above 0, by the PI law."""
        cfg = self.config
        error = missed - pressure
        # Back towards 0 where nothing asks for anything, the faster the more slack there is.
        home = -np.sign(self._integral) * cfg.release * np.abs(self._error)
        idle = (missed == 0) & (pressure == 0)
        step = cfg.nice_integral * self._gain * np.where(idle, home, error)
        np.copyto(step, -self._integral, where=idle & (np.abs(step) > np.abs(self._integral)))
        self._integral += step
        np.clip(self._integral, -self._nice_high, -self._nice_low, out=self._integral)
        wanted = np.clip(self._integral + cfg.nice_proportional * error, -self._nice_high, -self._nice_low)
        self._boost += np.clip(wanted - self._boost, -self._nice_step, self._nice_step)

    def _limit_those_below(self, pressure: FloatArray) -> None:
        """Shrink the limits of slices under pressure, let the others grow back."""
        cfg = self.config
        rate = cfg.limit_integral * self._gain
        willing = np.where(self._error < -cfg.slack, 1.0, 0.5)
        shrink = np.exp(-np.minimum(rate * pressure * willing, cfg.limit_step))
        grow = np.exp(np.minimum(rate * cfg.release * (1.0 + np.maximum(self._error, 0.0)), cfg.limit_step))
        present = np.minimum(np.minimum(self._limit, self._most), np.maximum(self._use, self._least))
        squeezed = np.maximum(present * shrink, self._least)
        limit = np.where(pressure > 0, squeezed, self._limit * grow)
        self._limit = np.where(limit < self._most, limit, np.float32(np.inf)).astype(np.float32)
