"""Common parts of training runs: budget, files, tracked record."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from slicepilot.agents.learned.bundle import PolicyBundle, TrainingRecord, plain
from slicepilot.configs import ConfigError
from slicepilot.data.files import replace_file

from .datasets import RunDataset
from .labels import RunLabels, git_revision, versions
from .record import RunRecord

CONFIG_FILE = "config.yaml"


class RunStopped(Exception):
    """Raised by ``report`` to end a run before its budget is used: a bundle is not written, a checkpoint is, unless
    it is not to be kept."""

    def __init__(self, keep: bool = True) -> None:
        super().__init__()
        self.keep = keep


class Budget:
    """Steps and minutes that a run may use, None where there is no limit; ``before_s`` are the seconds of the run that
    it resumes. A stopwatch."""

    def __init__(self, steps: int | None, minutes: float | None, before_s: float = 0.0) -> None:
        self.steps, self.minutes, self.before_s = steps, minutes, before_s
        self._started_s: float | None = None
        self._stopped_s: float | None = None

    def start(self) -> None:
        """Time counts from here."""
        self._started_s = time.monotonic()

    def stop(self) -> float:
        """Stop the clock; returns the elapsed time."""
        self._stopped_s = self.elapsed_s
        return self._stopped_s

    @property
    def elapsed_s(self) -> float:
        """Training time so far."""
        if self._stopped_s is not None:
            return self._stopped_s
        return self.before_s + (0.0 if self._started_s is None else time.monotonic() - self._started_s)

    def fraction(self, steps: int) -> float:
        """How much is used up, 0..1."""
        used = [0.0]
        if self.steps is not None:
            used.append(steps / self.steps)
        if self.minutes is not None:
            used.append(self.elapsed_s / (60.0 * self.minutes))
        return min(1.0, max(used))


def plain_config(config: Any) -> dict[str, Any]:
    """A configuration's dataclass as plain values."""
    return plain(dataclasses.asdict(config))


def write_config(folder: Path, config: Any) -> Path:
    """Start a run's folder with its configuration; returns the file. Raises ConfigError if it cannot be written."""
    path = folder / CONFIG_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(path, yaml.safe_dump(plain_config(config), sort_keys=False).encode())
    except OSError as error:
        raise ConfigError(f"out = {str(folder)!r}: cannot be written: {error.strerror}") from error
    return path


def save_bundle(bundle: PolicyBundle, folder: Path) -> PolicyBundle:
    """Write the results of a run; raises ConfigError if they cannot be written."""
    try:
        return bundle.save(folder)
    except OSError as error:
        raise ConfigError(
            f"bundle {str(folder)!r}: cannot be written: {error.strerror}; the checkpoint is kept: make room and resume"
        ) from error


def open_record(
    folder: Path,
    name: str,
    config: Any,
    source: str,
    labels: RunLabels,
    run_id: str | None,
    resumed: bool,
    parent_run_id: str | None = None,
    datasets: Iterable[RunDataset] = (),
) -> RunRecord:
    """Start a run's folder with its configuration and its record; in MLflow, where ``config.tracking`` says so.

    The other arguments are those of `RunRecord`. Raises ConfigError as that does.
    """
    file, values = write_config(folder, config), plain_config(config)
    tracked = config.tracking == "mlflow"
    return RunRecord(folder, name, values, source, labels, tracked, run_id, resumed, parent_run_id, datasets, [file])


@contextmanager
def recorded(record: RunRecord, save: Callable[[], object] = lambda: None) -> Iterator[None]:
    """End the run's record as the body ends; where that is by a `RunStopped` that keeps the run, ``save`` it first."""
    status = "FAILED"
    try:
        yield
        status = "FINISHED"
    except RunStopped as stopped:
        status = "KILLED"
        if stopped.keep:
            save()
        raise
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        record.finish(status)


def training_record(config: Any, env_steps: int, train_s: float, run_id: str | None) -> TrainingRecord:
    """How a policy has come about; ``config`` is a dataclass with algorithm, seed and source."""
    return TrainingRecord(
        algorithm=config.algorithm,
        seed=config.seed,
        env_steps=env_steps,
        train_s=round(train_s, 3),
        source=config.source,
        run_id=run_id,
        git_revision=git_revision(),
        versions=versions(),
        config=plain_config(config),
    )
