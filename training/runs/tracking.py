"""MLflow tracking of training runs: parameters, curves, files; quiet, imported only when a run is tracked."""

from __future__ import annotations

import logging
import os
import shlex
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from slicepilot.configs import ConfigError

from .store import (
    DATABASES,
    DEFAULT_ARTIFACTS,
    DEFAULT_DATABASE,
    INSTEAD,
    alone,
    check_database,
    check_default,
    database_of,
    reason,
    shown,
    tracking_uri,
    within_first_contact,
)

EXPERIMENT = "slicepilot"
EXPECTED = "a reachable MLflow server, or a database in whose address % and ? are %25 and %3F"
PARENT_TAG = "mlflow.parentRunId"
MOST_CHILDREN = 10_000
FLUSH_S = 5.0
# MLflow's own are 7 retries and 120 s: a server that has gone would hold a run up for minutes, again and again.
RETRIES, REQUEST_S = 1, 10
PAUSE_RATIO = 10.0
"""How much longer than a failed attempt took the next one is put off: training goes on meanwhile."""
PACKAGES = ("slicepilot", "torch", "stable-baselines3", "gymnasium", "numpy", "onnx", "onnxruntime")


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
    """Keep MLflow's and the database migration's chatter off stderr, and its requests short."""
    loggers = [logging.getLogger(name) for name in ("mlflow", "alembic", "alembic.runtime.migration", "git")]
    levels = [logger.level for logger in loggers]
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", str(RETRIES))
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", str(REQUEST_S))
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
def _connected(uri: str) -> Iterator[Any]:
    """A client after the first contact, while no other run of this user sets the same database up.

    Raises:
        ConfigError: as `Tracker` does, also for what goes wrong inside.
    """
    with _quiet():
        try:
            from mlflow import MlflowClient
        except ImportError as error:
            raise ConfigError(
                "tracking = 'mlflow': mlflow is not installed; write tracking: none, or install slicepilot[train]"
            ) from error

        # MLflow sets its loggers up while it is imported.
        for part in ("mlflow", "alembic"):
            logging.getLogger(part).setLevel(logging.ERROR)
        try:
            if _is_default(uri):
                check_default()
            database = database_of(uri)
            with alone(database):
                yield _reached(uri, database, MlflowClient)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                f"MLFLOW_TRACKING_URI = {shown(uri)!r}: cannot be used: {reason(uri, error)}; expected {EXPECTED}; "
                f"{INSTEAD}"
            ) from error


def _is_default(uri: str) -> bool:
    return database_of(uri) == Path.cwd() / DEFAULT_DATABASE


def _reached(uri: str, database: Path | None, make: type[Any]) -> Any:
    """A client whose server or database has answered; raises whatever is wrong."""

    def connect() -> None:
        import sqlalchemy

        engine = sqlalchemy.create_engine(uri)
        engine.connect().close()
        engine.dispose()

    def ask() -> Any:
        client = make(tracking_uri=uri)
        experiment = client.get_experiment_by_name(EXPERIMENT)
        if experiment is not None and experiment.lifecycle_stage == "deleted":
            restore = f"MLFLOW_TRACKING_URI={shlex.quote(shown(uri))} mlflow experiments restore --experiment-id"
            raise ConfigError(
                f"MLFLOW_TRACKING_URI = {shown(uri)!r}: the experiment {EXPERIMENT!r} has been deleted; to restore it: "
                f"{restore} {experiment.experiment_id}; {INSTEAD}"
            )
        return client

    if database is not None:
        check_database(database)
    elif not uri.startswith(DATABASES):
        return within_first_contact(uri, ask)
    else:
        within_first_contact(uri, connect)
    return ask()  # a database that answers is set up without a limit


def check_tracking() -> None:
    """Raise the ConfigError now that a `Tracker` would raise later; for work whose results are tracked at its end."""
    with _connected(tracking_uri()):
        pass


class Tracker:
    """One MLflow run.

    Curves are buffered and sent every few seconds. When the server is lost during the run, training goes on: what could
    not be sent is counted in ``lost``.

    Args:
        name: of the run.
        run_id: continue this run instead of starting one; a new one is started where it no longer exists.
        parent_run_id: the run under which it is kept; one of the same name there is continued.

    Raises:
        ConfigError: the server or database does not answer in `slicepilot.training.runs.store.FIRST_CONTACT_S`, the
            default database is not ours, or the experiment has been deleted.
    """

    def __init__(self, name: str, run_id: str | None = None, parent_run_id: str | None = None) -> None:
        self.uri = tracking_uri()
        self.lost = 0
        self._pending: list[Any] = []
        self._flushed = self._put_off_until = time.monotonic()
        with _connected(self.uri) as client:
            from mlflow.entities import Metric
            from mlflow.exceptions import MlflowException

            self._client, self._metric, self._errors = client, Metric, (MlflowException, OSError)
            self.run_id = self._resumed(run_id) or self._started(name, parent_run_id)

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
            location = (Path.cwd() / DEFAULT_ARTIFACTS).as_uri() if _is_default(self.uri) else None
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
        now_s = time.monotonic()
        if now_s - self._flushed > FLUSH_S and now_s >= self._put_off_until:
            self.flush()

    def flush(self) -> None:
        """Send what is buffered; after a failure the rest stays buffered."""
        sent = True
        while self._pending and sent:
            batch, self._pending = self._pending[:1000], self._pending[1000:]
            sent = self._send(metrics=batch)
        self._flushed = time.monotonic()

    def _send(self, **batch: Any) -> bool:
        started_s = time.monotonic()
        with _quiet():
            try:
                self._client.log_batch(self.run_id, **batch)
            except self._errors:
                self.lost += sum(len(entries) for entries in batch.values())
                self._put_off_until = time.monotonic() + PAUSE_RATIO * (time.monotonic() - started_s)
                return False
        return True

    def artifact(self, path: Path, folder: str | None = None) -> None:
        """Store a file or a folder with the run."""
        with _quiet():
            try:
                send = self._client.log_artifacts if path.is_dir() else self._client.log_artifact
                send(self.run_id, str(path), folder)
            except self._errors:
                self.lost += 1

    def finish(self, status: str = "FINISHED") -> None:
        """End the run: ``FINISHED``, ``FAILED`` or ``KILLED``. Says how many entries are lost, if any are."""
        self.flush()
        self.lost += len(self._pending)
        self._pending = []
        with _quiet():
            try:
                self._client.set_terminated(self.run_id, status)
            except self._errors:
                self.lost += 1
        if self.lost:
            print(f"MLflow at {shown(self.uri)}: {self.lost} entries could not be written", file=sys.stderr)
