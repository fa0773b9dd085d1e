"""Trials that are drawn by the results of others: Optuna's sampler (Akiba et al. 2019, arXiv:1907.10902).

Nothing of Optuna or Ray is kept: a sweep that goes on tells a new sampler what its ended trials have achieved.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import TrialState
from ray.tune.search import Searcher

from slicepilot.data.files import replace_file

from .config import Axis, Range, Trial, Value, trial_of
from .files import Outcome, Sweep, outcome_of
from .trainable import PROGRESS

Spec = Callable[[Sweep, Trial], dict[str, Any]]


class OptunaTrials(Searcher):
    """Draws a sweep's trials, at most ``samples`` of them; those that have no end yet come first.

    Args:
        sweep: with the trials that were drawn before.
        spec: of a trial, for a worker.
    """

    def __init__(self, sweep: Sweep, spec: Spec) -> None:
        config = sweep.config
        super().__init__(metric=config.metric, mode="max" if config.sign > 0 else "min")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.sweep, self._spec = sweep, spec
        self._axes = {key: _distribution(axis) for key, axis in config.axes.items()}
        # A seed of its own for each start: drawing must not begin again where the sweep goes on.
        sampler = optuna.samplers.TPESampler(seed=config.sample_seed + len(sweep.trials))
        self._study = optuna.create_study(direction="maximize" if config.sign > 0 else "minimize", sampler=sampler)
        self._running: dict[str, tuple[optuna.Trial, str]] = {}
        self._left: list[Trial] = []
        for trial in sweep.trials:
            outcome = outcome_of(sweep.folder_of(trial))
            if outcome.status in {"finished", "stopped"}:
                self._tell_old(trial, outcome)
            else:
                self._left.append(trial)

    def suggest(self, trial_id: str) -> Any:
        """The trial of the next worker."""
        if self._left:
            trial = self._left.pop(0)
            self._study.enqueue_trial(self._values(trial))
            suggestion = self._study.ask(self._axes)
        elif len(self.sweep.trials) < (self.sweep.config.samples or 0):
            suggestion = self._study.ask(self._axes)
            values: dict[str, Value] = dict(suggestion.params)
            name = f"{len(self.sweep.trials):03d}"
            self.sweep = self.sweep.added(trial_of(name, values, self.sweep.config, self.sweep.config.base))
            trial = self.sweep.trials[-1]
        else:
            return Searcher.FINISHED
        self._running[trial_id] = suggestion, trial.name
        return {"trial": self._spec(self.sweep, trial)}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """A figure on the way."""
        value = result.get(str(self.metric))
        if trial_id in self._running and value is not None and not math.isnan(value):
            self._running[trial_id][0].report(float(value), int(result[PROGRESS]))

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Report the trial's end to Optuna; the value of a trial that was stopped early counts for less."""
        suggestion, name = self._running.pop(trial_id)
        outcome = outcome_of(self.sweep.folder / "trials" / name)
        value = (result or outcome.metrics).get(str(self.metric))
        if error or value is None or math.isnan(value):
            self._study.tell(suggestion, state=TrialState.FAIL)
        elif outcome.status == "finished":
            self._study.tell(suggestion, float(value))
        else:
            self._study.tell(suggestion, state=TrialState.PRUNED)

    def save(self, checkpoint_path: str) -> None:
        """Write an empty file, for which Ray looks; the state is in the trials' folders."""
        replace_file(Path(checkpoint_path), b"")

    def restore(self, checkpoint_path: str) -> None:
        """Never called: a sweep is submitted to Ray anew."""

    def _values(self, trial: Trial) -> dict[str, Value]:
        """Of all axes, those with a single value among them."""
        return {key: trial.values.get(key, _single(axis)) for key, axis in self.sweep.config.axes.items()}

    def _tell_old(self, trial: Trial, outcome: Outcome) -> None:
        value = outcome.metrics.get(str(self.metric))
        if value is None or math.isnan(value):
            return
        finished = outcome.status == "finished"
        self._study.add_trial(
            optuna.trial.create_trial(
                state=TrialState.COMPLETE if finished else TrialState.PRUNED,
                value=float(value) if finished else None,
                params=self._values(trial),
                distributions=self._axes,
                intermediate_values={int(outcome.metrics[PROGRESS]): float(value)},
            )
        )


def _distribution(axis: Axis) -> BaseDistribution:
    if not isinstance(axis, Range):
        return CategoricalDistribution(list(axis))
    if isinstance(axis.low, int) and isinstance(axis.high, int):
        return IntDistribution(axis.low, axis.high, log=axis.log)
    return FloatDistribution(float(axis.low), float(axis.high), log=axis.log)


def _single(axis: Axis) -> Value:
    return axis.low if isinstance(axis, Range) else axis[0]
