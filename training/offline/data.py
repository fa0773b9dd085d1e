"""Which episodes an offline run learns from, with which rewards, for which slices."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from slicepilot.agents.learned.bundle import decoder_layout
from slicepilot.configs import ConfigError, validate
from slicepilot.data.episodes.checks import check_episodes
from slicepilot.data.episodes.episodes import Episode, EpisodeSet
from slicepilot.data.faults import Faults
from slicepilot.data.recorded import find
from slicepilot.env.encoding import NUM_FEATURES, encoder_layout
from slicepilot.env.reward import RewardWeights
from slicepilot.env.slices import SliceSet
from slicepilot.training.online.advantages import Discount, observed_period_s
from slicepilot.training.recording.reading import read_any_episodes


def read_dataset(name_or_path: str) -> EpisodeSet:
    """A shipped dataset by name, or whatever of a user's holds episodes; raises ConfigError.

    Files of records that are left out are named on standard error.
    """
    return read_any_episodes(find(name_or_path), note=partial(print, file=sys.stderr))


def open_dataset(name_or_path: str) -> EpisodeSet:
    """As `read_dataset`, in stretches that can be learned from; raises ConfigError where `without_faults` does.

    Episodes end where a tick was missed, because the measurement there covers several periods. They also end where so
    little was measured that a step has no reward (`slicepilot.data.episodes.episodes.Episode.unbroken`). Where a single
    slice was not measured, the step's reward is that of the others, and the observation marks the slice as absent.
    """
    return without_faults(read_dataset(name_or_path).unbroken(), name_or_path)


def without_faults(episodes: EpisodeSet, name_or_path: str) -> EpisodeSet:
    """The same episodes; a single NaN or a reward of 1e30 would be in every weight of a network.

    Raises:
        ConfigError: there are faults (`slicepilot.data.episodes.checks.check_episodes`).
    """
    faults = Faults()
    check_episodes(episodes, faults)
    if faults:
        what = "; ".join(faults.describe())
        raise ConfigError(f"dataset = {name_or_path!r}: {what}; `slicepilot dataset validate` shows where")
    return episodes


def select(episodes: EpisodeSet, behaviours: tuple[str, ...]) -> EpisodeSet:
    """The episodes of behaviours whose names match a pattern, without empty episodes.

    Raises:
        ConfigError: a pattern that matches no behaviour, or no step at all.
    """
    known = episodes.behaviours
    for pattern in behaviours:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise ConfigError(f"behaviours = {pattern!r}: expected {', '.join(known)} (* matches any part)")
    wanted = [name for name in known if any(fnmatchcase(name, pattern) for pattern in behaviours)]
    chosen = tuple(episode for episode in episodes.of(*wanted) if len(episode))
    if not chosen:
        raise ConfigError("the dataset has no transitions")
    return EpisodeSet(chosen, episodes.facts)


def with_reward(episodes: EpisodeSet, reward: str | None) -> EpisodeSet:
    """Rewards as other weights give them of the recorded terms; as recorded where these are the weights, or for None.

    Raises:
        ConfigError: unknown weights; other weights where no terms were recorded.
    """
    if reward is None:
        return episodes
    weights = asdict(RewardWeights.from_yaml(reward))
    if weights == episodes.facts.get("reward"):
        return episodes
    return EpisodeSet(tuple(_reweighted(e, weights, reward) for e in episodes), {**episodes.facts, "reward": weights})


def _reweighted(episode: Episode, weights: Mapping[str, float], reward: str) -> Episode:
    missing = [name for name in weights if name not in episode.terms]
    if missing:
        raise ConfigError(
            f"reward = {reward!r}: expected none, because the dataset has no term {missing[0]} to compute another from"
        )
    rewards = sum((weights[name] * episode.terms[name] for name in weights), np.zeros(len(episode)))
    return replace(episode, rewards=np.asarray(rewards, np.float32))


def slices_of(episodes: EpisodeSet) -> SliceSet:
    """The slices of a dataset whose observations and actions have the current encoding.

    Raises:
        ConfigError: no slices, another encoding than this version's, observations of another shape.
    """
    facts = episodes.facts
    for part, own in (("encoder", encoder_layout()), ("decoder", decoder_layout())):
        stored: Any = facts.get(part)
        if not isinstance(stored, Mapping):
            raise ConfigError(f"dataset: {part} = {stored!r}: expected the {part}'s layout")
        for key, value in own.items():
            if stored.get(key) != value:
                raise ConfigError(f"dataset: {part}.{key} = {stored.get(key)!r}: expected {value!r}")
    slices = validate(SliceSet, {"slices": facts.get("slices")}, "dataset")
    for episode in episodes:
        if episode.observations.shape[1:] != (len(slices), NUM_FEATURES):
            shape = episode.observations.shape[1:]
            raise ConfigError(f"dataset: observations of shape {shape}: expected {len(slices), NUM_FEATURES}")
    return slices


def discounts_of(episodes: EpisodeSet, gamma: float) -> npt.NDArray[np.float32]:
    """Discount of every step (N,), by the control period that its observation tells."""
    discount = Discount(gamma)
    parts = [observed_period_s(episode.observations[:-1, None]) for episode in episodes]
    return np.concatenate([discount.per_period(part)[:, 0] for part in parts]).astype(np.float32)
