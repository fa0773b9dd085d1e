"""``slicepilot train``: train a policy in the simulator or from recorded episodes, or fine-tune it."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from slicepilot.cli.schemas.training import Trained
from slicepilot.cli.shared.output import print_json, stderr
from slicepilot.cli.shared.run_labels import RunName, Tags
from slicepilot.configs import ConfigError

from .finetune import run_finetune
from .offline import run_offline
from .runs import folder_for, training_bar, with_budget

if TYPE_CHECKING:
    from slicepilot.agents.learned.bundle import PolicyBundle
    from slicepilot.training.online.config import TrainingConfig
    from slicepilot.training.online.train import Progress, TrainingResult
    from slicepilot.training.runs.checkpoint import Checkpoint
    from slicepilot.training.runs.labels import RunLabels


class Source(NamedTuple):
    """The source of runs, instead of the configuration's."""

    scenario: str | None
    mixture: str | None
    hardware: str | None


def train(
    config: Annotated[
        str | None, typer.Option("-c", "--config", help="Training configuration: a shipped name or a YAML file.")
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Train on recorded episodes only.")] = False,
    finetune: Annotated[
        Path | None, typer.Option(help="Fine-tune the policy of this offline run, under the guard.")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="Dataset for --offline: a shipped name, a file or a folder.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed of the training.")] = None,
    steps: Annotated[
        int | None, typer.Option(help="Training budget in control periods; with --offline, in updates.")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(help="Minutes of training, without compiling and export (default: from the configuration)."),
    ] = None,
    scenario: Annotated[str | None, typer.Option(help="Train on this scenario.")] = None,
    mixture: Annotated[str | None, typer.Option(help="Train on this mixture of random scenarios.")] = None,
    hardware: Annotated[
        str | None,
        typer.Option(help="Train for this hardware: a YAML file of `node identify`."),
    ] = None,
    estimate: Annotated[
        bool, typer.Option(help="Estimate the policy's reward after --offline; --no-estimate needs --force.")
    ] = True,
    force: Annotated[
        bool, typer.Option("--force", help="Write the bundle of --offline whatever the data say.")
    ] = False,
    origin: Annotated[str | None, typer.Option("--from", help="Start with the policy in this bundle.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this folder.")] = None,
    out: Annotated[Path | None, typer.Option(help="Output folder of the run (default: runs/NAME-seedN).")] = None,
    mlflow: Annotated[bool, typer.Option("--mlflow/--no-mlflow", help="Track the run in MLflow.")] = True,
    run_name: RunName = None,
    tag: Tags = None,
    model: Annotated[
        str, typer.Option(help="Registered model in MLflow, whose challenger the policy becomes.")
    ] = "slicepilot",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Train a policy in the simulator or from recorded episodes, and save it as a bundle.

    The run is tracked in MLflow (MLFLOW_TRACKING_URI, else sqlite:///mlflow.db; MLFLOW_EXPERIMENT_NAME, else
    slicepilot). Its folder contains config.yaml, checkpoint.pt, run.json, metrics.jsonl and bundle/. Offline training
    ends with an estimate of the policy's reward, compared with the best behaviour in the dataset; exit code 1, and no
    bundle, if the data cannot say or the policy is worse.

    Example: slicepilot train -c node --minutes 2 --out runs/mine

    Example: slicepilot train -c node --from runs/mine/bundle --scenario multi-promise

    Example: slicepilot train -c node --from generalist --mixture node --hardware hardware.yaml

    Example: slicepilot train --offline -c iql --dataset records.parquet

    Example: slicepilot train --finetune runs/iql-seed0 -c simulator
    """
    try:
        from slicepilot.training.finetune.learner import is_finetune
        from slicepilot.training.offline.train import is_offline
        from slicepilot.training.runs.checkpoint import Checkpoint
        from slicepilot.training.runs.labels import RunLabels
    except ModuleNotFoundError as error:
        raise ConfigError(f"train needs the package {error.name}: install slicepilot[train]") from error

    labels = replace(RunLabels.of(run_name, tag or []), model=model)
    checkpoint = Checkpoint.read(resume) if resume is not None else None
    if origin is not None and (offline or finetune is not None):
        raise ConfigError(f"from = {origin!r}: accepted for training in the simulator")
    if finetune is not None or (checkpoint is not None and is_finetune(checkpoint)):
        others: dict[str, object] = {
            "offline": offline or None,
            "dataset": dataset,
            "steps": steps,
            "minutes": minutes,
            "mixture": mixture,
            "hardware": hardware,
        }
        if finetune is not None:
            others["resume"] = resume
        for option, value in others.items():
            if value is not None:
                raise ConfigError(f"{option} = {str(value)!r}: accepted without fine-tuning, whose config says it all")
        start = checkpoint or Checkpoint.read(finetune or Path(), "finetune")
        run_finetune(config, finetune, start, seed, scenario, resume, out, mlflow, labels, as_json)
        return
    if offline or (checkpoint is not None and is_offline(checkpoint)):
        for option, value in (("scenario", scenario), ("mixture", mixture), ("hardware", hardware)):
            if value is not None:
                raise ConfigError(f"{option} = {value!r}: accepted without --offline, which learns from a dataset")
        run_offline(
            config, dataset, seed, steps, minutes, resume, checkpoint, out, estimate, force, mlflow, labels, as_json
        )
        return
    if dataset is not None:
        raise ConfigError(f"dataset = {dataset!r}: accepted with --offline")
    if force:
        raise ConfigError("force = True: accepted with --offline")
    starting_bundle, labels = _start(origin, checkpoint, labels)
    settings = _settings(config, checkpoint, seed, steps, minutes, Source(scenario, mixture, hardware))
    settings = settings if mlflow else settings.override(tracking="none")
    name = Path(config).stem if config is not None else settings.algorithm
    folder = folder_for(out, resume, f"{name}-seed{settings.seed}")
    result = _run(settings, folder, name, checkpoint, starting_bundle, labels)
    _tell(settings, result, as_json)


def _settings(
    config: str | None,
    checkpoint: Checkpoint | None,
    seed: int | None,
    steps: int | None,
    minutes: float | None,
    source: Source,
) -> TrainingConfig:
    """The configuration with what the command line overrides; with a checkpoint, as far as that leaves it free."""
    from slicepilot.training.online.config import TrainingConfig

    if checkpoint is None and config is None:
        raise ConfigError("config = None: give -c with a name or a file, or --resume with a run's folder")
    settings = TrainingConfig.from_yaml(config) if config is not None else None
    if checkpoint is not None:
        given = None if settings is None else _source(settings, seed, source)
        settings = TrainingConfig.resumed(checkpoint.config, given)
    assert settings is not None
    settings = with_budget(_source(settings, seed, source), total_steps=steps, minutes=minutes)
    return settings if checkpoint is None else TrainingConfig.resumed(checkpoint.config, settings)


def _source(config: TrainingConfig, seed: int | None, source: Source) -> TrainingConfig:
    if source.scenario is not None and source.mixture is not None:
        raise ConfigError(f"mixture = {source.mixture!r}: give either --scenario or --mixture")
    if source.scenario is not None or source.mixture is not None:
        config = replace(config, scenario=source.scenario, mixture=source.mixture)
    return config.override(seed=seed, hardware=source.hardware)


def _start(
    address: str | None, checkpoint: Checkpoint | None, labels: RunLabels
) -> tuple[PolicyBundle | None, RunLabels]:
    """What to start from, and labels that say so; a run that is resumed has started."""
    if address is None:
        return None, labels
    if checkpoint is not None:
        raise ConfigError(f"from = {address!r}: accepted without --resume, which goes on from the checkpoint")
    from slicepilot.agents.learned.bundle import PolicyBundle
    from slicepilot.agents.learned.files import BundleFiles
    from slicepilot.cli.shared.registry import local_bundle
    from slicepilot.training.runs.labels import origin_of

    folder = local_bundle(address)
    bundle = PolicyBundle.load(folder)
    return bundle, replace(labels, origin=origin_of(address, BundleFiles.read(folder), bundle.training.run_id))


def _run(
    settings: TrainingConfig,
    folder: Path,
    name: str,
    checkpoint: Checkpoint | None,
    start: PolicyBundle | None,
    labels: RunLabels,
) -> TrainingResult:
    from slicepilot.training.online.train import train as run

    with training_bar(settings.algorithm) as show:

        def report(now: Progress) -> None:
            shown = f"{now.steps / 1e6:.2f} M steps  reward {now.reward:.3f}"
            show(now.fraction, shown if now.return_mean is None else f"{shown}  return {now.return_mean:.1f}")

        return run(settings, folder, name, checkpoint, report, start=start, say=stderr.print, labels=labels)


def _tell(settings: TrainingConfig, result: TrainingResult, as_json: bool) -> None:
    assert result.bundle.agreement is not None
    if as_json:
        figures = {
            "bundle": str(result.bundle.origin),
            "run_id": result.run_id,
            "algorithm": settings.algorithm,
            "seed": settings.seed,
            "source": settings.source,
            "steps": result.steps,
            "train_s": round(result.elapsed_s, 3),
            "env_steps_per_s": round(result.env_steps_per_s, 1),
            "reward_per_step": result.reward,
            "return_mean": result.return_mean,
            "onnx_max_abs_error": result.bundle.agreement.max_abs_error,
        }
        print_json(figures, Trained)
        return
    print(f"trained {settings.algorithm} on {settings.source}: {result.steps:,} steps in {result.elapsed_s:.1f} s")
    print(f"reward {result.reward:.4f} per step, {result.env_steps_per_s:,.0f} env-steps/s")
    print(f"bundle {result.bundle.origin}: ONNX and PyTorch agree to {result.bundle.agreement.max_abs_error:.1e}")
    command = ["slicepilot", "evaluate", "--bundle", str(result.bundle.origin)]
    print("next:", shlex.join([*command, "--scenario", settings.scenario or "multi-promise"]))
