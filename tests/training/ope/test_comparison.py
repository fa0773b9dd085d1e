"""All estimators together: ranks on a small log, scores against the truth, and what is refused."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from slicepilot.agents.heuristics.fixed import FixedAgent
from slicepilot.agents.heuristics.random import RandomAgent
from slicepilot.agents.heuristics.registry import make
from slicepilot.configs import ConfigError
from slicepilot.data.episodes.episodes import EpisodeSet
from slicepilot.data.intervals import Interval
from slicepilot.env.simulator.hardware import Hardware
from slicepilot.training.ope.comparison import (
    FITTED_Q,
    IMPORTANCE,
    MODEL,
    Comparison,
    Judged,
    compare,
    rank_correlation,
    rewards_of,
)
from slicepilot.training.ope.coverage import Coverage
from slicepilot.training.ope.estimate import Estimate, bootstrap_ratio, episodes_that_count, refusal, widened
from slicepilot.training.ope.fitted_q import FittedQConfig
from slicepilot.training.ope.logged import Node

NODE = Hardware.from_yaml(str(Path(__file__).with_name("steady-node.yaml")))
QUICK = FittedQConfig(updates=300, members=1, batch=96, width=32)


@pytest.fixture(scope="module")
def found(log: EpisodeSet, policies: list[FixedAgent], record: Any) -> Comparison:
    truth = rewards_of(record(policies, episodes=4, seed=70))
    return compare(log, policies, NODE, truth, QUICK)


def test_policies_are_ranked_as_they_really_are(found: Comparison, policies: list[FixedAgent]) -> None:
    true = [policy.truth.value for policy in found.policies if policy.truth is not None]
    assert sorted(true, reverse=True) == true, "the fixture names the best first"
    for name in (MODEL, FITTED_Q):
        score = found.score(name)
        assert score.answered == len(policies)
        assert score.rank is not None
        assert score.rank.value >= 0.8, name
    assert found.score(MODEL).error < 0.3
    assert found.score(FITTED_Q).error < 1.0


def test_what_it_says_can_be_written_down(found: Comparison) -> None:
    document = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert [policy["name"] for policy in document["policies"]] == [policy.name for policy in found.policies]
    assert set(document["scores"]) == {MODEL, FITTED_Q, IMPORTANCE}
    first = document["policies"][0]
    assert set(first["coverage"]["support"]) == {"slice1", "slice2", "slice3", "slice4", "slice5"}
    low, high = first["estimates"][MODEL]["ci95"]
    assert low < first["estimates"][MODEL]["value"] < high


def test_who_cannot_be_asked_about(log: EpisodeSet) -> None:
    slices = Node.of(log).slices
    for agent, why in (
        (RandomAgent(), "draws at random"),
        (make("clairvoyant", slices, NODE), "looks into the simulator's future"),
        (make("static-weights-9", slices, NODE), "counts on CPU requests of its own"),
    ):
        with pytest.raises(ConfigError, match=why):
            compare(log, [agent], NODE, config=QUICK)


def test_episodes_without_telemetry_are_refused_before_critics_learn(log: EpisodeSet) -> None:
    bare = EpisodeSet(tuple(replace(episode, telemetry=None) for episode in log), log.facts)
    told: list[str] = []
    with pytest.raises(ConfigError, match="telemetry = None"):
        compare(bare, [FixedAgent("any")], NODE, config=QUICK, on_step=lambda what, _: told.append(what))
    assert "fitted Q evaluation" not in told


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=3, max_size=12).filter(
        lambda pairs: len({x for x, _ in pairs}) > 1 and len({y for _, y in pairs}) > 1
    )
)
def test_rank_correlation_is_spearmans_with_ties(pairs: list[tuple[int, int]]) -> None:
    said, true = np.asarray(pairs, np.float64).T
    rank = rank_correlation(said, true, resamples=100)
    assert rank is not None
    assert rank.value == pytest.approx(stats.spearmanr(said, true)[0])
    assert rank.low <= rank.high


def test_ranks_of_what_does_not_vary_are_not_known() -> None:
    assert rank_correlation(np.ones(4), np.arange(4.0)) is None


def judged(name: str, value: float, half: float, truth: float | None) -> Judged:
    nothing = Coverage(("a",), np.ones((1, 3)), np.ones((1, 3)), 0.0)
    estimate = Estimate(value, value - half, value + half)
    known = None if truth is None else Interval(truth, truth, truth)
    return Judged(name, {MODEL: estimate, IMPORTANCE: refusal("too little")}, nothing, known)


def test_scores_by_hand() -> None:
    rows = [
        judged("a", 1.0, 0.2, 1.1),
        judged("b", 2.0, 0.2, 2.5),
        judged("c", 3.0, 0.2, 2.9),
        judged("d", 9.0, 1.0, None),
    ]
    score = Comparison(tuple(rows), {}).score(MODEL)
    assert score.answered == 3
    assert score.error == pytest.approx(math.sqrt((0.01 + 0.25 + 0.01) / 3))
    assert score.bias == pytest.approx((-0.1 - 0.5 + 0.1) / 3)
    assert score.covered == pytest.approx(2 / 3)
    assert score.rank is not None
    assert score.rank.value == pytest.approx(1.0)
    refused = Comparison(tuple(rows), {}).score(IMPORTANCE)
    assert refused.answered == 0
    assert refused.to_json() == {"answered": 0}


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


@pytest.mark.parametrize("episodes", [2, 3, 5])
def test_intervals_of_few_episodes_hold_the_truth_as_often_as_they_say(episodes: int) -> None:
    rng, hits, runs = np.random.default_rng(episodes), 0, 400
    for seed in range(runs):
        earned = rng.normal(size=episodes)
        draws = bootstrap_ratio(earned, np.ones(episodes), 300, seed)
        found = widened(float(earned.mean()), draws, episodes, 0.0, 0, {})
        hits += found.low <= 0.0 <= found.high
    assert hits / runs == pytest.approx(0.95, abs=0.035)


def test_of_one_episode_the_samples_error_is_not_known(log: EpisodeSet) -> None:
    assert episodes_that_count([7, 7, 7]) == 3
    assert episodes_that_count([1000, 1, 1]) == 1
    found = widened(5.0, np.full(100, 5.0), 1, 0.1, 3, {})
    assert found.answered
    assert found.to_json()["ci95"] is None
    score = Comparison((Judged("a", {MODEL: found}, judged("a", 0.0, 0.0, 0.0).coverage, Interval(9, 9, 9)),), {})
    assert math.isnan(score.score(MODEL).covered)
    assert score.score(MODEL).to_json()["covered"] is None
    alone = rewards_of(EpisodeSet(log.episodes[:1], log.facts))
    [own] = Comparison((), alone).to_json()["behaviours"].values()
    assert own == {"value": pytest.approx(float(log.episodes[0].rewards.mean())), "ci95": None}
