from typing import Any

import numpy as np

from slicepilot.agents.heuristics.deadline import DeadlineMonotonic
from slicepilot.agents.heuristics.fixed import no_control


def test_the_tightest_bound_goes_first(contended: Any, play: Any) -> None:
    before, after = play(no_control(), contended, 4), play(DeadlineMonotonic(), contended, 4)
    assert after.violated[0].max() < 0.5 * before.violated[0].min()
    last = after.knobs[-1]
    np.testing.assert_array_equal(last.nice, np.repeat([[0], [5], [5], [5], [5]], 4, axis=1))
    assert np.isinf(last.cpu_limit_mcpu).all()


def test_nobody_waits_for_a_slice_that_does_not_send(loads: Any, play: Any) -> None:
    played = play(DeadlineMonotonic(), loads([0.0, 45.0, 45.0], 10))
    assert all((knobs.nice == 0).all() for knobs in played.knobs)
