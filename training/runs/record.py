"""The record of a run: in its folder, and in MLflow where the run is tracked.

``run.json`` says what the run was: configuration, seed, start and end, command, user, code, what it learned from and
started from. ``metrics.jsonl`` has its curves. `slicepilot.training.comparison` reads both without a server.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from slicepilot.agents.learned.bundle import PolicyBundle
from slicepilot.configs import ConfigError
from slicepilot.data.files import appended, replace_file

from .datasets import RunDataset
from .labels import RunLabels, command, git_revision, now, provenance, user, versions
from .registry import Registered, register
from .tracking import Tracker, finite_only

RUN_FILE, METRICS_FILE = "run.json", "metrics.jsonl"
FORMAT = 1
SPACING = 500
"""Of the points of a curve in ``metrics.jsonl``: each is a second, or this part of the run so far, after the last."""


class RunRecord:
    """The record of a run, which is written while it goes on.

    Args:
        folder: of the run.
        name: of its configuration, which begins the run's name.
        config: plain values.
        source: what it learns from, in words.
        labels: of the command line.
        tracked: whether it is a run in MLflow, too.
        run_id: MLflow run to go on with; a new run is started if it no longer exists.
        resumed: whether it goes on with a run, tracked or not, whose curves are kept.
        parent_run_id: MLflow run that it is a part of. An existing run of the same name there is continued, so that a
            process that was killed before its first checkpoint leaves no duplicate.
        datasets: what it learns from.
        files: to be kept with the MLflow run.

    Raises:
        ConfigError: the folder cannot be written, or see `Tracker`.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        config: Mapping[str, Any],
        source: str,
        labels: RunLabels,
        tracked: bool,
        run_id: str | None = None,
        resumed: bool = False,
        parent_run_id: str | None = None,
        datasets: Iterable[RunDataset] = (),
        files: Iterable[Path] = (),
    ) -> None:
        self.folder, self.labels, self.parent_run_id = folder, labels, parent_run_id
        self.lost = 0
        self._started_s = self._written_s = time.monotonic()
        self._last: tuple[int, dict[str, float]] | None = None
        seed = config.get("seed")
        full = name if parent_run_id is not None else labels.name(name, seed if isinstance(seed, int) else None)
        datasets, tags = list(datasets), dict(labels.tags)
        self.document: dict[str, Any] = {
            "format": FORMAT,
            "name": full,
            "status": "RUNNING",
            "started": now(),
            "ended": None,
            "command": command(),
            "user": user(),
            "git_revision": git_revision(),
            "versions": versions(),
            "source": source,
            "from": dict(labels.origin),
            "tags": tags,
            "datasets": [{"name": d.name, "digest": d.digest, "path": d.path, **d.profile} for d in datasets],
            "parameters": dict(config),
            "run_id": None,
            "model": None,
            "summary": {},
        }
        self.tracker: Tracker | None = None
        if tracked:
            given = provenance(source, labels.origin) | tags
            self.tracker = Tracker(full, run_id, parent_run_id, given, system=parent_run_id is None)
            self.document["run_id"] = self.tracker.run_id
            if not self.tracker.resumed or parent_run_id is not None:
                self.tracker.parameters(config)
                self.tracker.datasets(datasets)
                for file in files:
                    self.tracker.artifact(file)
        if not resumed and not self._goes_on():
            with contextlib.suppress(FileNotFoundError):
                (folder / METRICS_FILE).unlink()
        self._write()

    def _goes_on(self) -> bool:
        """Whether the folder has a run that was begun before, as a trial that another worker has left."""
        try:
            return bool(json.loads((self.folder / RUN_FILE).read_text(encoding="utf-8"))["status"] == "RUNNING")
        except (OSError, ValueError, KeyError, TypeError):
            return False

    @property
    def run_id(self) -> str | None:
        """MLflow's id; None without tracking."""
        return self.tracker.run_id if self.tracker else None

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """One point of each curve."""
        if self.tracker is not None:
            self.tracker.metrics(values, step)
        self._last = step, finite_only(values)
        now_s = time.monotonic()
        if now_s - self._written_s >= max(1.0, (now_s - self._started_s) / SPACING):
            self._written_s = now_s
            self._append()

    def summary(self, values: Mapping[str, float | None], **texts: str) -> None:
        """Figures of the whole run, such as an estimate of its policy; texts are tags in MLflow."""
        figures = finite_only(values)
        self.document["summary"] |= figures | texts
        if self.tracker is not None:
            self.tracker.metrics(figures, 0)
            self.tracker.tags(texts)

    def policy(self, bundle: PolicyBundle) -> Registered | None:
        """Log the policy that the run ends with, and register it as the challenger; None without tracking."""
        assert bundle.origin is not None
        if self.tracker is None:
            return None
        self.tracker.artifact(bundle.origin, "bundle")
        model = None if self.parent_run_id is not None else self.labels.model
        made = register(self.tracker, bundle, model)
        if made is not None:
            self.document["model"] = made.address
        return made

    def finish(self, status: str = "FINISHED") -> None:
        """End the run: ``FINISHED``, ``FAILED`` or ``KILLED``."""
        self._append()
        self.document |= {"status": status, "ended": now()}
        try:
            self._write()
        finally:
            if self.tracker is not None:
                self.tracker.finish(status)

    def _append(self) -> None:
        """Write the last point down; a full disk costs points of a curve, and not the run."""
        if self._last is None:
            return
        step, values = self._last
        self._last = None
        line = {"step": step, "time_s": round(time.monotonic() - self._started_s, 3), **values}
        try:
            with appended(self.folder / METRICS_FILE) as file:
                file.write(json.dumps(line).encode() + b"\n")
        except OSError:
            self.lost += 1

    def _write(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_file(self.folder / RUN_FILE, (json.dumps(_strict(self.document), indent=1) + "\n").encode())
        except OSError as error:
            raise ConfigError(f"out = {str(self.folder)!r}: cannot be written: {error.strerror}") from error


def _strict(value: Any) -> Any:
    """Plain values for JSON, which has no NaN, no infinity and no tuples."""
    if isinstance(value, dict):
        return {str(key): _strict(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
