"""Training in the simulator with PPO or SAC.

PPO: Schulman et al. 2017, arXiv:1707.06347. SAC: Haarnoja et al. 2018, arXiv:1812.05905.

`train` reads top to bottom: environments, learner, then Stable-Baselines3's loop with a callback that watches the
budget, reports progress and writes checkpoints; at the end the policy is exported, checked and saved as a bundle.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger

from slicepilot.agents.learned.bundle import PolicyBundle
from slicepilot.configs import ConfigError
from slicepilot.env.arrays import FloatArray
from slicepilot.env.reward import RewardWeights
from slicepilot.env.simulator.backend import SimulatorBackend
from slicepilot.training.networks.averaging import PolicyAverage
from slicepilot.training.networks.export import check_agreement, to_onnx
from slicepilot.training.networks.guided import GuidedPolicy
from slicepilot.training.networks.importing import load_weights
from slicepilot.training.runs.checkpoint import FILE_NAME, Checkpoint, generator_states, restore_generators
from slicepilot.training.runs.datasets import TRAINING, RunDataset, mixture_dataset, scenario_dataset
from slicepilot.training.runs.labels import RunLabels
from slicepilot.training.runs.record import RunRecord
from slicepilot.training.runs.run import Budget, open_record, plain_config, recorded, save_bundle, training_record

from .advantages import AdvantageBuffer, Discount
from .config import TrainingConfig
from .policy import PpoPolicy, SacPolicy
from .references import NUM_REFERENCES
from .selection import MOMENTS, keep_best
from .vec_env import ReturnScaler, Sb3VecEnv

Optimiser = PPO | SAC

REPORT_S = 0.2
UNBOUNDED = 2**62
RECORDED_OBSERVATIONS = 1000


@dataclass
class Progress:
    """Progress of a run.

    ``fraction`` of the budget used, 0..1; ``return_mean`` over the last finished runs, none before the first;
    ``reward`` per control period in the last rollout, unscaled, and its ``terms``. ``save`` writes a checkpoint now.
    """

    steps: int
    elapsed_s: float
    fraction: float
    reward: float
    terms: dict[str, float]
    return_mean: float | None
    save: Callable[[], None] = field(default=lambda: None, repr=False, compare=False)


@dataclass(frozen=True)
class TrainingResult:
    """Result of a run: the bundle's folder, and figures for tables."""

    bundle: PolicyBundle
    folder: Path
    run_id: str | None
    steps: int
    elapsed_s: float
    env_steps_per_s: float
    reward: float
    return_mean: float | None
    curve: list[dict[str, float]] = field(default_factory=list, repr=False)


def make_env(config: TrainingConfig, seed: int | None = None, scale: bool = True) -> Sb3VecEnv:
    """The environments of a run."""
    lanes = config.num_envs // config.phase_groups
    episodes = config.episodes()
    backends = [SimulatorBackend(episodes, lanes, config.copies) for _ in range(config.phase_groups)]
    scaler = ReturnScaler(config.gamma) if scale else None
    seed = config.seed if seed is None else seed
    weights = RewardWeights.from_yaml(config.reward)
    return Sb3VecEnv(backends, weights, scaler, seed, config.guided, config.broken_over_reference, config.copies)


