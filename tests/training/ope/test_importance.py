"""Importance sampling against sums written out, on a bandit with a known answer, and where it has to refuse."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import integrate, stats

from slicepilot.agents.heuristics.exploring import STD, ExploringAgent
from slicepilot.agents.heuristics.fixed import FixedAgent, no_control
from slicepilot.agents.heuristics.random import RandomAgent
from slicepilot.data.episodes.episodes import Episode, EpisodeSet
from slicepilot.training.ope.decisions import settings_of
from slicepilot.training.ope.importance import effective, importance, log_ratios, missed_settings, windows_of
from slicepilot.training.ope.logged import Node, watch

Bandit = Callable[[int, int], EpisodeSet]
BANDWIDTH = 0.15


def chosen(episodes: EpisodeSet) -> list[np.ndarray]:
    """What the policy pi(x) = 0.1 + 0.3 x does."""
    return [(0.1 + 0.3 * episode.observations).astype(np.float32) for episode in episodes]


def blurred_value() -> float:
    """Its expected reward once it is blurred by the kernel, cut off at -1 and 1."""

    def given(x: float) -> float:
        centre = 0.1 + 0.3 * x
        ends = (-1 - centre) / BANDWIDTH, (1 - centre) / BANDWIDTH
        found = integrate.quad(
            lambda a: stats.truncnorm.pdf(a, *ends, centre, BANDWIDTH) * (1 - (a - 0.4 * x) ** 2), -1, 1
        )
        return float(found[0])

    return 0.5 * (given(0.0) + given(1.0))


def test_the_bandits_value_is_found(bandit: Bandit) -> None:
    log = bandit(200, 1)
    found = importance(log, chosen(log), bandwidths=[BANDWIDTH])
    assert found.answered
    assert found.value == pytest.approx(blurred_value(), abs=0.02)
    assert found.low < found.value < found.high
    assert found.diagnostics["bandwidth"] == BANDWIDTH
    # What was logged earned less: the policy is better than whoever acted.
    assert found.low > np.mean([episode.rewards.mean() for episode in log]) + 0.1


def test_intervals_hold_the_value_about_as_often_as_they_say(bandit: Bandit) -> None:
    truth, hits, draws = blurred_value(), 0, 100
    for seed in range(draws):
        log = bandit(30, 100 + seed)
        found = importance(log, chosen(log), bandwidths=[BANDWIDTH], resamples=300)
        hits += found.low <= truth <= found.high
    assert 0.86 <= hits / draws <= 1.0


def two_decisions(rng: np.random.Generator) -> Episode:
    """Six decisions on two knobs, each held for three steps; the law is normal with deviation 0.3."""
    made = np.repeat([True, False, False], 6).reshape(3, 6).T.ravel()
    centre, wanted = rng.uniform(-0.5, 0.5, (6, 2)), np.empty((6, 2))
    wanted[:] = centre + 0.3 * rng.standard_normal((6, 2))
    density = stats.norm.logpdf(wanted, centre, 0.3).sum(axis=1)
    held = np.repeat(wanted, 3, axis=0).astype(np.float32)
    return Episode(
        observations=np.zeros((19, 1), np.float32),
        actions=np.clip(held, -1, 1),
        rewards=rng.standard_normal(18).astype(np.float32),
        wanted=held,
        log_density=np.where(made, np.repeat(density, 3), np.nan),
        behaviour="noisy",
        decisions={"held": ~made},
    )


def test_weights_are_those_of_the_formula() -> None:
    rng = np.random.default_rng(3)
    log = EpisodeSet((two_decisions(rng), two_decisions(rng)))
    target = [rng.uniform(-1, 1, (19, 2)).astype(np.float32) for _ in log]
    windows = windows_of(log, target, decisions=2)
    assert len(windows) == 2 * 5
    ratios = np.exp(log_ratios(windows, 0.25))
    row = 0
    for episode, own in zip(log, target, strict=True):
        bounded = bool(np.abs(episode.wanted).max() <= 1)
        each = []
        for step in range(0, 18, 3):
            mass = stats.norm.cdf(1, own[step], 0.25) - stats.norm.cdf(-1, own[step], 0.25) if bounded else np.ones(2)
            kernel = np.prod(stats.norm.pdf(episode.wanted[step], own[step], 0.25) / mass)
            each.append(kernel / np.exp(episode.log_density[step]))
        for first in range(5):
            np.testing.assert_allclose(ratios[row], [each[first], each[first] * each[first + 1]], rtol=1e-5)
            late = [episode.rewards[3 * n + 1 : 3 * n + 3].mean() for n in (first, first + 1)]
            np.testing.assert_allclose(windows.rewards[row], late, rtol=1e-5, atol=1e-6)
            row += 1


def test_what_the_blur_does_to_known_settings_widens_the_interval(record: Any) -> None:
    log = record([no_control(), ExploringAgent(no_control()), RandomAgent()], episodes=4)
    [(setting, reward)] = settings_of(log)
    np.testing.assert_allclose(setting[:, [0, 2]], 1.0)
    assert reward == pytest.approx(np.mean([e.rewards.mean() for e in log.of("no-control")]), rel=1e-5)
    target = watch(no_control(), log.episodes, Node.of(log))
    [missed] = missed_settings(log, [(setting, reward)])
    plain, wide = importance(log, target), importance(log, target, missed=[missed])
    assert plain.value == wide.value
    assert plain.value - reward == pytest.approx(missed)
    assert wide.diagnostics["held_out_error"] == pytest.approx(abs(missed))
    # Of one, Student's law: twelve times what it missed.
    assert wide.high - wide.value > 12 * abs(missed)
    assert wide.low <= reward <= wide.high
    # Nothing was tried around it, so there is nothing to be told.
    assert missed_settings(log.of("no-control", "random"), [(setting, reward)]) == []


def test_a_decision_that_is_held_counts_once() -> None:
    rng = np.random.default_rng(5)
    log = EpisodeSet((two_decisions(rng),))
    windows = windows_of(log, [np.zeros((19, 2), np.float32)], decisions=1)
    assert len(windows) == 6
    assert np.isfinite(windows.log_density).all()


def test_it_refuses_where_too_little_like_the_policy_was_done(bandit: Bandit) -> None:
    """Of actions drawn from [-1, 1], the widest kernel leaves (2 h sqrt(pi)) / 2 = 0.53, of 40 windows 21."""
    log, more = bandit(2, 2), bandit(4, 2)
    few = importance(log, chosen(log))
    assert not few.answered
    assert re.search(r"40 count as much as \d\d\.\d would; 25 are needed", few.refused)
    assert few.diagnostics["effective_windows"] == pytest.approx(21, abs=4)
    assert np.isnan(few.value)
    # Twice as many are enough.
    assert importance(more, chosen(more)).answered


def test_it_refuses_what_was_never_done(bandit: Bandit) -> None:
    """Enough effective windows do not help where none of them lies near the policy."""
    log = bandit(200, 2)
    below = EpisodeSet(
        tuple(
            replace(
                e,
                wanted=(-0.2 - 0.8 * np.abs(e.wanted)).astype(np.float32),
                log_density=np.full(len(e), -np.log(0.8)),
            )
            for e in log
        )
    )
    never = importance(below, [np.full((len(e) + 1, 1), 0.5, np.float32) for e in log])
    assert not never.answered
    assert never.refused.startswith("at most 1% of what the policy would do lies where one of those who acted")
    assert never.refused.endswith("50% are needed")
    assert never.diagnostics["effective_windows"] > 25
    there = importance(below, [np.full((len(e) + 1, 1), -0.6, np.float32) for e in log])
    assert there.answered
    assert there.diagnostics["mean_weight"] == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("lost", [False, True])
def test_what_went_over_a_bound_is_no_draw_of_its_density(lost: bool) -> None:
    """Draws around 0.6 on four axes, written down as they were moved to the ends at 1."""
    rng = np.random.default_rng(0)
    drawn = 0.6 + 0.2 * rng.standard_normal((4000, 4))
    wanted = np.minimum(drawn, 1.0).astype(np.float32)
    density = stats.norm.logpdf(drawn, 0.6, 0.2).sum(axis=1)
    if lost:
        density[(drawn >= 1.0).any(axis=1)] = np.nan
    rewards = 1 - np.square(wanted - 0.2).sum(axis=1)
    parts = np.split(np.arange(4000), 100)
    log = EpisodeSet(
        tuple(
            Episode(np.zeros((41, 1), np.float32), wanted[own], rewards[own], wanted[own], density[own], "noisy")
            for own in parts
        )
    )
    found = importance(log, [np.full((41, 4), 0.8, np.float32)] * 100)
    if not lost:
        assert "decisions weigh 11" in found.refused
        return
    width = found.diagnostics["bandwidth"]
    # Of the kernel around 0.8 that is left which lies below 1.
    assert found.diagnostics["mean_weight"] == pytest.approx(1.0, abs=0.15)
    inside = stats.truncnorm(-1.8 / width, 0.2 / width, 0.8, width)
    assert found.low < 1 - 4 * ((inside.mean() - 0.2) ** 2 + inside.var()) < found.high


def test_a_setting_that_was_explored_is_known_and_others_do_not_disturb(record: Any) -> None:
    """With the explorer's own deviation as bandwidth all its windows weigh the same, and random ones nothing."""
    log = record([ExploringAgent(no_control()), RandomAgent()], episodes=4)
    node = Node.of(log)
    found = importance(log, watch(no_control(), log.episodes, node), bandwidths=[STD])
    assert found.answered
    own = windows_of(log.of("exploring-no-control"), [e.wanted for e in log.of("exploring-no-control")])
    assert found.value == pytest.approx(own.rewards.mean(), rel=1e-4)
    assert found.diagnostics["effective_windows"] == pytest.approx(len(own), rel=1e-3)
    assert found.diagnostics["mean_weight"] == pytest.approx(1.0, abs=1e-3)
    # Nobody explored around this one.
    starved = FixedAgent("starved", [60, np.inf, np.inf, np.inf, np.inf], [19, 0, 0, 0, 0])
    refused = importance(log, watch(starved, log.episodes, node)).refused
    assert "lies where one of those who acted made choices" in refused


