"""The Gymnasium environment over any backend of one lane."""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import Any, ClassVar, Literal

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from slicepilot.configs import ConfigError
from slicepilot.configs.backends import SIMULATOR, check_name, plugin
from slicepilot.env import ENV_ID, LIVE_ENV_ID
from slicepilot.env.arrays import BoolArray, FloatArray
from slicepilot.env.backend import Backend
from slicepilot.env.knobs import NUM_KNOBS
from slicepilot.env.reward import RewardWeights

from .render import RENDERING, Pictures, check_render_mode, render_ansi
from .spaces import Actions, FlatActions, observation_space
from .vector_env import ControlLoop, SliceVectorEnv, check_options


def make_backend(backend: str, scenario: str, control_period_s: float | None = None, lanes: int = 1) -> Backend:
    """A backend by name; only the simulator has more than one lane.

    Raises:
        ConfigError: unknown backend or scenario, control period outside 2 ms to 30 s.
    """
    check_name(backend)
    _check_period(control_period_s)
    if backend != SIMULATOR:
        opened: Backend = plugin(backend).call("open_backend", scenario, control_period_s)
        return opened
    _announce_compilation()
    from slicepilot.env.simulator.backend import ScenarioRuns, SimulatorBackend
    from slicepilot.env.simulator.scenario import Scenario

    return SimulatorBackend(ScenarioRuns(Scenario.from_yaml(scenario), control_period_s=control_period_s), lanes)


@functools.cache
def _announce_compilation() -> None:
    """A line of Python's logging, once, if the simulator has to be compiled, which otherwise looks like a hang."""
    from slicepilot.env.compiled import is_cached
    from slicepilot.env.simulator.kernels import advance

    if not is_cached(advance):
        logging.getLogger("slicepilot").warning("compiling the simulator, once: up to a minute")


def open_node(node: str, control_period_s: float | None, mode: str, seconds: float, run: str) -> Backend:
    """A node's own UPFs under the traffic that there is; see `SliceEnv` for what it is given and what it raises."""
    _check_period(control_period_s)
    if not 0 < seconds < np.inf:
        raise ConfigError(f"episode_s = {seconds!r}; expected more than 0 seconds")
    opened: Backend = plugin("node").call("open_live", node, control_period_s, mode=mode, seconds=seconds, run=run)
    return opened


def _check_period(control_period_s: float | None) -> None:
    if control_period_s is not None and not 0.002 <= control_period_s <= 30:
        raise ConfigError(f"control_period_s = {control_period_s!r}; expected 0.002 to 30 seconds")


