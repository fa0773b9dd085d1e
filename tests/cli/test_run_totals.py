"""What `slicepilot run` reports of a slice that was not measured all the time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from slicepilot.cli.operation.run_text import print_run
from slicepilot.cli.operation.run_totals import RunTotals
from slicepilot.controller.contracts.charge import shares
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
    totals, telemetry = RunTotals(slices, backend.context, lambda: uncounted), Telemetry.empty(len(slices))
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


def test_a_slice_without_traffic_has_neither_losses_nor_delays(capsys: pytest.CaptureFixture[str]) -> None:
    backend = SimulatorBackend(ScenarioRuns(Scenario.from_yaml("andrade-ramp")))
    backend.reset(1)
    slices = backend.slices
    uncounted = np.zeros((len(slices), BUCKETS), np.uint32)
    totals, telemetry = RunTotals(slices, backend.context, lambda: uncounted), Telemetry.empty(len(slices))
    telemetry.offered_mbps[1:] = 40.0
    telemetry.carried_mbps[1:] = 30.0
    telemetry.delay_p99_us[1:] = 2000.0
    for _ in range(10):
        totals.add(telemetry)
    rows = totals.rows()
    assert [row["lost_pct"] for row in rows[:2]] == pytest.approx([0.0, 25.0])
    print_run(report(slices=rows), 0.5)
    lines = capsys.readouterr().out.splitlines()
    [idle], [busy] = ([line.split() for line in lines if line.split()[:1] == [name]] for name in slices.names[:2])
    assert idle[1:5] == ["0.0", "0.0", "-", "-"]
    assert busy[1:5] == ["40.0", "30.0", "25.0", "2.0"]


def test_each_mode_that_was_in_force_has_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    modes = [
        {"mode": "shadow", "ticks": 9000, "in_charge": shares({"policy": 9000}), "guard_rules": {}},
        {"mode": "live", "ticks": 4600, "in_charge": shares({"policy": 2300, "guard": 2300}), "guard_rules": {}},
    ]
    print_run(report(modes=modes, restored="original settings restored: 5 slices, 15 knobs"), 0.5)
    out = capsys.readouterr().out
    assert "shadow 90 s, had it acted: policy 100.0%" in out
    assert "live 46 s: policy 50.0%, guard 50.0%" in out
    assert "in charge" not in out
    assert "original settings restored: 5 slices, 15 knobs" in out
    print_run(report(modes=modes[:1]), 0.5)
    assert "in charge, had it acted: policy 100.0%" in capsys.readouterr().out


def report(**given: Any) -> dict[str, Any]:
    """What `run --json` prints, as far as people read it."""
    loop = {"ticks": 0, "interventions": {}, "last_error": None}
    document = {"agent": "a", "mode": "shadow", "scenario": None, "period_s": 0.01, "slices": [], "modes": []}
    return document | {"loop": loop, "not_moved": [], "restored": None} | given
