"""Steps of several episodes in a row keep to their episodes."""

from __future__ import annotations

import numpy as np

from slicepilot.data.episodes.episodes import Episode, EpisodeSet


def episode(first: int, steps: int, *, terminated: bool = False) -> Episode:
    """Observations count on from ``first``."""
    seen = np.arange(first, first + steps + 1, dtype=np.float32)[:, None]
    none = np.zeros((steps, 1), np.float32)
    return Episode(seen, none, np.zeros(steps, np.float32), none, np.zeros(steps), "policy", terminated)


def test_what_follows_is_of_the_same_episode_and_no_step_is_left_out() -> None:
    """Farama-Foundation/D4RL#145: the first observation of the next episode; the last step was dropped.
    tinkoff-ai/CORL#43: so was an episode that no flag ends."""
    moves = EpisodeSet(
        (episode(0, 3), episode(100, 1, terminated=True), episode(200, 0), episode(300, 2))
    ).transitions()
    assert moves.observations[:, 0].tolist() == [0, 1, 2, 100, 300, 301]
    assert moves.next_observations[:, 0].tolist() == [1, 2, 3, 101, 301, 302]
    assert moves.terminated.tolist() == [False, False, False, True, False, False]
    assert moves.episode.tolist() == [0, 0, 0, 1, 2, 2]
