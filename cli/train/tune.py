"""``slicepilot tune``: many training runs side by side, on this machine's cores or on a cluster."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from slicepilot.cli.schemas.training import Tuned
from slicepilot.cli.shared.output import console, figures_table, print_json, progress_bar, say
from slicepilot.cli.shared.run_labels import RunName, Tags
from slicepilot.configs import ConfigError

from .runs import folder_for

if TYPE_CHECKING:
    from slicepilot.training.sweeps.config import Trial
    from slicepilot.training.sweeps.files import Outcome
    from slicepilot.training.sweeps.sweep import SweepResult


def tune(
    config: Annotated[
        str | None, typer.Option("-c", "--config", help="Configuration of the sweep: a shipped name or a YAML file.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Output folder of the sweep (default: runs/NAME).")] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the sweep in this folder.")] = None,
    address: Annotated[
        str | None, typer.Option(help="Ray cluster: HOST:PORT, or auto on one of its nodes (default: this machine).")
    ] = None,
    parallel: Annotated[
        int | None, typer.Option(min=1, help="Number of concurrent trials (default: as the CPUs allow).")
    ] = None,
    mlflow: Annotated[bool, typer.Option("--mlflow/--no-mlflow", help="Track the run in MLflow.")] = True,
    run_name: RunName = None,
    tag: Tags = None,
    model: Annotated[
        str, typer.Option(help="Registered model in MLflow, whose challenger the policy becomes.")
    ] = "slicepilot",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Train many policies in parallel on Ray (seeds, algorithms, reward weights) and report the best.

    Each trial is a training run in FOLDER/trials, tracked in MLflow under the sweep's run. When a worker dies,
    its trial continues from the last checkpoint. Needs the extras train and ray. Exit code 1: a trial has failed;
    --resume repeats it.

    Example: slicepilot tune -c ppo-smoke --parallel 2
    """
    try:
        import torch  # noqa: F401 (the extra train)

        from slicepilot.training.cluster.session import need_ray
        from slicepilot.training.runs.labels import RunLabels
        from slicepilot.training.sweeps.config import SweepConfig
        from slicepilot.training.sweeps.files import new_sweep, read_sweep
        from slicepilot.training.sweeps.sweep import run_sweep
    except ModuleNotFoundError as error:
        raise ConfigError(f"tune needs the package {error.name}: install slicepilot[train,ray]") from error

    need_ray("tune")
    labels = dataclasses.replace(RunLabels.of(run_name, tag or []), model=model)
    if (config is None) == (resume is None):
        raise ConfigError(f"config = {config!r}: give -c with a name or a file, or --resume with a sweep's folder")
    if resume is not None:
        if out is not None:
            raise ConfigError(f"out = {str(out)!r}: accepted without --resume, which goes on in its own folder")
        sweep = read_sweep(resume)
    else:
        name = Path(str(config)).stem
        sweep = new_sweep(name, folder_for(out, None, name), SweepConfig.from_yaml(str(config)))
    if not mlflow:
        sweep = sweep.untracked()
        sweep.write()
    started = time.monotonic()
    with progress_bar() as bar:
        task = bar.add_task(f"{len(sweep.trials)} trials", total=1.0)
        result = run_sweep(sweep, address, parallel, lambda done, _: bar.update(task, completed=done), labels)
    _tell(result, time.monotonic() - started, as_json)
    failed = [trial.name for trial, item in _rows(result) if item.status == "failed"]
    if failed:
        raise typer.Exit(1)


def _rows(result: SweepResult) -> list[tuple[Trial, Outcome]]:
    return list(zip(result.sweep.trials, result.outcomes, strict=True))


def _tell(result: SweepResult, elapsed_s: float, as_json: bool) -> None:
    sweep = result.sweep
    if as_json:
        print_json(_document(result, elapsed_s), Tuned)
        return
    from slicepilot.training.sweeps.files import label

    table = figures_table(
        f"{sweep.name}: {len(sweep.trials)} trials in {elapsed_s:.0f} s",
        ("trial", sweep.config.metric, "reward", "budget\n%", "starts", "status"),
    )
    for number, (trial, item) in enumerate(_rows(result)):
        metric, reward = result.metric_of(item), item.metrics.get("reward")
        first, *rest = label(trial.values).split() or [""]
        named = "\n    ".join([f"{trial.name} {first}", *rest])
        table.add_row(
            Text(named, "bold" if number == result.best else ""),
            *("-" if value is None else f"{value:.4f}" for value in (metric, reward)),
            f"{item.metrics.get('progress_pct', 0.0):.0f}",
            str(item.starts),
            item.status,
        )
    console.print(table)
    for trial, item in _rows(result):
        if item.error is not None:
            say(f"trial {trial.name} has failed: {item.error}")
    if result.best is not None:
        best = f"best trial {sweep.trials[result.best].name}: bundle {result.outcomes[result.best].bundle}"
        say(best)
    if any(item.status in {"failed", "unfinished"} for item in result.outcomes):
        say(f"go on: slicepilot tune --resume {sweep.folder}")


def _document(result: SweepResult, elapsed_s: float) -> dict[str, object]:
    sweep, best = result.sweep, None if result.best is None else result.outcomes[result.best]
    return {
        "sweep": sweep.name,
        "folder": str(sweep.folder),
        "run_id": sweep.run_id,
        "metric": sweep.config.metric,
        "best": None if result.best is None else sweep.trials[result.best].name,
        "bundle": None if best is None else str(best.bundle),
        "elapsed_s": round(elapsed_s, 3),
        "trials": [
            {
                "trial": trial.name,
                "values": trial.values,
                "status": item.status,
                "metric": result.metric_of(item),
                "progress_pct": item.metrics.get("progress_pct", 0.0),
                "steps": int(item.metrics.get("steps", 0)),
                "train_s": item.metrics.get("elapsed_s", 0.0),
                "reward_per_step": item.metrics.get("reward"),
                "starts": item.starts,
                "bundle": None if item.bundle is None else str(item.bundle),
                "run_id": item.run_id,
                "error": item.error,
            }
            for trial, item in _rows(result)
        ],
    }
