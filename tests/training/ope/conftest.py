"""Small logs of slices in the simulator."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from slicepilot.agents.base import Agent
from slicepilot.agents.heuristics.exploring import ExploringAgent, RandomAgent
from slicepilot.agents.heuristics.fixed import FixedAgent, no_control
from slicepilot.data.episodes.episodes import EpisodeSet
from slicepilot.env.reward import RewardWeights
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.training.recording.recording import record_simulated

INF = np.inf
STEADY_NODE = str(Path(__file__).with_name("steady-node.yaml"))
WEIGHTS = RewardWeights.from_yaml("delay-first")


def contention(seconds: float = 3.0) -> Scenario:
    """Five slices that ask for more than there is, in periods of 10 ms."""
    scenario = Scenario.from_yaml("testbed-contention")
    return replace(scenario, hardware=STEADY_NODE, control_period_s=0.01, duration_s=seconds)


def recorded(agents: Sequence[Agent], seconds: float = 3.0, episodes: int = 2, seed: int = 0) -> EpisodeSet:
    return record_simulated(list(agents), contention(seconds), episodes, seed, WEIGHTS)


def limited(name: str, limit_mcpu: float, nice: float = 0.0) -> FixedAgent:
    """The neighbours of the priority slice get so much CPU; it gets a better nice level."""
    return FixedAgent(name, [INF, *[limit_mcpu] * 4], [nice, 0, 0, 0, 0])


@pytest.fixture(scope="session")
def log() -> EpisodeSet:
    """Two settings, exploration around them, and random knobs."""
    settings = [no_control(), limited("limited", 200.0)]
    return recorded([*settings, *map(ExploringAgent, settings), *[RandomAgent()] * 2])


@pytest.fixture(scope="session")
def policies() -> list[FixedAgent]:
    """Settings that are not in the log, the best first."""
    return [
        limited("weighed-and-limited", 350.0, -8.0),
        limited("weighed", INF, -5.0),
        FixedAgent("neighbours-first", nice=[5, -3, -3, -3, -3]),
        FixedAgent("starved", [100, INF, INF, INF, INF]),
    ]


@pytest.fixture(scope="session", name="record")
def _record() -> Callable[..., EpisodeSet]:
    """``record(agents, seconds, episodes, seed)`` in the simulator."""
    return recorded
