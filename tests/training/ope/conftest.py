"""Small logs: a bandit and a chain whose values are known, and slices in the simulator."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from slicepilot.agents.base import Agent
from slicepilot.agents.heuristics.exploring import ExploringAgent
from slicepilot.agents.heuristics.fixed import FixedAgent, no_control
from slicepilot.agents.heuristics.random import RandomAgent
from slicepilot.data.episodes.episodes import Episode, EpisodeSet
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


Bandit = Callable[[int, int], EpisodeSet]


@pytest.fixture
def bandit() -> Bandit:
    """``bandit(episodes, seed)``: a context x of 0 or 1, an action a drawn from [-1, 1], reward 1 - (a - 0.4 x)^2 plus
    noise of deviation 0.2; 20 decisions an episode."""

    def make(episodes: int, seed: int) -> EpisodeSet:
        rng = np.random.default_rng(seed)
        return EpisodeSet(tuple(_bandit_episode(rng, 20) for _ in range(episodes)))

    return make


def _bandit_episode(rng: np.random.Generator, steps: int) -> Episode:
    context = rng.integers(0, 2, steps + 1).astype(np.float32)
    action = rng.uniform(-1, 1, (steps, 1)).astype(np.float32)
    reward = 1 - (action[:, 0] - 0.4 * context[:-1]) ** 2 + 0.2 * rng.standard_normal(steps)
    return Episode(
        observations=context[:, None],
        actions=action,
        rewards=reward.astype(np.float32),
        wanted=action,
        log_density=np.full(steps, -np.log(2.0)),
        behaviour="uniform",
    )
