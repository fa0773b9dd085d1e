"""What the data cover, and the words for what they do not."""

import numpy as np
import pytest

from slicepilot.agents.heuristics.fixed import FixedAgent
from slicepilot.data.episodes.episodes import EpisodeSet
from slicepilot.training.ope.coverage import Coverage, LoggedSupport
from slicepilot.training.ope.logged import Node, watch

INF = np.inf


def coverage_of(agent: FixedAgent, log: EpisodeSet) -> Coverage:
    node = Node.of(log)
    support = LoggedSupport(log, node.slices.names, node.period_s)
    own = np.concatenate([episode.observations for episode in log])
    return support.of(watch(agent, log.episodes, node), own)


def test_a_range_that_nobody_tried_is_named(log: EpisodeSet) -> None:
    settings = log.of("no-control", "limited")
    paced = FixedAgent("paced", egress_mbps=[INF, INF, 20, INF, INF])
    result = coverage_of(paced, settings)
    assert not result.supported
    assert [gap[:2] for gap in result.gaps] == [("slice3", "egress")]
    assert result.support[2, 2] == 0.0
    assert result.verdict == "the data cannot say: 0% of its settings of slice3's egress rate are near logged values"
    # Random knobs have been everywhere.
    assert coverage_of(paced, log).support[2, 2] > 0.5


def test_support_depends_on_what_arrives(log: EpisodeSet) -> None:
    """A limit that was only tried while slice4 was silent says nothing about times when it was not."""
    node = Node.of(log)
    base = log.of("no-control").episodes[0]
    silent = base.observations[:-1, 3, 0] < 0.2
    assert 0.2 < silent.mean() < 0.8
    actions = base.actions.copy()
    actions[silent, 0, 0] = 0.0
    mixed = EpisodeSet(
        (type(base)(base.observations, actions, base.rewards, actions, base.log_density, "two-faced"),), log.facts
    )
    target = np.repeat(actions[silent][:1], len(base) + 1, axis=0)
    result = LoggedSupport(mixed, node.slices.names, node.period_s).of([target], base.observations)
    assert silent.mean() - 0.15 < result.support[0, 0] < silent.mean() + 0.15


def test_states_that_nobody_has_seen_are_not_known(log: EpisodeSet) -> None:
    node = Node.of(log)
    support = LoggedSupport(log, node.slices.names, node.period_s)
    target = [episode.actions[[*range(len(episode)), -1]] for episode in log]
    own = np.concatenate([episode.observations for episode in log])
    assert support.of(target, own).states == pytest.approx(1.0, abs=0.05)
    strange = own.copy()
    strange[:, 0, :8] = 1.0  # all figures of the priority slice beyond anything that was measured
    lost = support.of(target, strange)
    assert lost.states == 0.0
    assert lost.verdict.endswith("0% of the states it leads to are like logged states")
