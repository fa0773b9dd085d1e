"""Fine-tuning: an offline policy continues to learn while it acts under a guard.

The same algorithm goes on with the same losses, on steps that were logged and steps that it has taken itself, drawn in
fixed shares from either (symmetric sampling: Ball et al. 2023, "Efficient Online Reinforcement Learning with Offline
Data", arXiv:2302.02948). IQL (Kostrikov et al. 2021, arXiv:2110.06169) was made with this in view, and TD3+BC serves it
(Beeson and Montana 2022, arXiv:2211.11802); behaviour cloning has no reward to climb.

A round is: record runs with the present policy and Gaussian noise around it, then so many updates. Every decision
passes the guard; what is learned from is what was applied. In the end both policies play on seeds that were not learned
from, without noise, and the bundle holds the fine-tuned policy only if its mean return is not lower.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from slicepilot.agents.base import Agent
from slicepilot.agents.heuristics.exploring import ExploringAgent
from slicepilot.agents.learned.bundle import PolicyBundle
from slicepilot.configs import ConfigError, validate
from slicepilot.controller.guard.backend import Interventions
from slicepilot.data.episodes.episodes import Episode, EpisodeSet
from slicepilot.data.episodes.files import read_episodes, write_episodes
from slicepilot.data.intervals import Interval, paired_differences
from slicepilot.data.recorded import find
from slicepilot.env.backend import Backend
from slicepilot.env.reward import RewardWeights
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.training.networks.agent import NetworkAgent
from slicepilot.training.networks.export import check_agreement, to_onnx
from slicepilot.training.offline.config import OfflineConfig
from slicepilot.training.offline.data import open_dataset, select, slices_of, with_reward
from slicepilot.training.offline.train import spread_over
from slicepilot.training.recording.recording import facts_of, run
from slicepilot.training.runs.checkpoint import FILE_NAME, Checkpoint
from slicepilot.training.runs.datasets import TRAINING, episodes_dataset, scenario_dataset
from slicepilot.training.runs.labels import RunLabels
from slicepilot.training.runs.record import RunRecord
from slicepilot.training.runs.run import Budget, open_record, plain_config, recorded, save_bundle, training_record

from .config import FinetuneConfig
from .learner import FinetuneLearner, Round, is_finetune, offline_config_of

JUDGED_SEEDS = 1_000_000_000  # and above are for judging; what is learned from lies below
SEEDS_PER_RUN = 100_000


class Guarded(Backend, Protocol):
    """A single-lane backend under a guard, which checks everything that it applies.

    ``interventions`` counts until it is replaced. ``prepare`` makes ready for a run of an agent, inside of
    ``real_time`` the run keeps its control period as well as the backend can.
    """

    interventions: Interventions

    def prepare(self, agent: Agent) -> None: ...

    def real_time(self) -> AbstractContextManager[object]: ...


Report = Callable[[float, str], None]
"""Called with the share of the work that is done, 0..1, and the current step in words."""
OpenBackend = Callable[[Scenario], Guarded]
"""Opens where the policy acts; `finetune` closes it."""


@dataclass(frozen=True)
class FinetuneComparison:
    """Both policies on the same unseen runs, under the guard and without noise.

    Attributes:
        returns: (N,) of each policy, ``offline`` and ``fine-tuned``.
        difference: fine-tuned minus offline, mean paired by seed, with its interval.
        interventions: of the guard, by policy.
    """

    returns: dict[str, npt.NDArray[np.float64]]
    difference: Interval
    interventions: dict[str, Interventions]

    @property
    def kept(self) -> str:
        """Name of the saved policy: ``fine-tuned`` unless it is worse."""
        return "fine-tuned" if self.difference.value >= 0 else "offline"


@dataclass(frozen=True)
class FinetuneResult:
    """Result of fine-tuning; ``steps`` and ``updates`` are those of the rounds, ``elapsed_s`` is with judging."""

    bundle: PolicyBundle
    folder: Path
    run_id: str | None
    verdict: FinetuneComparison
    rounds: tuple[Round, ...]
    steps: int
    updates: int
    elapsed_s: float


def finetune(
    config: FinetuneConfig,
    start: Checkpoint,
    folder: str | Path,
    open_backend: OpenBackend,
    name: str = "finetune",
    report: Report | None = None,
    labels: RunLabels | None = None,
) -> FinetuneResult:
    """Fine-tune an offline policy and save the better of both.

    Args:
        config: what to do; with a run that goes on from `FinetuneConfig.resumed`.
        start: of the offline run, or of a fine-tuning that was stopped: it goes on with the next round.
        folder: gets ``config.yaml``, ``checkpoint.pt``, ``episodes/`` with what was recorded, and ``bundle/``.
        open_backend: where to act, under a guard.
        name: of the MLflow run, before seed and start.
        labels: name, tags and origin of the command line.
        report: called about after every run and every few updates.

    Raises:
        ConfigError: a checkpoint of another kind of training, bad values, a dataset that is gone, a scenario with other
            slices than the dataset, a folder that cannot be written.
        ExportError: the exported policy does not agree with the trained policy.
    """
    torch.set_num_threads(config.threads)
    root, offline = Path(folder), offline_config_of(start)
    log = with_reward(select(open_dataset(offline.dataset), offline.behaviours), offline.reward)
    scenario = config.played(float(log.facts["period_s"]))
    if scenario.slice_set() != slices_of(log):
        raise ConfigError(f"scenario = {config.scenario!r}: expected the slices of dataset {offline.dataset}")
    weights = validate(RewardWeights, log.facts["reward"], "dataset: reward")
    goes_on = is_finetune(start)
    learner = FinetuneLearner(config, offline, log, start)
    run_id = start.run_id if goes_on else None
    datasets = [
        episodes_dataset(offline.dataset, find(offline.dataset), log),
        scenario_dataset(scenario, TRAINING),
    ]
    source = source_of(config, offline)
    record = open_record(root, name, config, source, labels or RunLabels(), run_id, goes_on, datasets=datasets)
    with recorded(record):
        with contextlib.closing(open_backend(scenario)) as backend:
            work = _Work(root, learner, backend, scenario, weights, record, report)
            work.go(start.elapsed_s if goes_on else 0.0)
            verdict = work.judge()
        bundle = save_bundle(work.bundle(verdict, log), root / "bundle")
        record.policy(bundle)
    return FinetuneResult(
        bundle=bundle,
        folder=root,
        run_id=bundle.training.run_id,
        verdict=verdict,
        rounds=tuple(work.rounds),
        steps=sum(done.steps for done in work.rounds),
        updates=config.updates * len(work.rounds),
        elapsed_s=work.budget.elapsed_s,
    )


def source_of(config: FinetuneConfig, offline: OfflineConfig) -> str:
    """The data that was learned from, in words."""
    return f"{offline.source}, fine-tuned on scenario {config.scenario} ({config.backend})"


class _Work:
    """Run the rounds, then the comparison, and store both in files."""

    def __init__(
        self,
        root: Path,
        learner: FinetuneLearner,
        backend: Guarded,
        scenario: Scenario,
        weights: RewardWeights,
        record: RunRecord,
        report: Report | None,
    ) -> None:
        self.root, self.learner, self.record, self.report = root, learner, record, report
        self.backend, self.scenario, self.weights = backend, scenario, weights
        self.config, self.rounds, self.new = learner.config, list(learner.rounds), list[Episode]()
        self.budget = Budget(None, None)

    def go(self, before_s: float) -> None:
        """All rounds that are left; raises ConfigError where files cannot be read or written."""
        self.new += [e for done in self.rounds for e in read_episodes(self._file(done.number))]
        self.budget = Budget(None, None, before_s)
        self.budget.start()
        for number in range(len(self.rounds), self.config.rounds):
            done = self._round(number)
            self.rounds.append(done)
            self.learner.save(self.root / FILE_NAME, self.rounds, self.budget.elapsed_s, self.record.run_id)
            self.record.metrics(_curves(done), number)

    def judge(self) -> FinetuneComparison:
        """Both policies in turns, run by run on the same seeds."""
        config = self.config
        agents = {name: NetworkAgent(policy, name) for name, policy in self.learner.policies.items()}
        returns: dict[str, list[float]] = {name: [] for name in agents}
        judged = {name: Interventions() for name in agents}
        for n in range(config.judged_runs):
            for name, agent in agents.items():
                self._say(config.rounds, n / config.judged_runs, f"judging: run {n + 1} of the {name} policy")
                self.backend.interventions = judged[name]
                returns[name].append(float(self._play(agent, JUDGED_SEEDS + _seed(config, n)).rewards.sum()))
        self.budget.stop()
        arrays = {name: np.asarray(values) for name, values in returns.items()}
        [difference] = paired_differences(arrays["fine-tuned"], arrays["offline"])
        means = {f"judged/{name}": float(values.mean()) for name, values in arrays.items()}
        ends = {f"judged/difference_{key}": value for key, value in asdict(difference).items()}
        self.record.summary(means | ends)
        return FinetuneComparison(arrays, difference, judged)

    def bundle(self, verdict: FinetuneComparison, log: EpisodeSet) -> PolicyBundle:
        """The better policy, exported, with a proof that the export decides alike on observations of the run."""
        config, offline, kept = self.config, self.learner.offline, verdict.kept
        policy = self.learner.policies[kept]
        model = to_onnx(policy)
        agreement = check_agreement(policy, model, [spread_over((*log, *self.new))], config.seed)
        facts = {"kept": kept, "difference": asdict(verdict.difference)}
        steps = log.num_steps + sum(done.steps for done in self.rounds)
        record = replace(
            training_record(offline, steps, self.budget.elapsed_s, self.record.run_id),
            seed=config.seed,
            source=source_of(config, offline) if kept == "fine-tuned" else offline.source,
            config=plain_config(offline) | {"finetune": plain_config(config) | facts},
        )
        return PolicyBundle(slices_of(log), model, record, agreement=agreement, coding="shares")

    def _round(self, number: int) -> Round:
        """Act, store the episodes, learn."""
        learner, config = self.learner, self.config
        policy = NetworkAgent(learner.policies["fine-tuned"], learner.offline.algorithm)
        agent = ExploringAgent(policy, config.noise_std, config.hold_periods, f"{policy.name}-round-{number}")
        interventions = self.backend.interventions = Interventions()
        result: list[Episode] = []
        for n in range(config.episodes):
            self._say(number, 0.5 * n / config.episodes, f"round {number + 1}: run {n + 1}")
            result.append(self._play(agent, _seed(config, number * config.episodes + n)))
        self._keep(number, result)
        mean_return, steps = float(np.mean([e.rewards.sum() for e in result])), sum(map(len, result))
        touched = f"guard in {interventions.touched_ratio:.0%} of ticks"
        status = f"round {number + 1}: return {mean_return:.1f}, {touched}"
        figures = learner.learn(self.new, lambda share: self._say(number, 0.5 + 0.5 * share, status))
        return Round(
            number=number,
            steps=steps,
            reward=mean_return * len(result) / steps,
            mean_return=mean_return,
            touched_ratio=interventions.touched_ratio,
            reasons=dict(sorted(interventions.reasons.items())),
            figures=figures,
        )

    def _play(self, agent: Agent, seed: int) -> Episode:
        """One run from start to end."""
        self.backend.prepare(agent)
        with self.backend.real_time():
            kept = run(self.backend, agent, seed)
        [episode] = kept.episodes(self.weights, {"scenario": self.scenario.name, "backend": self.config.backend})
        return episode

    def _keep(self, number: int, result: list[Episode]) -> None:
        file = self._file(number)
        try:
            file.parent.mkdir(exist_ok=True)
            facts = facts_of(self.backend.slices, self.backend.context, self.weights)
            write_episodes(EpisodeSet(tuple(result), facts), file)
        except OSError as error:
            raise ConfigError(f"{file}: cannot be written: {error.strerror}; expected make room and resume") from error
        self.new += result

    def _file(self, number: int) -> Path:
        return self.root / "episodes" / f"round-{number:04d}.parquet"

    def _say(self, number: int, share: float, text: str) -> None:
        if self.report is not None:
            self.report((number + share) / (self.config.rounds + 1), text)


def _seed(config: FinetuneConfig, number: int) -> int:
    return SEEDS_PER_RUN * config.seed + number


def _curves(done: Round) -> dict[str, float]:
    guard = {f"guard/{reason}": float(ticks) for reason, ticks in done.reasons.items()}
    own = {"reward": done.reward, "return": done.mean_return, "guard/touched_ratio": done.touched_ratio}
    return own | guard | {f"train/{key}": value for key, value in done.figures.items()}
