"""Configuration of a training run: ``configs/training/NAME.yaml``, validated."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field

from slicepilot.env.simulator.backend import RunSource, ScenarioRuns
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.training.networks.slice_network import NetworkConfig
from slicepilot.training.runs.config import RunSettings

from .references import NUM_REFERENCES

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Ratio = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class PpoConfig:
    """PPO's own settings.

    Attributes:
        rollout_steps: control periods per lane between updates.
        batch_transitions: transitions per gradient step; divides ``num_envs * rollout_steps``.
        epochs: passes over a rollout.
        clip_range: of the likelihood ratio.
        gae_lambda: bias-variance trade-off of the advantages.
        entropy_weight, value_weight: of these terms in the loss.
        max_gradient_norm: gradients are clipped to it.
        target_kl: an update ends early when the policy has moved 1.5 times this far; none = never.
    """

    __pydantic_config__ = _STRICT
    rollout_steps: Count = 32
    batch_transitions: Count = 4096
    epochs: Count = 3
    clip_range: Positive = 0.2
    gae_lambda: Ratio = 0.9
    entropy_weight: NonNegative = 0.0
    value_weight: NonNegative = 0.5
    max_gradient_norm: Positive = 0.5
    target_kl: Positive | None = None


@dataclass(frozen=True)
class SacConfig:
    """SAC's own settings.

    Attributes:
        replay_transitions: size of the replay memory; it is not part of checkpoints and fills anew after a resume.
        warmup_transitions: collected before the first gradient step.
        steps_per_update: vector steps between updates; gradient_steps: of each update.
        batch_transitions: transitions per gradient step.
        target_rate: how fast the target critics follow.
    """

    __pydantic_config__ = _STRICT
    replay_transitions: Count = 200_000
    warmup_transitions: Count = 5_000
    steps_per_update: Count = 1
    gradient_steps: Count = 4
    batch_transitions: Count = 512
    target_rate: Annotated[float, Field(gt=0, le=1)] = 0.01


@dataclass(frozen=True)
class TrainingConfig(RunSettings):
    """One training run, ``configs/training/NAME.yaml``.

    Attributes:
        algorithm: ``ppo`` corrects a rule's decision (`slicepilot.training.networks.guided`), ``sac`` decides on knobs.
        scenario, mixture: source of the runs; exactly one is given. A mixture draws hardware, loads and promises at
            random for every lane (domain randomisation).
        hardware: name or file of the node, instead of that of the scenario or mixture.
        reward: weights of the reward terms.
        total_steps: budget in control periods summed over lanes; minutes: budget in wall-clock time. At least one is
            given; the first to be used up ends the run. Only runs bounded by steps alone are reproducible by seed.
        seed: of network, exploration and environments.
        num_envs: lanes; phase_groups: groups of lanes that end their runs at different times; copies: so many lanes of
            a group each meet the same arrivals and noise, and PPO's advantages are taken against their mean
            (`slicepilot.training.online.advantages`), 1 = none do. ``phase_groups * copies`` divides ``num_envs``.
        gamma: discount per control period; for PPO that of periods of at least a quarter of a second, shorter periods
            have a higher discount (`slicepilot.training.online.advantages.Discount`).
        learning_rate: at the start; falls linearly to ``final_learning_rate`` over the budget.
        broken_over_reference: promises may be broken for this share of the time of the better of two references, the
            rule and a static order by weight (`slicepilot.training.online.objective`), which play the first two
            ``copies``; none: the reward alone counts.
        network: size of the policy.
        checkpoint_minutes: time between checkpoints.
        threads: CPU threads of PyTorch.
        tracking: ``mlflow`` or ``none``.
    """

    __pydantic_config__ = _STRICT
    section = "training"
    free = frozenset({"total_steps", "minutes", "checkpoint_minutes", "threads", "tracking"})
    algorithm: Literal["ppo", "sac"]
    scenario: str | None = None
    mixture: str | None = None
    hardware: str | None = None
    reward: str = "default"
    total_steps: Count | None = None
    minutes: Positive | None = None
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    num_envs: Count = 256
    phase_groups: Count = 4
    copies: Count = 1
    gamma: Annotated[float, Field(ge=0, lt=1)] = 0.95
    learning_rate: Positive = 1e-3
    final_learning_rate: NonNegative = 1e-4
    broken_over_reference: Positive | None = None
    network: NetworkConfig = field(default_factory=NetworkConfig)
    ppo: PpoConfig = field(default_factory=PpoConfig)
    sac: SacConfig = field(default_factory=SacConfig)
    checkpoint_minutes: Positive = 0.5
    threads: Annotated[int, Field(ge=1, le=256)] = 1
    tracking: Literal["mlflow", "none"] = "mlflow"

    @property
    def guided(self) -> bool:
        """Whether actions are corrections of a rule."""
        return self.algorithm == "ppo"

    @property
    def source(self) -> str:
        """Where runs come from, in words."""
        runs = f"scenario {self.scenario}" if self.scenario else f"mixture {self.mixture}"
        return runs if self.hardware is None else f"{runs} on {self.hardware}"

    def trained_scenario(self) -> Scenario:
        """The scenario, on the given hardware; raises ConfigError for an unknown name."""
        scenario = Scenario.from_yaml(str(self.scenario))
        return scenario if self.hardware is None else replace(scenario, hardware=self.hardware)

    def episodes(self) -> RunSource:
        """The runs to train on; raises ConfigError for an unknown name."""
        if self.scenario is not None:
            return ScenarioRuns(self.trained_scenario())
        from slicepilot.env.simulator.mixture import MixtureEpisodes

        return MixtureEpisodes.from_yaml(str(self.mixture), self.hardware)


def _check(config: TrainingConfig) -> TrainingConfig:
    if (config.scenario is None) == (config.mixture is None):
        raise ValueError("expected exactly one of scenario and mixture")
    if config.total_steps is None and config.minutes is None:
        raise ValueError("expected total_steps or minutes, or both")
    if config.num_envs % (config.phase_groups * config.copies):
        raise ValueError(
            f"phase_groups = {config.phase_groups}, copies = {config.copies}: expected their product divides "
            f"num_envs = {config.num_envs}"
        )
    rollout = config.num_envs * config.ppo.rollout_steps
    if config.algorithm == "ppo" and rollout % config.ppo.batch_transitions:
        raise ValueError(
            f"ppo.batch_transitions = {config.ppo.batch_transitions}: expected a divisor of "
            f"num_envs * ppo.rollout_steps = {rollout}"
        )
    if config.broken_over_reference is not None and (config.algorithm != "ppo" or config.copies <= NUM_REFERENCES):
        raise ValueError(
            f"broken_over_reference = {config.broken_over_reference:g} with algorithm = {config.algorithm} and "
            f"copies = {config.copies}: expected ppo and more than {NUM_REFERENCES} copies"
        )
    return config


TrainingConfig.checked = Annotated[TrainingConfig, AfterValidator(_check)]
