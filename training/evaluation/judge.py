"""Score agents on the same seeds of the same scenario."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from slicepilot.agents.base import Agent
from slicepilot.agents.heuristics.fixed import FixedAgent, no_control
from slicepilot.agents.heuristics.planners.clairvoyant import Clairvoyant
from slicepilot.agents.learned.agent import LearnedAgent
from slicepilot.agents.predicting import PredictingAgent
from slicepilot.data.reference import published_settings
from slicepilot.env.reward import RewardWeights
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.env.slices import SliceSet

from .comparison import AgentResult, Role, ScenarioResult
from .config import EvaluationConfig
from .rollouts import Rollout, only_active, simulate_rollout
from .scores import delay_ecdf_us, score

ALL_SLICES = max(setting.active_slices for setting in published_settings())
OnPeriod = Callable[[str, str], None]
"""Called with scenario and agent name after every control period."""


def evaluate_scenario(
    scenario: Scenario,
    agents: Sequence[Agent],
    config: EvaluationConfig,
    subjects: Sequence[str] = (),
    on_period: OnPeriod | None = None,
) -> ScenarioResult:
    """Run all agents on the same seeds and score them; verdicts are of ``subjects``, the most important first.

    Raises:
        ValueError: two agents of the same name, or a subject that is not among the agents.
    """
    names = [a.name for a in agents]
    if len(set(names)) != len(names) or set(subjects) - set(names):
        raise ValueError(
            f"agents: {', '.join(names)}: names must differ and hold every subject ({', '.join(subjects)})"
        )
    weights = RewardWeights.from_yaml(config.reward)

    recordings = []
    for agent, run in runs_of(scenario, agents):
        tick = partial(on_period, scenario.name, agent.name) if on_period else None
        recordings.append(simulate_rollout(agent, run, config.seeds, config.seed, weights, tick))
    return judge(scenario, agents, config, recordings, subjects)


def runs_of(scenario: Scenario, agents: Sequence[Agent]) -> list[tuple[Agent, Scenario]]:
    """Runs of an evaluation: the two references that losses are taken against, then every agent.

    The references are no control with the priority slice alone, and with all slices. A published setting for fewer
    slices runs with as many.
    """
    slices = scenario.slice_set()
    runs: list[tuple[Agent, Scenario]] = [
        (no_control(), only_active(scenario, _first_active(slices, 1))),
        (no_control(), scenario),
    ]
    for agent in agents:
        reference = role_of(agent) == "reference"
        active = _first_active(slices, _active_slices(agent))
        runs.append((agent, only_active(scenario, active) if reference else scenario))
    return runs


def judge(
    scenario: Scenario,
    agents: Sequence[Agent],
    config: EvaluationConfig,
    recordings: Sequence[Rollout],
    subjects: Sequence[str] = (),
) -> ScenarioResult:
    """Score recordings in the order of `runs_of`; other arguments as for `evaluate_scenario`."""
    slices = scenario.slice_set()
    window = config.loss_window_s.get(scenario.name)
    alone, uncontrolled, *own = recordings
    results = []
    for agent, recording in zip(agents, own, strict=True):
        role = role_of(agent)
        results.append(
            AgentResult(
                name=agent.name,
                role=role,
                scores=score(recording, alone, uncontrolled, window),
                ecdf_us=delay_ecdf_us(recording),
                trace=recording.series[..., 0].copy(),
                wall_s=recording.wall_s,
            )
        )
    result = ScenarioResult(
        scenario=scenario.name,
        description=scenario.description,
        slice_names=slices.names,
        priority_index=slices.priority_index,
        weight=_column(slices, "weight"),
        committed_mbps=_column(slices, "sla.committed_mbps"),
        delay_bound_ms=_column(slices, "sla.delay_bound_ms"),
        hardware=scenario.hardware,
        duration_s=scenario.duration_s,
        period_s=scenario.control_period_s,
        seeds=config.seeds,
        seed=config.seed,
        loss_window_s=window,
        resamples=config.resamples,
        level=config.level,
        backend=config.backend,
        agents=tuple(results),
        subjects=tuple(subjects),
    )
    keep = result.featured
    return replace(result, agents=tuple(a if a.name in keep else replace(a, trace=None) for a in result.agents))


def _column(slices: SliceSet, name: str) -> tuple[float, ...]:
    return tuple(float(value) for value in slices.column(name)[:, 0])


def _active_slices(agent: Agent) -> int:
    """Number of slices of a published setting; `ALL_SLICES` for other agents."""
    active = agent.active_slices if isinstance(agent, FixedAgent) else None
    return ALL_SLICES if active is None else active


def role_of(agent: Agent) -> Role:
    """Kind of an agent; a published setting for fewer active slices is a reference."""
    if _active_slices(agent) < ALL_SLICES:
        return "reference"
    if isinstance(agent, (LearnedAgent, PredictingAgent)):
        return "learned"
    if isinstance(agent, FixedAgent):
        return "fixed"
    return "clairvoyant" if isinstance(agent, Clairvoyant) else "adaptive"


def _first_active(slices: SliceSet, count: int) -> tuple[str, ...]:
    """The priority slice and the next slices in order, ``count`` in all."""
    priority = slices.names[slices.priority_index]
    return (priority, *(name for name in slices.names if name != priority))[:count]