def make_learner(config: TrainingConfig, env: Sb3VecEnv, budget: Budget) -> Optimiser:
    """Stable-Baselines3's algorithm with this project's policy; the learning rate falls with the budget."""
    learner: Optimiser | None = None

    def rate(_: float) -> float:
        used = 0.0 if learner is None else budget.fraction(learner.num_timesteps)
        return config.learning_rate + used * (config.final_learning_rate - config.learning_rate)

    common: dict[str, Any] = {
        "learning_rate": rate,
        "gamma": config.gamma,
        "policy_kwargs": {"network": config.network},
        "seed": config.seed,
        "device": "cpu",
    }
    if config.algorithm == "ppo":
        ppo = config.ppo
        learner = PPO(
            PpoPolicy,
            env,
            n_steps=ppo.rollout_steps,
            batch_size=ppo.batch_transitions,
            n_epochs=ppo.epochs,
            clip_range=ppo.clip_range,
            gae_lambda=ppo.gae_lambda,
            ent_coef=ppo.entropy_weight,
            vf_coef=ppo.value_weight,
            max_grad_norm=ppo.max_gradient_norm,
            target_kl=ppo.target_kl,
            rollout_buffer_class=AdvantageBuffer,
            rollout_buffer_kwargs={
                "discount": Discount(config.gamma),
                "groups": config.phase_groups,
                "copies": config.copies,
                "references": NUM_REFERENCES if config.broken_over_reference is not None else 0,
            },
            **common,
        )
    else:
        sac = config.sac
        learner = SAC(
            SacPolicy,
            env,
            buffer_size=sac.replay_transitions,
            learning_starts=sac.warmup_transitions,
            train_freq=sac.steps_per_update,
            gradient_steps=sac.gradient_steps,
            batch_size=sac.batch_transitions,
            tau=sac.target_rate,
            **common,
        )
    learner.set_logger(Logger(folder=None, output_formats=[]))
    return learner


def _optimizers(learner: Optimiser) -> dict[str, torch.optim.Optimizer]:
    if isinstance(learner, PPO):
        return {"policy": learner.policy.optimizer}
    result: dict[str, Any] = {"actor": learner.actor.optimizer, "critic": learner.critic.optimizer}
    if learner.ent_coef_optimizer is not None:
        result["temperature"] = learner.ent_coef_optimizer
    return result


class _Monitor(BaseCallback):
    """Watches the budget, reports, tracks curves, writes checkpoints between updates."""

    def __init__(
        self,
        config: TrainingConfig,
        budget: Budget,
        env: Sb3VecEnv,
        average: PolicyAverage[Any],
        checkpoint: Path,
        record: RunRecord,
        report: Callable[[Progress], None] | None,
    ) -> None:
        super().__init__()
        self.config, self.budget, self.env, self.checkpoint = config, budget, env, checkpoint
        self.average = average
        self.record, self.report = record, report
        self.curve: list[dict[str, float]] = []
        self.progress = Progress(0, 0.0, 0.0, float("nan"), {}, None)
        self.moments, self.past = list(MOMENTS), list[tuple[float, dict[str, Any]]]()
        self.due_s = budget.elapsed_s + 60.0 * config.checkpoint_minutes
        self.reported_s = -REPORT_S
        self.rollout_steps = 1 if config.algorithm == "ppo" else 25

    def _on_training_start(self) -> None:
        """Time counts from here: the first reset, in which kernels are compiled, is over."""
        self.budget.start()

    def _on_step(self) -> bool:
        """Stop only at the first step of a rollout, so that every whole rollout is learned from."""
        return self.budget.fraction(self.num_timesteps) < 1.0 or (self.n_calls - 1) % self._chunk != 0

    @property
    def _chunk(self) -> int:
        return self.config.ppo.rollout_steps if self.config.algorithm == "ppo" else 1

    def _on_rollout_start(self) -> None:
        if isinstance(self.model.policy, PpoPolicy):
            self.model.policy.set_progress(self.budget.fraction(self.num_timesteps))
        if self.n_calls == 0:
            return
        self.average.update()
        self._remember()
        elapsed_s = self.budget.elapsed_s
        if self.n_calls % self.rollout_steps == 0 and elapsed_s - self.reported_s >= REPORT_S:
            self.sum_up(elapsed_s)
        if elapsed_s >= self.due_s:
            self.due_s = elapsed_s + 60.0 * self.config.checkpoint_minutes
            self.save()

    def _on_training_end(self) -> None:
        self.average.update()

    def _remember(self) -> None:
        """Copy the policy at each of `MOMENTS`."""
        fraction = self.budget.fraction(self.num_timesteps)
        if self.moments and fraction >= self.moments[0]:
            self.moments = [moment for moment in self.moments if moment > fraction]  # a resumed run has passed some
            self.past.append((fraction, copy.deepcopy(self.average.policy.state_dict())))

    def sum_up(self, elapsed_s: float) -> None:
        """Means since the last call: to the curve, the tracker and the report."""
        self.reported_s = elapsed_s
        means = self.env.take_means()
        returns = [float(run["r"]) for run in self.model.ep_info_buffer or ()]
        reward = means.pop("reward")
        if self.env.objective is not None:
            means |= {"broken_over_reference": self.env.objective.over, "multiplier": self.env.objective.multiplier}
        self.progress = Progress(
            self.num_timesteps,
            elapsed_s,
            self.budget.fraction(self.num_timesteps),
            reward,
            means,
            float(np.mean(returns)) if returns else None,
            self.save,
        )
        point = {"reward": reward} | {f"terms/{name}": value for name, value in means.items()}
        if returns:
            point["return_mean"] = float(np.mean(returns))
        logged: dict[str, Any] = self.model.logger.name_to_value
        point |= {name: float(value) for name, value in logged.items() if name.startswith("train/")}
        point["env_steps_per_s"] = self.num_timesteps / max(elapsed_s, 1e-9)
        self.curve.append({"steps": float(self.num_timesteps), "elapsed_s": elapsed_s} | point)
        self.record.metrics(point, self.num_timesteps)
        if self.report is not None:
            self.report(self.progress)

    def save(self) -> None:
        """Write a checkpoint; raises ConfigError if that fails."""
        learner: Any = self.model
        temperature = getattr(learner, "log_ent_coef", None)
        Checkpoint(
            config=plain_config(self.config),
            steps=self.num_timesteps,
            updates=learner._n_updates,
            elapsed_s=self.budget.elapsed_s,
            run_id=self.record.run_id,
            policy=learner.policy.state_dict(),
            average=self.average.state(),
            optimizers={name: optimizer.state_dict() for name, optimizer in _optimizers(learner).items()},
            scaler=self.env.scaler.state() if self.env.scaler else {},
            objective=self.env.objective.state() if self.env.objective else {},
            temperature=None if temperature is None else temperature.detach().clone(),
            generators=generator_states(),
        ).write(self.checkpoint)


