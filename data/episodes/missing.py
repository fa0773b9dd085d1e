"""Missing measurements of episodes, by behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from slicepilot.configs.documents import Document

from .episodes import Episode, EpisodeSet

UNMEASURED_SHARE = "unmeasured_share"
"""Name of the column of `Episode.decisions` with the share of the slices' weight that rewards leave out, (T,)."""


class MissingOfSetting(Document):
    """Missing part of the planned measurements of a behaviour."""

    behaviour: str
    """The setting or agent."""
    episodes: int
    steps: int
    readings: int
    """Control periods times slices with traffic, each of which should have been measured."""
    unmeasured: int
    unmeasured_by_slice: dict[str, float]
    """Share of each slice's readings."""
    unscored_steps: int
    """Control periods without a reward, because too little was measured."""
    reward: float | None
    """Mean reward of the other control periods."""
    reward_at_worst: float | None
    """The same if every promise that was not measured had been broken."""


def missing_of(episodes: EpisodeSet) -> list[MissingOfSetting]:
    """Missing measurements of each behaviour; empty where everything was measured or no episode has marks."""
    result = []
    for name in episodes.behaviours:
        own = [episode for episode in episodes.of(name) if episode.unmeasured is not None and len(episode)]
        if not own:
            continue
        # A step's reward is computed from the measurement at its end.
        lacking = np.concatenate([e.unmeasured[1:] for e in own if e.unmeasured is not None])
        there = lacking | np.concatenate([e.valid[1:] for e in own if e.valid is not None])
        rewards = np.concatenate([episode.rewards for episode in own])
        worst = np.concatenate([at_worst(episode, episodes.facts) for episode in own])
        by_slice = {
            _name(episodes, s): float(lacking[:, s].sum() / count)
            for s, count in enumerate(there.sum(axis=0).tolist())
            if count
        }
        result.append(
            MissingOfSetting(
                behaviour=name,
                episodes=len(own),
                steps=len(lacking),
                readings=int(there.sum()),
                unmeasured=int(lacking.sum()),
                unmeasured_by_slice=by_slice,
                unscored_steps=int((~np.isfinite(rewards)).sum()),
                reward=_mean(rewards),
                reward_at_worst=_mean(worst),
            )
        )
    return result if any(item["unmeasured"] for item in result) else []


def at_worst(episode: Episode, facts: Mapping[str, Any]) -> npt.NDArray[np.float64]:
    """Rewards (T,) with the worst there is for what was not measured: NaN where that is not known, or no reward is.

    ``sla`` is 0 and ``delay`` -1 of a slice whose promise is broken altogether; both are means by weight.
    """
    if episode.unmeasured is None:
        return np.asarray(episode.rewards, np.float64)
    share, weights = episode.decisions.get(UNMEASURED_SHARE), facts.get("reward")
    if share is None or not isinstance(weights, Mapping) or not {"sla", "delay"} <= set(episode.terms):
        return np.full(len(episode), np.nan)
    lost = weights["sla"] * episode.terms["sla"] + weights["delay"] * (1.0 + episode.terms["delay"])
    return np.asarray(episode.rewards - share * lost, np.float64)


def reward_of(episodes: EpisodeSet) -> float | None:
    """Mean reward over the steps with a reward; None without such steps."""
    return _mean(np.concatenate([episode.rewards for episode in episodes]))


def _mean(column: npt.NDArray[Any]) -> float | None:
    known = column[np.isfinite(column)]
    return float(known.mean(dtype=np.float64)) if len(known) else None


def _name(episodes: EpisodeSet, index: int) -> str:
    slices = episodes.facts.get("slices")
    return str(slices[index].get("name")) if isinstance(slices, list) else str(index)
