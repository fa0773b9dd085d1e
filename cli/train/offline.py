"""``slicepilot train --offline``: make a policy from recorded episodes alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from ...configs import ConfigError
from ..schemas.training import TrainedOffline
from ..shared.output import console, print_json
from .runs import folder_for, training_bar

if TYPE_CHECKING:
    from ...training.offline.config import OfflineConfig
    from ...training.offline.train import OfflineProgress, OfflineResult
    from ...training.runs.checkpoint import Checkpoint

SHOWN = ("critic_loss", "actor_loss", "value", "action_error")


def run_offline(
    config: str | None,
    dataset: str | None,
    seed: int | None,
    updates: int | None,
    minutes: float | None,
    resume: Path | None,
    checkpoint: Checkpoint | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Train as the command line says; ``checkpoint`` is that of the run to ``resume``."""
    from ...training.offline.config import OfflineConfig
    from ...training.offline.train import resumed_config, train_offline

    given = OfflineConfig.from_yaml(config) if config is not None else None
    if checkpoint is not None:
        given = given or resumed_config(checkpoint, None)
    if given is None:
        raise ConfigError("config = None: accepted: -c with a name or a file, or --resume with a run's folder")
    settings = _budget(given.override(dataset=dataset, seed=seed), updates, minutes)
    if checkpoint is not None:
        settings = resumed_config(checkpoint, settings)
    name = Path(config).stem if config is not None else settings.algorithm
    folder = folder_for(out, resume, f"{name}-seed{settings.seed}")
    with training_bar(settings.algorithm) as show:

        def report(now: OfflineProgress) -> None:
            figures = [f"{key.replace('_', ' ')} {now.figures[key]:.3f}" for key in SHOWN if key in now.figures]
            show(now.fraction, "  ".join([f"{now.updates:,} updates", *figures]))

        result = train_offline(settings, folder, name, checkpoint, report)
    _tell(settings, result, as_json)


def _budget(config: OfflineConfig, updates: int | None, minutes: float | None) -> OfflineConfig:
    """A budget on the command line replaces the config's, of either kind."""
    if updates is None and minutes is None:
        return config
    return dataclasses.replace(config, updates=None, minutes=None).override(updates=updates, minutes=minutes)


def _tell(settings: OfflineConfig, result: OfflineResult, as_json: bool) -> None:
    assert result.bundle.agreement is not None
    error = result.bundle.agreement.max_abs_error
    if as_json:
        figures = {
            "bundle": str(result.bundle.origin),
            "run_id": result.run_id,
            "algorithm": settings.algorithm,
            "seed": settings.seed,
            "source": settings.source,
            "behaviours": list(result.behaviours),
            "dataset_steps": result.steps,
            "updates": result.updates,
            "train_s": round(result.elapsed_s, 3),
            "updates_per_s": round(result.updates_per_s, 1),
            "device": result.device,
            "onnx_max_abs_error": error,
        }
        print_json(figures, TrainedOffline)
        return
    console.print(
        f"trained {settings.algorithm} on {settings.source}: {result.steps:,} steps of {len(result.behaviours)} "
        f"policies, {result.updates:,} updates in {result.elapsed_s:.1f} s ({result.updates_per_s:,.0f} per second)",
        soft_wrap=True,
    )
    console.print(f"bundle {result.bundle.origin}: ONNX and PyTorch agree to {error:.1e}", soft_wrap=True)