def _restore(learner: Any, env: Sb3VecEnv, average: PolicyAverage[Any], checkpoint: Checkpoint) -> None:
    """Put a learner where the checkpoint was taken. Environments start new runs."""
    try:
        learner.policy.load_state_dict(checkpoint.policy)
        average.restore(checkpoint.average)
        for name, optimizer in _optimizers(learner).items():
            optimizer.load_state_dict(checkpoint.optimizers[name])
    except (KeyError, ValueError, RuntimeError) as error:
        raise ConfigError("checkpoint: its network is not what this version builds from its config") from error
    if checkpoint.temperature is not None:
        learner.log_ent_coef.data.copy_(checkpoint.temperature)
    learner.num_timesteps, learner._n_updates = checkpoint.steps, checkpoint.updates
    if env.scaler is not None:
        env.scaler.restore(checkpoint.scaler)
    if env.objective is not None and checkpoint.objective:
        env.objective.restore(checkpoint.objective)
    restore_generators(checkpoint.generators)


def train(
    config: TrainingConfig,
    folder: str | Path,
    name: str = "train",
    resume: Checkpoint | None = None,
    report: Callable[[Progress], None] | None = None,
    parent_run_id: str | None = None,
    start: PolicyBundle | None = None,
    say: Callable[[str], None] | None = None,
    labels: RunLabels | None = None,
) -> TrainingResult:
    """Train a policy and save it.

    Args:
        config: what to do; with ``resume`` from `TrainingConfig.resumed`.
        folder: gets ``config.yaml``, ``checkpoint.pt``, ``bundle/`` and the run's record.
        name: of the configuration; of a sweep's trial, the name of its MLflow run.
        resume: go on from here. Step count, optimiser, generators and MLflow run continue; environments start new runs.
        report: called a few times per second with the state of the run.
        start: a policy to start from instead of an untrained policy; its critic is learned anew.
        say: called with what is done before and after training.
        parent_run_id: MLflow run of the sweep that this run belongs to.
        labels: name, tags and origin of the command line.

    Raises:
        RunStopped: ``report`` did.
        ConfigError: bad values, unknown names, a folder that cannot be written, a checkpoint that does not fit.
        ExportError: the exported policy does not agree with the trained policy.
    """
    torch.set_num_threads(config.threads)
    root = Path(folder)
    # A resumed run must not replay the environments' first runs.
    seed = config.seed if resume is None else _next_seed(config.seed, resume.steps)
    env = make_env(config, seed)
    budget = Budget(config.total_steps, config.minutes, resume.elapsed_s if resume else 0.0)
    learner = make_learner(config, env, budget)
    assert isinstance(learner.policy, (PpoPolicy, SacPolicy))
    if start is not None:
        load_weights(learner.policy.deterministic(), start)
    say = say or (lambda _: None)
    say("preparing the simulator, which is compiled the first time")
    average = PolicyAverage(learner.policy.deterministic())
    if resume is not None:
        _restore(learner, env, average, resume)
    run_id = resume.run_id if resume else None
    resumed, datasets = resume is not None, [_dataset(config)]
    record = open_record(
        root, name, config, config.source, labels or RunLabels(), run_id, resumed, parent_run_id, datasets
    )
    monitor = _Monitor(config, budget, env, average, root / FILE_NAME, record, report)

    def stopped() -> None:
        budget.stop()
        monitor.save()

    with contextlib.closing(env), recorded(record, stopped):
        before = learner.num_timesteps
        if budget.fraction(before) < 1.0:
            remaining = (config.total_steps or UNBOUNDED) - before
            learner.learn(remaining, callback=monitor, log_interval=UNBOUNDED, reset_num_timesteps=resume is None)
        else:
            monitor.init_callback(learner)
            monitor.num_timesteps = before
        monitor.sum_up(budget.stop())
        monitor.save()
        if config.broken_over_reference and isinstance(average.policy, GuidedPolicy):
            say("comparing this run's policies with the rule")
            say(str(keep_best(average.policy, monitor.past, config.episodes(), _next_seed(seed, 1))))
        say("exporting the policy")
        bundle = save_bundle(_bundle(config, learner, average, env, budget.elapsed_s, record), root / "bundle")
        record.policy(bundle)
    return TrainingResult(
        bundle=bundle,
        folder=root,
        run_id=bundle.training.run_id,
        steps=learner.num_timesteps,
        elapsed_s=budget.elapsed_s,
        env_steps_per_s=(learner.num_timesteps - before) / max(budget.elapsed_s - budget.before_s, 1e-9),
        reward=monitor.progress.reward,
        return_mean=monitor.progress.return_mean,
        curve=monitor.curve,
    )


