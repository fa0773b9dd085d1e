"""Which of a run's policies is kept: the best on other arrivals, and none that is not better than the rule."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from slicepilot.agents.heuristics.queue_greedy import QueueGreedy
from slicepilot.agents.learned.guide import CORRECTIONS, Guide
from slicepilot.env.simulator.backend import ScenarioRuns
from slicepilot.env.simulator.mixture import MixtureEpisodes
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.training.evaluation.rollouts import simulate_rollout
from slicepilot.training.networks.agent import NetworkAgent
from slicepilot.training.networks.guided import GuidedPolicy, network
from slicepilot.training.networks.slice_network import NetworkConfig
from slicepilot.training.online.selection import keep_best

SCENARIO = replace(Scenario.from_yaml("testbed-contention"), duration_s=3.0)


def always(correction: str, value: float) -> GuidedPolicy:
    """A policy that makes the same correction of each slice."""
    torch.manual_seed(1)
    encoder, actor, _, _ = network(NetworkConfig(width=8))
    torch.nn.init.zeros_(actor.out.weight)
    torch.nn.init.zeros_(actor.out.bias)
    with torch.no_grad():
        actor.out.bias[CORRECTIONS.index(correction)] = np.arctanh(value)
    return GuidedPolicy(encoder, actor)


def state(policy: GuidedPolicy) -> dict[str, Any]:
    return copy.deepcopy(policy.state_dict())


def test_the_best_on_other_arrivals_is_kept() -> None:
    # Higher limits where the node is short of CPU: others carry more, and weights still keep the order.
    little, much, harmful = always("cpu_limit", 0.2), always("cpu_limit", 0.5), always("nice", -0.99)
    kept = keep_best(harmful, [(0.3, state(little)), (0.6, state(much))], ScenarioRuns(SCENARIO), seed=5)
    assert (kept.moment, kept.strength) == (0.6, 1.0)
    [over] = kept.over
    assert over.best_effort > 2.0
    assert over.broken <= 1.02
    assert "60%" in str(kept)
    torch.testing.assert_close(harmful.actor.out.bias, much.actor.out.bias)


def test_where_none_is_better_than_the_rule_the_policy_corrects_nothing() -> None:
    policy = always("need", -0.99)
    kept = keep_best(policy, [(0.3, state(always("cpu_limit", -0.9)))], ScenarioRuns(SCENARIO), seed=5)
    assert not kept.over
    assert "as the rule does" in str(kept)
    assert not policy.actor.out.weight.any()
    assert not policy.actor.out.bias.any()


def test_in_a_mixture_what_is_worse_in_most_deployments_is_not_kept() -> None:
    runs = MixtureEpisodes(replace(MixtureEpisodes.from_yaml("node").mixture, steps=64))
    past = [(0.3, state(always("cpu_limit", -0.3))), (0.6, state(always("egress", -0.3)))]
    kept = keep_best(always("nice", -0.3), past, runs, seed=5)
    relations = [over.relation for over in kept.over]
    assert kept.moment == 0.3
    assert relations.count("dominates") >= 3 * relations.count("dominated") > 0
    assert "drawn deployments" in str(kept)
    assert keep_best(always("nice", -0.3), past[1:], runs, seed=5).over == ()


def test_a_policy_of_no_corrections_plays_as_the_rule_does() -> None:
    agents = NetworkAgent(always("need", 0.0), "trained", Guide), QueueGreedy()
    ours, rule = (simulate_rollout(agent, SCENARIO, 2, 3).row("carried_mbps").mean(axis=0) for agent in agents)
    np.testing.assert_allclose(ours, rule, rtol=0.01)
