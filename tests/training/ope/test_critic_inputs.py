"""What actions give the slices: against the simulator's own scheduler, and at its ends."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from slicepilot.data.episodes.episodes import EpisodeSet
from slicepilot.env.encoding import FEATURES
from slicepilot.env.simulator.cpu import water_fill
from slicepilot.training.ope.critic_inputs import NUM_INPUTS, Costs, critic_inputs, effects, fair_shares
from slicepilot.training.ope.logged import Node

positive = st.floats(0.01, 1000)


@given(
    arrays.arrays(np.float64, (4, 5), elements=positive),
    arrays.arrays(np.float64, (4, 5), elements=positive),
    st.floats(0.1, 5000),
)
def test_shares_are_fair(demand: np.ndarray, weight: np.ndarray, capacity: float) -> None:
    share = fair_shares(demand, weight, capacity)
    assert (share <= demand * (1 + 1e-9)).all()
    np.testing.assert_allclose(share.sum(axis=1), np.minimum(demand.sum(axis=1), capacity), rtol=1e-6)
    for own, asked, heavy in zip(share, demand, weight, strict=True):
        short = own < asked * (1 - 1e-6)
        if short.any():  # whoever got less than it asked for has as much per weight as the others, or more
            level = (own / heavy)[short]
            np.testing.assert_allclose(level, level[0], rtol=1e-5)
            assert (own / heavy <= level[0] * (1 + 1e-5)).all()


@given(arrays.arrays(np.float32, (5,), elements=st.floats(1, 100, width=32)), st.floats(10, 600))
def test_shares_are_the_simulators(demand: np.ndarray, capacity: float) -> None:
    weight = np.asarray([3.05, 1.0, 1.0, 0.33, 1.0], np.float32)
    theirs = np.empty((5, 1), np.float32)
    water_fill(np.asarray([capacity], np.float32), demand[:, None], weight[:, None], theirs)
    np.testing.assert_allclose(
        fair_shares(demand[None].astype(np.float64), weight[None].astype(np.float64), capacity)[0],
        theirs[:, 0],
        rtol=1e-4,
        atol=1e-4,
    )


def test_knobs_show_in_what_slices_get(log: EpisodeSet) -> None:
    node = Node.of(log)
    seen = log.episodes[0].observations[-1:]
    costs = Costs.of(np.concatenate([episode.observations for episode in log]), node)
    free = np.zeros((1, 5, 3), np.float32)
    free[..., [0, 2]] = 1.0
    weighed, limited, paced = free.copy(), free.copy(), free.copy()
    weighed[0, 0, 1] = -0.5
    limited[0, 1:, 0] = -0.5
    paced[0, 0, 2] = -0.8
    served = [effects(seen, action, node, costs)[0, 0, 0] for action in (free, weighed, limited, paced)]
    assert served[0] < 0.99, "the node is to be contended"
    assert served[1] == served[2] == pytest.approx(1.0)
    assert served[3] < served[0]
    # More of the same changes nothing.
    heavier = weighed.copy()
    heavier[0, 0, 1] = -0.9
    np.testing.assert_allclose(effects(seen, weighed, node, costs)[0, 0], effects(seen, heavier, node, costs)[0, 0])


def test_costs_are_those_of_the_node(log: EpisodeSet) -> None:
    node = Node.of(log)
    costs = Costs.of(np.concatenate([episode.observations for episode in log]), node)
    # 127.5 us for a packet of 1400 bytes
    np.testing.assert_allclose(costs.mcpu_per_mbps, 127.5e-3 / (8e-6 * 1400), rtol=0.05)
    assert 1500 < costs.capacity_mcpu < 2000


def test_absent_slices_have_no_inputs(log: EpisodeSet) -> None:
    node = Node.of(log)
    seen, action = log.episodes[0].observations[:3].copy(), log.episodes[0].actions[:3]
    seen[:, 2] = 0.0
    costs = Costs(np.full(5, 10.0), 1900.0)
    result = critic_inputs(seen, action, action, node, costs)
    assert result.shape == (3, 5, NUM_INPUTS)
    assert np.isfinite(result).all()
    assert not result[:, 2].any()
    assert (result[..., -1] == (seen[..., FEATURES.index("active")] > 0.5)).all()
