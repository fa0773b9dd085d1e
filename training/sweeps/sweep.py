"""Run a sweep: its trials as actors of Ray Tune, under a common run in MLflow, until each has ended."""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slicepilot.configs import ConfigError
from slicepilot.training.cluster.session import ray_session, usable_cpus
from slicepilot.training.runs.labels import RunLabels, provenance
from slicepilot.training.runs.run import plain_config

from .config import Trial
from .files import RAYS_OWN, RESULT_FILE, Outcome, Sweep, label, outcome_of, write_json

if TYPE_CHECKING:
    from slicepilot.training.runs.tracking import Tracker

OnReport = Callable[[float, str], None]
"""Called with the share of all budgets that is used up, 0..1, and the name of the trial that reports."""


@dataclass(frozen=True)
class SweepResult:
    """The results of a sweep.

    Attributes:
        outcomes: of the trials, in their order.
        best: index of the finished trial with the best metric at its end; None where none has finished.
    """

    sweep: Sweep
    outcomes: tuple[Outcome, ...]
    best: int | None

    def metric_of(self, outcome: Outcome) -> float | None:
        """The metric of the trials, None before the first report."""
        return outcome.metrics.get(self.sweep.config.metric)


def run_sweep(
    sweep: Sweep,
    address: str | None = None,
    parallel: int | None = None,
    on_report: OnReport | None = None,
    labels: RunLabels | None = None,
) -> SweepResult:
    """Run the trials that have no end yet, and return the results.

    Args:
        sweep: new or read from its folder. On a cluster all nodes see that folder under the same path.
        address: of a Ray cluster; None = processes on this machine.
        parallel: trials at a time at most; None = as many as there are CPUs for.
        on_report: progress.
        labels: of the command line.

    Raises:
        ConfigError: bad values, MLflow or the cluster does not answer.
        FailureError: Ray does not start.
    """
    labels = labels or RunLabels()
    sweep, tracker = _tracked(sweep, labels)
    status = "FAILED"
    try:
        left = [
            trial for trial in sweep.trials if outcome_of(sweep.folder_of(trial)).status in {"unfinished", "failed"}
        ]
        undrawn = sweep.config.search == "optuna" and len(sweep.trials) < (sweep.config.samples or 0)
        if left or undrawn:
            for trial in left:  # failed trials are tried again
                (sweep.folder_of(trial) / RESULT_FILE).unlink(missing_ok=True)
            # ASHA compares all trials: ended trials report again.
            sweep = _run(sweep, sweep.trials if sweep.config.asha else left, address, parallel, on_report)
        result = _summed_up(sweep)
        if tracker is not None and result.best is not None:
            best = result.outcomes[result.best]
            tracker.tags({"best_trial": sweep.trials[result.best].name, "best_run_id": best.run_id})
            tracker.metrics({f"best/{key}": value for key, value in best.metrics.items()}, step=0)
            _register(tracker, best, labels)
        status = "FINISHED"
        return result
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        if tracker is not None:
            tracker.end_children()
            tracker.finish(status)


def _register(tracker: Tracker, best: Outcome, labels: RunLabels) -> None:
    """Make the best trial's policy the challenger, once for the sweep and not as each trial ends."""
    from slicepilot.agents.learned.bundle import PolicyBundle
    from slicepilot.training.runs.registry import register

    if best.bundle is not None:
        register(tracker, PolicyBundle.load(best.bundle), labels.model)


def _tracked(sweep: Sweep, labels: RunLabels) -> tuple[Sweep, Tracker | None]:
    """The sweep with its run in MLflow, and that run; none where no trial is tracked."""
    if not sweep.tracked:
        return sweep, None
    from slicepilot.training.runs.tracking import Tracker

    tags = provenance(f"sweep {sweep.name}", {}) | dict(labels.tags)
    tracker = Tracker(labels.name(sweep.name, None), sweep.run_id, tags=tags, system=True)
    if tracker.run_id != sweep.run_id:
        tracker.parameters(plain_config(sweep.config))
        sweep = dataclasses.replace(sweep, run_id=tracker.run_id)
        sweep.write()
    return sweep, tracker


def spec_of(sweep: Sweep, trial: Trial) -> dict[str, Any]:
    """A trial as plain values, for a worker."""
    return {
        "name": trial.name,
        "run_name": f"{sweep.name} {trial.name} {label(trial.values)}".rstrip(),
        "folder": str(sweep.folder_of(trial).resolve()),
        "directory": str(Path.cwd()),
        "config": plain_config(trial.config),
        "parent_run_id": sweep.run_id,
        "reports": sweep.config.reports,
        "sweep": plain_config(sweep.config),
        "values": {key: value for key, value in trial.values.items() if key in sweep.config.mutable},
        "population": sweep.config.pbt is not None,
    }


