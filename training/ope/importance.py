"""Weighted importance sampling: what was logged, counted as often as the policy in question would have done it.

D. Precup, R. Sutton, S. Singh, "Eligibility Traces for Off-Policy Policy Evaluation", ICML 2000, section 3, has the
per-decision and the weighted estimator; P. Thomas, "Safe Reinforcement Learning", PhD thesis, University of
Massachusetts, 2015, chapter 3, says when they are good. For windows w of J decisions, with b the density that the one
that acted knows of what it asked for,

    rho_wj = product over i <= j of k_h(a_wi | pi(s_wi)) / b(a_wi),      v_j = sum_w rho_wj r_wj / sum_w rho_wj,

r_wj the mean reward over the second half of decision j, when what the decision before has left in the queues is mostly
gone. The estimate is v_J: of a node that has been under the policy's own knobs.

A policy without a density of its own is given one, k_h, a Gaussian of standard deviation h around what it would do (N.
Kallus, A. Zhou, "Policy Evaluation and Optimization with Continuous Treatments", AISTATS 2018, arXiv:1802.06037). So
the figure is of a blurred policy: h is stated, and it is the smallest of a few with which enough of the sample is left.
Where the one that acted never asked for anything beyond the ends of the axes, the Gaussian is cut off there too.

Under each one that acted the mean of rho is the share of the kernel that lies where its choices do. Whose is below
`MIN_MASS` in the sample is left out: neighbours, however many, are no sample of the policy. It cannot be more than
all of the kernel: above `MAX_MASS` the densities are not of what is written down as asked for, and there is no
estimate. How much is left of the others is Kish's effective sample size (sum rho)^2 / sum rho^2. Below `MIN_EFFECTIVE`
windows, or with more than half of the weight on one episode, there is no estimate.

What the blur does is known for settings that were held throughout episodes: it is the error that widens the interval.

A decision that is held counts once, when it is made. The policy in question is thus one that decides as seldom.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp, ndtr

from slicepilot.data.episodes.episodes import EpisodeSet, Floats
from slicepilot.data.intervals import RESAMPLES

from .estimate import Array, Estimate, bootstrap_ratio, episodes_that_count, refusal, widened
from .logged import decided

BANDWIDTHS = (0.1, 0.15, 0.2, 0.25, 0.3)
MIN_EFFECTIVE = 25.0
MAX_SHARE_OF_ONE = 0.5
MIN_MASS, MAX_MASS = 0.5, 1.5
DECISIONS = 1
"""In a window. Two leave a tenth of the effective sample of one where 15 knobs move at once."""
HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)


@dataclass(frozen=True)
class Windows:
    """W windows of J decisions.

    Attributes:
        wanted, target: (W, J, K), what was asked for and what the policy would have.
        log_density: (W, J), of ``wanted``.
        rewards: (W, J), mean over the second half of each decision.
        bounded: (W,), whether all that was asked for in the episode lies in [-1, 1].
        known: (W,), share of the episode's windows whose densities are known.
        episode: (W,).
    """

    wanted: Array
    target: Array
    log_density: Array
    rewards: Array
    bounded: npt.NDArray[np.bool_]
    known: Array
    episode: npt.NDArray[np.int64]

    def __len__(self) -> int:
        """How many."""
        return len(self.episode)


def windows_of(episodes: EpisodeSet, target: Sequence[Floats], decisions: int = DECISIONS) -> Windows:
    """All runs of so many decisions in a row whose densities are known, also overlapping ones.

    Args:
        episodes: what was logged.
        target: what the policy would have done, (T or more, ...) an episode.
        decisions: J.
    """
    parts = []
    for number, (episode, own) in enumerate(zip(episodes, target, strict=True)):
        made = decided(episode)
        ends = np.append(made[1:], len(episode))
        if not len(made):
            continue
        totals = np.concatenate([[0.0], np.cumsum(episode.rewards, dtype=np.float64)])
        middles = made + (ends - made) // 2
        means = (totals[ends] - totals[middles]) / (ends - middles)
        wanted, theirs = (np.reshape(rows[made], (len(made), -1)).astype(np.float64) for rows in (episode.wanted, own))
        density = np.asarray(episode.log_density[made], np.float64)
        starts = np.arange(len(made) - decisions + 1)
        index = starts[:, None] + np.arange(decisions)
        index = index[np.isfinite(density[index]).all(axis=1)]
        parts.append(
            Windows(
                wanted=wanted[index],
                target=theirs[index],
                log_density=density[index],
                rewards=means[index],
                bounded=np.full(len(index), np.abs(wanted).max() <= 1.0),
                known=np.full(len(index), len(index) / max(len(starts), 1)),
                episode=np.full(len(index), number, np.int64),
            )
        )
    columns = {field.name: [getattr(part, field.name) for part in parts] for field in fields(Windows)}
    return Windows(**{name: np.concatenate(column) for name, column in columns.items()})


def log_kernel(wanted: Array, target: Array, bandwidth: float, bounded: npt.NDArray[np.bool_]) -> Array:
    """Logarithm of k_h(wanted | target): (..., K) to (...).

    ``bounded`` (...) cuts it off at -1 and 1. Elsewhere it has no ends, as Gaussian exploration has none: both are
    densities of what was asked for, of which what lies beyond the ends does what they do.
    """
    centre = np.clip(target, -1.0, 1.0)
    noise = (wanted - centre) / bandwidth
    inside = ndtr((1.0 - centre) / bandwidth) - ndtr((-1.0 - centre) / bandwidth)
    mass = np.where(bounded[..., None], inside, 1.0)
    return np.asarray((-0.5 * noise**2 - np.log(mass) - HALF_LOG_TAU - math.log(bandwidth)).sum(axis=-1))


def log_ratios(windows: Windows, bandwidth: float) -> Array:
    """Logarithms of rho, (W, J)."""
    own = log_kernel(windows.wanted, windows.target, bandwidth, windows.bounded[:, None])
    return np.cumsum(own - windows.log_density, axis=1)


def effective(log_weights: Array) -> float:
    """Kish's effective sample size of weights given by their logarithms."""
    weights = np.exp(log_weights - log_weights.max())
    return float(weights.sum() ** 2 / np.square(weights).sum())


