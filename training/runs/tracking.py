"""MLflow tracking of training runs: parameters, curves, files; quiet, imported only when a run is tracked."""

from __future__ import annotations

import fcntl
import logging
import os
import subprocess
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from slicepilot.configs import ConfigError

EXPERIMENT = "slicepilot"
DEFAULT_DATABASE = "mlflow.db"
DEFAULT_ARTIFACTS = "mlartifacts"
PARENT_TAG = "mlflow.parentRunId"
MOST_CHILDREN = 10_000
FLUSH_S = 5.0
PACKAGES = ("slicepilot", "torch", "stable-baselines3", "gymnasium", "numpy", "onnx", "onnxruntime")


def tracking_uri() -> str:
    """``MLFLOW_TRACKING_URI``, else a database in the working folder.

    The path is absolute: MLflow keeps one connection per address, also when the working folder changes.
    """
    return os.environ.get("MLFLOW_TRACKING_URI") or _default_uri()


def _default_uri() -> str:
    return f"sqlite:///{Path.cwd() / DEFAULT_DATABASE}"


def git_revision() -> str | None:
    """Commit of the code, with ``-dirty`` if it has been changed; none without git or outside a checkout."""
    command = ["git", "-C", str(Path(__file__).resolve().parent), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() or None


def versions() -> dict[str, str]:
    """Versions of the packages that make a policy."""
    results = {}
    for name in PACKAGES:
        try:
            results[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return results


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep MLflow's and the database migration's chatter off stderr."""
    loggers = [logging.getLogger(name) for name in ("mlflow", "alembic", "alembic.runtime.migration", "git")]
    levels = [logger.level for logger in loggers]
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


@contextmanager
def _exclusive(uri: str) -> Iterator[None]:
    """Keep other runs of this machine off the same database file: MLflow's migrations fail when two run at once.

    The lock is held on the folder of the database, so that no file is left behind.
    """
    folder = Path(uri.removeprefix("sqlite:///")).parent
    if not uri.startswith("sqlite:///") or not folder.is_dir():
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class Tracker:
    """One MLflow run.

    Curves are buffered and sent every few seconds. When the server is lost during the run, training goes on: what could
    not be sent is counted in ``lost``.

    Args:
        name: of the run.
        run_id: continue this run instead of starting one; a new one is started where it no longer exists.
        parent_run_id: the run under which it is kept; one of the same name there is continued.

    Raises:
        ConfigError: the tracking server or database does not answer.
    """

    def __init__(self, name: str, run_id: str | None = None, parent_run_id: str | None = None) -> None:
        self.uri = tracking_uri()
        self.lost = 0
        self._pending: list[Any] = []
        self._flushed = time.monotonic()
        with _quiet():
            try:
                import mlflow
                from mlflow.entities import Metric
                from mlflow.exceptions import MlflowException
            except ImportError as error:
                raise ConfigError(
                    "tracking = 'mlflow': mlflow is not installed; write tracking: none, or install slicepilot[train]"
                ) from error

            # MLflow sets its loggers up while it is imported.
            for part in ("mlflow", "alembic"):
                logging.getLogger(part).setLevel(logging.ERROR)
            self._metric = Metric
            self._errors = (MlflowException, OSError)
            try:
                with _exclusive(self.uri):
                    self._client = mlflow.MlflowClient(tracking_uri=self.uri)
                    self.run_id = self._resumed(run_id) or self._started(name, parent_run_id)
            except Exception as error:
                first_line = (str(error).splitlines() or [""])[0][:200]
                raise ConfigError(
                    f"MLFLOW_TRACKING_URI = {self.uri!r}: cannot be used: {first_line}; "
                    "expected a reachable MLflow server or database, or tracking: none"
                ) from error

    def _resumed(self, run_id: str | None) -> str | None:
        if run_id is None:
            return None
        from mlflow.exceptions import MlflowException

        try:
            self._client.update_run(run_id, status="RUNNING")
        except MlflowException:
            return None
        return run_id

    def _started(self, name: str, parent_run_id: str | None) -> str:
        experiment = self._client.get_experiment_by_name(EXPERIMENT)
        if experiment is not None:
            experiment_id = experiment.experiment_id
        else:
            local = self.uri == _default_uri()
            location = (Path.cwd() / DEFAULT_ARTIFACTS).as_uri() if local else None
            experiment_id = self._client.create_experiment(EXPERIMENT, artifact_location=location)
        if parent_run_id is None:
            return str(self._client.create_run(experiment_id, run_name=name).info.run_id)
        for run in self._children(experiment_id, parent_run_id):
            if run.info.run_name == name:
                return str(self._resumed(run.info.run_id))
        tags = {PARENT_TAG: parent_run_id}
        return str(self._client.create_run(experiment_id, run_name=name, tags=tags).info.run_id)

    def _children(self, experiment_id: str, run_id: str) -> list[Any]:
        """Runs that are kept under a run."""
        results = self._client.search_runs(
            [experiment_id], f"tags.`{PARENT_TAG}` = '{run_id}'", max_results=MOST_CHILDREN
        )
        return list(results)

    def end_children(self, status: str = "KILLED") -> None:
        """End the runs under this one whose processes have not come to do it."""
        with _quiet():
            try:
                for run in self._children(self._client.get_run(self.run_id).info.experiment_id, self.run_id):
                    if run.info.status == "RUNNING":
                        self._client.set_terminated(run.info.run_id, status)
            except self._errors:
                self.lost += 1

    def parameters(self, values: dict[str, Any], prefix: str = "") -> None:
        """Log nested plain values as parameters with dotted names."""
        from mlflow.entities import Param

        flat: list[Any] = []
        stack = [(prefix, values)]
        while stack:
            path, mapping = stack.pop()
            for key, value in mapping.items():
                if isinstance(value, dict):
                    stack.append((f"{path}{key}.", value))
                else:
                    flat.append(Param(f"{path}{key}", str(value)))
        self._send(params=flat)

    def tags(self, values: dict[str, str | None]) -> None:
        """Set tags; those without a value are left out."""
        from mlflow.entities import RunTag

        self._send(tags=[RunTag(key, value) for key, value in values.items() if value is not None])

    def metrics(self, values: dict[str, float], step: int) -> None:
        """One point of each curve."""
        now_ms = int(time.time() * 1000)
        self._pending += [self._metric(key, float(value), now_ms, step) for key, value in values.items()]
        if time.monotonic() - self._flushed > FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Send what is buffered."""
        while self._pending:
            batch, self._pending = self._pending[:1000], self._pending[1000:]
            self._send(metrics=batch)
        self._flushed = time.monotonic()

    def _send(self, **batch: Any) -> None:
        with _quiet():
            try:
                self._client.log_batch(self.run_id, **batch)
            except self._errors:
                self.lost += sum(len(entries) for entries in batch.values())

    def artifact(self, path: Path, folder: str | None = None) -> None:
        """Store a file or a folder with the run."""
        with _quiet():
            try:
                send = self._client.log_artifacts if path.is_dir() else self._client.log_artifact
                send(self.run_id, str(path), folder)
            except self._errors:
                self.lost += 1

    def finish(self, status: str = "FINISHED") -> None:
        """End the run: ``FINISHED``, ``FAILED`` or ``KILLED``."""
        self.flush()
        with _quiet():
            try:
                self._client.set_terminated(self.run_id, status)
            except self._errors:
                self.lost += 1
