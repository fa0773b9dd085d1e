"""Many nodes at once as a `gymnasium.vector.VectorEnv`, and the loop body that the single environment shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from slicepilot.configs import ConfigError, did_you_mean
from slicepilot.env.arrays import BoolArray, FloatArray, IntArray
from slicepilot.env.backend import Backend, StartsLanesApart, held_at_reset
from slicepilot.env.encoding import Coding, KnobDecoder, PlainCoding
from slicepilot.env.knobs import Knobs
from slicepilot.env.reward import RewardModel, RewardWeights
from slicepilot.env.sliding import SlidingView
from slicepilot.env.telemetry import Telemetry

from .render import RENDERING, Pictures, check_render_mode, render_ansi
from .spaces import Actions, FlatActions, observation_space


class ControlLoop:
    """Decode, apply, observe, score, encode: one control period of a backend's L lanes.

    Attributes hold the last period: ``telemetry`` (views into the backend), ``knobs``, ``terms`` (reward terms (L,)).
    """

    def __init__(
        self,
        backend: Backend,
        weights: RewardWeights,
        coding: type[Coding] = PlainCoding,
        max_steps: int | None = None,
    ) -> None:
        if max_steps is not None and max_steps < 1:
            raise ConfigError(f"max_episode_steps = {max_steps!r}: expected at least 1")
        self.backend, self.weights, self._make_coding, self._max_steps = backend, weights, coding, max_steps
        self.decoder = KnobDecoder(backend.slices)
        self.coding: Coding | None = None
        # Periods since the last reset of all lanes, and after how many of them each lane's run ends.
        self._played, self._first_end = 0, 0
        self._ends = np.zeros(backend.num_lanes, np.int64)
        self.terms: dict[str, FloatArray] = {}

    def started(self, call: str) -> Coding:
        """The run's coding, for ``call``; raises gymnasium's ResetNeeded where there is no run yet."""
        if self.coding is None:
            raise gym.error.ResetNeeded(f"{call} before reset: the environment has no run yet: call reset() first")
        return self.coding

    @property
    def steps_left(self) -> int:
        """Periods until the next lane's run ends."""
        return self._first_end - self._played

    @property
    def over(self) -> BoolArray:
        """Lanes whose run the last period has ended, (L,)."""
        return self._ends <= self._played

    def reset(self, seed: int | Sequence[int | None] | None) -> FloatArray:
        """Start a run in every lane; observations (L, S, D). A seed for each lane is for `StartsLanesApart`."""
        if isinstance(seed, Sequence) and not isinstance(self.backend, StartsLanesApart):
            if len(seed) > 1:
                raise ConfigError(f"seed = a list of {len(seed)}: these lanes start together: expected a number")
            seed = seed[0]
        # The other branch is a backend with a method of a wider signature.
        self.telemetry: Telemetry = self.backend.reset(seed)  # type: ignore[arg-type]
        context = self.backend.context
        self.coding, self._view = self._make_coding(self.backend.slices, context), SlidingView(context)
        self.reward = RewardModel(self.weights, context)
        self.knobs: Knobs = held_at_reset(self.backend)
        self._rows = self.decoder.encode(self.knobs)
        self._run_steps = min(context.num_steps, self._max_steps or context.num_steps)
        self._played, self._first_end = 0, self._run_steps
        self._ends[:] = self._run_steps
        return self.coding.encode(self._view.see(self.telemetry), self._rows)

    def restart(self, lanes: IntArray, seed: Sequence[int | None] | None = None) -> FloatArray:
        """Start a run in the lanes of these numbers while the others go on; observations (L, S, D) of all.

        For `PlainCoding`, which keeps nothing of the periods before, over `StartsLanesApart` in an own-generator run.
        """
        backend = self.backend
        if not isinstance(backend, StartsLanesApart):
            raise TypeError("lanes of this backend start together")
        self.telemetry = backend.restart(lanes, seed)
        none = Knobs.none(len(backend.slices), len(lanes), self.knobs.nice_scope)
        self.knobs, self._rows = self.knobs.copy(), self._rows.copy()
        self.knobs.values[..., lanes], self._rows[..., lanes] = none.values, self.decoder.encode(none)
        self._ends[lanes] = self._played + self._run_steps
        self._first_end = int(self._ends.min())
        seen = self._view.restart(self.telemetry, lanes)
        return self.started("restart").encode(seen, self._rows)

    def step(self, action: FloatArray) -> tuple[FloatArray, FloatArray, bool]:
        """Observations (L, S, D), rewards (L,) and whether a run has ended (in the lanes `over`).

        Raises:
            gymnasium.error.ResetNeeded: before the first `reset`.
            ValueError: an action of the wrong shape, or with an entry that is NaN.
        """
        coding = self.started("step")
        wanted, rows = coding.decode(action)
        self.knobs = self.backend.apply(wanted).applied
        if not self.knobs.same_as(wanted):
            # What holds as it was wanted stays as it is to the last bit, whatever becomes of other lanes.
            rows = np.where(self.knobs.values == wanted.values, rows, self.decoder.encode(self.knobs))
        self.telemetry = self.backend.observe()
        reward, self.terms = self.reward(self.telemetry, self.knobs, rows, self._rows)
        self._rows = rows
        self._played += 1
        return coding.encode(self._view.see(self.telemetry), rows), reward, self._played >= self._first_end


