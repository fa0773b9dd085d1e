"""Episodes in memory: observations, actions and rewards, step by step.

What observations and actions mean is `slicepilot.env.encoding`'s; here they are arrays. An action is what was applied;
what the policy wanted, before bounds, rounding and the guard, is kept beside it, because it is what the policy's
density is about.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Episode:
    """T decisions between T + 1 observations.

    Attributes:
        observations: (T + 1, S, D) tables as the policy sees them, or (T + 1, D) for tasks of other kinds.
        actions: (T, S, 3) as applied, in [-1, 1], or (T, K).
        rewards: (T,), of the period that follows the action.
        wanted: as ``actions``, what the policy wanted; may lie outside of [-1, 1].
        log_density: (T,), natural logarithm of the density of ``wanted`` under the policy. NaN where it is not known,
            as of a policy that does not draw, and where the decision was taken before and is only held.
        behaviour: name of the policy that acted.
        terminated: the last observation is a final state. False where time ran out, as in every run of ours.
        terms: unweighted terms of the reward, (T,) each.
        telemetry: (T + 1, F, S) figures behind the observations, rows as in `slicepilot.env.telemetry.SLICE_FIELDS`;
            node: (T + 1, 2); valid: (T + 1, S). None where they were not kept.
        unmeasured: (T + 1, S), slices that had traffic but of which the measurement lacks something. They are not
            valid, so that observations show them as slices that are not there; readings that are missing are NaN in
            ``telemetry``. They are left out of ``rewards`` and ``terms``, which are NaN where too little is left to
            score a step by. None where what was not measured is not known apart from what was not there.
        decisions: further columns about the decisions, (T,) or (T, S) each, such as mode, level and reasons. ``held``
            (T,) marks steps that repeat the action drawn before. A draw that holds for ten steps was a single choice,
            made at the first step, which has its density; importance weights are products over steps that are not
            held. ``missed_ticks`` (T,) is the number of periods, beyond the first, that the measurement after each
            decision covers.
        info: plain values about the run: scenario, backend, seed, the pods' CPU requests.
    """

    observations: Floats
    actions: Floats
    rewards: Floats
    wanted: Floats
    log_density: npt.NDArray[np.float64]
    behaviour: str
    terminated: bool = False
    terms: Mapping[str, Floats] = field(default_factory=dict)
    telemetry: Floats | None = None
    node: Floats | None = None
    valid: npt.NDArray[np.bool_] | None = None
    unmeasured: npt.NDArray[np.bool_] | None = None
    decisions: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.actions)

    def part(self, first: int, end: int) -> Episode:
        """The decisions ``first`` to ``end`` - 1, as views of the same arrays."""
        steps, seen = slice(first, end), slice(first, end + 1)
        return replace(
            self,
            observations=self.observations[seen],
            actions=self.actions[steps],
            rewards=self.rewards[steps],
            wanted=self.wanted[steps],
            log_density=self.log_density[steps],
            terminated=self.terminated and end == len(self),
            terms={name: column[steps] for name, column in self.terms.items()},
            telemetry=None if self.telemetry is None else self.telemetry[seen],
            node=None if self.node is None else self.node[seen],
            valid=None if self.valid is None else self.valid[seen],
            unmeasured=None if self.unmeasured is None else self.unmeasured[seen],
            decisions={name: column[steps] for name, column in self.decisions.items()},
        )

    def unbroken(self) -> tuple[Episode, ...]:
        """Its stretches of single periods that can be learned from and judged by.

        Left out are decisions whose result was measured after ``missed_ticks``, those that have no reward because too
        little was measured, and those before which nothing was measured of the slices that had traffic.
        """
        unusable: npt.NDArray[np.bool_] = np.asarray(self.decisions.get("missed_ticks", np.zeros(len(self))), np.bool_)
        if self.unmeasured is not None and self.valid is not None:
            blind = np.any(self.unmeasured, axis=1) & ~np.any(self.valid, axis=1)
            unusable = unusable | ~np.isfinite(self.rewards) | blind[:-1]
        if not unusable.any():
            return (self,)
        ends = [*np.flatnonzero(unusable).tolist(), len(self)]
        firsts = [0, *(end + 1 for end in ends[:-1])]
        return tuple(self.part(first, end) for first, end in zip(firsts, ends, strict=True) if first < end)

    def __post_init__(self) -> None:
        """Raises ValueError where lengths do not fit together."""
        steps = len(self.actions)
        lengths = {"rewards": len(self.rewards), "wanted": len(self.wanted), "log_density": len(self.log_density)}
        lengths |= {f"terms.{name}": len(column) for name, column in self.terms.items()}
        lengths |= {f"decisions.{name}": len(column) for name, column in self.decisions.items()}
        after = {"observations": self.observations, "telemetry": self.telemetry, "node": self.node, "valid": self.valid}
        after |= {"unmeasured": self.unmeasured}
        lengths |= {name: len(column) - 1 for name, column in after.items() if column is not None}
        for name, length in lengths.items():
            if length != steps:
                raise ValueError(f"{name}: {length} steps; expected {steps}, as many as actions")


@dataclass(frozen=True)
class Transitions:
    """All steps of several episodes, N in a row.

    Attributes:
        observations, next_observations: (N, ...); actions: (N, ...); rewards: (N,).
        terminated: (N,), next_observations is a final state, whose value is zero. Where an episode merely ran out of
            time it is False: the value of what follows counts.
        episode: (N,), index of the episode.
    """

    observations: Floats
    actions: Floats
    rewards: Floats
    next_observations: Floats
    terminated: npt.NDArray[np.bool_]
    episode: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.actions)


@dataclass(frozen=True)
class EpisodeSet:
    """Episodes with the same slices, encoding and control period.

    Attributes:
        episodes: in the order in which they were recorded.
        facts: plain values (JSON's) that hold for all: ``slices`` (a slice set's specs), ``encoder`` and ``decoder``
            layouts, ``shared_features`` (the same for all slices), names of the rows of ``telemetry``, ``reward``
            (weights), ``period_s``, ``logical_cpus``, ``uplink_mbps``, ``threads``, ``nice_scope``, ``versions``,
            ``created``; see `slicepilot.training.recording.recording.facts_of`.
    """

    episodes: tuple[Episode, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.episodes)

    def __iter__(self) -> Iterator[Episode]:
        return iter(self.episodes)

    @property
    def num_steps(self) -> int:
        """Decisions of all episodes."""
        return sum(map(len, self.episodes))

    @property
    def behaviours(self) -> tuple[str, ...]:
        """Names of the acting policies, in order of first appearance."""
        return tuple(dict.fromkeys(episode.behaviour for episode in self.episodes))

    def of(self, *behaviours: str) -> EpisodeSet:
        return EpisodeSet(tuple(e for e in self.episodes if e.behaviour in behaviours), self.facts)

    def unbroken(self) -> EpisodeSet:
        """The same in stretches that can be learned from and judged by: see `Episode.unbroken`."""
        return EpisodeSet(tuple(part for episode in self.episodes for part in episode.unbroken()), self.facts)

    def transitions(self) -> Transitions:
        """All steps in a row; raises ValueError without any."""
        if not self.num_steps:
            raise ValueError("episodes: no step in any of them; expected at least one")
        parts = [episode for episode in self.episodes if len(episode)]
        lengths = np.asarray([len(episode) for episode in parts], np.int64)
        terminated = np.zeros(self.num_steps, np.bool_)
        terminated[np.cumsum(lengths) - 1] = [episode.terminated for episode in parts]
        return Transitions(
            observations=np.concatenate([episode.observations[:-1] for episode in parts]),
            actions=np.concatenate([episode.actions for episode in parts]),
            rewards=np.concatenate([episode.rewards for episode in parts]),
            next_observations=np.concatenate([episode.observations[1:] for episode in parts]),
            terminated=terminated,
            episode=np.repeat(np.arange(len(parts)), lengths),
        )
