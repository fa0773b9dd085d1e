"""Are the promises kept, and how much CPU do the limits hold: the measures that reward, judgement and agents share."""

from __future__ import annotations

import numpy as np

from .backend import Context
from .knobs import Knobs
from .slices import FloatArray
from .telemetry import Telemetry

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


class PromiseMeter:
    """Which promises are broken, one control period after the other.

    A delay bound holds for each period; a rate for the mean of the periods in `AVERAGING_WINDOW_S`, or for one period
    where that is longer.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        # (L,): control periods of a lane in a window; no more than a run has.
        windows = np.rint(AVERAGING_WINDOW_S / context.period_s.astype(np.float64)).astype(np.int64)
        self._windows = np.clip(windows, 1, max(context.num_steps, 1))
        self._rates = np.zeros((int(self._windows.max()), 2, *context.promises.weight.shape), np.float32)
        self._sums = np.zeros(self._rates.shape[1:])
        self._lanes = np.arange(len(self._windows))
        self._seen = 0

    def broken(self, telemetry: Telemetry) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """Where a present slice's promise is broken, (S, L); to be called once a period."""
        size = len(self._rates)
        # What leaves each lane's window: nothing before it has been filled once.
        leaves = self._rates[(self._seen - self._windows) % size, :, :, self._lanes].transpose(1, 2, 0)
        self._sums -= leaves * (self._seen >= self._windows)
        rates = np.stack([telemetry.offered_mbps, telemetry.carried_mbps])
        # What is no number would never leave the sums.
        self._rates[self._seen % size] = np.where(np.isfinite(rates), rates, 0.0)
        self._sums += self._rates[self._seen % size]
        self._seen += 1
        offered, carried = self._sums / np.minimum(self._seen, self._windows)
        promises = self._context.promises
        owed = RATE_TOLERANCE * np.minimum(offered, promises.committed_mbps)
        return np.asarray((carried < owed) | (telemetry.delay_p99_us > promises.delay_bound_us))


def cpu_held(knobs: Knobs, context: Context, valid: np.ndarray) -> FloatArray:
    """CPUs that the limits hold, (L,): a present slice holds its limit, or all its UPF can use when that is less;
    together no more than the node has. What is not held is left to other work on the node."""
    held = knobs.cpu_limit_mcpu * CPUS_PER_MCPU
    np.minimum(held, context.threads, out=held)
    held *= valid
    total = np.add.reduce(held, axis=0)
    return np.minimum(total, context.logical_cpus, out=total)
