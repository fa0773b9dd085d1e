"""The figures of a run of ``slicepilot run``: what each slice was offered and got, summed up tick by tick."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from slicepilot.controller.telemetry.histogram import quantiles_us
from slicepilot.env.backend import Context
from slicepilot.env.promises import PromiseMeter
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry

MOST_DELAYS = 100_000
"""Ticks whose delays are kept, the latest."""


class RunTotals:
    """Sums over a run: rates, broken promises, each tick's p99 delay, and the delays of all packets that left,
    of ticks in which a slice was measured. A long run does not take more and more memory.

    A tick's p99 includes the age of packets that have not left yet, which may be lost. The run's is of packets that
    left, and what was lost is reported beside it.
    """

    def __init__(self, slices: SliceSet, context: Context, delay_counts: Callable[[], Any]) -> None:
        self.slices, self.ticks = slices, 0
        self._period_s, self._delay_counts = context.period_s.item(), delay_counts
        self._bounds_us = 1e3 * slices.column("sla.delay_bound_ms")[:, 0]
        self._offered, self._carried = np.zeros((2, len(slices)))
        self._measured, self._late, self._broken, self._by_rate = np.zeros((4, len(slices)), np.int64)
        self._delays: deque[Any] = deque(maxlen=MOST_DELAYS)  # NaN where not measured
        self._meter = PromiseMeter(context)
        self._first_counts: Any = None
        self._counts: Any = None

    def add(self, telemetry: Telemetry) -> None:
        if self._first_counts is None:
            self._first_counts = self._delay_counts().copy()
        self.ticks += 1
        valid, delay = telemetry.valid[:, 0], telemetry.delay_p99_us[:, 0]
        broken, late = self._meter.broken(telemetry)[:, 0] & valid, valid & (delay > self._bounds_us)
        self._offered += np.where(valid, telemetry.offered_mbps[:, 0], 0.0)
        self._carried += np.where(valid, telemetry.carried_mbps[:, 0], 0.0)
        self._measured += valid
        self._late += late
        self._broken += broken
        self._by_rate += broken & ~late
        self._delays.append(np.where(valid, delay, np.nan).astype(np.float32))

    def count_delays(self) -> None:
        """Look at the delays of all packets so far; to be called before the backend is closed."""
        self._counts = self._delay_counts().copy()

    def rows(self) -> list[dict[str, Any]]:
        ticks = np.maximum(self._measured, 1)
        # Without traffic nothing can be lost.
        share = np.divide(self._carried, self._offered, out=np.ones_like(self._offered), where=self._offered > 0)
        lost_pct = 100 * np.maximum(1 - share, 0.0)
        return [
            {
                "slice": name,
                "offered_mbps": float(self._offered[s] / ticks[s]),
                "carried_mbps": float(self._carried[s] / ticks[s]),
                "lost_pct": float(lost_pct[s]),
                "delay_p99_us": self._delay_p99_us(s),
                "late_ticks_pct": float(100 * self._late[s] / ticks[s]),
                "broken_s": float(self._period_s * self._broken[s]),
                "broken_by_rate_s": float(self._period_s * self._by_rate[s]),
                "measured_pct": float(100 * self._measured[s] / self.ticks),
            }
            for s, name in enumerate(self.slices.names)
        ]

    def _delay_p99_us(self, s: int) -> float:
        left = None if self._counts is None else self._counts - self._first_counts
        if left is not None and left.any():
            return float(np.nan_to_num(quantiles_us(left[s], [0.99]))[0])
        delays = np.asarray([row[s] for row in self._delays])  # where packets are not counted, as with Prometheus
        delays = delays[~np.isnan(delays)]
        return float(np.quantile(delays, 0.99)) if len(delays) else 0.0
