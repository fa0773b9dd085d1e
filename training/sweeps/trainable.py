"""A trial in a worker of Ray: a training run that reports, waits for permission to continue, and can be killed.

Ray requests a report at a time (`step`). The run is a thread that waits between requests. Its reports and checkpoints
are in the trial's folder only. The next worker of the trial first repeats the old reports, so that a new scheduler
knows its progress, and then continues from the checkpoint.

With population-based training Ray also requests a copy of a trial's checkpoint (`save_checkpoint`), from which another
trial continues with other settings (`reset_config`, then `load_checkpoint`).
"""

from __future__ import annotations

import math
import os
import queue
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.tune import Trainable

from slicepilot.data.files import replace_file

from .files import (
    COPIES_FILE,
    RESULT_FILE,
    WORKER_FILE,
    add_report,
    read_json,
    read_reports,
    write_json,
    write_weights,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from slicepilot.agents.learned.bundle import PolicyBundle
    from slicepilot.training.offline.train import OfflineProgress
    from slicepilot.training.online.train import Progress
    from slicepilot.training.runs.checkpoint import Checkpoint

    from .config import Base

PROGRESS = "progress_pct"
FULL_PCT = 100.0
PATIENCE_S = 60.0
TRIAL_FILE = "trial"
"""File in a copy of a checkpoint that names its trial."""


class TrialRun(Trainable):
    """A trial; its configuration is `slicepilot.training.sweeps.sweep.spec_of` a trial."""

    def setup(self, config: dict[str, Any]) -> None:
        """Continue the trial from the state in its folder."""
        self._spec: dict[str, Any] = config["trial"]
        self._folder = Path(self._spec["folder"])
        self._folder.mkdir(parents=True, exist_ok=True)
        os.chdir(self._spec["directory"])  # names of files count from where the command was called
        worker = read_json(self._folder / WORKER_FILE)
        start = int(worker.get("start", 0)) + 1
        node = ray.get_runtime_context().get_node_id() if ray.is_initialized() else None
        write_json(self._folder / WORKER_FILE, {"pid": os.getpid(), "start": start, "node": node})
        self._reported = read_reports(self._folder)
        # A population has changed since: what a trial has reported under other settings would count again.
        self._old = self._reported[-1:] if self._spec["population"] else list(self._reported)
        self._out: queue.Queue[dict[str, Any] | BaseException] = queue.Queue()
        self._go_on = threading.Semaphore(0)
        self._ending = False
        self._save_wanted, self._saved = threading.Event(), threading.Event()
        self._means: dict[str, float] = {}  # sums over control periods since the last report
        self._steps = self._steps_before = 0
        self._thread: threading.Thread | None = None

    def step(self) -> dict[str, Any]:
        """The next report; the last report has ``done``."""
        result = read_json(self._folder / RESULT_FILE)
        if self._old:
            report = self._old.pop(0)
            # Of a finished or stopped trial they are all there is.
            return report | {"done": bool(result) and not self._old}
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="training", daemon=True)
            self._thread.start()
        else:
            self._go_on.release()
        results = self._out.get()
        if isinstance(results, BaseException):
            raise results
        return results

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take up another trial: its imports, which take seconds, are made."""
        self.cleanup()
        self.setup(new_config)
        return True

    def cleanup(self) -> None:
        """End the run, if it is not at its end: with a checkpoint, and a mark that it was stopped."""
        if self._thread is None or not self._thread.is_alive():
            if self._reported and self._thread is None:
                self._mark_stopped()
            return
        self._ending = True
        self._go_on.release()
        self._thread.join(timeout=PATIENCE_S)

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Copy the run as it is, between two of its steps, for another trial to go on from."""
        from slicepilot.training.runs.checkpoint import FILE_NAME

        if self._thread is not None and self._thread.is_alive():
            self._saved.clear()
            self._save_wanted.set()
            self._go_on.release()
            self._saved.wait(PATIENCE_S)
        if (self._folder / FILE_NAME).exists():
            replace_file(Path(checkpoint_dir) / FILE_NAME, (self._folder / FILE_NAME).read_bytes())
        replace_file(Path(checkpoint_dir) / TRIAL_FILE, self._spec["name"].encode())

    def load_checkpoint(self, checkpoint_dir: str) -> None:  # type: ignore[override]  # a folder, as it is saved
        """Go on from the copy of a run, mostly another trial's, with this trial's settings."""
        from slicepilot.training.runs.checkpoint import FILE_NAME

        donor = (Path(checkpoint_dir) / TRIAL_FILE).read_text()
        copied = Path(checkpoint_dir) / FILE_NAME
        if copied.exists():
            replace_file(self._folder / FILE_NAME, copied.read_bytes())
        self._old = []
        if donor != self._spec["name"]:
            at = self._reported[-1][PROGRESS] if self._reported else 0.0
            add_report(self._folder, {"at_pct": at, "from": donor, "values": self._spec["values"]}, COPIES_FILE)

    def _mark_stopped(self) -> None:
        if self._spec["population"]:
            return  # it is only put off: Ray takes trials of a population up in turns
        if not (self._folder / RESULT_FILE).exists():
            write_json(self._folder / RESULT_FILE, {"status": "stopped", "run_id": self._run_id()})

    def _run(self) -> None:
        from slicepilot.training.runs.run import RunStopped

        try:
            self._out.put(self._finish(*self._train()))
        except RunStopped:
            self._mark_stopped()
        except BaseException as error:  # noqa: BLE001 (it is raised where Ray waits)
            self._out.put(error)

    def _train(self) -> tuple[PolicyBundle, int, float]:
        """The policy, and the steps and seconds that it took."""
        from slicepilot.training.online.config import TrainingConfig
        from slicepilot.training.online.train import train
        from slicepilot.training.runs.checkpoint import FILE_NAME, Checkpoint

        config = self._config()
        checkpoint = Checkpoint.read(self._folder) if (self._folder / FILE_NAME).exists() else None
        name, parent = self._spec["run_name"], self._spec["parent_run_id"]
        if isinstance(config, TrainingConfig):
            self._steps_before = checkpoint.steps if checkpoint is not None else 0
            result = train(config, self._folder, name, checkpoint, self._report, parent)
            return result.bundle, result.steps, result.elapsed_s
        return self._train_offline(config, checkpoint, name, parent)

    def _train_offline(
        self, config: Any, checkpoint: Checkpoint | None, name: str, parent: str | None
    ) -> tuple[PolicyBundle, int, float]:
        from slicepilot.training.offline.train import train_offline

        self._steps_before = checkpoint.updates if checkpoint is not None else 0
        done = train_offline(config, self._folder, name, checkpoint, self._report_offline, parent_run_id=parent)
        return done.bundle, done.updates, done.elapsed_s

    def _config(self) -> Base:
        """The trial's configuration, with the settings that population-based training has given it."""
        from .config import SweepConfig, changed_by, weights_of

        sweep, source = SweepConfig.of(self._spec["sweep"], "sweep"), f"trial {self._spec['name']}"
        changed, terms = changed_by(self._spec["values"] if self._spec["population"] else {}, self._spec["config"])
        if terms:
            weights = weights_of(changed["reward"], terms, source)
            assert weights is not None
            changed["reward"] = str(write_weights(weights, self._folder))
        return sweep.config_of(changed, source)

    def _run_id(self) -> str | None:
        from slicepilot.training.runs.checkpoint import FILE_NAME, Checkpoint

        file = self._folder / FILE_NAME
        return Checkpoint.read(file).run_id if file.exists() else None

    def _report(self, now: Progress) -> None:
        """Called by the run, a few times a second."""
        means = {} if math.isnan(now.reward) else {"reward": now.reward, **now.terms}
        self._advance(now.steps, now.elapsed_s, now.fraction, means, now.save)

    def _report_offline(self, now: OfflineProgress) -> None:
        self._advance(now.updates, now.elapsed_s, now.fraction, now.figures, None)

    def _advance(
        self, steps: int, elapsed_s: float, fraction: float, means: dict[str, float], save: Callable[[], None] | None
    ) -> None:
        """Report where it is due, then wait until Ray Tune calls for the next step."""
        from slicepilot.training.runs.run import RunStopped

        if self._ending:
            raise RunStopped(keep=not self._spec["population"])
        self._count(steps, means)
        every_pct = FULL_PCT / self._spec["reports"]
        percent = FULL_PCT * fraction
        before = self._reported[-1][PROGRESS] if self._reported else 0.0
        if fraction >= 1.0 or percent // every_pct <= before // every_pct or not self._means:
            return
        self._out.put(self._new_report(steps, elapsed_s, percent))
        self._go_on.acquire()
        while self._save_wanted.is_set():
            self._save_wanted.clear()
            if save is not None:
                save()
            self._saved.set()
            self._go_on.acquire()
        if self._ending:
            raise RunStopped(keep=not self._spec["population"])

    def _count(self, steps: int, means: dict[str, float]) -> None:
        """Means of now's steps, to be weighed by their number: single rollouts are noise."""
        steps, self._steps_before = steps - self._steps_before, steps
        if steps <= 0 or not means:
            return
        self._steps += steps
        for key, value in means.items():
            self._means[key] = self._means.get(key, 0.0) + steps * value

    def _new_report(
        self, steps: int, elapsed_s: float, percent: float, judged: dict[str, float] | None = None
    ) -> dict[str, Any]:
        # None where a worker was killed after the last step: nothing is left to be measured, the figures stay.
        means = {key: total / self._steps for key, total in self._means.items()}
        kept = {} if means or not self._reported else self._reported[-1]
        report = {**kept, PROGRESS: percent, "steps": steps, "elapsed_s": round(elapsed_s, 3), **means}
        report |= judged or {}
        self._means, self._steps = {}, 0
        self._reported.append(report)
        add_report(self._folder, report)
        return report | {"done": False}

    def _finish(self, bundle: PolicyBundle, steps: int, elapsed_s: float) -> dict[str, Any]:
        from .judging import final_figures

        judged = final_figures(self._spec["sweep"], self._spec["config"], bundle)
        report = self._new_report(steps, elapsed_s, FULL_PCT, judged)
        document = {"status": "finished", "bundle": str(bundle.origin), "run_id": bundle.training.run_id}
        write_json(self._folder / RESULT_FILE, document)
        return report | {"done": True}
