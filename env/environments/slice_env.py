"""The Gymnasium environment over any backend of one lane."""

from __future__ import annotations

import importlib
from typing import Any, ClassVar, Literal

import gymnasium as gym
import numpy as np

from ...configs import ConfigError
from ..backend import Backend
from ..reward import RewardWeights
from ..slices import FloatArray
from .render import render_ansi, render_rgb
from .vector_env import ControlLoop, action_space, observation_space

BACKENDS = ("simulator", "testbed")


def make_backend(backend: str, scenario: str, control_period_s: float | None = None) -> Backend:
    """A backend of one lane by name.

    Raises:
        ConfigError: unknown backend or scenario, control period outside 2 ms to 30 s.
    """
    if backend not in BACKENDS:
        raise ConfigError(f"backend: unknown name {backend!r}; accepted: {', '.join(BACKENDS)}")
    if control_period_s is not None and not 0.002 <= control_period_s <= 30:
        raise ConfigError(f"control_period_s = {control_period_s!r}: accepted: 0.002 to 30 seconds")
    if backend == "testbed":
        # By name: what lives below does not know what is built on it.
        opened: Backend = importlib.import_module("slicepilot.testbed.backend.backend").open_backend(
            scenario, control_period_s
        )
        return opened
    from ..simulator.backend import ScenarioRuns, SimulatorBackend
    from ..simulator.scenario import Scenario

    return SimulatorBackend(ScenarioRuns(Scenario.from_yaml(scenario), control_period_s=control_period_s))


class SliceEnv(gym.Env[FloatArray, FloatArray]):
    """Control of S slices on one node: ``slicepilot/SliceControl-v0``.

    Observation: the table (S, D) of `slicepilot.env.encoding`, row by row, as a vector (S * D,) in [-1, 1]. Action:
    (S, 3) in [-1, 1]: CPU limit, nice, egress rate of each slice. Reward: `slicepilot.env.reward.RewardModel`;
    ``info["terms"]`` has each term, unweighted. A run is truncated after the scenario's duration; it never terminates.

    Args:
        backend: a name, or a `Backend` object with one lane.
        scenario: what the simulator plays.
        control_period_s: 0.002 to 30, else the scenario's.
        reward: name or path of the reward weights.
        render_mode: ``ansi`` (a table) or ``rgb_array`` (bars and a short history, 480 x 640).

    Raises:
        ConfigError: unknown names, bad values.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}  # type: ignore[misc]

    def __init__(
        self,
        backend: str | Backend = "simulator",
        scenario: str = "andrade-ramp",
        control_period_s: float | None = None,
        reward: str = "default",
        render_mode: Literal["ansi", "rgb_array"] | None = None,
    ) -> None:
        self.backend = make_backend(backend, scenario, control_period_s) if isinstance(backend, str) else backend
        if self.backend.num_lanes != 1:
            raise ConfigError(f"backend: {self.backend.num_lanes} lanes; accepted: 1 (use SliceVectorEnv for more)")
        if render_mode not in {None, *self.metadata["render_modes"]}:
            raise ConfigError(f"render_mode: unknown {render_mode!r}; accepted: ansi, rgb_array")
        self.loop = ControlLoop(self.backend, RewardWeights.from_yaml(reward))
        self.observation_space = observation_space(len(self.backend.slices))
        self.action_space = action_space(len(self.backend.slices))
        self.render_mode = render_mode
        self._history: list[FloatArray] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[FloatArray, dict[str, Any]]:
        """Start a run; the first observation is taken under no control."""
        super().reset(seed=seed)
        observation = self.loop.reset(seed)
        self._history = [self.loop.telemetry.slices[:, :, 0].copy()] if self.render_mode else []
        return observation.reshape(-1), {"terms": {}}

    def step(self, action: FloatArray) -> tuple[FloatArray, float, bool, bool, dict[str, Any]]:
        """One control period. Raises ValueError for an action of the wrong shape or one that is not a number."""
        observation, reward, ended = self.loop.step(action)
        if self.render_mode:
            self._history.append(self.loop.telemetry.slices[:, :, 0].copy())
        terms = {name: value.item() for name, value in self.loop.terms.items()}
        return observation.reshape(-1), float(reward[0]), False, ended, {"terms": terms}

    def render(self) -> str | np.ndarray | None:
        """The current period as text or as a picture (H, W, 3) uint8; None without a render mode."""
        if self.render_mode == "ansi":
            return render_ansi(self.backend.slices, self.loop.telemetry, self.loop.knobs)
        if self.render_mode == "rgb_array":
            return render_rgb(self.backend.slices, np.stack(self._history))
        return None

    def close(self) -> None:
        """Release the backend."""
        self.backend.close()