def _dataset(config: TrainingConfig) -> RunDataset:
    """The source that its runs are drawn from."""
    if config.scenario is not None:
        return scenario_dataset(config.trained_scenario(), TRAINING)
    return mixture_dataset(str(config.mixture), config.hardware)


def _next_seed(seed: int, steps: int) -> int:
    return int(np.random.SeedSequence([seed, steps]).generate_state(1)[0])


def _bundle(
    config: TrainingConfig,
    learner: Optimiser,
    average: PolicyAverage[Any],
    env: Sb3VecEnv,
    elapsed_s: float,
    run: RunRecord,
) -> PolicyBundle:
    """Export the policy and prove that the export decides alike."""
    model = to_onnx(average.policy)
    agreement = check_agreement(average.policy, model, [_recorded(env, learner)], config.seed)
    run.summary({"onnx_max_abs_error": agreement.max_abs_error})
    record = training_record(config, learner.num_timesteps, elapsed_s, run.run_id)
    return PolicyBundle(env.slices, model, record, agreement=agreement, coding="guided" if config.guided else "shares")


def _recorded(env: Sb3VecEnv, learner: Any) -> FloatArray:
    """Tables (N, S, D) as the policy meets them in the environments."""
    observation, parts, count = env.reset(), list[FloatArray](), 0
    while count < RECORDED_OBSERVATIONS:
        parts.append(observation)
        count += len(observation)
        env.step_async(learner.predict(observation, deterministic=True)[0])
        observation = env.step_wait()[0]
    return np.concatenate(parts)[:RECORDED_OBSERVATIONS].reshape(RECORDED_OBSERVATIONS, -1, env.columns)
