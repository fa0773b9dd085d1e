"""Whether the numbers of episodes are such that a policy could learn from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from slicepilot.data.faults import Faults

from .episodes import Episode, EpisodeSet

_TOLERANCE = 1e-4  # of float32 on encoded axes
_REWARD_TOLERANCE = 1e-3  # relative: terms and rewards are stored as float32


def check_episodes(episodes: EpisodeSet, faults: Faults) -> None:
    """Note ``range`` faults: steps (from 1, counted through all episodes) with observations, actions or rewards that
    are not finite, and encoded values outside of [-1, 1]. That a step has no reward is no fault where something was not
    measured: the episode says so itself. A ``mismatch`` is a reward that the set's weights do not give of the recorded
    terms.
    """
    start = 1
    for episode in filter(len, episodes):
        steps = np.arange(start, start + len(episode))
        flat = {
            "observations": episode.observations[:-1].reshape(len(steps), -1),
            "actions": episode.actions.reshape(len(steps), -1),
        }
        for name, table in flat.items():
            bad = ~(np.abs(table) <= 1.0 + _TOLERANCE).all(axis=1)
            faults.add_many("range", steps[bad], name, left_out=False)
        scored = np.isfinite(episode.rewards)
        if episode.unmeasured is not None:
            scored |= np.isnan(episode.rewards) & episode.unmeasured[1:].any(axis=1)
        faults.add_many("range", steps[~scored], "rewards", left_out=False)
        faults.add_many("mismatch", steps[_misstated(episode, episodes.facts.get("reward"))], "rewards", left_out=False)
        start += len(episode)


def _misstated(episode: Episode, weights: Any) -> npt.NDArray[np.bool_]:
    """Steps (T,) whose reward is finite and not the weighted sum of its terms; none where a term is not recorded."""
    if not isinstance(weights, Mapping) or not weights or any(name not in episode.terms for name in weights):
        return np.zeros(len(episode), np.bool_)
    expected = sum((float(weights[name]) * np.asarray(episode.terms[name], np.float64) for name in weights), 0.0)
    away = np.abs(np.asarray(episode.rewards, np.float64) - expected) > _REWARD_TOLERANCE * (1.0 + np.abs(expected))
    return np.asarray(away & np.isfinite(episode.rewards))
