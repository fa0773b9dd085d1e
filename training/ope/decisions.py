"""Slices' episodes for fitted Q evaluation: a step is a decision, and a state what no decision moves.

Three things make values learnable from a few hundred explored decisions.

- A step is a decision with all control periods that it holds, not a period: reward is the mean over the second half of
  it, when what the decision before has left in the queues is mostly gone.
- A state is what arrives, which comes whoever decides, and the action that held before. Measured delays and losses
  result from the logged policy's actions: with them a critic would learn how good the logged policy's state was. In an
  estimate the policy's own action held before.
- Critics see what an action gives each slice (`critic_inputs`) beside the action, pooled over slices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from slicepilot.configs import ConfigError
from slicepilot.data.episodes.episodes import Episode, EpisodeSet, Floats
from slicepilot.training.networks.slice_network import linear

from .critic_inputs import NUM_INPUTS, Costs, critic_inputs
from .estimate import Array, Estimate
from .fitted_q import FittedQConfig, HeldOut, OnProgress, Steps, evaluate
from .logged import AROUND, HELD, KNOBS, Node, arrivals, decided, fixed_action, run_numbers

DECISION_S = 0.1
"""Of those that hold no decision for several periods."""
CLIP = 4.0


class PooledCritic(nn.Module):
    """Inputs (B, S, 17) to features (B, W): the same layers for each slice; then mean, maximum and weighted sum."""

    centre: Tensor
    scale: Tensor
    share: Tensor

    def __init__(self, centre: Tensor, scale: Tensor, share: Tensor, width: int) -> None:
        super().__init__()
        self.register_buffer("centre", centre)
        self.register_buffer("scale", scale)
        self.register_buffer("share", share)
        self.own = nn.Sequential(linear(NUM_INPUTS, width), nn.ReLU(), linear(width, width), nn.ReLU())
        self.pooled = nn.Sequential(linear(3 * width, width), nn.ReLU())

    def forward(self, inputs: Tensor) -> Tensor:
        """Features; absent slices (the last input is 0) do not count."""
        there = inputs[..., -1:]
        hidden = self.own(((inputs - self.centre) / self.scale).clamp(-CLIP, CLIP)) * there
        weighed = (hidden * self.share).sum(1)
        mean = hidden.sum(1) / there.sum(1).clamp(min=1.0)
        return self.pooled(torch.cat([weighed, mean, hidden.amax(1)], -1))


class TooFewDecisions(ConfigError):
    """No stretch of the episodes has two decisions in a row."""

    def __init__(self, most: int) -> None:
        super().__init__(f"episodes: decisions in a row = {most} at most; expected 2 or more")
        self.most = most


@dataclass(frozen=True)
class Decisions:
    """N decisions that are followed by another.

    Attributes:
        start: row (among T + 1 an episode) in which each was made; ``next_start`` of the next decision.
        settled, next_settled: last row in which they held.
        action, before: (N, S, 3), what held, and what held before; mean over the second half.
        reward: (N,), mean over the second half.
        episode: (N,).
    """

    start: npt.NDArray[np.int64]
    next_start: npt.NDArray[np.int64]
    settled: npt.NDArray[np.int64]
    next_settled: npt.NDArray[np.int64]
    action: Floats
    before: Floats
    reward: Array
    episode: npt.NDArray[np.int64]


def decisions_of(episodes: EpisodeSet, node: Node) -> Decisions:
    """All but each episode's last one. Where an episode holds none, it is cut into stretches as long as others' are.

    Raises:
        TooFewDecisions: no episode has two.
    """
    usual = _usual_periods(episodes, node)
    parts: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in Decisions.__dataclass_fields__}
    first_row = 0
    for number, episode in enumerate(episodes):
        row, edges = first_row, _edges(episode, usual)
        first_row += len(episode) + 1
        if len(edges) < 3:  # no two decisions; cut at a gap, an episode may hold none at all
            continue
        starts, ends = edges[:-1], edges[1:]
        middles = starts + (ends - starts) // 2
        spans = list(zip(middles, ends, strict=True))
        action = np.stack([episode.actions[middle:end].mean(axis=0) for middle, end in spans])
        result = {
            "start": row + starts[:-1],
            "next_start": row + starts[1:],
            "settled": row + ends[:-1],
            "next_settled": row + ends[1:],
            "action": action[:-1],
            "before": np.concatenate([episode.observations[:1, :, KNOBS], action[:-2]]),
            "reward": np.array([episode.rewards[middle:end].mean(dtype=np.float64) for middle, end in spans[:-1]]),
            "episode": np.full(len(starts) - 1, number, np.int64),
        }
        for name, column in result.items():
            parts[name].append(column)
    if not parts["start"]:
        raise TooFewDecisions(max(len(_edges(episode, usual)) - 1 for episode in episodes))
    return Decisions(**{name: np.concatenate(columns) for name, columns in parts.items()})


def _usual_periods(episodes: EpisodeSet, node: Node) -> int:
    """How many periods most decisions hold, of those that hold more than one."""
    lengths = [np.diff(decided(episode)) for episode in episodes if np.any(episode.decisions.get(HELD, False))]
    if not lengths or not sum(map(len, lengths)):
        return max(2, round(DECISION_S / node.period_s))
    return int(np.median(np.concatenate(lengths)))


def _edges(episode: Episode, usual: int) -> npt.NDArray[np.int64]:
    """First periods of decisions, and the end of the last complete one."""
    if np.any(episode.decisions.get(HELD, False)):
        return np.append(decided(episode), len(episode))
    return np.arange(0, len(episode) + 1, min(usual, max(1, len(episode) // 3)))


def fitted_q(
    episodes: EpisodeSet,
    node: Node,
    targets: Mapping[str, Sequence[Floats]],
    config: FittedQConfig | None = None,
    on_progress: OnProgress | None = None,
) -> dict[str, Estimate]:
    """Estimates for several policies.

    Args:
        episodes: what was logged.
        node: of the episodes.
        targets: what each policy would have done, (T + 1, S, 3) an episode, as `slicepilot.training.ope.logged.watch`
            says.
        config: how critics learn.
        on_progress: called now and then.
    """
    config = config or FittedQConfig()
    constant = constant_behaviours(episodes)
    made = decisions_of(episodes, node)
    actions = [np.concatenate(list(target)) for target in targets.values()]
    rows = sum(len(episode) + 1 for episode in episodes)
    actions += [np.broadcast_to(item.action, (rows, *item.action.shape)) for item in constant]
    steps = _steps(episodes, node, made, actions)
    runs = run_numbers(episodes)
    held_out = []
    for number, item in enumerate(constant):
        elsewhere = np.ones(int(runs.max()) + 1)
        np.minimum.at(elsewhere, runs, item.elsewhere)
        held_out.append(HeldOut(len(targets) + number, item.reward, elsewhere))
    result = evaluate(steps, len(targets), _critic_of(steps, node, config), config, held_out, on_progress)
    return dict(zip(targets, result, strict=True))


def _steps(episodes: EpisodeSet, node: Node, made: Decisions, policies: Sequence[Floats]) -> Steps:
    """What critics see of decisions, and of the choices (rows, S, 3) of policies in their place."""
    costs = Costs.of(np.concatenate([episode.observations for episode in episodes]), node)
    observations = np.concatenate([arrivals(episode) for episode in episodes])
    now, then = observations[made.settled], observations[made.next_settled]

    def inputs(seen: Floats, held: Floats, action: Floats) -> Tensor:
        return torch.from_numpy(critic_inputs(seen, held, action, node, costs))

    own = [(policy[made.start], policy[made.next_start]) for policy in policies]
    return Steps(
        logged=inputs(now, made.before, made.action),
        later=torch.stack([inputs(then, made.action, following) for _, following in own]),
        queried=torch.stack([inputs(now, action, action) for action, _ in own]),
        rewards=torch.from_numpy(made.reward).float(),
        terminated=torch.zeros(len(made.reward), dtype=torch.bool),
        episode=torch.from_numpy(run_numbers(episodes)[made.episode]),
    )


def _critic_of(steps: Steps, node: Node, config: FittedQConfig) -> Any:
    centre, scale = steps.logged.mean((0, 1)), steps.logged.std((0, 1)).clamp(min=1e-3)
    weight = node.slices.column("weight")
    share = torch.from_numpy(weight / weight.sum())
    return lambda: PooledCritic(centre, scale, share, config.width)


@dataclass(frozen=True)
class Constant:
    """A behaviour that always did the same: its action, mean reward, and 0 for the episodes (E,) around it."""

    action: npt.NDArray[np.float32]
    reward: float
    elsewhere: Array


def constant_behaviours(episodes: EpisodeSet) -> list[Constant]:
    """All of them. Around a behaviour are those that do nearly the same on average."""
    means = np.stack([episode.actions.mean(axis=0) for episode in episodes])
    result = []
    for behaviour in episodes.behaviours:
        own = [episode for episode in episodes if episode.behaviour == behaviour]
        actions = [fixed_action(episode) for episode in own]
        first = actions[0]
        if first is None or any(other is None or not np.array_equal(other, first) for other in actions):
            continue
        distance = np.sqrt(np.square(means - first).mean(axis=(1, 2)))
        reward = float(np.concatenate([episode.rewards for episode in own]).mean(dtype=np.float64))
        result.append(Constant(first, reward, (distance > AROUND).astype(np.float64)))
    return result