class SliceEnv(gym.Env[FloatArray, FloatArray]):
    """Control of S slices on one node: ``slicepilot/SliceControl-v0``.

    Observation: the table (S, D) of `slicepilot.env.encoding`, row by row, as a vector (S * D,) in [-1, 1]. Action:
    (S, 3) in [-1, 1]: CPU limit, nice, egress rate of each slice, or with ``flat_actions`` a vector. Reward:
    `slicepilot.env.reward.RewardModel`; ``info["terms"]`` has each term, unweighted. A run is truncated after the
    scenario's duration; it never terminates.

    A copy (``copy.deepcopy``, pickle) over the simulator goes on as the original would, noise included. Real UPFs
    cannot be copied: TypeError.

    Args:
        backend: a name, or a `Backend` object with one lane.
        scenario: name or YAML file of the scenario that the backend runs.
        control_period_s: 0.002 to 30, else the scenario's, or 0.01 on a node.
        reward: name or path of the reward weights.
        render_mode: ``ansi`` (a table) or ``rgb_array`` (bars and a short history, 480 x 640).
        node: name or YAML file of a node with UPFs that run already, instead of a backend. Seeds do not change its
            traffic, and a run starts with the original settings of the knobs.
        mode: of a node: ``shadow`` writes nothing, ``live`` moves knobs, with guard and supervisor behind.
        episode_s: after which a run on a node is truncated.
        run: of a node in mode ``live``: run configuration with the guard and the journal's folder.
        flat_actions: actions are a vector (3 * S,), the table row by row; with "multidiscrete" of levels 0 to 10, which
            mean -1 to 1. For algorithms that need actions of a single axis, or discrete actions.

    Raises:
        ConfigError: unknown names, bad values, a UPF that is not found.
        FailureError: something that is needed on a node is missing or not permitted.
    """

    metadata: ClassVar[dict[str, Any]] = dict(RENDERING)  # type: ignore[misc]

    def __init__(
        self,
        backend: str | Backend = "simulator",
        scenario: str = "andrade-ramp",
        control_period_s: float | None = None,
        reward: str = "default",
        render_mode: Literal["ansi", "rgb_array"] | None = None,
        *,
        node: str | None = None,
        mode: str = "shadow",
        episode_s: float = 60.0,
        run: str = "default",
        flat_actions: FlatActions = False,
    ) -> None:
        check_render_mode(render_mode)
        weights = RewardWeights.from_yaml(reward)
        if not isinstance(backend, str) and node is not None:
            raise ConfigError(f"node = {node!r}: cannot be combined with a backend object; give either of the two")
        if node is None and backend == "node":
            raise ConfigError("node = None; expected with backend 'node': name or YAML file of the node")
        if node is not None:
            self.backend = open_node(node, control_period_s, mode, episode_s, run)
        else:
            self.backend = make_backend(backend, scenario, control_period_s) if isinstance(backend, str) else backend
        if self.backend.num_lanes != 1:
            raise ConfigError(f"backend: {self.backend.num_lanes} lanes; expected 1 (use SliceVectorEnv for more)")
        self.loop = ControlLoop(self.backend, weights)
        self.observation_space = observation_space(len(self.backend.slices))
        self._actions = Actions(len(self.backend.slices), flat=flat_actions)
        self.action_space = self._actions.space
        self.render_mode = render_mode
        self._pictures = Pictures(self.backend.slices) if render_mode else None

    @property
    def moves(self) -> BoolArray:
        """Which knobs act, (S, 3) as the action: what an action says of the others changes nothing. After `reset`."""
        moves = self.backend.context.moves
        return np.ones((len(self.backend.slices), NUM_KNOBS), np.bool_) if moves is None else moves[:, :, 0].T.copy()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[FloatArray, dict[str, Any]]:
        """Start a run; the first observation is taken under no control. There are no options: ConfigError for any."""
        check_options(options)
        super().reset(seed=seed)
        observation = self.loop.reset(seed)
        if self._pictures:
            self._pictures.start(self.loop.telemetry, [0])
        return observation.reshape(-1), {"terms": {}}

    def step(self, action: FloatArray) -> tuple[FloatArray, float, bool, bool, dict[str, Any]]:
        """One control period.

        Raises:
            gymnasium.error.ResetNeeded: before the first `reset`.
            ValueError: an action of the wrong shape, or with an entry that is NaN.
        """
        observation, reward, ended = self.loop.step(self._actions.table(action))
        if self._pictures:
            self._pictures.add(self.loop.telemetry)
        terms = {name: value.item() for name, value in self.loop.terms.items()}
        return observation.reshape(-1), float(reward[0]), False, ended, {"terms": terms}

    def render(self) -> str | np.ndarray | None:  # type: ignore[override]  # Gymnasium's own ansi renderers do so
        """The current period as text or as a picture (H, W, 3) uint8; None without a render mode.

        Raises gymnasium.error.ResetNeeded before the first `reset`.
        """
        if self._pictures is None:
            return None
        self.loop.started("render")
        if self.render_mode == "ansi":
            return render_ansi(self.backend.slices, self.loop.telemetry, self.loop.knobs)
        return self._pictures.picture(0)

    def close(self) -> None:
        """Release the backend."""
        self.backend.close()


def make_vector_env(
    num_envs: int,
    backend: str = SIMULATOR,
    scenario: str = "andrade-ramp",
    control_period_s: float | None = None,
    reward: str = "default",
    render_mode: str | None = None,
    *,
    flat_actions: FlatActions = False,
    max_episode_steps: int | None = None,
    autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
) -> SliceVectorEnv:
    """What ``gym.make_vec("slicepilot/SliceControl-v0", num_envs=L, ...)`` calls: L simulated nodes, advanced together.

    Lane i with seed s + i plays what ``gym.make`` with that seed plays. Arguments are those of `SliceEnv` and
    `SliceVectorEnv`.

    Raises:
        ConfigError: unknown names, bad values, a backend that is not the simulator.
    """
    if backend != SIMULATOR:
        raise ConfigError(f"backend = {backend!r}: vectors of environments are simulated: expected {SIMULATOR!r}")
    simulator = make_backend(backend, scenario, control_period_s, num_envs)
    weights = RewardWeights.from_yaml(reward)
    return SliceVectorEnv(
        simulator,
        weights,
        lane_seeds=True,
        render_mode=render_mode,
        flat_actions=flat_actions,
        max_episode_steps=max_episode_steps,
        autoreset_mode=autoreset_mode,
    )


def make(
    scenario: str | Path = "andrade-ramp", *, live: bool = False, **options: Any
) -> gym.Env[FloatArray, FloatArray]:
    """The Gymnasium environment of a scenario, as ``gym.make("slicepilot/SliceControl-v0", scenario=...)`` makes it.

    Args:
        scenario: a shipped name (``slicepilot simulate --help``) or a YAML file.
        live: on real UPFs of the testbed, as root, instead of the simulator.
        options: others of `SliceEnv`, for instance ``control_period_s`` or ``reward``, and of `gymnasium.make`.

    Raises:
        ConfigError: unknown names, bad values.
    """
    made: gym.Env[FloatArray, FloatArray] = gym.make(LIVE_ENV_ID if live else ENV_ID, scenario=str(scenario), **options)
    return made