def test_it_refuses_without_probabilities_and_on_one_episode(bandit: Bandit) -> None:
    log = bandit(20, 2)
    unknown = EpisodeSet(tuple(_without_density(episode) for episode in log))
    assert "of 400 decisions in the data 0 say that" in importance(unknown, chosen(log)).refused
    many = EpisodeSet((_repeated(log.episodes[0], 40), _without_density(log.episodes[1])))
    assert "of the figure would come from a single episode; at most 50% may" in importance(many, chosen(many)).refused


def _without_density(episode: Episode) -> Episode:
    return Episode(
        episode.observations,
        episode.actions,
        episode.rewards,
        episode.wanted,
        np.full(len(episode), np.nan),
        episode.behaviour,
    )


def _repeated(episode: Episode, times: int) -> Episode:
    actions, rewards = np.concatenate([episode.actions] * times), np.concatenate([episode.rewards] * times)
    density = np.concatenate([episode.log_density] * times)
    seen = np.concatenate([*[episode.observations[:-1]] * times, episode.observations[-1:]])
    return Episode(seen, actions, rewards, actions, density, episode.behaviour)


def test_effective_size() -> None:
    assert effective(np.zeros(7)) == pytest.approx(7)
    assert effective(np.asarray([0.0, -800.0])) == pytest.approx(1)
    assert effective(np.log([1.0, 1.0, 2.0])) == pytest.approx(16 / 6)