def _run(
    sweep: Sweep, trials: Sequence[Trial], address: str | None, parallel: int | None, on_report: OnReport | None
) -> Sweep:
    """The sweep with the trials that were drawn while it ran."""
    config = sweep.config
    environment = {}
    if sweep.tracked:
        from slicepilot.training.runs.store import tracking_uri

        environment["MLFLOW_TRACKING_URI"] = tracking_uri()
    at_a_time = parallel or max(1, usable_cpus() // config.cpus_per_trial)
    rays_own = sweep.folder.resolve() / RAYS_OWN
    shutil.rmtree(rays_own, ignore_errors=True)
    try:
        with ray_session(address, at_a_time * config.cpus_per_trial, config.cpus_per_trial, environment) as ray:
            if address is not None and ray.cluster_resources().get("CPU", 0) < config.cpus_per_trial:
                raise ConfigError(f"cpus_per_trial = {config.cpus_per_trial}: expected what the cluster has")
            if config.pbt is not None:
                at_most = None  # all of a population exist, and take turns
            elif config.search == "optuna" and address is None:
                at_most = at_a_time  # none is drawn before it can run: what others achieve until then would not count
            else:
                at_most = parallel
            grid, sweep = _fit(sweep, trials, rays_own, at_most, on_report)
    finally:
        shutil.rmtree(rays_own, ignore_errors=True)
    for results in grid:
        if results.error is not None:
            folder = Path(results.config["trial"]["folder"])
            write_json(folder / RESULT_FILE, {"status": "failed", "error": _cause(results.error)})
    return sweep


def _fit(
    sweep: Sweep, trials: Sequence[Trial], rays_own: Path, parallel: int | None, on_report: OnReport | None
) -> tuple[Any, Sweep]:
    from ray import tune

    from .trainable import TrialRun

    config = sweep.config
    searcher: Any = None
    space: dict[str, Any] = {"trial": tune.grid_search([spec_of(sweep, trial) for trial in trials])}
    count, samples = len(trials), 1
    if config.search == "optuna":
        from .search import OptunaTrials

        searcher, space, count = OptunaTrials(sweep, spec_of), {}, config.samples or 0
        samples = -1  # the searcher knows when it is done
    tuner = tune.Tuner(
        tune.with_resources(TrialRun, {"cpu": config.cpus_per_trial}),
        param_space=space,
        tune_config=tune.TuneConfig(
            search_alg=searcher,
            num_samples=samples,
            scheduler=_scheduler(sweep),
            max_concurrent_trials=parallel,
            reuse_actors=True,
            trial_name_creator=_name,
            trial_dirname_creator=_name,
        ),
        run_config=tune.RunConfig(
            name=rays_own.name,
            storage_path=str(rays_own.parent),
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
            failure_config=tune.FailureConfig(max_failures=config.restarts),
            callbacks=[_watcher(count, on_report)],
            verbose=0,
        ),
    )
    grid = tuner.fit()
    return grid, sweep if searcher is None else searcher.sweep


def _scheduler(sweep: Sweep) -> Any:
    """The scheduler that stops or replaces trials; None without a scheduler."""
    from ray.tune.schedulers import AsyncHyperBandScheduler

    from .trainable import FULL_PCT, PROGRESS

    config = sweep.config
    given: dict[str, Any] = {
        "time_attr": PROGRESS,
        "metric": config.metric,
        "mode": "max" if config.sign > 0 else "min",
    }
    if config.asha is not None:
        return AsyncHyperBandScheduler(
            max_t=int(FULL_PCT),
            grace_period=config.asha.grace_pct,
            reduction_factor=config.asha.reduction_factor,
            **given,
        )
    if config.pbt is None:
        return None
    from .population import Population

    return Population(config, **given)


def _name(trial: Any) -> str:
    return f"trial-{trial.config['trial']['name']}"


def _watcher(count: int, on_report: OnReport | None) -> Any:
    from ray.tune import Callback

    from .trainable import FULL_PCT, PROGRESS

    class Watcher(Callback):
        """Reports the progress of all trials together."""

        def __init__(self, on_report: OnReport | None) -> None:
            self._on_report = on_report
            self._done: dict[str, float] = {}

        def __getstate__(self) -> dict[str, Any]:
            """Without the progress bar, because Ray pickles its callbacks."""
            return {"_on_report": None, "_done": {}}

        def on_trial_result(
            self, iteration: int, trials: Sequence[Any], trial: Any, result: dict[str, Any], **_: Any
        ) -> None:
            del iteration, trials
            name = trial.config["trial"]["name"]
            self._done[name] = FULL_PCT if result.get("done") else float(result[PROGRESS])
            if self._on_report is not None:
                self._on_report(sum(self._done.values()) / FULL_PCT / count, name)

    return Watcher(on_report)


def _cause(error: BaseException) -> str:
    """The cause of a worker's failure, as a single line: Ray wraps it in its own errors with their stacks."""
    cause = getattr(error, "cause", None) or error
    lines = [line.strip() for line in str(cause).strip().splitlines() if line.strip()]
    return (lines[-1] if lines else type(cause).__name__)[:300]


def _summed_up(sweep: Sweep) -> SweepResult:
    outcomes = tuple(outcome_of(sweep.folder_of(trial)) for trial in sweep.trials)
    finished = [
        (value, -number)
        for number, item in enumerate(outcomes)
        if item.status == "finished"
        and not math.isnan(value := sweep.config.sign * item.metrics.get(sweep.config.metric, math.nan))
    ]
    return SweepResult(sweep, outcomes, -max(finished)[1] if finished else None)
