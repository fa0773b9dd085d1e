"""What `slicepilot run` reports of a slice that was not measured all the time."""

from __future__ import annotations

import numpy as np
import pytest

from slicepilot.cli.operation.run import _Totals
from slicepilot.controller.telemetry.layout import BUCKETS
from slicepilot.env.simulator.backend import ScenarioRuns, SimulatorBackend
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.env.telemetry import Telemetry


def test_figures_are_of_ticks_in_which_a_slice_was_measured() -> None:
    """A blind probe's 0 Mbit/s are no measurement, nor is what a slice never had."""
    backend = SimulatorBackend(ScenarioRuns(Scenario.from_yaml("andrade-ramp")))
    backend.reset(1)
    slices = backend.slices
    uncounted = np.zeros((len(slices), BUCKETS), np.uint32)
    totals, telemetry = _Totals(slices, backend.context, lambda: uncounted), Telemetry.empty(len(slices))
    telemetry.offered_mbps[:] = telemetry.carried_mbps[:] = 40.0
    telemetry.valid[4] = False
    for tick in range(10):
        blind = tick >= 8
        telemetry.valid[0], telemetry.carried_mbps[0] = not blind, 0.0 if blind else 40.0
        telemetry.delay_p99_us[0] = 1e9 if blind else 100.0
        totals.add(telemetry)
    first, second, *_, last = totals.rows()
    assert (first["carried_mbps"], first["delay_p99_us"], first["late_ticks_pct"]) == (40.0, 100.0, 0.0)
    assert [row["measured_pct"] for row in (first, second, last)] == pytest.approx([80.0, 100.0, 0.0])
    assert last["carried_mbps"] == 0.0
