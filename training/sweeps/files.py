"""The folder of a sweep: its configuration and the state of each trial, in plain files.

``sweep.json`` has the trials, ``trials/NAME/`` is a training run's folder (``config.yaml``, ``checkpoint.pt``,
``bundle/``) with ``reports.jsonl``, ``worker.json`` and, at the end, ``result.json`` beside; with population-based
training also ``copies.jsonl``, which says when the trial continued from another trial's policy. Nothing here is ever
unpickled: Ray's own state is not kept, a resumed sweep is submitted to Ray anew.
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from slicepilot.configs import ConfigError
from slicepilot.data.files import appended, replace_file
from slicepilot.env.reward import RewardWeights
from slicepilot.training.runs.run import plain_config

from .config import SweepConfig, Trial, Value, trials_of

SWEEP_FILE, TRIALS, RAYS_OWN = "sweep.json", "trials", ".ray"
REPORTS_FILE, RESULT_FILE, WORKER_FILE, REWARD_FILE = "reports.jsonl", "result.json", "worker.json", "reward.yaml"
COPIES_FILE = "copies.jsonl"


@dataclass(frozen=True)
class Sweep:
    """A sweep in its folder.

    Attributes:
        name: of the sweep, and of its run in MLflow.
        config: what it does.
        trials: in the order of their names; each trial's reward weights are in its folder.
        run_id: of its run in MLflow, if trials are tracked.
        tracking: whether trials that are still to be drawn may be tracked.
    """

    name: str
    folder: Path
    config: SweepConfig
    trials: tuple[Trial, ...]
    run_id: str | None = None
    tracking: bool = True

    def folder_of(self, trial: Trial) -> Path:
        """Where a trial is."""
        return self.folder / TRIALS / trial.name

    @property
    def tracked(self) -> bool:
        """Whether trials are tracked in MLflow."""
        if not self.trials:
            return self.tracking and self.config.base.tracking == "mlflow"
        return any(trial.config.tracking == "mlflow" for trial in self.trials)

    def untracked(self) -> Sweep:
        """The same without MLflow, from now on."""
        without = (dataclasses.replace(trial.config, tracking="none") for trial in self.trials)
        trials = [dataclasses.replace(trial, config=config) for trial, config in zip(self.trials, without, strict=True)]
        return dataclasses.replace(self, trials=tuple(trials), tracking=False)

    def added(self, trial: Trial) -> Sweep:
        """The sweep with a further trial, whose reward weights are in its folder, on disk; raises ConfigError."""
        trial = _with_weights(trial, self.folder)
        if not self.tracking:
            trial = dataclasses.replace(trial, config=dataclasses.replace(trial.config, tracking="none"))
        sweep = dataclasses.replace(self, trials=(*self.trials, trial))
        sweep.write()
        return sweep

    def write(self) -> None:
        """Save it; raises ConfigError where it cannot be written to."""
        document = {
            "name": self.name,
            "run_id": self.run_id,
            "tracking": self.tracking,
            "config": plain_config(self.config),
            "trials": [
                {"name": item.name, "values": item.values, "config": plain_config(item.config)} for item in self.trials
            ],
        }
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_file(self.folder / SWEEP_FILE, (json.dumps(document, indent=1) + "\n").encode())
        except OSError as error:
            raise ConfigError(f"out = {str(self.folder)!r}: cannot be written: {error.strerror}") from error


def new_sweep(name: str, folder: Path, config: SweepConfig) -> Sweep:
    """Start a sweep's folder; raises ConfigError for bad values, or where there is a sweep already."""
    if (folder / SWEEP_FILE).exists():
        raise ConfigError(f"out = {str(folder)!r}: has a sweep; expected another folder, or --resume {folder}")
    trials = [_with_weights(trial, folder) for trial in trials_of(config)]
    sweep = Sweep(name, folder, config, tuple(trials))
    sweep.write()
    return sweep


def _with_weights(trial: Trial, folder: Path) -> Trial:
    """A trial whose reward is a file in its folder, where it has weights of its own; raises ConfigError."""
    if trial.weights is None:
        return trial
    file = write_weights(trial.weights, (folder / TRIALS / trial.name).resolve())
    return dataclasses.replace(trial, config=dataclasses.replace(trial.config, reward=str(file)))


def write_weights(weights: RewardWeights, folder: Path) -> Path:
    """The file of a trial's reward; raises ConfigError where it cannot be written."""
    file = folder / REWARD_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(file, yaml.safe_dump(dataclasses.asdict(weights), sort_keys=False).encode())
    except OSError as error:
        raise ConfigError(f"out = {str(folder)!r}: cannot be written: {error.strerror}") from error
    return file


def read_sweep(folder: Path) -> Sweep:
    """The sweep of a folder; raises ConfigError where there is none."""
    file = folder / SWEEP_FILE
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        config = SweepConfig.of(document["config"], file.name)
        trials = tuple(
            Trial(str(item["name"]), dict(item["values"]), config.config_of(item["config"], f"trial {item['name']}"))
            for item in document["trials"]
        )
        return Sweep(
            str(document["name"]), folder, config, trials, document["run_id"], bool(document.get("tracking", True))
        )
    except OSError as error:
        raise ConfigError(f"resume = {str(folder)!r}: no {SWEEP_FILE}; expected a sweep's folder") from error
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"resume = {str(folder)!r}: {SWEEP_FILE} is damaged") from error


@dataclass(frozen=True)
class Outcome:
    """State and result of a trial.

    Attributes:
        status: ``finished``; ``stopped`` early because others were ahead; ``failed``; ``unfinished``.
        metrics: figures of the last report, empty before the first: ``progress_pct`` of the budget, ``steps``,
            ``elapsed_s``, ``reward`` and its terms per control period.
        bundle: of a finished trial.
        starts: number of workers so far: 1, plus 1 for each worker that died or was interrupted.
        error: of a failed trial, a single line.
    """

    status: str
    metrics: dict[str, float]
    bundle: Path | None
    run_id: str | None
    starts: int
    error: str | None = None


def outcome_of(folder: Path) -> Outcome:
    """Of a trial's folder."""
    reports, result = read_reports(folder), read_json(folder / RESULT_FILE)
    return Outcome(
        status=str(result.get("status", "unfinished")),
        metrics=reports[-1] if reports else {},
        bundle=Path(result["bundle"]) if result.get("bundle") else None,
        run_id=result.get("run_id"),
        starts=int(read_json(folder / WORKER_FILE).get("start", 0)),
        error=result.get("error"),
    )


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON file of the sweep; empty if it does not exist."""
    try:
        results: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return results


def write_json(file: Path, values: dict[str, Any]) -> None:
    """Replace a JSON file of the sweep."""
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, (json.dumps(values) + "\n").encode())


def read_reports(folder: Path, name: str = REPORTS_FILE) -> list[dict[str, Any]]:
    """Reports of a trial, oldest first, without a line that a killed worker left unfinished."""
    try:
        lines = (folder / name).read_text(encoding="utf-8").splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}\n")]


def add_report(folder: Path, report: dict[str, Any], name: str = REPORTS_FILE) -> None:
    """Append a report."""
    with appended(folder / name) as file:
        if end := file.seek(0, os.SEEK_END):
            file.seek(end - 1)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(json.dumps(report).encode() + b"\n")


def label(values: dict[str, Value]) -> str:
    """The values by which a trial differs, as text: ``seed=1 reward.sla=3.0``."""
    return " ".join(f"{key}={value}" for key, value in values.items())
