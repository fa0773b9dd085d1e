"""A dataset as tensors to draw batches from: inputs computed once, rewards scaled, held actions merged to single steps.

A control period is short: knobs act on a queue over some ten of them. Where a choice held for several periods, a critic
that learns from single periods mostly sees an action that holds already, and attributes its reward to the state. So a
choice is a single step that lasts as long as it held, up to a bound: rewards are summed, and the next state is that at
its end. That is a semi-Markov decision process (R. Sutton, D. Precup, S. Singh, "Between MDPs and semi-MDPs",
Artificial Intelligence 112, 1999, section 3), with actions as options that persist. A setting that never changes may be
cut anywhere: each of its periods begins such a step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from slicepilot.data.episodes.episodes import Episode, EpisodeSet

from .learner import Batch
from .networks import Networks

CHUNK = 4096  # observations that are prepared at once
LEAST_STD = 1e-6
SAME = 1e-5


@dataclass(frozen=True)
class RewardScale:
    """r -> (r - mean) / std. Shared by all steps, so that it changes no optimal policy."""

    mean: float = 0.0
    std: float = 1.0

    @classmethod
    def of(cls, episodes: EpisodeSet) -> RewardScale:
        """Such that the logged rewards of single periods have mean 0 and standard deviation 1.

        What is learned from are sums over as many periods as a choice held: of ten periods their deviation lies between
        3, if periods had nothing to do with each other, and 10.

        Rewards are not centred where an episode ends in a final state: there a constant would pay for ending sooner or
        later.
        """
        rewards = np.concatenate([episode.rewards for episode in episodes]).astype(np.float64)
        centred = not any(episode.terminated for episode in episodes)
        return cls(float(rewards.mean()) if centred else 0.0, max(float(rewards.std()), LEAST_STD))


@dataclass(frozen=True)
class Memory:
    """N steps of E episodes.

    Attributes:
        inputs: (N + E, ...), every observation as the networks take it.
        at, then: (N,), indices into ``inputs`` of the observations at a step's start and end.
        actions: (N, ...); rewards: (N,), scaled, discounted and summed over the periods that the step lasts.
        discounts: (N,), at its end; 0 where an episode ends in a final state.
        decided: (N,), 0 where ``decisions["held"]`` of the episode says that an earlier choice was held.
        chosen: (N,), the step that is drawn for each: itself, or the step at which its action was chosen.
    """

    inputs: Tensor
    at: Tensor
    then: Tensor
    actions: Tensor
    rewards: Tensor
    discounts: Tensor
    decided: Tensor
    chosen: Tensor

    @classmethod
    def of(
        cls,
        episodes: EpisodeSet,
        networks: Networks,
        discounts: npt.NDArray[np.float32],
        scale: RewardScale,
        periods: int = 1,
    ) -> Memory:
        """From episodes; ``discounts`` (N,) per period, those at the end of episodes that terminate are taken as 0.

        An action that held for several periods is a single step, of at most so many ``periods``.
        """
        parts = [episode for episode in episodes if len(episode)]
        lengths = np.asarray([len(episode) for episode in parts])
        last = np.cumsum(lengths) - 1
        goes_on = np.ones(int(lengths.sum()), np.float32)
        goes_on[last] = [not episode.terminated for episode in parts]
        observations = np.concatenate([episode.observations for episode in parts]).astype(np.float32, copy=False)
        inputs = [networks.prepare(chunk) for chunk in torch.split(torch.from_numpy(observations), CHUNK)]
        rewards = np.concatenate([episode.rewards for episode in parts]).astype(np.float64)
        actions = np.concatenate([episode.actions for episode in parts]).astype(np.float32).clip(-1.0, 1.0)
        decided = np.concatenate([_decided(episode) for episode in parts])
        at = np.arange(len(goes_on)) + np.repeat(np.arange(len(parts)), lengths)
        begins, lasts = _holds(actions, decided, last, periods)
        summed, left = _summed((rewards - scale.mean) / scale.std, discounts * goes_on, lasts)
        steps = np.arange(len(at))
        arrays = {
            "at": at,
            "then": at + lasts,
            "actions": actions,
            "rewards": summed.astype(np.float32),
            "discounts": left.astype(np.float32),
            "decided": decided,
            "chosen": steps if periods == 1 else np.maximum.accumulate(np.where(begins, steps, 0)),
        }
        return cls(torch.cat(inputs), **{name: torch.from_numpy(a).to(networks.device) for name, a in arrays.items()})

    def __len__(self) -> int:
        """Number of steps N."""
        return len(self.at)

    def sample(self, size: int) -> Batch:
        """Steps drawn with replacement, by PyTorch's global generator."""
        chosen = self.chosen[torch.randint(len(self.at), (size,), device=self.at.device)]
        return Batch(
            self.inputs[self.at[chosen]],
            self.actions[chosen],
            self.rewards[chosen],
            self.inputs[self.then[chosen]],
            self.discounts[chosen],
            self.decided[chosen],
        )


def _decided(episode: Episode) -> npt.NDArray[np.float32]:
    held = episode.decisions.get("held")
    return np.ones(len(episode), np.float32) if held is None else 1.0 - np.asarray(held, np.float32)


def _holds(
    actions: npt.NDArray[np.float32], decided: npt.NDArray[np.float32], last: npt.NDArray[np.int64], periods: int
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """Which steps (N,) changed the action, and for how many periods each step's action held from then on; ``last`` (E,)
    are the last steps of episodes."""
    moved = np.abs(np.diff(actions, axis=0)).max(axis=tuple(range(1, actions.ndim)), initial=0.0) > SAME
    moved[last[:-1]] = True
    begins = np.concatenate([[True], moved | (decided[1:] > 0)])
    ends = np.append(np.flatnonzero(moved), len(actions) - 1)  # of stretches with the same action
    steps = np.arange(len(actions))
    return begins, np.minimum(ends[np.searchsorted(ends, steps)] - steps + 1, periods)


def _summed(
    rewards: npt.NDArray[np.float64], discounts: npt.NDArray[np.float32], lasts: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Discounted sums of rewards (N,) over as many periods as each step lasts, and the discount at its end."""
    sums, left = np.zeros(len(rewards)), np.ones(len(rewards))
    for period in range(int(lasts.max())):
        now = np.flatnonzero(lasts > period)
        sums[now] += left[now] * rewards[now + period]
        left[now] *= discounts[now + period]
    return sums, left
