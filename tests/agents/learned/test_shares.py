"""Shares of the node, in observations as in a bundle."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from slicepilot.agents.learned.agent import LearnedAgent
from slicepilot.agents.learned.bundle import PolicyBundle
from slicepilot.agents.learned.shares import NUM_INPUTS
from slicepilot.env.encoding import FEATURES
from slicepilot.env.knobs import Knobs
from slicepilot.env.simulator.backend import ScenarioRuns, SimulatorBackend
from slicepilot.env.simulator.scenario import Scenario

BUNDLE = Path(__file__).parents[3] / "testbed" / "bench" / "barely_trained"


def rows(count: int, num_slices: int) -> np.ndarray:
    table = np.random.default_rng(0).uniform(0, 1, (count, num_slices, NUM_INPUTS)).astype(np.float32)
    table[..., FEATURES.index("active")] = 1.0
    return table


def test_a_policy_decides_for_each_lane_as_for_it_alone() -> None:
    """Through the guard's door and in evaluation it is the same codec; here with lanes that differ."""
    bundle = PolicyBundle.load(BUNDLE)
    assert bundle.coding == "shares"
    backend = SimulatorBackend(ScenarioRuns(Scenario.from_yaml("multi-promise")), 3)
    single = SimulatorBackend(ScenarioRuns(Scenario.from_yaml("multi-promise")), 1)
    together, alone = LearnedAgent(bundle, transfer=True), LearnedAgent(bundle, transfer=True)
    telemetry, _ = backend.reset(1), single.reset(1)
    together.reset(backend.slices, backend.context, 0)
    alone.reset(single.slices, single.context, 0)
    knobs = Knobs.none(len(backend.slices), 3)
    for _ in range(20):
        single = telemetry.copy()
        lane = type(single)(
            single.slices[..., :1].copy(), single.node[..., :1].copy(), single.age_s[:1], single.valid[:, :1].copy()
        )
        expected = alone.decide(lane, Knobs(knobs.values[..., :1].copy()))
        alone.warm_up(lane)
        decided = together.decide(telemetry, knobs)
        np.testing.assert_allclose(decided.values[..., :1], expected.values, rtol=1e-5)
        knobs = backend.apply(decided).applied
        telemetry = backend.observe()
