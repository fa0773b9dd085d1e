"""Estimates from recorded data in MLflow: a run for the comparison, and under it a run for each policy."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from slicepilot.data.episodes.episodes import EpisodeSet
from slicepilot.data.recorded import find
from slicepilot.training.runs.datasets import EVALUATION, episodes_dataset
from slicepilot.training.runs.labels import RunLabels, provenance
from slicepilot.training.runs.tracking import Tracker, finite_only

from .comparison import Comparison


def log_estimates(comparison: Comparison, data: str, episodes: EpisodeSet, labels: RunLabels) -> str:
    """Log a comparison to MLflow; returns its run's id.

    Figures are each policy's estimate and its interval, and what the logged policies earned. ``data`` is the name or
    path of the episodes.

    Raises:
        ConfigError: the tracking server does not answer at first.
        FailureError: something could not be written.
    """
    tags = provenance(f"dataset {data}", {}) | dict(labels.tags)
    tracker = Tracker(labels.name(f"estimate {Path(data).name}", None), tags=tags)
    with tracker.whole():
        dataset = episodes_dataset(data, find(data), episodes)
        tracker.datasets([dataclasses.replace(dataset, context=EVALUATION)])
        for policy in comparison.policies:
            own = policy.estimate
            figures = {"estimate/reward": own.value, "estimate/low": own.low, "estimate/high": own.high}
            figures["estimate/covered"] = float(policy.coverage.supported)
            said = {"role": "estimated", "refused": own.refused, "coverage": policy.coverage.verdict}
            tracker.part(policy.name, said | dict(labels.tags), {"agent": policy.name}, finite_only(figures))
        for name, earned in comparison.behaviours.items():
            figures = {"estimate/reward": earned.value, "estimate/low": earned.low, "estimate/high": earned.high}
            said = {"role": "logged"} | dict(labels.tags)
            tracker.part(name, said, {"agent": name}, finite_only(figures))
    return tracker.run_id
