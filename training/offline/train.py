"""Training from logs alone: behaviour cloning, TD3+BC or IQL on recorded episodes.

`train_offline` reads top to bottom: dataset, learner, updates with checkpoints and curves in between; at the end the
policy is exported, checked and saved as a bundle, as after training in the simulator
(`slicepilot.training.online.train`). A choice among logged settings (`choice`) is no learner and has no updates.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from slicepilot.agents.learned.bundle import PolicyBundle
from slicepilot.configs import ConfigError
from slicepilot.data.episodes.episodes import Episode, EpisodeSet
from slicepilot.data.recorded import find
from slicepilot.env.slices import SliceSet
from slicepilot.training.networks.averaging import PolicyAverage
from slicepilot.training.networks.export import check_agreement, to_onnx
from slicepilot.training.networks.slice_network import DeterministicPolicy
from slicepilot.training.online.advantages import observed_period_s
from slicepilot.training.runs.checkpoint import FILE_NAME, Checkpoint, generator_states, restore_generators
from slicepilot.training.runs.datasets import RunDataset, episodes_dataset
from slicepilot.training.runs.labels import RunLabels
from slicepilot.training.runs.record import RunRecord
from slicepilot.training.runs.run import Budget, open_record, plain_config, recorded, save_bundle, training_record

from . import choice
from .behaviour_cloning import BehaviourCloning
from .config import OfflineAlgorithm, OfflineConfig
from .data import discounts_of, open_dataset, read_dataset, select, slices_of, with_reward, without_faults
from .iql import Iql
from .learner import Learner
from .memory import Memory, RewardScale
from .networks import Networks, SliceNetworks
from .td3_bc import Td3Bc

REPORT_S = 0.5
AVERAGED_UPDATES = 10  # updates of the policy per update of its average
RECORDED_OBSERVATIONS = 1000


@dataclass
class OfflineProgress:
    """Progress of a run: ``fraction`` of the budget used, 0..1, and the algorithm's figures since the last report."""

    updates: int
    elapsed_s: float
    fraction: float
    figures: dict[str, float]


@dataclass(frozen=True)
class OfflineResult:
    """Result of a run: the bundle, and figures for tables.

    ``steps`` are those of the dataset. The bundle has no ``origin`` where it was not saved. ``choice`` is the result of
    the algorithm of that name.
    """

    bundle: PolicyBundle
    folder: Path
    run_id: str | None
    steps: int
    behaviours: tuple[str, ...]
    updates: int
    elapsed_s: float
    updates_per_s: float
    device: str
    curve: list[dict[str, float]] = field(default_factory=list, repr=False)
    choice: choice.Choice | None = None


Accept = Callable[[OfflineResult, RunRecord], bool]
"""Decides whether to save the bundle of a run; the figures behind the decision go into the run's record."""