def importance(
    episodes: EpisodeSet,
    target: Sequence[Floats],
    decisions: int = DECISIONS,
    bandwidths: Sequence[float] = BANDWIDTHS,
    resamples: int = RESAMPLES,
    seed: int = 0,
    missed: Sequence[float] = (),
) -> Estimate:
    """The estimate for one policy, or why there is none.

    Args:
        episodes: what was logged.
        target: what the policy would have done, (T or more, ...) an episode, as `slicepilot.training.ope.logged.watch`
            says.
        decisions: in a window.
        bandwidths: of the kernel, smallest first.
        resamples: bootstrap draws of episodes.
        seed: of the draws.
        missed: by how much policies were missed whose reward is known, as `missed_settings` says.
    """
    windows = windows_of(episodes, target, decisions)
    if not len(windows):
        made = sum(len(decided(episode)) for episode in episodes)
        return refusal(
            f"it weighs logged decisions by how likely they were, and of {made:,} decisions in the data 0 say that; "
            "those of agents that draw (random, exploring-NAME) do"
        )
    acted = np.asarray([episode.behaviour for episode in episodes])[windows.episode]
    bandwidth, weights, mass = _narrowest(windows, acted, bandwidths)
    left = effective(weights)
    facts: dict[str, Any] = {"windows": len(windows), "decisions": decisions}
    facts |= {"bandwidth": bandwidth, "effective_windows": left, "mean_weight": mass}
    if mass < MIN_MASS:
        return refusal(
            f"at most {100 * mass:.0f}% of what the policy would do lies where one of those who acted made choices; "
            f"{100 * MIN_MASS:.0f}% are needed",
            facts,
        )
    if mass > MAX_MASS:
        return refusal(
            f"the probabilities in the data are not those of its choices: decisions weigh {mass:.1f} on average, and "
            f"true ones cannot weigh more than 1 (accepted up to {MAX_MASS:g})",
            facts,
        )
    if left < MIN_EFFECTIVE:
        return refusal(
            f"too few logged decisions are like the policy's own: {len(windows):,} count as much as {left:.1f} would; "
            f"{MIN_EFFECTIVE:g} are needed",
            facts,
        )
    share = np.exp(weights - weights.max())
    by_episode = np.bincount(windows.episode, share, len(episodes))
    earned = np.bincount(windows.episode, share * windows.rewards[:, -1], len(episodes))
    largest = float(by_episode.max() / by_episode.sum())
    facts |= {"largest_share_of_an_episode": largest}
    if largest > MAX_SHARE_OF_ONE:
        return refusal(
            f"{100 * largest:.0f}% of the figure would come from a single episode; at most "
            f"{100 * MAX_SHARE_OF_ONE:.0f}% may",
            facts,
        )
    used = by_episode > 0
    draws = bootstrap_ratio(earned[used], by_episode[used], resamples, seed)
    value = float(earned.sum() / by_episode.sum())
    error = float(np.sqrt(np.mean(np.square(missed)))) if missed else 0.0
    facts |= {"held_out_error": error} if missed else {}
    return widened(value, draws, episodes_that_count(by_episode), error, len(missed), facts)


def missed_settings(
    episodes: EpisodeSet,
    settings: Sequence[tuple[Floats, float]],
    on_progress: Callable[[float], None] | None = None,
) -> list[float]:
    """By how much settings (S, 3) are missed whose mean reward is known; only those for which there is an estimate."""
    found: list[float] = []
    if not any(np.isfinite(episode.log_density).any() for episode in episodes):
        return found
    for number, (action, reward) in enumerate(settings):
        if on_progress is not None:
            on_progress(number / len(settings))
        said = importance(episodes, [np.broadcast_to(action, (len(own) + 1, *action.shape)) for own in episodes])
        if said.answered:
            found.append(said.value - reward)
    return found


def _narrowest(
    windows: Windows, acted: npt.NDArray[np.str_], bandwidths: Sequence[float]
) -> tuple[float, Array, float]:
    """The first kernel with which enough is left, else the last one.

    With it logarithms of weights (W,), minus infinity for those left out, and the largest mean weight of anybody.
    """
    found = []
    for bandwidth in bandwidths:
        weights = log_ratios(windows, bandwidth)[:, -1]
        masses = {who: _mean_weight(weights[acted == who], windows.known[acted == who]) for who in np.unique(acted)}
        mass = max(masses.values())
        if mass >= MIN_MASS:
            weights = np.where([masses[who] >= MIN_MASS for who in acted], weights, -np.inf)
        found.append((bandwidth, weights, mass))
        if mass >= MIN_MASS and effective(weights) >= MIN_EFFECTIVE:
            break
    return found[-1]


def _mean_weight(log_weights: Array, known: Array) -> float:
    """Over all windows of episodes with draws: those whose densities are not known count as ones without weight."""
    return float(np.exp(logsumexp(log_weights))) / float((1.0 / known).sum())
