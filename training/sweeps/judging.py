"""Metrics of a finished trial: the estimate of its reward, or its scores in scenarios."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from slicepilot.agents.learned.agent import LearnedAgent

from .config import ESTIMATE, SCORES, SweepConfig

if TYPE_CHECKING:
    from slicepilot.agents.learned.bundle import PolicyBundle


def final_figures(sweep: dict[str, Any], config: dict[str, Any], bundle: PolicyBundle) -> dict[str, float]:
    """Figures beyond those of training, by name; without those that the data cannot say.

    Args:
        sweep: plain values of the sweep's configuration.
        config: the same of the trial's.
        bundle: that the trial has made.

    Raises:
        ConfigError: a scenario or dataset that is not there any more.
    """
    settings = SweepConfig.of(sweep, "sweep")
    if settings.metric == ESTIMATE:
        figures = _estimate(config, bundle)
    elif settings.metric in SCORES:
        figures = _scores(settings, bundle)
    else:
        return {}
    return {key: value for key, value in figures.items() if math.isfinite(value)}


def _estimate(config: dict[str, Any], bundle: PolicyBundle) -> dict[str, float]:
    """The reward per control period that the policy is estimated to earn, and the ends of its interval."""
    from slicepilot.training.offline.config import OfflineConfig
    from slicepilot.training.offline.data import open_dataset, select, with_reward
    from slicepilot.training.ope.comparison import compare
    from slicepilot.training.ope.logged import hardware_of

    offline = OfflineConfig.of(config, "trial")
    episodes = with_reward(select(open_dataset(offline.dataset), offline.behaviours), offline.reward)
    [policy] = compare(episodes, [LearnedAgent(bundle)], hardware_of(episodes)).policies
    own = policy.estimate
    covered = float(policy.coverage.supported)
    return {ESTIMATE: own.value, "estimate_low": own.low, "estimate_high": own.high, "estimate_covered": covered}


def _scores(sweep: SweepConfig, bundle: PolicyBundle) -> dict[str, float]:
    """Means over the scenarios of the scores of `slicepilot evaluate`."""
    from slicepilot.env.simulator.scenario import Scenario
    from slicepilot.training.evaluation.config import EvaluationConfig
    from slicepilot.training.evaluation.judge import evaluate_scenario

    judged_by = sweep.judged_by
    config = EvaluationConfig(judged_by.scenarios, seeds=judged_by.seeds, seed=judged_by.seed)
    agent = LearnedAgent(bundle, transfer=True)
    results = [evaluate_scenario(Scenario.from_yaml(name), [agent], config) for name in judged_by.scenarios]
    return {
        key: math.fsum(result.summary(agent.name, score).value for result in results) / len(results)
        for key, (score, _) in SCORES.items()
    }
