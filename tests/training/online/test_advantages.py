"""Advantages: the textbook's where lanes are alike, far-sighted for short periods, blind to what the input brings."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer

from slicepilot.agents.learned.guide import NUM_GUIDED
from slicepilot.env.encoding import PERIOD_RANGE_S
from slicepilot.training.online.advantages import PERIOD, AdvantageBuffer, Discount, observed_period_s

STEPS, LANES, SLICES = 6, 8, 2
SIZE = (SLICES * NUM_GUIDED,)
OBSERVATIONS, ACTIONS = spaces.Box(-1, 1, SIZE, np.float32), spaces.Box(-1, 1, (SLICES, 3), np.float32)


def filled(buffer: RolloutBuffer, period_s: np.ndarray, shift: np.ndarray | None = None) -> RolloutBuffer:
    """Random rewards, values and ends of runs, the same for every buffer; ``shift`` (T, L) is added to the rewards."""
    rng = np.random.default_rng(0)
    low, high = PERIOD_RANGE_S
    table = np.zeros((LANES, SLICES, NUM_GUIDED), np.float32)
    table[:, :, PERIOD] = (np.log(period_s / low) / np.log(high / low))[:, None]
    starts = rng.random((STEPS + 1, LANES)) < 0.2
    for t in range(STEPS):
        reward, value = rng.normal(size=LANES), torch.from_numpy(rng.normal(size=(LANES, 1)).astype(np.float32))
        if shift is not None:
            reward += shift[t]
        action = np.zeros((LANES, SLICES, 3), np.float32)
        buffer.add(table.reshape(LANES, -1), action, reward, starts[t].astype(np.float32), value, torch.zeros(LANES))
    last = torch.from_numpy(rng.normal(size=(LANES, 1)).astype(np.float32))
    buffer.compute_returns_and_advantage(last, starts[STEPS])
    return buffer


def own(discount: Discount, groups: int = 1, copies: int = 1) -> AdvantageBuffer:
    return AdvantageBuffer(
        STEPS, OBSERVATIONS, ACTIONS, "cpu", 0.8, 0.7, LANES, discount=discount, groups=groups, copies=copies
    )


def test_lanes_of_a_second_get_what_the_library_computes() -> None:
    period_s = np.ones(LANES)
    library = filled(RolloutBuffer(STEPS, OBSERVATIONS, ACTIONS, "cpu", 0.8, 0.7, LANES), period_s)
    buffer = filled(own(Discount(0.7)), period_s)
    np.testing.assert_allclose(buffer.advantages, library.advantages, atol=1e-5)
    np.testing.assert_allclose(buffer.returns, library.returns, atol=1e-5)


def test_short_periods_look_further_ahead() -> None:
    gamma = Discount(0.7, span_s=0.25, most=0.95).per_period(np.asarray([0.002, 0.1, 0.25, 30.0]))
    assert gamma == pytest.approx([0.95, 0.7**0.4, 0.7, 0.7])
    library = filled(RolloutBuffer(STEPS, OBSERVATIONS, ACTIONS, "cpu", 0.8, 0.95, LANES), np.full(LANES, 0.002))
    buffer = filled(own(Discount(0.7)), np.full(LANES, 0.002))
    np.testing.assert_allclose(buffer.advantages, library.advantages, atol=1e-5)


def test_periods_are_read_from_observations() -> None:
    period_s = np.geomspace(*PERIOD_RANGE_S, LANES)
    observations = filled(own(Discount(0.7)), period_s).observations
    seen_s = observed_period_s(observations, NUM_GUIDED)
    np.testing.assert_allclose(seen_s, np.broadcast_to(period_s, (STEPS, LANES)), rtol=1e-4)


def test_what_all_copies_of_an_input_share_does_not_count() -> None:
    """Two groups of two copies of two inputs: a reward that comes with the input moves no advantage."""
    period_s = np.ones(LANES)
    rng = np.random.default_rng(1)
    per_input = np.tile(rng.normal(size=(STEPS, 2, 1, 2)), (1, 1, 2, 1)).reshape(STEPS, LANES)
    per_lane = rng.normal(size=(STEPS, LANES))
    plain, shifted, other = (
        filled(own(Discount(0.0), 2, 2), period_s, shift).advantages for shift in (None, per_input, per_lane)
    )
    np.testing.assert_allclose(shifted, plain, atol=1e-5)
    assert np.abs(other - plain).max() > 0.1
    grouped = plain.reshape(STEPS, 2, 2, 2)
    np.testing.assert_allclose(grouped.mean(axis=2), 0, atol=1e-6)
