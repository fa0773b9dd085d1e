"""``slicepilot train --finetune``: let an offline policy go on learning where it acts, under the guard."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from slicepilot.cli.schemas.training import FineTuned
from slicepilot.cli.shared.output import console, figures_table, print_json
from slicepilot.configs import ConfigError
from slicepilot.configs.backends import SIMULATOR, plugin

from .runs import folder_for, training_bar

if TYPE_CHECKING:
    from slicepilot.env.simulator.scenario import Scenario
    from slicepilot.training.finetune.config import FinetuneConfig
    from slicepilot.training.finetune.train import FinetuneResult, Guarded
    from slicepilot.training.runs.checkpoint import Checkpoint
    from slicepilot.training.runs.labels import RunLabels


def run_finetune(
    config: str | None,
    run: Path | None,
    start: Checkpoint,
    seed: int | None,
    scenario: str | None,
    resume: Path | None,
    out: Path | None,
    mlflow: bool,
    labels: RunLabels,
    as_json: bool,
) -> None:
    """Fine-tune as the command line says; ``start`` is of the offline ``run``, or of the fine-tuning to ``resume``."""
    from slicepilot.training.finetune.config import FinetuneConfig
    from slicepilot.training.finetune.learner import is_finetune, offline_config_of
    from slicepilot.training.finetune.train import finetune

    if resume is None and is_finetune(start):
        raise ConfigError("finetune: this is a fine-tuning run; expected an offline run (--resume continues this one)")
    offline = offline_config_of(start)
    given = FinetuneConfig.from_yaml(config) if config is not None else None
    if resume is not None:
        given = given or FinetuneConfig.resumed(start.config["finetune"], None)
    if given is None:
        raise ConfigError("config = None: accepted with --finetune: -c with simulator, testbed or a file")
    settings = given.override(seed=seed, scenario=scenario)
    if resume is not None:
        settings = FinetuneConfig.resumed(start.config["finetune"], settings)
    settings = settings if mlflow else settings.override(tracking="none")
    name = f"finetune-{offline.algorithm}-{settings.backend}"
    folder = folder_for(out, resume, f"{name}-seed{settings.seed}")
    if run is not None:
        origin = {"run": str(run)} | ({"run_id": start.run_id} if start.run_id else {})
        labels = replace(labels, origin=origin)
    if run is not None and folder.exists() and folder.samefile(run if run.is_dir() else run.parent):
        raise ConfigError(f"out = {str(folder)!r}: expected another folder than that of the run to fine-tune")
    with training_bar(name) as show:
        result = finetune(settings, start, folder, lambda played: _opened(settings, played), name, show, labels)
    _tell(settings, result, as_json)


def _opened(config: FinetuneConfig, scenario: Scenario) -> Guarded:
    """Where the policy acts, under the guard."""
    from slicepilot.controller.guard.backend import GuardedBackend
    from slicepilot.controller.guard.config import GuardConfig

    guard = GuardConfig.from_yaml(config.guard)
    if config.backend == SIMULATOR:
        from slicepilot.env.simulator.backend import ScenarioRuns, SimulatorBackend

        return GuardedBackend(SimulatorBackend(ScenarioRuns(scenario)), guard)
    opened: Guarded = plugin(config.backend).call("open_guarded", scenario, guard, name=config.testbed)
    return opened


def _tell(settings: FinetuneConfig, result: FinetuneResult, as_json: bool) -> None:
    verdict, difference = result.verdict, result.verdict.difference
    before, after = (float(verdict.returns[name].mean()) for name in ("offline", "fine-tuned"))
    if as_json:
        assert result.bundle.agreement is not None
        figures = {
            "bundle": str(result.bundle.origin),
            "run_id": result.run_id,
            "kept": verdict.kept,
            "offline_return": before,
            "finetuned_return": after,
            "difference": asdict(difference),
            "judged_runs": settings.judged_runs,
            "backend": settings.backend,
            "steps": result.steps,
            "updates": result.updates,
            "train_s": round(result.elapsed_s, 3),
            "onnx_max_abs_error": result.bundle.agreement.max_abs_error,
            "rounds": [
                {
                    "reward_per_step": done.reward,
                    "return": done.mean_return,
                    "guard_touched_ratio": done.touched_ratio,
                    "guard_reasons": done.reasons,
                }
                for done in result.rounds
            ],
            "judged": {
                name: {"guard_touched_ratio": item.touched_ratio, "guard_reasons": dict(sorted(item.reasons.items()))}
                for name, item in verdict.interventions.items()
            },
        }
        print_json(figures, FineTuned)
        return
    table = figures_table(
        f"{len(result.rounds)} rounds, {result.steps:,} steps",
        ("round", "return", "reward\na step", "ticks the\nguard touched"),
    )
    for done in result.rounds:
        row = f"{done.mean_return:.1f}", f"{done.reward:.3f}", f"{100 * done.touched_ratio:.1f}%"
        table.add_row(str(done.number + 1), *row)
    console.print(table)
    console.print(
        f"judged on {settings.judged_runs} unseen runs: return {before:.1f} before, "
        f"{after:.1f} after, difference {difference.value:+.1f} "
        f"({difference.low:+.1f} to {difference.high:+.1f}, 95%)",
        soft_wrap=True,
    )
    console.print(f"bundle {result.bundle.origin}: the {verdict.kept} policy", soft_wrap=True)
