"""``slicepilot train``: make a policy in the simulator."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...configs import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...training.config import TrainingConfig
    from ...training.online import Progress, TrainingResult

EXAMPLE = "Example: slicepilot train -c ppo --minutes 2 --out runs/mine"


def train(
    config: Annotated[str | None, typer.Option("-c", "--config", help="Name or file of the training config.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of network, exploration and environments.")] = None,
    steps: Annotated[int | None, typer.Option(help="Budget in control periods, in place of the config's.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Budget in minutes, in place of the config's.")] = None,
    scenario: Annotated[str | None, typer.Option(help="Train on this scenario.")] = None,
    mixture: Annotated[str | None, typer.Option(help="Train on this mixture of random runs.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run [default: runs/NAME-seedN].")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
) -> None:
    """Train a policy in the simulator and save it as a bundle.

    Tracked in MLflow (MLFLOW_TRACKING_URI, else sqlite:///mlflow.db). The run's folder gets config.yaml, checkpoint.pt
    and bundle/.

    Example: slicepilot train -c ppo --minutes 2 --out runs/mine
    """
    try:
        from ...training.checkpoint import Checkpoint
        from ...training.config import TrainingConfig
        from ...training.online import resumed_config
        from ...training.online import train as run
    except ModuleNotFoundError as error:
        raise ConfigError(f"train needs the package {error.name}: install slicepilot[train]") from error

    if resume is None and config is None:
        raise ConfigError("config = None: accepted: -c with a name or a file, or --resume with a run's folder")
    settings = TrainingConfig.from_yaml(config) if config is not None else None
    checkpoint = Checkpoint.read(resume) if resume is not None else None
    if checkpoint is not None:
        settings = resumed_config(checkpoint, None if settings is None else _source(settings, seed, scenario, mixture))
    assert settings is not None
    settings = _budget(_source(settings, seed, scenario, mixture), steps, minutes)
    if checkpoint is not None:
        settings = resumed_config(checkpoint, settings)
    name = Path(config).stem if config is not None else settings.algorithm
    if out is None:
        out = _folder_of(resume) if resume is not None else _free_folder(Path("runs") / f"{name}-seed{settings.seed}")
    result = _with_progress(settings, lambda report: run(settings, out, name, checkpoint, report))
    assert result.bundle.agreement is not None
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
    if as_json:
        print(json.dumps(figures, indent=2))
        return
    print(f"trained {settings.algorithm} on {settings.source}: {result.steps:,} steps in {result.elapsed_s:.1f} s")
    print(f"reward {result.reward:.4f} per step, {result.env_steps_per_s:,.0f} env-steps/s")
    print(f"bundle {result.bundle.origin}: ONNX and PyTorch agree to {result.bundle.agreement.max_abs_error:.1e}")


def _source(config: TrainingConfig, seed: int | None, scenario: str | None, mixture: str | None) -> TrainingConfig:
    if scenario is not None and mixture is not None:
        raise ConfigError(f"mixture = {mixture!r}: accepted: one of --scenario and --mixture")
    values: dict[str, object] = {"seed": seed}
    if scenario is not None or mixture is not None:
        from dataclasses import replace

        config = replace(config, scenario=scenario, mixture=mixture)
    return config.override(**values)


def _budget(config: TrainingConfig, steps: int | None, minutes: float | None) -> TrainingConfig:
    """A budget on the command line replaces the config's, of either kind."""
    if steps is None and minutes is None:
        return config
    from dataclasses import replace

    return replace(config, total_steps=None, minutes=None).override(total_steps=steps, minutes=minutes)


def _folder_of(path: Path) -> Path:
    return path if path.is_dir() else path.parent


def _free_folder(folder: Path) -> Path:
    """The folder, or with a number behind it, so that no earlier run is overwritten."""
    candidate, number = folder, 1
    while candidate.exists():
        number += 1
        candidate = folder.with_name(f"{folder.name}-{number}")
    return candidate


def _with_progress(
    settings: TrainingConfig, run: Callable[[Callable[[Progress], None]], TrainingResult]
) -> TrainingResult:
    """Run with a bar on stderr, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(file=sys.stderr)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Bar(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(settings.algorithm, total=1.0, figures="starting")

        def report(now: Progress) -> None:
            shown = f"{now.steps / 1e6:.2f} M steps  reward {now.reward:.3f}"
            if now.return_mean is not None:
                shown += f"  return {now.return_mean:.1f}"
            bar.update(task, completed=now.fraction, figures=shown)

        return run(report)
