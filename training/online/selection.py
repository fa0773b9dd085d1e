"""Select the policy of a run: training is noisy, and its last policy need not be better than the rule.

Policies from several moments of training are compared with the rule on the same arrivals, which training has not seen:
those of the run's scenario, or of deployments that its mixture draws.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from slicepilot.agents.heuristics.fixed import no_control
from slicepilot.agents.heuristics.queue_greedy import QueueGreedy
from slicepilot.agents.learned.guide import Guide
from slicepilot.env.arrays import FloatArray
from slicepilot.env.reward import RewardWeights
from slicepilot.env.simulator.backend import RunSource, ScenarioRuns, SimulatorBackend
from slicepilot.training.evaluation.axes import BEST_EFFORT_BETTER, BROKEN_BETTER, CPU_BETTER, Figures, Over
from slicepilot.training.evaluation.rollouts import Rollout, collect_rollout
from slicepilot.training.evaluation.scores import best_effort_loss_pct, broken_s, cpu_wasted_core_s
from slicepilot.training.networks.agent import NetworkAgent
from slicepilot.training.networks.guided import GuidedPolicy

from .references import SideBySide

State = dict[str, Any]
RUNS, DEPLOYMENTS = 12, 48
"""Runs of a scenario; deployments of a mixture, which are played once each."""
MOMENTS = (0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
"""Shares of the budget after which a policy is compared, as is the last policy."""
STRENGTHS = (1.0, 0.5)
"""Factors of each policy's corrections, before their tanh: smaller corrections gain less and break less."""
LEAST_GAIN, MOST_GAIN = 0.1, 4.0
"""Both in units of the threshold "better" of an axis. A policy whose mean gain over all deployments is below the least
counts as equal to the rule. A gain or loss on an axis counts up to the most, so that no axis decides alone."""


class Kept(NamedTuple):
    """A policy that is kept: ``moment`` is the share of the budget after which it was there, ``strength`` that of its
    corrections, ``over`` says how it is beside the rule in each deployment. Where ``over`` is empty, none is better: it
    corrects nothing."""

    moment: float = 0.0
    strength: float = 0.0
    over: tuple[Over, ...] = ()

    def __str__(self) -> str:
        if not self.over:
            return (
                "no policy of this run is better than the rule on other arrivals; the bundle decides as the rule does"
            )
        if len(self.over) == 1:
            [over] = self.over
            compared = (
                f"on other arrivals, it breaks promises for {over.broken:.2f} of the time, carries "
                f"{over.best_effort:+.1f} points of best effort and wastes {over.cpu:.2f} of the CPU"
            )
        else:
            relations = [over.relation for over in self.over]
            compared = (
                f"in {len(relations)} drawn deployments, it is not worse and on an axis better in "
                f"{relations.count('dominates')}, equal in {relations.count('equal')} and worse in "
                f"{relations.count('dominated')}; in the others it is better on an axis and worse on another"
            )
        return (
            f"the policy after {self.moment:.0%} of the run is kept, at {self.strength:.0%} of its strength: beside "
            f"the rule, {compared}"
        )


def keep_best(policy: GuidedPolicy, past: Sequence[tuple[float, State]], runs: RunSource, seed: int) -> Kept:
    """Load the best of some states into a policy, or none of them: corrections of nothing.

    Args:
        policy: gets the state; its own is a candidate as of the end.
        past: moments and states of the same network.
        runs: what was trained for. Runs of a scenario are judged together, each deployment of a mixture alone.
        seed: of arrivals that were not trained on.
    """
    moments = [*past, (1.0, copy.deepcopy(policy.state_dict()))]
    candidates = [(moment, strength, state) for moment, state in moments for strength in STRENGTHS]
    policies = [copy.deepcopy(policy) for _ in candidates]
    for own, (_, strength, state) in zip(policies, candidates, strict=True):
        own.load_state_dict(state)
        _weaken(own, strength)
    agents = SideBySide([no_control(), QueueGreedy(), *(NetworkAgent(own, "trained", Guide) for own in policies)])
    alike = isinstance(runs, ScenarioRuns)
    backend = SimulatorBackend(runs, (RUNS if alike else DEPLOYMENTS) * len(agents.agents), len(agents.agents))
    run = collect_rollout(agents, backend, seed, RewardWeights.from_yaml())
    free, *others = (run.lanes(span) for span in agents.spans)
    if alike:
        rule, *figures = ([_figures(other, free)] for other in others)
    else:
        rule, *figures = (_by_lane(other, free, backend.context.period_s) for other in others)
    best, best_gain = Kept(), LEAST_GAIN * len(rule)
    for (moment, strength, state), own_figures in zip(candidates, figures, strict=True):
        gain = sum(_gain(mine, its) for mine, its in zip(own_figures, rule, strict=True))
        if gain > best_gain:
            over = tuple(mine.over(its) for mine, its in zip(own_figures, rule, strict=True))
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


def _by_lane(run: Rollout, free: Rollout, period_s: FloatArray) -> list[Figures]:
    """Separately for each lane, as lanes have different control periods."""
    return [
        _figures(*(replace(each.lanes(slice(lane, lane + 1)), period_s=float(period_s[lane])) for each in (run, free)))
        for lane in range(run.reward.shape[-1])
    ]


def _gain(mine: Figures, rule: Figures) -> float:
    """Sum over the axes, each in units of its threshold "better".

    Where any axis is worse only losses count: what is won on an axis does not pay for what is lost on another.
    """
    over = mine.over(rule)
    gains = (
        math.log(over.broken) / math.log(BROKEN_BETTER),
        over.best_effort / BEST_EFFORT_BETTER,
        math.log(over.cpu) / math.log(CPU_BETTER),
    )
    most = MOST_GAIN if mine.not_worse(rule) else 0.0
    return sum(min(max(gain, -MOST_GAIN), most) for gain in gains)
