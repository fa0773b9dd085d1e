"""Fitted Q evaluation: values of policies by regression on logged decisions of others.

H. Le, C. Voloshin, Y. Yue, "Batch Policy Learning under Constraints", ICML 2019 (arXiv:1903.08738), algorithm 3. For a
policy pi and logged steps (s, a, r, s'), again and again

    Q <- argmin over q of the mean of (q(s, a) - r - gamma Q(s', pi(s')))^2.

Values are kept as (1 - gamma) Q, which has the reward's unit: a mean over the 1 / (1 - gamma) steps to come. A
regression is some steps of Adam from where the last one ended, towards Q at its start. Policies share a network up to
its last layer, which is each policy's own, and learn from the same batches.

What steps, states and actions are is the caller's to say, in inputs of the network (`Steps`);
`slicepilot.training.ope.decisions` says it for slices.

One network for which all episodes count the same gives the figures. Others, each under its own random weights of the
episodes (D. Rubin, "The Bayesian Bootstrap", Annals of Statistics 9(1), 1981), say how much they depend on the sample.
Still others learn without the episodes around policies whose reward is known (`HeldOut`): how far off they are there is
the error on policies unlike all that acted, and widens all intervals. Policies that are left out together count as one
in how well that error is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .estimate import Array, Estimate, episodes_that_count, widened

CHUNK = 256
MAX_FOLDS = 4
OnProgress = Callable[[float], None]
"""Called with the share that is done, 0..1."""


@dataclass(frozen=True)
class FittedQConfig:
    """How critics learn.

    Attributes:
        gamma: discount a step.
        updates: steps of Adam.
        regressions: into which they are divided; what is left of the start is gamma to the power of them.
        batch: logged steps in each update.
        width: neurons of every hidden layer.
        learning_rate: at the start; falls to zero along a cosine.
        weight_decay: of Adam (decoupled).
        members: networks under random weights of the episodes, beside the one for which all count the same.
        seed: of networks, batches and weights.
    """

    gamma: float = 0.5
    updates: int = 1500
    regressions: int = 10
    batch: int = 128
    width: int = 48
    learning_rate: float = 3e-3
    weight_decay: float = 1e-3
    members: int = 4
    seed: int = 0


@dataclass(frozen=True)
class Steps:
    """N logged steps and P policies, as a network's inputs.

    Attributes:
        logged: (N, ...), what was seen and done.
        later: (P, N, ...), the state after the step and what each policy would do there.
        queried: (P, N, ...), the state in which a policy's value is queried, and its action there.
        rewards, terminated, episode: (N,); a value after the end is zero.
    """

    logged: Tensor
    later: Tensor
    queried: Tensor
    rewards: Tensor
    terminated: Tensor
    episode: Tensor


@dataclass(frozen=True)
class HeldOut:
    """A policy whose reward is known: its number, its mean reward, and 0 for the episodes (E,) around it, else 1."""

    policy: int
    reward: float
    elsewhere: Array


def evaluate(
    steps: Steps,
    policies: int,
    make_features: Callable[[], nn.Module],
    config: FittedQConfig,
    held_out: Sequence[HeldOut] = (),
    on_progress: OnProgress | None = None,
) -> list[Estimate]:
    """Estimates for the first so many policies of the steps; the others are those held out."""
    episode = steps.episode.numpy()
    count = max([int(episode.max()) + 1, *(len(item.elsewhere) for item in held_out)])
    folds = [fold for fold in folds_of(held_out) if np.any(_left(held_out, fold)[episode])]
    draws = np.random.default_rng(config.seed).dirichlet(np.ones(count), config.members) * count
    weights = [np.ones(count), *draws, *(_left(held_out, fold) for fold in folds)]
    said = np.empty((len(weights), len(steps.later)))
    for number, own in enumerate(weights):

        def report(share: float, number: int = number) -> None:
            if on_progress is not None:
                on_progress((number + share) / len(weights))

        counted = own[episode]
        said[number] = fit_values(steps, own, make_features, config, config.seed + number, report) @ counted
        said[number] /= counted.sum()
    errors = [
        said[1 + config.members + n, held_out[h].policy] - held_out[h].reward
        for n, fold in enumerate(folds)
        for h in fold
    ]
    facts: dict[str, Any] = {"gamma": config.gamma, "steps": len(steps.rewards), "held_out_policies": len(errors)}
    error = 0.0
    if errors:
        error = float(np.sqrt(np.mean(np.square(errors))))
        facts |= {"held_out_error": error, "held_out_bias": float(np.mean(errors))}
    members = said[1 : 1 + config.members]
    independent = episodes_that_count(np.bincount(episode))
    return [widened(float(said[0, p]), members[:, p], independent, error, len(folds), facts) for p in range(policies)]


def folds_of(held_out: Sequence[HeldOut]) -> list[list[int]]:
    """Which of them to leave out together, by number: those with episodes in common, as long as some are left."""
    folds: list[list[int]] = []
    for number, item in enumerate(held_out):
        near = [f for f in folds if any(np.any((held_out[h].elsewhere + item.elsewhere) == 0) for h in f)]
        if near:
            near[0].append(number)
        else:
            folds.append([number])
    folds = [list(chain.from_iterable(folds[n::MAX_FOLDS])) for n in range(min(MAX_FOLDS, len(folds)))]
    return [fold for fold in folds if np.any(_left(held_out, fold))]


def _left(held_out: Sequence[HeldOut], fold: Sequence[int]) -> Array:
    """1 for the episodes (E,) that remain without a fold."""
    return np.asarray(np.prod([held_out[h].elsewhere for h in fold], axis=0), np.float64)


def fit_values(
    steps: Steps,
    weights: Array,
    make_features: Callable[[], nn.Module],
    config: FittedQConfig,
    seed: int,
    on_progress: OnProgress | None = None,
) -> Array:
    """Values (P, N) in the queried states, in the reward's unit.

    Args:
        steps: what was logged.
        weights: (E,), how much each episode counts; 0 leaves it out.
        make_features: a new network from inputs (B, ...) to features (B, ``config.width``).
        config: how.
        seed: of network and batches.
        on_progress: called now and then.
    """
    rng = np.random.default_rng(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        critic = _Critic(make_features(), config.width, len(steps.later))
    optimiser = torch.optim.AdamW(critic.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)
    share = weights[steps.episode.numpy()]
    share = share / share.sum()
    centre, scale = _moments(steps.rewards, share)
    rewards, after_end = (steps.rewards - centre) / scale, -centre / scale
    wanted = rewards.expand(len(steps.later), -1)
    each = math.ceil(config.updates / config.regressions)
    for update in range(config.updates):
        if update % each == 0:
            if config.gamma > 0:
                later = torch.where(steps.terminated, after_end, critic.of_each(steps.later))
                wanted = (1.0 - config.gamma) * rewards + config.gamma * later
            if on_progress is not None:
                on_progress(update / config.updates)
        optimiser.param_groups[0]["lr"] = config.learning_rate * 0.5 * (1 + math.cos(math.pi * update / config.updates))
        batch = torch.as_tensor(rng.choice(len(share), config.batch, p=share))
        loss = (critic.of_all(steps.logged[batch]) - wanted[:, batch]).square().mean(1).sum()
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
    return np.asarray(critic.of_each(steps.queried).double().numpy() * scale + centre)


class _Critic(nn.Module):
    """Features that all policies share, and a linear layer for each; at first all values are zero."""

    def __init__(self, features: nn.Module, width: int, policies: int) -> None:
        super().__init__()
        self.features = features
        self.weight, self.bias = nn.Parameter(torch.zeros(policies, width)), nn.Parameter(torch.zeros(policies, 1))

    def of_all(self, inputs: Tensor) -> Tensor:
        """What each policy's critic says of the same inputs (B, ...): (P, B)."""
        return self.weight @ self.features(inputs).T + self.bias

    @torch.no_grad()
    def of_each(self, inputs: Tensor) -> Tensor:
        """What it says of its own, (P, N, ...): (P, N)."""
        parts = [
            (self.features(own.flatten(0, 1)).unflatten(0, own.shape[:2]) * self.weight.unsqueeze(1)).sum(-1)
            for own in torch.split(inputs, CHUNK, 1)
        ]
        return torch.cat(parts, 1) + self.bias


def _moments(rewards: Tensor, share: Array) -> tuple[float, float]:
    column = rewards.double().numpy()
    centre = float(share @ column)
    return centre, max(math.sqrt(float(share @ np.square(column - centre))), 1e-6)
