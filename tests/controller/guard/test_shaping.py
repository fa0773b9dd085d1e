"""What training does to decisions is what the guard of a live node does."""

from __future__ import annotations

import numpy as np
import pytest

from slicepilot.controller.contracts.reasons import Reason
from slicepilot.controller.guard.shaping import Shaping
from slicepilot.env.knobs import NUM_KNOBS, Knobs

from .node import NONE, Node, config, context


@pytest.mark.parametrize("period_s", [0.002, 0.01, 0.1])
def test_lanes_are_shaped_as_one_node_is(period_s: float) -> None:
    alone = {"sla_floor": {"enabled": False}}
    node = Node(config(**alone), period_s=period_s)
    shaping = Shaping(config(**alone), node.slices, context(node.slices, period_s))
    random = np.random.default_rng(3)
    changed = 0
    for _ in range(300):
        values = np.empty((NUM_KNOBS, len(node.slices), 1), np.float32)
        values[0] = random.choice([50.0, 60.0, 61.0, 700.0, 1000.0, NONE, 20.0], (3, 1))
        values[1] = random.choice([-15.0, -3.0, -2.0, 10.0, 15.0, 19.0], (3, 1))
        values[2] = random.choice([1.0, 30.0, 30.3, 900.0, NONE], (3, 1))
        allowed = node.tick(Knobs(values.copy())).allowed.values
        changed += not np.array_equal(allowed, values)
        shaping(values)
        np.testing.assert_array_equal(values, allowed)
    assert changed > 200
    assert node.guard.counts[Reason.OSCILLATION, 0] > 10
