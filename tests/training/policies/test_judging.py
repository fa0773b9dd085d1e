"""`slicepilot.evaluate` refuses what the command refuses."""

from typing import Any

import pytest

from slicepilot.configs import ConfigError
from slicepilot.training.policies.judging import evaluate


@pytest.mark.parametrize(
    ("given", "field"),
    [({"seeds": 0}, "seeds = 0"), ({"seed": -1}, "seed = -1"), ({"control_period_s": 60.0}, "control_period_s = 60.0")],
)
def test_a_value_out_of_range_is_named(given: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=rf"^evaluate: {field}: expected a number "):
        evaluate("no-control", **given)
    with pytest.raises(ConfigError, match=r"^policies = \[\]: expected at least 1$"):
        evaluate([], **given)
