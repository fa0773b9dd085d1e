"""A local testbed of real UPFs, for studies that play single agents on it."""

from __future__ import annotations

from typing import Any

from slicepilot.agents.heuristics.registry import make
from slicepilot.configs.backends import plugin
from slicepilot.env.reward import RewardWeights
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.training.evaluation.judge import runs_of
from slicepilot.training.evaluation.rollouts import Rollout, interleaved_rollouts


class StudyTestbed:
    """Opened when the first run is to be played, and anew when a run has other slices."""

    def __init__(self) -> None:
        self._slices = ""
        self._backend: Any = None

    def play(self, agent: str, scenario: Scenario, seed: int) -> Rollout:
        """A run of a scenario; raises ConfigError where there is no testbed to be had."""
        if scenario.slices != self._slices:
            self.close()
            self._backend, self._slices = plugin("testbed").call("open_backend", scenario), scenario.slices
        [*_, run] = runs_of(scenario, [make(agent, scenario.slice_set(), scenario.hardware_spec())])
        [rollout] = interleaved_rollouts([run], self._backend, 1, seed, RewardWeights.from_yaml())
        return rollout

    def close(self) -> None:
        """Close the testbed, if one is open."""
        backend, self._backend, self._slices = self._backend, None, ""
        if backend is not None:
            backend.close()
