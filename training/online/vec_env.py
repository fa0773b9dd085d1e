"""The simulator's lanes as a Stable-Baselines3 ``VecEnv``, with little work per step in Python."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import VecEnv

from slicepilot.agents.learned.guide import Guide
from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Backend
from slicepilot.env.encoding import Coding, PlainCoding
from slicepilot.env.environments.vector_env import SliceVectorEnv
from slicepilot.env.reward import TERMS, RewardWeights
from slicepilot.env.slices import SliceSet

from .objective import Judge, Objective
from .references import with_references

NO_CONTROL = np.asarray([1.0, 0.0, 1.0], np.float32)  # no CPU limit, nice in the middle, no egress rate
NO_CORRECTION = np.zeros(Guide.actions, np.float32)


@dataclass
class ReturnScaler:
    """Shifts and scales rewards so that returns discounted by ``gamma`` have about mean 0 and standard deviation 1.

    Runs only end by truncation, so subtracting a constant from the reward moves all values alike and changes no policy;
    scaling by the returns' standard deviation is what ``VecNormalize`` does. Moments are exponential averages over
    about ``horizon_steps`` vector steps, so that early behaviour is forgotten.
    """

    gamma: float
    horizon_steps: float = 2000.0
    steps: int = 0
    mean: float = 0.0
    variance: float = 1.0
    _returns: FloatArray = field(default_factory=lambda: np.zeros(0, np.float32), repr=False)

    def __call__(self, reward: FloatArray, ended: np.ndarray) -> FloatArray:
        """Scaled reward (L,) after taking it into account."""
        if self._returns.shape != reward.shape:
            self._returns = np.zeros_like(reward)
        self.steps += 1
        rate = max(1.0 / self.steps, 1.0 / self.horizon_steps)
        self.mean += rate * (float(reward.mean()) - self.mean)
        centred = reward - np.float32(self.mean)
        self._returns *= np.float32(self.gamma)
        self._returns += centred
        self.variance += rate * (float(np.square(self._returns).mean()) - self.variance)
        self._returns[ended] = 0.0
        return np.clip(centred / np.float32(np.sqrt(self.variance) + 1e-4), -10.0, 10.0)

    def state(self) -> dict[str, float]:
        """State for a checkpoint."""
        return {"steps": self.steps, "mean": self.mean, "variance": self.variance}

    def restore(self, state: dict[str, float]) -> None:
        """Continue from `state`."""
        self.steps, self.mean, self.variance = int(state["steps"]), state["mean"], state["variance"]


class _Group(SliceVectorEnv):
    """One backend's lanes; while ``watched``, ``judged`` is what `Judge` says of the last period, (2, L)."""

    watched = False
    judged: FloatArray

    def reset(self, **kwargs: Any) -> tuple[FloatArray, dict[str, Any]]:
        """Start a run in every lane."""
        started = super().reset(**kwargs)
        self._judge = Judge(self.loop.backend.context)
        return started

    def step(self, actions: FloatArray) -> tuple[FloatArray, FloatArray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Step a control period; its measurement is lost where it ends the run."""
        loop = self.loop
        table, reward, ended = loop.step(actions)
        if self.watched:
            self.judged = self._judge(loop.telemetry)
        stepped = self.ended(table, reward, ended)
        if ended:
            self._judge = Judge(loop.backend.context)
        return stepped


class Sb3VecEnv(VecEnv):
    """`SliceVectorEnv`s over one or more backends, combined to a ``VecEnv`` of all their lanes.

    All lanes of a backend end at the same step. With several backends, their first runs are played ahead without
    control (with ``guided``, by the rule) by staggered lengths, so that at any time different groups of lanes are at
    different points of their runs.

    Infos are shared empty dictionaries, except at the end of a run: ``terminal_observation``, ``TimeLimit.truncated``
    and ``episode`` with ``r`` (sum of unscaled rewards), ``l`` (periods) and ``t`` (seconds since creation).

    Args:
        backends: at least one; all with the same slices.
        weights: of the reward terms.
        scaler: rewards are scaled by it if given; episode statistics never are.
        guided: observations have what a rule says, and actions are corrections of it.
        broken_over_reference: broken promises cost what keeps them below this share of the references'
            (`slicepilot.training.online.objective`); none: the reward of ``weights`` alone counts.
        copies: lanes of a backend that are the same deployment.
        seed: each backend's seed is derived from it; ``seed()`` of the base class sets another for the next reset.
    """

    def __init__(
        self,
        backends: Sequence[Backend],
        weights: RewardWeights | None = None,
        scaler: ReturnScaler | None = None,
        seed: int | None = None,
        guided: bool = False,
        broken_over_reference: float | None = None,
        copies: int = 1,
    ) -> None:
        self._idle_action = NO_CORRECTION if guided else NO_CONTROL
        coding: type[Coding] = Guide if guided else PlainCoding
        self.columns = coding.columns
        self.objective: Objective | None = None
        if broken_over_reference is not None:
            coding = with_references(coding, copies)
            self.objective = Objective(broken_over_reference, len(backends), copies)
        self.groups = [_Group(backend, weights, coding) for backend in backends]
        self.scaler = scaler
        first = self.groups[0]
        for group in self.groups:
            group.watched = self.objective is not None
        bounds = np.cumsum([0, *(group.num_envs for group in self.groups)])
        self._spans = [slice(int(a), int(b)) for a, b in itertools.pairwise(bounds)]
        lanes = int(bounds[-1])
        super().__init__(lanes, first.single_observation_space, first.single_action_space)
        self._seed, self._started = seed, time.monotonic()
        self._observation = np.zeros((lanes, len(self.slices) * self.columns), np.float32)
        self._reward, self._return = np.zeros(lanes, np.float32), np.zeros(lanes, np.float32)
        self._axes = np.zeros((3, lanes), np.float32)
        self._length = np.zeros(len(self.groups), np.int64)
        self._done = np.zeros(lanes, np.bool_)
        empty: dict[str, Any] = {}
        self._no_infos: list[dict[str, Any]] = [empty] * lanes
        self._term_sums = dict.fromkeys(TERMS, 0.0)
        self._reward_sum, self._term_steps = 0.0, 0
        self.terminal_observations: list[tuple[slice, FloatArray]] = []

    def reset(self) -> FloatArray:
        """Start a run in every lane; observations (L, S * D)."""
        if self._seeds[0] is not None:
            self._seed = self._seeds[0]
        seeds = np.random.SeedSequence(self._seed).generate_state(len(self.groups))
        for k, (group, span) in enumerate(zip(self.groups, self._spans, strict=True)):
            self._observation[span] = group.reset(seed=int(seeds[k]) if self._seed is not None else None)[0]
            ahead = k * group.loop.steps_left // len(self.groups)
            idle = np.broadcast_to(self._idle_action, (group.num_envs, *(self.action_space.shape or ())))
            for _ in range(ahead):
                self._observation[span] = group.step(idle)[0]
        self._seed = None
        self._reset_seeds()
        self._return[:], self._length[:] = 0, 0
        return self._observation.copy()

    def step_async(self, actions: np.ndarray) -> None:
        """Keep the actions for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> tuple[FloatArray, FloatArray, np.ndarray, list[dict[str, Any]]]:
        """One control period in every lane."""
        infos = self._no_infos
        self._done[:] = False
        self.terminal_observations = []
        for k, (group, span) in enumerate(zip(self.groups, self._spans, strict=True)):
            observation, reward, _, truncated, info = group.step(self._actions[span])
            self._observation[span] = observation
            self._reward[span] = reward
            if self.objective is not None:
                self._axes[:2, span] = group.judged
                self._axes[2, span] = -info["terms"]["cpu_wasted"]
            self._length[k] += 1
            share = group.num_envs / self.num_envs
            for name, value in info["terms"].items():
                self._term_sums[name] += share * float(value.mean())
            if truncated[0]:
                self._done[span] = True
                self.terminal_observations.append((span, info["final_obs"]))
        self._return += self._reward
        self._reward_sum += float(self._reward.mean())
        self._term_steps += 1
        if self.terminal_observations:
            infos = self._end_infos()
        reward = self._reward
        if self.objective is not None:
            reward = reward + self.objective(self._axes[0], self._axes[1], self._axes[2], self._done)
        reward = self.scaler(reward, self._done) if self.scaler else reward.copy()
        return self._observation.copy(), reward, self._done.copy(), infos

    def _end_infos(self) -> list[dict[str, Any]]:
        infos = list(self._no_infos)
        seconds = time.monotonic() - self._started
        for span, final in self.terminal_observations:
            length = int(self._length[self._spans.index(span)])
            for row, lane in enumerate(range(span.start, span.stop)):
                infos[lane] = {
                    "terminal_observation": final[row],
                    "TimeLimit.truncated": True,
                    "episode": {"r": float(self._return[lane]), "l": length, "t": seconds},
                }
            self._return[span] = 0
            self._length[self._spans.index(span)] = 0
        return infos

    def take_means(self) -> dict[str, float]:
        """Mean unscaled reward and mean of each of its terms per period since the last call."""
        steps = max(self._term_steps, 1)
        means = {"reward": self._reward_sum / steps} | {name: v / steps for name, v in self._term_sums.items()}
        self._term_sums = dict.fromkeys(TERMS, 0.0)
        self._reward_sum, self._term_steps = 0.0, 0
        return means

    @property
    def slices(self) -> SliceSet:
        """The slices of the lanes."""
        return self.groups[0].loop.backend.slices

    def close(self) -> None:
        """Release the backends."""
        for group in self.groups:
            group.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """The group's attribute for each requested lane."""
        return [getattr(self._group_of(lane), attr_name) for lane in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Lanes share one object per group: not supported."""
        raise NotImplementedError("lanes share one object: set the attribute on `groups` instead")

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """Lanes share one object per group: not supported."""
        raise NotImplementedError("lanes share one object: call the method on `groups` instead")

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Any = None) -> list[bool]:
        """No lane is wrapped."""
        return [False for _ in self._get_indices(indices)]

    def _group_of(self, lane: int) -> SliceVectorEnv:
        return next(g for g, span in zip(self.groups, self._spans, strict=True) if span.start <= lane < span.stop)
