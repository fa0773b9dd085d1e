"""The node as a game of its slices, in PettingZoo's form: every slice is an agent that sets its own knobs."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from slicepilot.configs import ConfigError
from slicepilot.env.arrays import FloatArray
from slicepilot.env.encoding import NUM_FEATURES
from slicepilot.env.knobs import NUM_KNOBS

from .render import RENDERING
from .slice_env import SliceEnv

try:
    from pettingzoo import ParallelEnv
except ModuleNotFoundError as error:
    raise ConfigError(f"SliceParallelEnv needs the package {error.name}: install slicepilot[pettingzoo]") from error

Dicts = tuple[
    dict[str, FloatArray], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, dict[str, float]]]
]


class SliceParallelEnv(ParallelEnv[str, FloatArray, FloatArray]):  # type: ignore[misc]  # it has no types
    """`SliceEnv` with a slice as an agent: a ``pettingzoo.ParallelEnv`` whose agents have the slices' names.

    An agent sees its slice's row of the observation, (20,) in [-1, 1], which has what it shares of the node, and sets
    its slice's row of the action, (3,) in [-1, 1]. All agents get the node's reward: slices compete for CPU and uplink,
    and the reward weighs their promises, so that a slice does not take what another needs more. `state` is the whole
    table, for critics that see everything. All agents are there for the whole run, absent slices too (feature
    ``active``), and are truncated together. Same seed and actions: the same as in `SliceEnv`.

    Args:
        arguments: those of `SliceEnv`, without ``flat_actions``.

    Raises:
        ConfigError: as `SliceEnv`.
    """

    metadata = RENDERING | {"name": "slicepilot_v0", "is_parallelizable": True}

    def __init__(self, **arguments: Any) -> None:
        if "flat_actions" in arguments:
            raise ConfigError("flat_actions: agents' actions are vectors as they are: expected no flat_actions")
        self._env = SliceEnv(**arguments)
        self.render_mode = self._env.render_mode
        self.possible_agents = list(self._env.backend.slices.names)
        self.agents: list[str] = []
        row, size = (NUM_FEATURES,), (len(self.possible_agents) * NUM_FEATURES,)
        self.observation_spaces = {name: gym.spaces.Box(-1.0, 1.0, row, np.float32) for name in self.possible_agents}
        self.action_spaces = {name: gym.spaces.Box(-1.0, 1.0, (NUM_KNOBS,)) for name in self.possible_agents}
        self.state_space = gym.spaces.Box(-1.0, 1.0, size, np.float32)
        self._state = np.zeros(size, np.float32)

    def observation_space(self, agent: str) -> gym.Space[Any]:
        """The observation space of a slice."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> gym.Space[Any]:
        """The action space of a slice."""
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, FloatArray], dict[str, Any]]:
        """Start a run; there are no options, and PettingZoo has them ignored."""
        self._state, _ = self._env.reset(seed=seed)
        self.agents = list(self.possible_agents)
        return self._rows(), {name: {"terms": {}} for name in self.agents}

    def step(self, actions: dict[str, FloatArray]) -> Dicts:
        """One control period.

        Raises:
            gymnasium.error.ResetNeeded: before `reset`, and after the end of a run.
            ValueError: an agent without an action, or with an action of the wrong shape or that is not a number.
        """
        agents = self.agents
        if not agents:
            raise gym.error.ResetNeeded("step without agents: the run has not begun or is over: call reset() first")
        if missing := [name for name in agents if name not in actions]:
            raise ValueError(f"action: none for {', '.join(missing)}: expected an action of every agent")
        table = np.stack([np.asarray(actions[name], np.float32) for name in agents])
        self._state, reward, _, ended, info = self._env.step(table)
        self.agents = [] if ended else list(agents)
        return (
            self._rows(),
            dict.fromkeys(agents, reward),
            dict.fromkeys(agents, False),
            dict.fromkeys(agents, ended),
            {name: dict(info) for name in agents},
        )

    def _rows(self) -> dict[str, FloatArray]:
        table = self._state.reshape(len(self.possible_agents), -1)
        return {name: table[s].copy() for s, name in enumerate(self.possible_agents)}

    def state(self) -> FloatArray:
        """The table of all slices row by row, (S * 20,)."""
        return self._state.copy()

    def render(self) -> str | np.ndarray | None:
        """As `SliceEnv.render`."""
        return self._env.render()

    def close(self) -> None:
        """Release the backend."""
        self._env.close()
