"""The loads of Mishra and Pandey (2026) on a testbed."""

from __future__ import annotations

from slicepilot.configs import ConfigError
from slicepilot.training.studies.study import Effort, Findings, Store


def measure(effort: Effort, store: Store) -> Findings:
    """Not yet."""
    raise ConfigError("in = 'testbed': not there yet for mishra; accepted: simulator")