def is_offline(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint was written by `train_offline`."""
    return checkpoint.config.get("algorithm") in get_args(OfflineAlgorithm)


def make_learner(config: OfflineConfig, networks: Networks) -> Learner:
    """The algorithm that a configuration asks for."""
    if config.algorithm == "bc":
        return BehaviourCloning(config.bc, networks)
    if config.algorithm == "td3-bc":
        return Td3Bc(config.td3_bc, networks)
    return Iql(config.iql, networks)


def memory_of(episodes: EpisodeSet, networks: Networks, config: OfflineConfig, scale: RewardScale) -> Memory:
    """Episodes as a configuration wants them learned from."""
    period_s = float(observed_period_s(episodes.episodes[0].observations[:1, None])[0, 0])
    return Memory.of(
        episodes, networks, discounts_of(episodes, config.gamma), scale, max(1, round(config.hold_s / period_s))
    )


def device_of(wanted: str) -> torch.device:
    """The device for ``auto``, ``cpu`` or ``cuda``; raises ConfigError if there is no GPU."""
    there = torch.cuda.is_available()
    if wanted == "cuda" and not there:
        raise ConfigError("device = 'cuda': no GPU that PyTorch can use; expected auto, cpu")
    return torch.device("cuda" if there and wanted != "cpu" else "cpu")


def train_offline(
    config: OfflineConfig,
    folder: str | Path,
    name: str = "train",
    resume: Checkpoint | None = None,
    report: Callable[[OfflineProgress], None] | None = None,
    accept: Accept | None = None,
    labels: RunLabels | None = None,
    parent_run_id: str | None = None,
) -> OfflineResult:
    """Train a policy on a dataset and save it.

    Args:
        config: what to do; with ``resume`` from `OfflineConfig.resumed`.
        folder: gets ``config.yaml``, ``checkpoint.pt``, ``bundle/`` and the run's record.
        name: of the configuration; of a sweep's trial, the name of its MLflow run.
        resume: go on from here, as if the run had never stopped.
        report: called about twice a second with the state of the run; it may raise
            `slicepilot.training.runs.run.RunStopped`.
        accept: called with the finished policy before it is saved; None saves it.
        labels: name and tags of the command line.
        parent_run_id: MLflow run of the sweep that this run belongs to.

    Raises:
        ConfigError: bad values, a dataset that cannot be read or learned from, a folder that cannot be written, a
            checkpoint that does not fit.
        ExportError: the exported policy does not agree with the trained policy.
    """
    if config.algorithm == "choice":
        return _choose(config, Path(folder), name, accept, labels or RunLabels(), parent_run_id)
    torch.set_num_threads(config.threads)
    root, device = Path(folder), device_of(config.device)
    episodes = with_reward(select(open_dataset(config.dataset), config.behaviours), config.reward)
    slices = slices_of(episodes)
    torch.manual_seed(config.seed)
    networks = SliceNetworks(config.network, device)
    learner = make_learner(config, networks)
    memory = memory_of(episodes, networks, config, RewardScale.of(episodes))
    average = PolicyAverage(policy_of(learner))
    if resume is not None:
        _restore(learner, average, resume, device)
    before, budget = learner.updates, Budget(config.updates, config.minutes, resume.elapsed_s if resume else 0.0)
    run_id = resume.run_id if resume else None
    datasets = [_dataset(config, episodes)]
    resumed = resume is not None
    record = open_record(
        root, name, config, config.source, labels or RunLabels(), run_id, resumed, parent_run_id, datasets
    )
    run = _Run(config, learner, average, budget, root / FILE_NAME, record, report, device)
    with recorded(record, run.save):
        budget.start()
        while budget.fraction(learner.updates) < 1.0:
            run.note(learner.update(memory.sample(config.batch_steps)))
        budget.stop()
        run.sum_up()
        run.save()
        if learner.updates % AVERAGED_UPDATES:
            average.update()  # not in the checkpoint: a run that goes on averages as if it had never stopped
        bundle = _bundle(config, average.policy, episodes, slices, run)
        result = OfflineResult(
            bundle=bundle,
            folder=root,
            run_id=bundle.training.run_id,
            steps=episodes.num_steps,
            behaviours=episodes.behaviours,
            updates=learner.updates,
            elapsed_s=budget.elapsed_s,
            updates_per_s=(learner.updates - before) / max(budget.elapsed_s - budget.before_s, 1e-9),
            device=device.type,
            curve=run.curve,
        )
        return _saved(result, record, accept)


def _dataset(config: OfflineConfig, episodes: EpisodeSet) -> RunDataset:
    try:
        return episodes_dataset(config.dataset, find(config.dataset), episodes)
    except OSError as error:
        raise ConfigError(f"dataset = {config.dataset!r}: {error.filename}: {error.strerror}") from error


def _saved(result: OfflineResult, record: RunRecord, accept: Accept | None) -> OfflineResult:
    """The same with its bundle in the run's folder, unless it is not accepted."""
    if accept is not None and not accept(result, record):
        return result
    bundle = save_bundle(result.bundle, result.folder / "bundle")
    record.policy(bundle)
    return replace(result, bundle=bundle)


def _choose(
    config: OfflineConfig,
    root: Path,
    name: str,
    accept: Accept | None,
    labels: RunLabels,
    parent_run_id: str | None,
) -> OfflineResult:
    """The algorithm ``choice``, from dataset to bundle."""
    watch = Budget(None, None)
    watch.start()
    whole = without_faults(read_dataset(config.dataset), config.dataset)
    episodes = with_reward(select(whole, config.behaviours), config.reward)
    chosen = choice.choose(episodes)
    model = choice.to_onnx(chosen)
    agreement = choice.check_agreement(chosen, model, spread_over(episodes))
    datasets = [_dataset(config, episodes)]
    record = open_record(root, name, config, config.source, labels, None, False, parent_run_id, datasets)
    with recorded(record):
        trained = training_record(config, episodes.num_steps, watch.stop(), record.run_id)
        bundle = PolicyBundle(chosen.slices, model, trained, agreement=agreement, transfers=False)
        made = OfflineResult(
            bundle=bundle,
            folder=root,
            run_id=trained.run_id,
            steps=episodes.num_steps,
            behaviours=episodes.behaviours,
            updates=0,
            elapsed_s=watch.elapsed_s,
            updates_per_s=0.0,
            device="cpu",
            choice=chosen,
        )
        return _saved(made, record, accept)


class _Run:
    """Work between updates: update the average, sum up curves, write checkpoints."""

    def __init__(
        self,
        config: OfflineConfig,
        learner: Learner,
        average: PolicyAverage[DeterministicPolicy],
        budget: Budget,
        checkpoint: Path,
        record: RunRecord,
        report: Callable[[OfflineProgress], None] | None,
        device: torch.device,
    ) -> None:
        self.config, self.learner, self.average, self.budget = config, learner, average, budget
        self.checkpoint, self.record, self.report, self.device = checkpoint, record, report, device
        self.curve: list[dict[str, float]] = []
        self._sums: dict[str, list[Tensor]] = defaultdict(list)
        self._reported_s = budget.elapsed_s
        self._due_s = budget.elapsed_s + 60.0 * config.checkpoint_minutes

    def note(self, figures: dict[str, Tensor]) -> None:
        """After every update."""
        for key, value in figures.items():
            self._sums[key].append(value)
        if self.learner.updates % AVERAGED_UPDATES == 0:
            self.average.update()
        elapsed_s = self.budget.elapsed_s
        if elapsed_s - self._reported_s >= REPORT_S:
            self.sum_up()
        if elapsed_s >= self._due_s:
            self._due_s = elapsed_s + 60.0 * self.config.checkpoint_minutes
            self.save()

    def sum_up(self) -> None:
        """Means since the last call: to the curve, the tracker and the report."""
        elapsed_s, updates = self.budget.elapsed_s, self.learner.updates
        self._reported_s = elapsed_s
        figures = {key: float(torch.stack(values).mean()) for key, values in self._sums.items()}
        self._sums.clear()
        self.curve.append({"updates": float(updates), "elapsed_s": elapsed_s} | figures)
        self.record.metrics({f"train/{key}": value for key, value in figures.items()}, updates)
        if self.report is not None:
            self.report(OfflineProgress(updates, elapsed_s, self.budget.fraction(updates), figures))

    def save(self) -> None:
        """Write a checkpoint; raises ConfigError if that fails."""
        state = self.learner.state()
        Checkpoint(
            config=plain_config(self.config),
            steps=self.learner.updates,
            updates=self.learner.updates,
            elapsed_s=self.budget.elapsed_s,
            run_id=self.record.run_id,
            policy=state["networks"],
            average=self.average.state(),
            optimizers=state["optimizers"],
            scaler={},
            generators=generator_states(self.device),
        ).write(self.checkpoint)


def policy_of(learner: Learner) -> DeterministicPolicy:
    """The policy without noise, on the learner's own weights."""
    policy = learner.policy
    assert isinstance(policy, DeterministicPolicy)
    return policy


def _restore(
    learner: Learner, average: PolicyAverage[DeterministicPolicy], checkpoint: Checkpoint, device: torch.device
) -> None:
    """Put a learner where the checkpoint was taken."""
    kept = {"networks": checkpoint.policy, "optimizers": checkpoint.optimizers, "updates": checkpoint.updates}
    try:
        learner.restore(kept)
        average.restore(checkpoint.average)
    except (KeyError, ValueError, RuntimeError) as error:
        raise ConfigError("checkpoint: its network is not what this version builds from its config") from error
    restore_generators(checkpoint.generators, device)


def _bundle(
    config: OfflineConfig, policy: DeterministicPolicy, episodes: EpisodeSet, slices: SliceSet, run: _Run
) -> PolicyBundle:
    """Export the policy and prove that the export decides alike on logged observations."""
    model = to_onnx(policy)
    agreement = check_agreement(policy, model, [spread_over(episodes)], config.seed)
    run.record.summary({"onnx_max_abs_error": agreement.max_abs_error})
    record = training_record(config, episodes.num_steps, run.budget.elapsed_s, run.record.run_id)
    return PolicyBundle(slices, model, record, agreement=agreement, coding="shares")


def spread_over(episodes: Iterable[Episode]) -> npt.NDArray[np.float32]:
    """Observations (N, S, D) from all over some episodes, `RECORDED_OBSERVATIONS` at most."""
    observations = np.concatenate([episode.observations for episode in episodes])
    spread = np.linspace(0, len(observations) - 1, min(RECORDED_OBSERVATIONS, len(observations))).astype(np.int64)
    return np.asarray(observations[spread], np.float32)
