"""What a policy is worth beside the best of those who acted: told apart, or not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from slicepilot.agents.heuristics.fixed import FixedAgent, no_control
from slicepilot.data.episodes.episodes import Episode, EpisodeSet
from slicepilot.data.intervals import Interval
from slicepilot.env.encoding import FEATURES, scaled
from slicepilot.env.simulator.hardware import Hardware
from slicepilot.env.telemetry import SLICE_FIELDS
from slicepilot.training.ope.comparison import rewards_of
from slicepilot.training.ope.estimate import Estimate, refusal
from slicepilot.training.ope.fitted_q import FittedQConfig
from slicepilot.training.ope.logged import Node, arrivals, run_numbers
from slicepilot.training.ope.model_based import IdentifiedModel
from slicepilot.training.ope.worth import Difference, worth_of

QUICK = FittedQConfig(updates=20, regressions=2, members=2)


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
def test_a_difference_is_told_where_both_intervals_leave_no_zero(
    estimate: tuple[float, float, float], best: tuple[float, float, float], said: str
) -> None:
    found = Difference.of(Estimate(*estimate), Interval(*best))
    assert found.value == estimate[0] - best[0]
    assert found.verdict == said


def test_half_widths_add_as_independent_errors() -> None:
    found = Difference.of(Estimate(3.0, 2.6, 3.4), Interval(2.0, 1.7, 2.3))
    assert (found.low, found.high) == (pytest.approx(0.5), pytest.approx(1.5))


def test_the_best_is_whoever_earned_most_among_those_with_as_many_slices(log: EpisodeSet) -> None:
    """One slice alone earns more whatever is set: who had but one is no measure for five."""
    lonely = []
    for episode in log.of("no-control"):
        seen = episode.observations.copy()
        seen[:, 1:, FEATURES.index("active")] = 0.0
        lonely.append(replace(episode, observations=seen, rewards=episode.rewards + 100, behaviour="alone"))
    found = worth_of(no_control(), EpisodeSet((*log.episodes, *lonely), log.facts), None, QUICK)
    rewards = rewards_of(log)
    assert found.best == max(rewards, key=lambda name: rewards[name].value)
    assert found.left_out == ("alone",)
    assert set(found.differences()) <= set(found.judged.estimates)
    silent = replace(found, judged=replace(found.judged, estimates={"fitted Q": refusal("why")}))
    assert silent.differences() == {}
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


def test_estimators_know_that_an_unmeasured_slice_had_traffic(log: EpisodeSet) -> None:
    whole = log.episodes[0]
    episode = lacking(whole, 2, 100)
    assert episode.telemetry is not None
    came = arrivals(episode)
    assert came[100:, 2, FEATURES.index("active")].min() == 1.0
    offered = episode.telemetry[:, 0, 2]
    assert came[100:, 2, FEATURES.index("offered_mbps")] == pytest.approx(scaled("offered_mbps", offered[100:]))
    assert arrivals(whole) is whole.observations


def test_stretches_of_a_run_are_one_run(log: EpisodeSet) -> None:
    """Cut in two where a step has no reward, a run does not become two independent ones."""
    cut = []
    for episode in log.of("no-control"):
        rewards = episode.rewards.copy()
        rewards[150] = np.nan
        cut.extend(replace(lacking(episode, 2, 149), rewards=rewards).unbroken())
    episodes = EpisodeSet(tuple(cut), log.facts)
    assert run_numbers(episodes).tolist() == [0, 0, 1, 1]
    assert run_numbers(log).tolist() == list(range(len(log)))
    found = rewards_of(episodes)["no-control"]
    means = [np.delete(episode.rewards, 150).mean() for episode in log.of("no-control")]
    assert found.value == pytest.approx(np.mean(means), abs=1e-5)


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
    found = IdentifiedModel(EpisodeSet(tuple(odd), log.facts), node, hardware).calibration
    usual = IdentifiedModel(whole, node, hardware).calibration
    assert found is not None
    assert usual is not None
    assert found.error < 5.0
    assert found.intercept == pytest.approx(usual.intercept, abs=1.0)
    none = EpisodeSet(tuple(lacking(episode, 2, 0) for episode in log), log.facts)
    estimate, _ = IdentifiedModel(none, node, hardware).estimate(FixedAgent("open"))
    assert "everything was measured in 0 of" in estimate.refused
