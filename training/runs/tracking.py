"""MLflow tracking of training runs: parameters, curves, files; quiet, imported only when a run is tracked."""

from __future__ import annotations

import logging
import math
import os
import shlex
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import util
from pathlib import Path
from typing import Any

from slicepilot.configs import ConfigError
from slicepilot.configs.errors import FailureError

from .datasets import RunDataset
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
# Which of its views MLflow's pages open with: that of training, not that of language models.
EXPERIMENT_KIND = ("mlflow.experimentKind", "custom_model_development")
EXPECTED = "a reachable MLflow server, or a database in whose address % and ? are %25 and %3F"
PARENT_TAG = "mlflow.parentRunId"
# MLflow's answers about a run that does not exist, and about one that has been deleted.
GONE = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")
MOST_CHILDREN = 10_000
MOST_LABELS, MOST_METRICS = 100, 1000  # in a request of MLflow
DIGEST_TAG = "slicepilot.digest"
"""Of logged models and their versions: the digest of the bundle."""
FLUSH_S = 5.0
# MLflow's own are 7 retries and 120 s: a server that has gone would hold a run up for minutes, again and again.
RETRIES, REQUEST_S = 1, 10
PAUSE_RATIO = 10.0
"""Pause before the next attempt, in multiples of the duration of the failed attempt; training goes on meanwhile."""


def experiment_name() -> str:
    """``MLFLOW_EXPERIMENT_NAME``, else the default."""
    return os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT


