"""Whether the numbers of episodes are such that a policy could learn from them."""

from __future__ import annotations

import numpy as np

from slicepilot.data.faults import Faults

from .episodes import EpisodeSet

_TOLERANCE = 1e-4  # of float32 on encoded axes


def check_episodes(episodes: EpisodeSet, faults: Faults) -> None:
    """Note ``range`` faults: steps (from 1, counted through all episodes) with observations, actions or rewards that
    are not finite, and encoded values outside of [-1, 1]. That a step has no reward is no fault where something was not
    measured: the episode says so itself."""
    start = 1
    for episode in episodes:
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
        start += len(episode)
