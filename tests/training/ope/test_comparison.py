"""Estimates of several policies: ranks on a small log, intervals, differences to the best behaviour, refusals."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slicepilot.agents.heuristics.exploring import RandomAgent
from slicepilot.agents.heuristics.fixed import FixedAgent, no_control
from slicepilot.agents.heuristics.registry import make
from slicepilot.configs import ConfigError
from slicepilot.data.episodes.episodes import Episode, EpisodeSet
from slicepilot.data.intervals import Interval
from slicepilot.env.encoding import FEATURES
from slicepilot.env.simulator.hardware import Hardware
from slicepilot.env.telemetry import SLICE_FIELDS
from slicepilot.training.ope.comparison import (
    MODEL,
    Improvement,
    PolicyEstimate,
    compare,
    improvement_over_best,
    mean_rewards,
)
from slicepilot.training.ope.coverage import Coverage
from slicepilot.training.ope.estimate import Estimate, bootstrap_ratio, episodes_that_count, widened
from slicepilot.training.ope.logged import Node, run_numbers
from slicepilot.training.ope.model_based import IdentifiedModel

NODE = Hardware.from_yaml(str(Path(__file__).with_name("steady-node.yaml")))


def test_policies_are_ranked_as_they_really_are(log: EpisodeSet, policies: list[FixedAgent], record: Any) -> None:
    true = [own.value for own in mean_rewards(record(policies, episodes=4, seed=70)).values()]
    assert sorted(true, reverse=True) == true, "the fixture names the best first"
    comparison = compare(log, policies, NODE)
    values = [policy.estimate.value for policy in comparison.policies]
    assert sorted(values, reverse=True) == values
    assert np.sqrt(np.mean(np.square(np.asarray(values) - true))) < 0.3
    document = json.loads(json.dumps(comparison.to_json(), allow_nan=False))
    assert [policy["name"] for policy in document["policies"]] == [policy.name for policy in policies]
    first = document["policies"][0]
    assert set(first["coverage"]["support"]) == {"slice1", "slice2", "slice3", "slice4", "slice5"}
    low, high = first["estimates"][MODEL]["ci95"]
    assert low < first["estimates"][MODEL]["value"] < high


def test_policies_that_cannot_be_estimated(log: EpisodeSet) -> None:
    slices = Node.of(log).slices
    for agent, reason in (
        (RandomAgent(), "draws at random"),
        (make("clairvoyant", slices, NODE), "sees the simulator's future"),
        (make("static-weights-9", slices, NODE), "needs CPU requests of its own"),
    ):
        with pytest.raises(ConfigError, match=reason):
            compare(log, [agent], NODE)


def test_intervals_of_two_errors() -> None:
    draws = np.random.default_rng(1).normal(5, 0.3, 2000)
    sample = widened(5.0, draws, 2000, 0.0, 0, {})
    assert sample.high - sample.value == pytest.approx(1.96 * 0.3, rel=0.05)
    # Of one error, Student's law with a degree of freedom knows next to nothing.
    both = widened(5.0, draws, 2000, 0.4, 1, {})
    assert both.high - both.value == pytest.approx(math.hypot(1.96 * 0.3, 12.706 * 0.4), rel=0.02)
    many = widened(5.0, draws, 2000, 0.4, 1000, {})
    assert many.high - many.value == pytest.approx(1.96 * 0.5, rel=0.05)


def test_bootstrap_draws_whole_episodes() -> None:
    draws = bootstrap_ratio([10.0, 0.0], [5.0, 5.0], resamples=4000, seed=1)
    # Their deviation is that of a mean of two; the episodes drawn as they are have it less by a factor sqrt(2).
    assert set(np.round(draws, 6)) == set(np.round([1 - math.sqrt(2), 1.0, 1 + math.sqrt(2)], 6))
    assert draws.mean() == pytest.approx(1.0, abs=0.05)


def test_of_one_episode_the_samples_error_is_not_known() -> None:
    assert episodes_that_count([7, 7, 7]) == 3
    assert episodes_that_count([1000, 1, 1]) == 1
    estimate = widened(5.0, np.full(100, 5.0), 1, 0.1, 3, {})
    assert estimate.answered
    assert estimate.to_json()["ci95"] is None


@pytest.mark.parametrize(
    ("estimate", "best", "said"),
    [
        ((3.0, 2.6, 3.4), (2.0, 1.7, 2.3), "better"),
        ((3.0, 2.0, 4.0), (2.0, 1.7, 2.3), "cannot be told apart"),
        ((1.0, 0.9, 1.1), (2.0, 1.7, 2.3), "worse"),
        ((9.0, -np.inf, np.inf), (2.0, 1.7, 2.3), "cannot be told apart"),
        ((9.0, 8.9, 9.1), (2.0, -np.inf, np.inf), "cannot be told apart"),
    ],
)
def test_a_difference_is_reported_where_both_intervals_leave_no_zero(
    estimate: tuple[float, float, float], best: tuple[float, float, float], said: str
) -> None:
    policy = PolicyEstimate("policy", Estimate(*estimate), Coverage((), np.empty((0, 3)), 1.0))
    result = Improvement(policy, "best", Interval(*best))
    assert result.difference is not None
    assert result.difference.value == estimate[0] - best[0]
    assert result.verdict == said


def test_the_best_earned_most_among_those_with_as_many_slices(log: EpisodeSet) -> None:
    """One slice alone earns more whatever is set: who had a single slice is no measure for five."""
    lonely = []
    for episode in log.of("no-control"):
        seen = episode.observations.copy()
        seen[:, 1:, FEATURES.index("active")] = 0.0
        lonely.append(replace(episode, observations=seen, rewards=episode.rewards + 100, behaviour="alone"))
    result = improvement_over_best(no_control(), EpisodeSet((*log.episodes, *lonely), log.facts), NODE)
    rewards = mean_rewards(log)
    assert result.best == max(rewards, key=lambda name: rewards[name].value)
    assert result.left_out == ("alone",)
    assert result.difference is not None
    silent = replace(result, policy=replace(result.policy, estimate=Estimate(math.nan, math.nan, math.nan, {}, "why")))
    assert silent.difference is None
    assert silent.to_json()["differences"] == {}
    assert silent.verdict == "cannot be told apart"


def lacking(episode: Episode, slice_index: int, from_step: int) -> Episode:
    """The episode as if a slice had not been measured from a step on."""
    assert episode.telemetry is not None
    seen, telemetry = episode.observations.copy(), episode.telemetry.copy()
    unmeasured = np.zeros(seen.shape[:2], np.bool_)
    unmeasured[from_step:, slice_index] = True
    seen[from_step:, slice_index, FEATURES.index("active")] = 0.0
    seen[from_step:, slice_index, FEATURES.index("offered_mbps")] = 0.0
    telemetry[from_step:, SLICE_FIELDS.index("delay_p99_us"), slice_index] = np.nan
    telemetry[from_step:, SLICE_FIELDS.index("carried_mbps"), slice_index] = np.nan
    marks = {"unmeasured": unmeasured, "valid": ~unmeasured, "info": dict(episode.info)}
    return replace(episode, observations=seen, telemetry=telemetry, **marks)


def test_stretches_of_a_run_are_one_run(log: EpisodeSet) -> None:
    """Cut in two where a step has no reward, a run does not become two independent runs."""
    cut = []
    for episode in log.of("no-control"):
        rewards = episode.rewards.copy()
        rewards[150] = np.nan
        cut.extend(replace(lacking(episode, 2, 149), rewards=rewards).unbroken())
    episodes = EpisodeSet(tuple(cut), log.facts)
    assert run_numbers(episodes).tolist() == [0, 0, 1, 1]
    assert run_numbers(log).tolist() == list(range(len(log)))
    result = mean_rewards(episodes)["no-control"]
    means = [np.delete(episode.rewards, 150).mean() for episode in log.of("no-control")]
    assert result.value == pytest.approx(np.mean(means), abs=1e-5)


def test_the_model_is_held_against_whole_steps_alone(log: EpisodeSet) -> None:
    """Rewards that leave out a slice are not what the model's are of, whatever they say."""
    node, hardware = Node.of(log), Hardware.from_yaml("testbed")
    odd = []
    for episode in log:
        marked = lacking(episode, 2, 200)
        rewards = marked.rewards.copy()
        rewards[199:] += 50.0
        odd.append(replace(marked, rewards=rewards))
    whole = EpisodeSet(tuple(episode.part(0, 199) for episode in log), log.facts)
    result = IdentifiedModel(EpisodeSet(tuple(odd), log.facts), node, hardware).calibration
    usual = IdentifiedModel(whole, node, hardware).calibration
    assert result is not None
    assert usual is not None
    assert result.error < 5.0
    assert result.intercept == pytest.approx(usual.intercept, abs=1.0)
    none = EpisodeSet(tuple(lacking(episode, 2, 0) for episode in log), log.facts)
    estimate, _ = IdentifiedModel(none, node, hardware).estimate(FixedAgent("open"))
    assert "everything was measured in 0 of" in estimate.refused
