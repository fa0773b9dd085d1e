"""Are the promises kept, and how much CPU do the limits hold: the measures that reward, judgement and agents share."""

from __future__ import annotations

import numpy as np

from .arrays import BoolArray, FloatArray
from .backend import Context
from .knobs import Knobs
from .telemetry import Telemetry

IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
RATE_TOLERANCE = np.float32(0.99)
TINY = np.float32(1e-6)
CPUS_PER_MCPU = np.float32(1e-3)
# A rate is promised over a time: 3GPP's averaging window of a guaranteed bit rate is 2 s by default (TS 23.501, clause
# 5.7.3.6 and table 5.7.4-1). In a few milliseconds a slice has a handful of packets, of which some are on their way.
AVERAGING_WINDOW_S = 2.0


def promise_scores(telemetry: Telemetry, context: Context) -> tuple[FloatArray, FloatArray]:
    """How far each slice's promise is kept, (S, L) each, 1 = kept: carried over owed rate, and bound over p99 delay.

    Owed is 99% of the committed rate, or of what is offered when that is less. An absent slice's promises are kept.
    """
    promises = context.promises
    owed = np.minimum(telemetry.offered_mbps, promises.committed_mbps)
    owed *= RATE_TOLERANCE
    owed += TINY
    rate = telemetry.carried_mbps + TINY
    rate /= owed
    np.minimum(rate, 1.0, out=rate)
    delay = telemetry.delay_p99_us + TINY
    np.divide(promises.delay_bound_us, delay, out=delay)
    np.minimum(delay, 1.0, out=delay)
    return rate, delay


def promise_score(telemetry: Telemetry, context: Context) -> FloatArray:
    """The lesser of the two `promise_scores`, (S, L): 1 where the whole promise is kept."""
    rate, delay = promise_scores(telemetry, context)
    return np.minimum(rate, delay, out=rate)


class RateSums:
    """Offered and carried rates, summed over each lane's last control periods.

    Args:
        periods: how many, (L,), 0 for none.
        num_slices: S.
    """

    def __init__(self, periods: IntArray, num_slices: int) -> None:
        self.periods, self._any = periods, periods > 0
        self._rates = np.zeros((max(int(periods.max()), 1), 2, num_slices, len(periods)), np.float32)
        self._sums = np.zeros(self._rates.shape[1:])
        self._lanes = np.arange(len(periods))
        self._seen = 0

    @property
    def counted(self) -> IntArray:
        """How many periods are in the sums, (L,)."""
        return np.minimum(self._seen, self.periods)

    def add(self, telemetry: Telemetry) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        """Sums with the next period's rates, (2, S, L): offered, carried. To be called once a period."""
        size = len(self._rates)
        # What leaves each lane's window: nothing before it has been filled once.
        leaves = self._rates[(self._seen - self.periods) % size, :, :, self._lanes].transpose(1, 2, 0)
        self._sums -= leaves * (self._any & (self._seen >= self.periods))
        rates = np.stack([telemetry.offered_mbps, telemetry.carried_mbps])
        # What is no number would never leave the sums.
        self._rates[self._seen % size] = np.where(np.isfinite(rates), rates, 0.0)
        self._sums += self._rates[self._seen % size] * self._any
        self._seen += 1
        return self._sums


def averaging_periods(context: Context) -> IntArray:
    """Control periods in `AVERAGING_WINDOW_S`, (L,): at least one, and no more than a run has."""
    windows = np.rint(AVERAGING_WINDOW_S / context.period_s.astype(np.float64)).astype(np.int64)
    return np.clip(windows, 1, max(context.num_steps, 1))


class PromiseMeter:
    """Determines which promises are broken in each control period.

    A delay bound holds for each period; a rate for the mean of the periods in `AVERAGING_WINDOW_S`, or for one period
    where that is longer.

    Attributes:
        offered_mbps, carried_mbps: these means at the last period, (S, L).
    """

    offered_mbps: np.ndarray
    carried_mbps: np.ndarray

    def __init__(self, context: Context) -> None:
        self._context = context
        self._rates = RateSums(averaging_periods(context), len(context.promises.weight))

    def broken(self, telemetry: Telemetry) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """Where a present slice's promise is broken, (S, L); to be called once a period."""
        self.offered_mbps, self.carried_mbps = self._rates.add(telemetry) / self._rates.counted
        promises = self._context.promises
        owed = RATE_TOLERANCE * np.minimum(self.offered_mbps, promises.committed_mbps)
        return np.asarray((self.carried_mbps < owed) | (telemetry.delay_p99_us > promises.delay_bound_us))


def cpu_held(knobs: Knobs, context: Context, valid: np.ndarray) -> FloatArray:
    """CPUs that the limits hold, (L,): a present slice holds its limit, or all its UPF can use when that is less;
    together no more than the node has. What is not held is left to other work on the node."""
    held = knobs.cpu_limit_mcpu * CPUS_PER_MCPU
    np.minimum(held, context.threads, out=held)
    held *= valid
    total = np.add.reduce(held, axis=0)
    return np.minimum(total, context.logical_cpus, out=total)


HIGHEST_NICE, LOWEST_NICE = np.float32(-10.0), np.float32(9.0)
"""19 levels apart: CPU weights of 69 to 1 (kernel/sched/core.c, `sched_prio_to_weight`)."""


def static_order(weight: FloatArray, valid: BoolArray) -> FloatArray:
    """Nice levels (S, L) by weight: the slices that are there are spread evenly from `HIGHEST_NICE` to `LOWEST_NICE` in
    the order of their weights. Slices that weigh the same have the same level, which is 0 where all do."""
    present, heavier = valid[None, :], weight[None, :] > weight[:, None]
    before = np.tri(len(weight), k=-1, dtype=bool)[:, :, None]
    counts = valid & ~((weight[None, :] == weight[:, None]) & present & before).any(axis=1)  # each weight once
    rank = (heavier & counts[None, :]).sum(axis=1)
    last = counts.sum(axis=0) - 1
    levels = HIGHEST_NICE + (LOWEST_NICE - HIGHEST_NICE) * np.minimum(rank / np.maximum(last, 1), 1.0)
    return np.asarray(np.where(last > 0, np.rint(levels), 0.0), np.float32)
