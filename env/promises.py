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


def violated(telemetry: Telemetry, context: Context) -> FloatArray:
    """1 where a present slice's promise is broken in this period, else 0; float32 (S, L)."""
    return np.asarray(promise_score(telemetry, context) < 1.0, np.float32)


def cpu_held(knobs: Knobs, context: Context, valid: np.ndarray) -> FloatArray:
    """CPUs that the limits hold, (L,): a present slice holds its limit, or all its UPF can use when that is less;
    together no more than the node has. What is not held is left to other work on the node."""
    held = knobs.cpu_limit_mcpu * CPUS_PER_MCPU
    np.minimum(held, context.threads, out=held)
    held *= valid
    total = np.add.reduce(held, axis=0)
    return np.minimum(total, context.logical_cpus, out=total)
