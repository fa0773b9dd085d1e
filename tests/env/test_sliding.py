"""Telemetry as agents see it: over three video frames, the same on a live node and in the simulator."""

from __future__ import annotations

import numpy as np

from slicepilot.env.backend import Context
from slicepilot.env.environments.vector_env import ControlLoop
from slicepilot.env.reward import RewardWeights
from slicepilot.env.simulator.backend import ScenarioRuns, SimulatorBackend
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.env.slices import Promises
from slicepilot.env.sliding import WINDOW_S, SlidingView
from slicepilot.env.telemetry import Telemetry

FRAMES = [0.0, 50.0, 50.0, 0.0, 50.0]
"""60 frames/s of 30 Mbit/s in periods of 10 ms: 50 Mbit/s in three of five."""


def context(num_slices: int, *periods_s: float) -> Context:
    shape, lanes = (num_slices, len(periods_s)), np.ones(len(periods_s), np.float32)
    ones = np.ones(shape, np.float32)
    return Context(np.asarray(periods_s, np.float32), lanes, lanes, Promises(ones, ones, ones, 0 * ones), ones, 100)


def offering(rate_mbps: float, num_slices: int, lanes: int = 1) -> Telemetry:
    telemetry = Telemetry.empty(num_slices, lanes)
    telemetry.offered_mbps[0] = rate_mbps
    telemetry.carried_mbps[0] = 0.8 * rate_mbps
    telemetry.cpu_use_mcpu[0] = 10 * rate_mbps
    telemetry.node[0], telemetry.node[1] = 1 - rate_mbps / 50, 1.0
    return telemetry


def test_frames_that_fall_into_some_periods_are_a_steady_rate() -> None:
    view = SlidingView(context(2, 0.01))
    for n in range(12):
        telemetry = offering(FRAMES[n % 5], 2)
        telemetry.delay_p99_us[:], telemetry.delay_p50_us[:] = 10 if n % 7 else 70, 5 * (n % 5)
        before = telemetry.copy()
        view.warm_up(telemetry)
        seen = view.see(telemetry)
        np.testing.assert_array_equal(telemetry.slices, before.slices)
        if n == 1:
            assert seen.offered_mbps[0, 0] == 25, "only what was since the start counts, and no rehearsal"
        if n >= 4:
            np.testing.assert_allclose(seen.slices[:2, :, 0], [[30, 0], [24, 0]], rtol=1e-6)
            np.testing.assert_allclose(seen.cpu_use_mcpu[:, 0], [300, 0], rtol=1e-6)
            np.testing.assert_allclose(seen.node[:, 0], [0.4, 1], rtol=1e-6)
            np.testing.assert_allclose(seen.loss_ratio[:, 0], [0.2, 0], rtol=1e-5)
            np.testing.assert_allclose(seen.delay_p50_us, 10, rtol=1e-6)
        np.testing.assert_array_equal(seen.delay_p99_us, 70 if n % 7 < 5 else 10)


def test_every_lane_has_the_window_of_its_period() -> None:
    periods = (0.003, 0.02, 1.0)
    view, history = SlidingView(context(1, *periods)), []
    rng = np.random.default_rng(0)
    for n in range(60):
        history.append(rng.uniform(0, 100))
        seen = view.see(offering(history[-1], 1, len(periods))).offered_mbps[0]
        for lane, period_s in enumerate(periods):
            window = max(1, round(WINDOW_S / period_s))
            np.testing.assert_allclose(seen[lane], np.mean(history[max(0, n + 1 - window) :]), rtol=1e-5)


def test_the_longest_p99_of_the_window_is_seen() -> None:
    view, rng, history = SlidingView(context(1, 0.005)), np.random.default_rng(1), []
    for _ in range(200):
        telemetry = offering(1.0, 1)
        history.append(rng.choice([0.0, 1.0, 2.0, 7.0, 100.0], p=[0.3, 0.3, 0.3, 0.05, 0.05]))
        telemetry.delay_p99_us[:] = history[-1]
        view.warm_up(telemetry)
        assert view.see(telemetry).delay_p99_us[0, 0] == max(history[-10:])


def test_no_traffic_after_a_rate_is_zero() -> None:
    view = SlidingView(context(1, 0.005))
    for _ in range(20):
        view.see(offering(123.4, 1))
    for _ in range(9):
        view.see(offering(0.0, 1))
    seen = view.see(offering(0.0, 1))
    assert seen.offered_mbps[0, 0] == seen.loss_ratio[0, 0] == 0


def test_the_simulators_agents_see_means_and_are_judged_by_the_period() -> None:
    loop = ControlLoop(
        SimulatorBackend(ScenarioRuns(Scenario.from_yaml("testbed-contention"))), RewardWeights.from_yaml()
    )
    loop.reset(0)
    offered, seen = [], []
    for _ in range(200):
        table, _, _ = loop.step(np.ones((5, 3), np.float32))
        offered.append(loop.telemetry.offered_mbps[3, 0].item())
        seen.append(np.expm1(table[0, 3, 0] * np.log1p(10_000)).item())
    jumps = np.abs(np.diff(offered)).max(), np.abs(np.diff(seen)).max()
    assert jumps[1] < 0.2 * jumps[0]
    np.testing.assert_allclose(seen[20:], np.convolve(offered, np.full(10, 0.1), "valid")[11:], rtol=1e-2, atol=0.05)
