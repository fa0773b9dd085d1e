"""Which of a run's policies is kept: training is noisy, and its last policy need not be better than the rule.

Policies of several moments play the run's scenario beside the rule, on the same arrivals, which training has not seen.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from slicepilot.agents.heuristics.fixed import no_control
from slicepilot.agents.heuristics.queue_greedy import QueueGreedy
from slicepilot.agents.learned.guide import Guide
from slicepilot.env.reward import RewardWeights
from slicepilot.env.simulator.backend import ScenarioRuns, SimulatorBackend
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.training.evaluation.axes import BEST_EFFORT_BETTER, BROKEN_BETTER, CPU_BETTER, Figures, Over
from slicepilot.training.evaluation.rollouts import Rollout, collect_rollout
from slicepilot.training.evaluation.scores import best_effort_loss_pct, broken_s, cpu_wasted_core_s
from slicepilot.training.networks.agent import NetworkAgent
from slicepilot.training.networks.guided import GuidedPolicy

from .references import SideBySide

State = dict[str, Any]
RUNS = 12
MOMENTS = (0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
"""Shares of the budget after which a policy is looked at; that at its end is, too."""
STRENGTHS = (1.0, 0.5)
"""Of each policy's corrections, before their tanh: nearer to the rule less is won, and less broken."""
MOST_GAIN = 4.0
"""A gain on an axis counts up to so many times what is called better there: not one axis for all."""


class Kept(NamedTuple):
    """A policy that is kept: ``moment`` is the share of the budget after which it was there, ``strength`` that of its
    corrections, ``over`` says how it is beside the rule. Without ``over`` none is better: it corrects nothing."""

    moment: float = 0.0
    strength: float = 0.0
    over: Over | None = None

    def __str__(self) -> str:
        if self.over is None:
            return (
                "no policy of this run is better than the rule on other arrivals; the bundle decides as the rule does"
            )
        return (
            f"the policy after {self.moment:.0%} of the run is kept, at {self.strength:.0%} of its strength: beside "
            f"the rule, on other arrivals, it breaks promises for {self.over.broken:.2f} of the time, carries "
            f"{self.over.best_effort:+.1f} points of best effort and wastes {self.over.cpu:.2f} of the CPU"
        )


def keep_best(policy: GuidedPolicy, past: Sequence[tuple[float, State]], scenario: Scenario, seed: int) -> Kept:
    """Load the best of some states into a policy, or none of them: corrections of nothing.

    Args:
        policy: gets the state; its own is a candidate as of the end.
        past: moments and states of the same network.
        scenario: what was trained for.
        seed: of arrivals that were not trained on.
    """
    moments = [*past, (1.0, copy.deepcopy(policy.state_dict()))]
    candidates = [(moment, strength, state) for moment, state in moments for strength in STRENGTHS]
    policies = [copy.deepcopy(policy) for _ in candidates]
    for own, (_, strength, state) in zip(policies, candidates, strict=True):
        own.load_state_dict(state)
        _weaken(own, strength)
    agents = SideBySide([no_control(), QueueGreedy(), *(NetworkAgent(own, "trained", Guide) for own in policies)])
    backend = SimulatorBackend(ScenarioRuns(scenario), RUNS * len(agents.agents), len(agents.agents))
    run = collect_rollout(agents, backend, seed, RewardWeights.from_yaml())
    free, *others = (run.lanes(span) for span in agents.spans)
    rule, *figures = (_figures(other, free) for other in others)
    best, best_gain = Kept(), 0.0
    for (moment, strength, state), figure in zip(candidates, figures, strict=True):
        over = figure.over(rule)
        if figure.not_worse(rule) and (gain := _gain(over)) > best_gain:
            best, best_gain = Kept(moment, strength, over), gain
            policy.load_state_dict(state)
    _weaken(policy, best.strength)
    return best


def _weaken(policy: GuidedPolicy, strength: float) -> None:
    """Multiply all corrections before their tanh; by 0 they are none."""
    with torch.no_grad():
        for parameter in policy.actor.out.parameters():
            parameter.mul_(strength)


def _figures(run: Rollout, free: Rollout) -> Figures:
    """Means over lanes; ``free`` is no control's."""
    figures = broken_s(run), best_effort_loss_pct(run, free), cpu_wasted_core_s(run)
    return Figures.floored(run.period_s * len(run.time_s), *(float(values.mean()) for values in figures))


def _gain(over: Over) -> float:
    """Sum over the axes, each in units of what is called better there."""
    gains = (
        math.log(over.broken) / math.log(BROKEN_BETTER),
        over.best_effort / BEST_EFFORT_BETTER,
        math.log(over.cpu) / math.log(CPU_BETTER),
    )
    return sum(min(gain, MOST_GAIN) for gain in gains)
