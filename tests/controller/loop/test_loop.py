"""The loop on real cgroups, with telemetry from a script where a test needs to know it beforehand."""

from __future__ import annotations

import math
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from slicepilot.agents.base import Agent
from slicepilot.controller.contracts.modes import Mode
from slicepilot.controller.loop.loop import Loop, LoopConfig
from slicepilot.controller.loop.mailbox import LoopEndedError
from slicepilot.controller.record.ring import LATE, UNUSABLE, TickRing
from slicepilot.controller.record.ring_reader import TickReader
from slicepilot.env.backend import Context
from slicepilot.env.knobs import Knobs
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry

from .scripted import LOOSE, PERIOD_S, SLICES, Asks, Readings, active, kernel_values, knobs, live, loop_of, run_loop

pytestmark = pytest.mark.realtime


def test_every_stage_runs_at_every_tick_and_is_timed(groups: list[Path]) -> None:
    before, readings = [kernel_values(group) for group in groups], Readings()
    agent: Agent = Asks(lambda k: knobs(500 if k % 2 else 700, -3))
    seen: list[float] = []
    with live(groups, readings) as backend:
        start = time.monotonic()
        report = run_loop(
            backend,
            agent,
            LoopConfig(max_ticks=50, budget_ratio=200.0),
            watch=lambda telemetry, wanted, receipt: seen.append(receipt.applied.cpu_limit_mcpu[0, 0].item()),
        )
        assert time.monotonic() - start >= 50 * PERIOD_S
        assert kernel_values(groups[4])[2] == pytest.approx(before[4][2] * 1991 / 1024, abs=1)
    assert report.ticks == len(seen) == 50
    assert (report.late_ticks, report.unusable, report.failed_applies, report.interventions) == (0, 0, 0, {})
    assert readings.measured == 52, "one to open the window, one at reset, one a tick"
    assert readings.closed
    assert set(seen) == {500, 700}
    stages = report.stages.summary_us()
    assert stages["total"]["p50"] >= stages["observe"]["p50"] > 0
    assert [kernel_values(group) for group in groups] == before


def late_from_the_fourth(k: int) -> Knobs:
    if k > 3:
        time.sleep(0.004)
    return knobs(300.0 if k <= 3 else 900.0)


def test_a_late_decision_is_not_applied(groups: list[Path]) -> None:
    with live(groups) as backend:
        report = run_loop(backend, Asks(late_from_the_fourth), LoopConfig(max_ticks=8, budget_ratio=0.4))
        assert kernel_values(groups[0])[0] == 300.0
    assert report.late_ticks >= 5


def test_an_error_that_is_over_is_reported_at_the_end_only(groups: list[Path]) -> None:
    def ask(k: int) -> Knobs:
        if k in {4, 5, 6}:
            raise ZeroDivisionError(k)
        return knobs(300.0)

    present: list[str | None] = []
    with live(groups) as backend:
        loop = loop_of(backend, Asks(ask), LoopConfig(max_ticks=80, check_s=0.05))
        loop.watch = lambda *_: present.append(loop.report.present_error)
        report = loop.run()
    assert present[2] is None
    assert present[5] == "ZeroDivisionError: 6"
    assert present[10] == "ZeroDivisionError: 6", "it failed less than a check ago"
    assert present[-1] is None
    assert report.last_error == "ZeroDivisionError: 6"
    assert report.unusable == 3


def test_the_safe_setting_is_applied_however_late(groups: list[Path]) -> None:
    with live(groups) as backend:
        policy = active(Asks(late_from_the_fourth), backend)
        report = Loop(backend, policy, LoopConfig(max_ticks=40, budget_ratio=0.4)).run()
        assert kernel_values(groups[0])[0] == math.inf, "what default.yaml declares"
    assert report.late_ticks >= 11
    assert report.interventions["overrun"]


def test_each_tick_is_written_down(groups: list[Path], tmp_path: Path) -> None:
    ring = TickRing(tmp_path / "ticks", len(SLICES))
    reader = TickReader(ring.path)

    def ask(k: int) -> Knobs:
        if k == 5:
            raise RuntimeError("once")
        if k == 8:
            time.sleep(0.03)
        return knobs(400.0, -2)

    with live(groups) as backend:
        run_loop(backend, Asks(ask), LoopConfig(max_ticks=12, budget_ratio=4.0), ring=ring)
    records = reader.new()
    assert records["sequence"].tolist() == list(range(1, 13))
    assert [(flags & UNUSABLE) > 0 for flags in records["flags"].tolist()] == [k == 5 for k in range(1, 13)]
    assert [(flags & LATE) > 0 for flags in records["flags"].tolist()] == [k == 8 for k in range(1, 13)]
    assert np.isnan(records["wanted"][4]).all()
    np.testing.assert_array_equal(records["applied"][:, 1], -2)
    np.testing.assert_array_equal(records["slices"][:, :2], 45.0)
    assert (np.diff(records["monotonic_ns"]) > 0).all()
    assert (records["mode"] == Mode.LIVE).all()
    assert (records["infer_ns"][7], records["missed"][-1] > 0) == (pytest.approx(3e7, rel=0.5), True)


def test_a_change_is_made_between_two_ticks_and_errors_come_back(groups: list[Path]) -> None:
    with live(groups) as backend:
        loop = loop_of(backend, Asks(lambda k: knobs(400.0)), LoopConfig(max_ticks=200, budget_ratio=200.0))
        other = Asks(lambda k: knobs(600.0))
        reported: list[BaseException] = []

        def work() -> None:
            while not loop.report.ticks:
                time.sleep(0.001)
            another = active(other, backend, LOOSE)
            loop.ready(another)
            loop.mailbox.make(lambda: setattr(loop, "active", another))
            try:
                loop.mailbox.make(lambda: 1 / 0)
            except ZeroDivisionError as error:
                reported.append(error)
            loop.stop.stop()

        thread = threading.Thread(target=work)
        thread.start()
        loop.run()
        thread.join()
        assert kernel_values(groups[0])[0] == 600.0
        assert len(reported) == 1
        with pytest.raises(LoopEndedError):
            loop.mailbox.make(lambda: None)


class Rehearses(Asks):
    """Counts rehearsals, and takes its time for them."""

    def reset(self, slices: SliceSet, context: Context, seed: int) -> None:
        super().reset(slices, context, seed)
        self.rehearsed = 0

    def warm_up(self, telemetry: Telemetry) -> None:
        self.rehearsed += 1
        time.sleep(0.0005)


def test_measurement_and_agent_rehearse_before_each_tick(groups: list[Path]) -> None:
    agent, readings = Rehearses(lambda k: Knobs.none(5)), Readings()
    with live(groups, readings, period_s=0.01) as backend:
        report = run_loop(backend, agent, LoopConfig(max_ticks=30, budget_ratio=200.0))
        backend.observe()
    assert agent.rehearsed == pytest.approx(30, abs=5), "a tick that is late already is not delayed"
    assert readings.rehearsals == agent.rehearsed
    assert agent.decisions == 30
    assert report.stages.summary_us()["wakeup"]["p50"] < 2e3
