"""A scenario's events on a testbed: the shared uplink's rate over time, and slices that are absent for a while."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from slicepilot.env.simulator.scenario import Scenario
from slicepilot.env.telemetry import NODE_FIELDS, Telemetry
from slicepilot.testbed.lifecycle.network import Uplink
from slicepilot.testbed.lifecycle.testbed import Testbed

LEAST_FACTOR = 1e-3
UPLINK_USE = NODE_FIELDS.index("uplink_use_ratio")


class Timeline:
    """Runs the events of a run in turn; the caller calls `step` at each tick."""

    def __init__(self, testbed: Testbed, scenario: Scenario) -> None:
        spec = testbed.spec
        self._uplink_mbps = spec.uplink_mbps
        self._whole = testbed.layout, spec.uplink_mbps, spec.uplink_queue_ms
        self._classes = scenario.uplink_classes
        self._uplink = Uplink(*self._whole, self._classes)
        self._times, self._factors = np.asarray(scenario.uplink_profile or [(0, 1)], np.float64).T
        names = testbed.slices.names
        self._absences = [(names.index(name), *span) for name, span in scenario.absent.items()]
        self._started_ns = 0
        self._factor = 1.0

    def start(self, started_ns: int) -> None:
        """Begin a run whose loads started at this CLOCK_MONOTONIC time."""
        self._started_ns = started_ns
        self.step()

    def step(self) -> None:
        """Set what the uplink's rate should be now."""
        if len(self._times) > 1:
            self._set_factor(max(LEAST_FACTOR, float(np.interp(self.now_s, self._times, self._factors))))

    def _set_factor(self, factor: float) -> None:
        if factor != self._factor:
            self._uplink.set_rate(factor * self._uplink_mbps)
            self._factor = factor

    @property
    def now_s(self) -> float:
        """Time since the loads started."""
        return 1e-9 * (time.monotonic_ns() - self._started_ns)

    def mark_uplink(self, telemetry: Telemetry) -> None:
        """The link's use is that of what it can carry now, as in the simulator; the probe knows its full rate only."""
        if self._factor < 1.0:
            use = telemetry.node[UPLINK_USE]
            np.minimum(use / self._factor, 1.0, out=use)

    def without_absent(self, telemetry: Telemetry) -> Telemetry:
        """The telemetry with nothing of slices that are absent now.

        ``valid`` is a copy then: the source's own says what can be measured, and goes on holding in the next run.
        """
        now_s = self.now_s
        gone = [index for index, begin_s, end_s in self._absences if begin_s <= now_s < end_s]
        if not gone:
            return telemetry
        valid = telemetry.valid.copy()
        valid[gone] = False
        telemetry.slices[:, gone] = 0.0
        return replace(telemetry, valid=valid)

    def stop(self) -> None:
        """End the run; the uplink gets its own rate back."""
        self._set_factor(1.0)

    def close(self) -> None:
        """Release the uplink, which is a FIFO without classes again."""
        self.stop()
        self._uplink.close()
        if self._classes:
            self._classes = {}
            Uplink(*self._whole).close()