def check_options(options: dict[str, Any] | None, known: tuple[str, ...] = ()) -> None:
    """Raise ConfigError for the first option of a reset that is not known: it would have no effect."""
    for name in options or {}:
        if name not in known:
            raise ConfigError(f"options: unknown {name!r}: {did_you_mean(name, known)}")


def _autoreset_mode(mode: AutoresetMode | str) -> AutoresetMode:
    try:
        return AutoresetMode(mode)
    except ValueError:
        names = ", ".join(known.value for known in AutoresetMode)
        raise ConfigError(f"autoreset_mode = {mode!r}: expected one of {names}") from None


class SliceVectorEnv(VectorEnv[FloatArray, FloatArray, FloatArray]):
    """L environments over a backend of L lanes: what ``gym.make_vec("slicepilot/SliceControl-v0")`` makes.

    In autoreset mode SAME_STEP, the step that ends a lane's run returns the first observation of the lane's next run.
    The last observation of the old run is in ``info["final_obs"]`` (L, S * D) and its info in ``info["final_info"]``,
    each with Gymnasium's mask (``_final_obs``, ``_final_info``). Lanes that have not ended have their present
    observation in ``final_obs``.
    ``info["terms"]`` holds the reward terms, (L,) each. NEXT_STEP, which Gymnasium's wrappers of observations need, and
    DISABLED are as Gymnasium documents them.

    Lanes end together unless some were reset by a ``reset_mask``. That takes lanes with a generator each: with
    ``lane_seeds``, or once `reset` was given a list of seeds.

    A copy (``copy.deepcopy``, pickle) over the simulator goes on as the original would; over a live node it is refused.

    Args:
        backend: of L lanes.
        weights: of the reward's terms, else the default's.
        coding: what policies see and what their actions mean.
        lane_seeds: a seed s means s + i for lane i, as elsewhere in Gymnasium, and lane i plays bit for bit what the
            single environment plays with it. Without lane_seeds all lanes share a generator of the seed.
        render_mode: as `SliceEnv`'s; `render` returns a tuple of L.
        flat_actions: as `SliceEnv`'s.
        max_episode_steps: a run ends after so many periods if its scenario lasts longer.
        autoreset_mode: when lanes that have ended start anew, or its name ("SameStep").

    Raises:
        ConfigError: an unknown render mode, autoreset mode or kind of action; ``max_episode_steps`` below 1.
    """

    def __init__(
        self,
        backend: Backend,
        weights: RewardWeights | None = None,
        coding: type[Coding] = PlainCoding,
        *,
        lane_seeds: bool = False,
        render_mode: str | None = None,
        flat_actions: FlatActions = False,
        max_episode_steps: int | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
    ) -> None:
        check_render_mode(render_mode)
        self.loop = ControlLoop(backend, weights or RewardWeights.from_yaml(), coding, max_episode_steps)
        self._autoreset = _autoreset_mode(autoreset_mode)
        self.metadata = RENDERING | {"autoreset_mode": self._autoreset}
        self.num_envs, self.render_mode = backend.num_lanes, render_mode
        self._actions = Actions(len(backend.slices), coding.actions, flat_actions)
        self._lane_seeds, self._apart = lane_seeds, coding is PlainCoding
        self.single_observation_space = observation_space(len(backend.slices), coding.columns)
        self.single_action_space = self._actions.space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._false = np.zeros(self.num_envs, np.bool_)
        self._due = np.zeros(self.num_envs, np.bool_)  # NEXT_STEP: lanes to start in the next step
        self._true = np.ones(self.num_envs, np.bool_)
        self._true.setflags(write=False)  # it is handed out
        self._pictures = Pictures(backend.slices, self.num_envs) if render_mode else None

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[FloatArray, dict[str, Any]]:
        """Start a run in every lane, or in some.

        Args:
            seed: of all lanes (see ``lane_seeds``), or a list with the seed of each: lane i plays bit for bit what the
                single environment plays with its seed. None goes on with the lane's generator.
            options: none, or Gymnasium's ``reset_mask``, bool (L,): lanes where it is False go on with their runs.

        Raises:
            ConfigError: any other option or mask; a list of seeds that is not as long as there are lanes; a mask that
                is not True everywhere where lanes have no generators of their own.
            gymnasium.error.ResetNeeded: such a mask before the first run.
        """
        check_options(options, ("reset_mask",))
        lanes = self._masked(options["reset_mask"]) if options and "reset_mask" in options else None
        seeds = self._seeds(seed)
        if isinstance(seed, int):
            self._np_random_seed = seed
        self._due[slice(None) if lanes is None else lanes] = False
        if lanes is None:
            return self._started(self.loop.reset(seeds)), {}
        chosen = [seeds[lane] for lane in lanes] if isinstance(seeds, list) else None
        return self._started(self.loop.restart(lanes, chosen), lanes), {}

    def _seeds(self, seed: int | list[int | None] | None) -> int | list[int | None] | None:
        if isinstance(seed, list | tuple):
            if len(seed) != self.num_envs:
                raise ConfigError(f"seed = a list of {len(seed)}: expected {self.num_envs} entries, one for each lane")
            return list(seed)
        if self._lane_seeds:
            return [None if seed is None else seed + lane for lane in range(self.num_envs)]
        return seed

    def _masked(self, mask: Any) -> IntArray | None:
        """Numbers of the lanes that are to start; None where it is all of them."""
        expected = f"expected a NumPy array of {self.num_envs} bools"
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (self.num_envs,):
            raise ConfigError(f"options['reset_mask'] = {mask!r}: {expected}")
        if mask.all():
            return None
        refused = f"options['reset_mask']: True for {int(mask.sum())} of {self.num_envs} lanes: {expected}, "
        backend = self.loop.backend
        if not self._apart or not isinstance(backend, StartsLanesApart) or not backend.own_generators:
            raise ConfigError(
                refused + "all True, since these lanes share a generator; those of gymnasium.make_vec, or of a reset "
                "with a list of seeds, have their own"
            )
        if not mask.any():
            raise ConfigError(refused + "True for at least one")
        self.loop.started("reset_mask")
        return np.flatnonzero(mask)

    def _started(self, table: FloatArray, lanes: IntArray | None = None) -> FloatArray:
        if self._pictures:
            self._pictures.start(self.loop.telemetry, range(self.num_envs) if lanes is None else lanes)
        return table.reshape(self.num_envs, -1)

    def step(self, actions: FloatArray) -> tuple[FloatArray, FloatArray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One control period; ``actions`` (L, S, A) in [-1, 1], or flat; observations (L, S * D)."""
        if self._autoreset is AutoresetMode.NEXT_STEP and self._due.any():
            return self._next_step(actions)
        return self.ended(*self.loop.step(self._actions.table(actions)))

    def _next_step(self, actions: FloatArray) -> tuple[FloatArray, FloatArray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Start the runs that are due, whose actions are ignored and whose reward is 0; the others have a period."""
        due, self._due = self._due, self._false.copy()
        if due.all():
            observation = self._started(self.loop.reset(None))
            return observation, np.zeros(self.num_envs, np.float32), self._false.copy(), self._false.copy(), {}
        _, reward, *_, info = self.ended(*self.loop.step(self._actions.table(actions)))
        self._due &= ~due
        cut = self._due.copy()
        reward[due] = 0
        info["_terms"] = ~due
        lanes = np.flatnonzero(due)
        return self._started(self.loop.restart(lanes), lanes), reward, self._false.copy(), cut, info

    def ended(
        self, table: FloatArray, reward: FloatArray, ended: bool
    ) -> tuple[FloatArray, FloatArray, np.ndarray, np.ndarray, dict[str, Any]]:
        """The result of `step`, from the loop's step; a lane whose run has ended starts its next run."""
        observation = table.reshape(self.num_envs, -1)
        info: dict[str, Any] = {"terms": self.loop.terms, "_terms": self._true}
        if self._pictures:
            self._pictures.add(self.loop.telemetry)
        if not ended:
            return observation, reward, self._false.copy(), self._false.copy(), info
        over = self.loop.over
        if self._autoreset is not AutoresetMode.SAME_STEP:
            self._due = over.copy()
            return observation, reward, self._false.copy(), over, info
        info |= {"final_obs": observation, "_final_obs": over.copy(), "_final_info": over.copy()}
        info["final_info"] = {"terms": self.loop.terms, "_terms": over.copy()}
        lanes = None if over.all() else np.flatnonzero(over)
        table = self.loop.reset(None) if lanes is None else self.loop.restart(lanes)
        return self._started(table, lanes), reward, self._false.copy(), over, info

    def render(self) -> tuple[Any, ...] | None:
        """The present period of every lane as text or as a picture (H, W, 3) uint8; None without a render mode.

        Raises gymnasium.error.ResetNeeded before the first `reset`.
        """
        if self._pictures is None:
            return None
        self.loop.started("render")
        if self.render_mode == "ansi":
            slices, telemetry, knobs = self.loop.backend.slices, self.loop.telemetry, self.loop.knobs
            return tuple(render_ansi(slices, telemetry, knobs, lane) for lane in range(self.num_envs))
        return tuple(self._pictures.picture(lane) for lane in range(self.num_envs))

    def close_extras(self, **kwargs: Any) -> None:
        """Release the backend."""
        if hasattr(self, "loop"):  # or the arguments were refused
            self.loop.backend.close()
