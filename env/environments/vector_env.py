"""Many nodes at once as a `gymnasium.vector.VectorEnv`, and the loop body that the single environment shares."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from slicepilot.configs import ConfigError, did_you_mean
from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Backend, Context, held_at_reset
from slicepilot.env.encoding import NUM_FEATURES, KnobDecoder, ObservationEncoder
from slicepilot.env.knobs import NUM_KNOBS, Knobs
from slicepilot.env.reward import RewardModel, RewardWeights
from slicepilot.env.slices import SliceSet
from slicepilot.env.sliding import SlidingView
from slicepilot.env.telemetry import Telemetry


class Coding(Protocol):
    """What a policy sees of a run, and what its actions mean there; made of the run's slices and context.

    ``columns`` and ``actions`` are how many numbers a slice's row of the observation and of the action has.
    """

    columns: ClassVar[int]
    actions: ClassVar[int]

    def __init__(self, slices: SliceSet, context: Context) -> None: ...

    def encode(self, telemetry: Telemetry, knob_rows: FloatArray) -> FloatArray:
        """From telemetry and the rows of the knobs that hold (3, S, L) to a table (L, S, columns) in [-1, 1]."""
        ...

    def decode(self, action: FloatArray) -> tuple[Knobs, FloatArray]:
        """From actions (L, S, actions) to knobs and their rows; after `encode` of the period before them."""
        ...


class PlainCoding:
    """`ObservationEncoder` and `KnobDecoder`."""

    columns: ClassVar[int] = NUM_FEATURES
    actions: ClassVar[int] = NUM_KNOBS

    def __init__(self, slices: SliceSet, context: Context) -> None:
        self.encode, self.decode = ObservationEncoder(context).encode, KnobDecoder(slices).decode


class ControlLoop:
    """Decode, apply, observe, score, encode: one control period of a backend's L lanes.

    Attributes hold the last period: ``telemetry`` (views into the backend), ``knobs``, ``terms`` (reward terms (L,)).
    """

    def __init__(self, backend: Backend, weights: RewardWeights, coding: type[Coding] = PlainCoding) -> None:
        self.backend, self.weights, self._make_coding = backend, weights, coding
        self.decoder = KnobDecoder(backend.slices)
        self.coding: Coding | None = None
        self.steps_left = 0
        self.terms: dict[str, FloatArray] = {}

    def started(self, call: str) -> Coding:
        """The run's coding, for ``call``; raises gymnasium's ResetNeeded where there is no run yet."""
        if self.coding is None:
            raise gym.error.ResetNeeded(f"{call} before reset: the environment has no run yet: call reset() first")
        return self.coding

    def reset(self, seed: int | None) -> FloatArray:
        """Start a run; observations (L, S, D)."""
        self.telemetry: Telemetry = self.backend.reset(seed)
        context = self.backend.context
        self.coding, self._view = self._make_coding(self.backend.slices, context), SlidingView(context)
        self.reward = RewardModel(self.weights, context)
        self.knobs: Knobs = held_at_reset(self.backend)
        self._rows = self.decoder.encode(self.knobs)
        self.steps_left = context.num_steps
        return self.coding.encode(self._view.see(self.telemetry), self._rows)

    def step(self, action: FloatArray) -> tuple[FloatArray, FloatArray, bool]:
        """Observations (L, S, D), rewards (L,) and whether the run has ended (all lanes end together).

        Raises:
            gymnasium.error.ResetNeeded: before the first `reset`.
            ValueError: an action of the wrong shape, or one that is not a number.
        """
        coding = self.started("step")
        wanted, rows = coding.decode(action)
        self.knobs = self.backend.apply(wanted).applied
        if not self.knobs.same_as(wanted):
            rows = self.decoder.encode(self.knobs)
        self.telemetry = self.backend.observe()
        reward, self.terms = self.reward(self.telemetry, self.knobs, rows, self._rows)
        self._rows = rows
        self.steps_left -= 1
        return coding.encode(self._view.see(self.telemetry), rows), reward, self.steps_left <= 0


def observation_space(num_slices: int, columns: int = NUM_FEATURES) -> gym.spaces.Box[np.float32]:
    """The encoder's table (S, D) row by row: a vector (S * D,) in [-1, 1], which every algorithm's library takes."""
    return gym.spaces.Box(-1.0, 1.0, (num_slices * columns,), np.float32)


def action_space(num_slices: int, columns: int = NUM_KNOBS) -> gym.spaces.Box[np.float32]:
    """CPU limit, nice and egress rate per slice: (S, 3) in [-1, 1]; `KnobDecoder` gives the meaning."""
    return gym.spaces.Box(-1.0, 1.0, (num_slices, columns), np.float32)


def check_options(options: dict[str, Any] | None, known: tuple[str, ...] = ()) -> None:
    """Raise ConfigError for the first option of a reset that is not known: it would have no effect."""
    for name in options or {}:
        if name not in known:
            raise ConfigError(f"options: unknown {name!r}: {did_you_mean(name, known)}")


class SliceVectorEnv(VectorEnv[FloatArray, FloatArray, FloatArray]):
    """L environments over one backend of L lanes. All lanes end at the same step and restart at once.

    ``coding`` says what policies see and what their actions mean.

    Autoreset mode is SAME_STEP: the step that ends a run returns the first observation of the next one, and the last
    of the old one in ``info["final_obs"]``, its info in ``info["final_info"]``, each with the mask that Gymnasium
    documents (``_final_obs``, ``_final_info``). ``info["terms"]`` holds the reward terms, (L,) each. `reset` takes one
    seed for all lanes (a sequence with an entry for each lane is folded into one).

    A copy (``copy.deepcopy``, pickle) over the simulator goes on as the original would; over a live node it is refused.
    """

    def __init__(
        self,
        backend: Backend,
        weights: RewardWeights | None = None,
        coding: type[Coding] = PlainCoding,
    ) -> None:
        self.loop = ControlLoop(backend, weights or RewardWeights.from_yaml(), coding)
        self.metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}
        self.num_envs = backend.num_lanes
        self.single_observation_space = observation_space(len(backend.slices), coding.columns)
        self.single_action_space = action_space(len(backend.slices), coding.actions)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._false = np.zeros(self.num_envs, np.bool_)
        self._true = np.ones(self.num_envs, np.bool_)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[FloatArray, dict[str, Any]]:
        """Start a run in every lane.

        Args:
            seed: for all lanes.
            options: none, or Gymnasium's ``reset_mask``, bool (L,), True everywhere: lanes start and end together.

        Raises:
            ConfigError: any other option or mask; a list of seeds that is not as long as there are lanes.
        """
        check_options(options, ("reset_mask",))
        if options and "reset_mask" in options:
            self._check_mask(options["reset_mask"])
        if isinstance(seed, list):
            if len(seed) != self.num_envs:
                raise ConfigError(f"seed = a list of {len(seed)}: expected {self.num_envs} entries, one for each lane")
            known = [s for s in seed if s is not None]
            seed = int(np.random.SeedSequence(known).generate_state(1)[0]) if known else None
        if seed is not None:
            self._np_random_seed = seed
        return self.loop.reset(seed).reshape(self.num_envs, -1), {}

    def _check_mask(self, mask: Any) -> None:
        expected = f"expected a NumPy array of {self.num_envs} bools"
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (self.num_envs,):
            raise ConfigError(f"options['reset_mask'] = {mask!r}: {expected}, all True")
        if not mask.all():
            raise ConfigError(
                f"options['reset_mask']: True for {int(mask.sum())} of {self.num_envs} lanes: {expected}, all True, "
                "since lanes of a backend start and end together; gymnasium.vector.SyncVectorEnv has lanes of their own"
            )

    def step(self, actions: FloatArray) -> tuple[FloatArray, FloatArray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One control period; ``actions`` (L, S, A) in [-1, 1]; observations (L, S * D)."""
        return self.ended(*self.loop.step(actions))

    def ended(
        self, table: FloatArray, reward: FloatArray, ended: bool
    ) -> tuple[FloatArray, FloatArray, np.ndarray, np.ndarray, dict[str, Any]]:
        """What `step` returns for what the loop's returned; where the run has ended the next one starts."""
        observation = table.reshape(self.num_envs, -1)
        info: dict[str, Any] = {"terms": self.loop.terms}
        if ended:
            info |= {"final_obs": observation, "_final_obs": self._true.copy()}
            info |= {"final_info": {"terms": self.loop.terms, "_terms": self._true.copy()}}
            info["_final_info"] = self._true.copy()
            observation = self.loop.reset(None).reshape(self.num_envs, -1)
        return observation, reward, self._false.copy(), (self._true if ended else self._false).copy(), info

    def close_extras(self, **kwargs: Any) -> None:
        """Release the backend."""
        self.loop.backend.close()
