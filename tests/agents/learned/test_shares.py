"""Shares of the node, in observations as in a bundle."""

from __future__ import annotations

import numpy as np
import torch

from slicepilot.agents.learned.agent import LearnedAgent
from slicepilot.agents.learned.bundle import PolicyBundle, TrainingRecord
from slicepilot.env.knobs import Knobs
from slicepilot.env.simulator.backend import ScenarioRuns, SimulatorBackend
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.training.networks.export import to_onnx
from slicepilot.training.networks.slice_network import (
    CLIPPED_GAIN,
    ActionHead,
    DeterministicPolicy,
    NetworkConfig,
    SliceEncoder,
)


def test_a_policy_decides_for_each_lane_as_for_it_alone() -> None:
    """Through the guard's door and in evaluation it is the same codec; here with lanes that differ."""
    torch.manual_seed(0)
    network = NetworkConfig(width=16)
    policy = DeterministicPolicy(SliceEncoder(network), ActionHead(network, CLIPPED_GAIN))
    with torch.no_grad():  # away from the nearly constant start
        for parameter in policy.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    backend = SimulatorBackend(ScenarioRuns(Scenario.from_yaml("multi-promise")), 3)
    single = SimulatorBackend(ScenarioRuns(Scenario.from_yaml("multi-promise")), 1)
    bundle = PolicyBundle(backend.slices, to_onnx(policy), TrainingRecord("sac", seed=0), coding="shares")
    together, alone = LearnedAgent(bundle), LearnedAgent(bundle)
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
