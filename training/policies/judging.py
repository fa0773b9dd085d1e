"""`slicepilot.evaluate`: the command ``slicepilot evaluate`` as a function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from slicepilot.agents.base import Agent
from slicepilot.agents.heuristics.registry import EXPLORING, available, make
from slicepilot.configs import ConfigError, validate
from slicepilot.env.reward import RewardWeights
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.training.evaluation.comparison import ScenarioResult
from slicepilot.training.evaluation.config import EvaluationConfig
from slicepilot.training.evaluation.judge import evaluate_scenario

from .load import load_policy

Policy = Agent | str | Path
Played = Scenario | str | Path


def evaluate(
    policies: Policy | Sequence[Policy],
    scenarios: Played | Sequence[Played] = "andrade-ramp",
    *,
    seeds: int | None = None,
    seed: int | None = None,
    control_period_s: float | None = None,
    config: str = "default",
) -> list[ScenarioResult]:
    """Run policies on the same seeds of the same scenarios in the simulator, and compare them.

    Args:
        policies: agents, names of agents (docs/agents.md), or what `load_policy` takes; their names must differ.
            ``queue-greedy`` among them lets results say how each compares with the rule.
        scenarios: shipped names, YAML files or `Scenario` objects.
        seeds: runs of each policy in each scenario, side by side; None: the configuration's.
        seed: of the simulator, for all of them; None: the configuration's.
        control_period_s: of all scenarios; None: their own.
        config: evaluation configuration, a shipped name or a YAML file.

    Returns:
        A result for each scenario: ``agent(name).scores`` has arrays with a value for each seed
        (`slicepilot.training.evaluation.scores.score` defines them), ``summary(name, figure)`` a mean with its
        interval, ``over(name, "rule")`` the comparison with the rule, ``to_json()`` what the command prints.

    Raises:
        ConfigError: an unknown name, a value out of range, a policy that is made for other slices, two policies of the
            same name.
    """
    given = [policies] if isinstance(policies, Agent | str | Path) else list(policies)
    played = [scenarios] if isinstance(scenarios, Scenario | str | Path) else list(scenarios)
    if not given:
        raise ConfigError("policies = []: expected at least 1")
    chosen = {"seeds": seeds, "seed": seed, "control_period_s": control_period_s}
    values = asdict(EvaluationConfig.from_yaml(config)) | {k: v for k, v in chosen.items() if v is not None}
    settings = validate(EvaluationConfig, values, "evaluate")
    names = (*available(), *available(scaled=True))
    named = {f"{prefix}{name}" for prefix in ("", EXPLORING) for name in names}
    fixed = [policy if isinstance(policy, Agent) or policy in named else load_policy(policy) for policy in given]
    return [_judge(each, fixed, settings) for each in played]


def _judge(played: Played, policies: Sequence[Policy], settings: EvaluationConfig) -> ScenarioResult:
    scenario = played if isinstance(played, Scenario) else Scenario.from_yaml(str(played))
    if settings.control_period_s is not None:
        scenario = replace(scenario, control_period_s=settings.control_period_s)
    slices, node, weights = scenario.slice_set(), scenario.hardware_spec(), RewardWeights.from_yaml(settings.reward)
    made = [policy if isinstance(policy, Agent) else make(str(policy), slices, node, weights) for policy in policies]
    own = [agent.name for agent, policy in zip(made, policies, strict=True) if isinstance(policy, Agent)]
    try:
        return evaluate_scenario(scenario, made, settings, own or [agent.name for agent in made])
    except ValueError as error:
        raise ConfigError(str(error)) from error