@contextmanager
def quiet() -> Iterator[None]:
    """Keep MLflow's and the database migration's chatter off stderr, and its requests short."""
    loggers = [logging.getLogger(name) for name in ("mlflow", "alembic", "alembic.runtime.migration", "git")]
    levels = [logger.level for logger in loggers]
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # where JSON belongs
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
def connected(uri: str) -> Iterator[Any]:
    """A client after the first contact, while no other run of this user sets the same database up.

    Raises:
        ConfigError: as `Tracker` does, also for what goes wrong inside.
    """
    with quiet():
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
        experiment = client.get_experiment_by_name(experiment_name())
        if experiment is not None and experiment.lifecycle_stage == "deleted":
            restore = f"MLFLOW_TRACKING_URI={shlex.quote(shown(uri))} mlflow experiments restore --experiment-id"
            raise ConfigError(
                f"MLFLOW_TRACKING_URI = {shown(uri)!r}: the experiment {experiment.name!r} has been deleted; "
                f"to restore it: {restore} {experiment.experiment_id}; {INSTEAD}"
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
    """Raise early the ConfigError of a `Tracker`, for work whose results are tracked at its end."""
    with connected(tracking_uri()):
        pass


class Tracker:
    """One MLflow run.

    Curves are buffered and sent every few seconds. When the server is lost during the run, work goes on, and ``lost``
    counts the values that could not be sent.

    Args:
        name: of the run.
        run_id: continue this run; a new run is started if it no longer exists.
        parent_run_id: the run under which it is kept; an existing run of the same name there is continued.
        tags: of a new run.
        system: also log the use of CPU, memory, disk and network, as MLflow does with
            ``MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING``, which turns it off by ``false``.

    Raises:
        ConfigError: the server or database does not answer in `slicepilot.training.runs.store.FIRST_CONTACT_S`, the
            default database is not ours, or the experiment has been deleted.
    """

    def __init__(
        self,
        name: str,
        run_id: str | None = None,
        parent_run_id: str | None = None,
        tags: Mapping[str, str] | None = None,
        system: bool = False,
    ) -> None:
        self.uri = tracking_uri()
        self.lost = 0
        self._pending: list[Any] = []
        self._flushed = self._put_off_until = time.monotonic()
        self._system: Any = None
        with connected(self.uri) as client:
            from mlflow.entities import Metric
            from mlflow.exceptions import MlflowException

            self.client, self._metric, self._errors = client, Metric, (MlflowException, OSError)
            resumed = self._resumed(run_id)
            self.experiment_id, self.run_id = resumed or self._started(name, parent_run_id, tags or {})
            self.resumed = resumed is not None
            if system:
                self._system = _system_metrics(self.run_id, self.uri, self.resumed)

    def _resumed(self, run_id: str | None) -> tuple[str, str] | None:
        if run_id is None:
            return None
        from mlflow.exceptions import MlflowException

        try:
            self.client.update_run(run_id, status="RUNNING")
            return str(self.client.get_run(run_id).info.experiment_id), run_id
        except MlflowException as error:
            if error.error_code in GONE:
                return None
            raise

    def _started(self, name: str, parent_run_id: str | None, tags: Mapping[str, str]) -> tuple[str, str]:
        experiment_id = self._experiment()
        tags = {key: value for key, value in tags.items() if value}
        if parent_run_id is not None:
            for run in self._children(experiment_id, parent_run_id):
                if run.info.run_name == name and (resumed := self._resumed(run.info.run_id)):
                    return resumed
            tags |= {PARENT_TAG: parent_run_id}
        run = self.client.create_run(experiment_id, run_name=name, tags=tags)
        return experiment_id, str(run.info.run_id)

    def _experiment(self) -> str:
        """Id of the experiment, which is made if it is missing; raises MlflowException."""
        name = experiment_name()
        experiment = self.client.get_experiment_by_name(name)
        if experiment is not None:
            if EXPERIMENT_KIND[0] not in experiment.tags:
                self.client.set_experiment_tag(experiment.experiment_id, *EXPERIMENT_KIND)
            return str(experiment.experiment_id)
        location = (Path.cwd() / DEFAULT_ARTIFACTS).as_uri() if _is_default(self.uri) else None
        return str(self.client.create_experiment(name, artifact_location=location, tags=dict([EXPERIMENT_KIND])))

    def _children(self, experiment_id: str, run_id: str) -> list[Any]:
        """Runs that are kept under a run."""
        results = self.client.search_runs(
            [experiment_id], f"tags.`{PARENT_TAG}` = '{run_id}'", max_results=MOST_CHILDREN
        )
        return list(results)

    def end_children(self) -> None:
        """End the child runs that their processes left open."""
        with self._sending():
            for run in self._children(self.experiment_id, self.run_id):
                if run.info.status == "RUNNING":
                    self.client.set_terminated(run.info.run_id, "KILLED")

    def parameters(self, values: Mapping[str, Any]) -> None:
        """Log nested plain values as parameters with dotted names."""
        from mlflow.entities import Param

        flat = [Param(key, str(value)) for key, value in flattened(values).items()]
        for first in range(0, len(flat), MOST_LABELS):
            self._send(params=flat[first : first + MOST_LABELS])

    def tags(self, values: Mapping[str, str | None]) -> None:
        """Set tags; those without a value are left out."""
        from mlflow.entities import RunTag

        self._send(tags=[RunTag(key, value) for key, value in values.items() if value is not None])

    def datasets(self, datasets: Iterable[RunDataset]) -> None:
        """Log the datasets of the run."""
        with self._sending():
            self.client.log_inputs(self.run_id, [dataset.to_mlflow() for dataset in datasets])

    def metrics(self, values: Mapping[str, float], step: int) -> None:
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
            batch, self._pending = self._pending[:MOST_METRICS], self._pending[MOST_METRICS:]
            sent = self._send(metrics=batch)
        self._flushed = time.monotonic()

    def _send(self, **batch: Any) -> bool:
        started_s, lost = time.monotonic(), self.lost
        with self._sending(sum(len(entries) for entries in batch.values())):
            self.client.log_batch(self.run_id, **batch)
        if self.lost > lost:
            self._put_off_until = time.monotonic() + PAUSE_RATIO * (time.monotonic() - started_s)
        return self.lost == lost

    @contextmanager
    def _sending(self, entries: int = 1) -> Iterator[None]:
        """Count so many entries as lost where the server is."""
        with quiet():
            try:
                yield
            except self._errors:
                self.lost += entries

    def artifact(self, path: Path, folder: str | None = None) -> None:
        """Store a file or a folder with the run."""
        with self._sending():
            send = self.client.log_artifacts if path.is_dir() else self.client.log_artifact
            send(self.run_id, str(path), folder)

    def text(self, name: str, text: str) -> None:
        """Store a text as a file of the run."""
        with self._sending():
            self.client.log_text(self.run_id, text, name)

    def part(
        self,
        name: str,
        tags: Mapping[str, str | None],
        parameters: Mapping[str, Any],
        metrics: Mapping[str, float],
        digest: str | None = None,
    ) -> None:
        """Log a finished child run: a candidate of a comparison.

        Args:
            name: of the run.
            tags, parameters, metrics: of it; parameters may be nested.
            digest: of the candidate's bundle; the metrics are also logged with the bundle's logged model, if any.
        """
        from mlflow.entities import Param

        given = {key: value for key, value in tags.items() if value} | {PARENT_TAG: self.run_id}
        flat = [Param(key, str(value)) for key, value in flattened(parameters).items()]
        now_ms = int(time.time() * 1000)
        with self._sending(len(metrics) + len(flat)):
            run_id = self.client.create_run(self.experiment_id, run_name=name, tags=given).info.run_id
            model_id = self._logged_model(digest) if digest else None
            points = [self._metric(key, value, now_ms, 0, model_id=model_id) for key, value in metrics.items()]
            for first in range(0, max(len(flat), 1), MOST_LABELS):
                self.client.log_batch(run_id, params=flat[first : first + MOST_LABELS])
            for first in range(0, len(points), MOST_METRICS):
                self.client.log_batch(run_id, metrics=points[first : first + MOST_METRICS])
            self.client.set_terminated(run_id)

    def _logged_model(self, digest: str) -> str | None:
        models = self.client.search_logged_models(
            [self.experiment_id], f"tags.`{DIGEST_TAG}` = '{digest}'", max_results=1
        )
        return str(models[0].model_id) if models else None

    def finish(self, status: str = "FINISHED") -> None:
        """End the run: ``FINISHED``, ``FAILED`` or ``KILLED``. Says how many entries are lost, if any are."""
        self.flush()
        self.lost += len(self._pending)
        self._pending = []
        with quiet():
            if self._system is not None and not self.lost:
                self._system.finish()  # it waits for its thread, which a lost server holds up
        with self._sending():
            self.client.set_terminated(self.run_id, status)
        if self.lost:
            print(f"MLflow at {shown(self.uri)}: {self.lost} entries could not be written", file=sys.stderr)

    @contextmanager
    def whole(self) -> Iterator[None]:
        """End the run as the body ends; raises FailureError where something could not be written."""
        status = "FAILED"
        try:
            yield
            status = "FINISHED"
        finally:
            self.finish(status)
        self.require_complete()

    def require_complete(self) -> None:
        """Raise FailureError where something could not be written, for commands that do nothing else."""
        if self.lost:
            raise FailureError(
                f"MLFLOW_TRACKING_URI = {shown(self.uri)!r}: {self.lost} entries could not be written; {INSTEAD}"
            )


def flattened(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested plain values by dotted names."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= flattened(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def finite_only(values: Mapping[str, float | None]) -> dict[str, float]:
    """Figures that are known: MLflow's databases take no NaN everywhere, and no None."""
    return {key: float(value) for key, value in values.items() if value is not None and math.isfinite(value)}


def _system_metrics(run_id: str, uri: str, resumed: bool) -> Any:
    """MLflow's monitor of this machine, started; None where it is turned off or lacks its package psutil."""
    wanted = os.environ.get("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "true").lower() not in {"false", "0"}
    if not wanted or util.find_spec("psutil") is None:
        return None
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    logging.getLogger("mlflow.system_metrics").setLevel(logging.CRITICAL)
    monitor: Any = SystemMetricsMonitor(run_id, resume_logging=resumed, tracking_uri=uri)  # type: ignore[no-untyped-call]
    monitor.start()
    return monitor
