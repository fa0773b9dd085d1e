"""The matrix of an evaluation, scenarios by agents, as tasks of Ray: on this machine's cores or on a cluster.

A task runs an agent on a scenario, with all seeds side by side: the simulator draws the noise of all lanes at once, so
splitting the seeds would change the figures. This way they equal those of a single process, bit for bit. Another task
scores each scenario where its recordings are. Only tasks whose worker dies are repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from slicepilot.agents.base import Agent
from slicepilot.configs import FailureError
from slicepilot.env.reward import RewardWeights
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.training.cluster.session import ray_session

from .comparison import ScenarioResult
from .config import EvaluationConfig
from .judge import judge, runs_of
from .rollouts import Rollout, simulate_rollout

RETRIES = 3
OnRollout = Callable[[str, str], None]
"""Called with scenario and agent name after every rollout."""


def evaluate_on_ray(
    scenarios: Sequence[Scenario],
    agents: Sequence[Sequence[Agent]],
    config: EvaluationConfig,
    subjects: Sequence[Sequence[str]],
    address: str | None = None,
    on_rollout: OnRollout | None = None,
) -> list[ScenarioResult]:
    """The results of `slicepilot.training.evaluation.judge.evaluate_scenario` for each scenario.

    Each has agents and subjects of its own. ``address`` is of a Ray cluster, whose nodes see the same files; None: this
    machine.

    Raises:
        ConfigError: Ray is not installed, no cluster answers.
        FailureError: Ray does not start, or a rollout failed.
    """
    weights = RewardWeights.from_yaml(config.reward)
    with ray_session(address) as ray:
        rollout_task = ray.remote(num_cpus=1, max_retries=RETRIES)(simulate_rollout)
        judge_task = ray.remote(num_cpus=1, max_retries=RETRIES)(_judge)
        names: dict[Any, tuple[str, str]] = {}
        judged = []
        for scenario, own, wanted in zip(scenarios, agents, subjects, strict=True):
            recordings = []
            for agent, played in runs_of(scenario, own):
                recording = rollout_task.remote(agent, played, config.seeds, config.seed, weights)
                names[recording] = (scenario.name, agent.name)
                recordings.append(recording)
            judged.append(judge_task.remote(scenario, own, config, wanted, *recordings))
        try:
            waiting = list(names)
            while waiting:
                [done], waiting = ray.wait(waiting, num_returns=1, fetch_local=False)
                if on_rollout is not None:
                    on_rollout(*names.pop(done))
                del done  # the recording goes when it has been scored
            results: list[ScenarioResult] = ray.get(judged)
        except ray.exceptions.RayError as error:
            [*_, last] = str(error).strip().splitlines() or [type(error).__name__]
            raise FailureError(f"ray: a rollout failed: {last.strip()[:300]}") from error
    return results


def _judge(
    scenario: Scenario,
    agents: Sequence[Agent],
    config: EvaluationConfig,
    subjects: Sequence[str],
    *recordings: Rollout,
) -> ScenarioResult:
    """Ray hands recordings over as they are where they are parameters of their own."""
    return judge(scenario, agents, config, recordings, subjects)
