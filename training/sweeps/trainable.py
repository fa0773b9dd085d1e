"""One trial in a worker of Ray: a training run that hands a report over, waits whether it may go on, and can be killed.

Ray asks for a report at a time (`step`). The run goes on in a thread of its own and is held while nobody asks. What it
has reported and its checkpoints are in the trial's folder, and nowhere else: whichever worker takes the trial up next
hands the old reports over first, so that a scheduler that has never seen them knows how far it was, and then goes on
from the checkpoint.
"""

from __future__ import annotations

import math
import os
import queue
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray.tune import Trainable

from .files import (
    RESULT_FILE,
    WORKER_FILE,
    add_report,
    read_json,
    read_reports,
    write_json,
)

if TYPE_CHECKING:
    from slicepilot.training.online.train import Progress, TrainingResult

PROGRESS = "progress_pct"
FULL_PCT = 100.0


class TrialRun(Trainable):
    """A trial; its configuration is `slicepilot.training.sweeps.sweep.spec_of` a trial."""

    def setup(self, config: dict[str, Any]) -> None:
        """Take the trial up where its folder says that it is."""
        self._spec: dict[str, Any] = config["trial"]
        self._folder = Path(self._spec["folder"])
        self._folder.mkdir(parents=True, exist_ok=True)
        os.chdir(self._spec["directory"])  # names of files count from where the command was called
        worker = read_json(self._folder / WORKER_FILE)
        write_json(self._folder / WORKER_FILE, {"pid": os.getpid(), "start": int(worker.get("start", 0)) + 1})
        self._reported = read_reports(self._folder)
        self._old = list(self._reported)
        self._out: queue.Queue[dict[str, Any] | BaseException] = queue.Queue()
        self._go_on = threading.Semaphore(0)
        self._ending = False
        self._means: dict[str, float] = {}  # sums over control periods since the last report
        self._steps = self._steps_before = 0
        self._thread: threading.Thread | None = None

    def step(self) -> dict[str, Any]:
        """The next report; the last one has ``done``."""
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
        self._thread.join(timeout=60)

    def _mark_stopped(self) -> None:
        if not (self._folder / RESULT_FILE).exists():
            write_json(self._folder / RESULT_FILE, {"status": "stopped", "run_id": self._run_id()})

    def _run(self) -> None:
        from slicepilot.training.online.train import RunStopped

        try:
            result = self._train()
        except RunStopped:
            self._mark_stopped()
        except BaseException as error:  # noqa: BLE001 (it is raised where Ray waits)
            self._out.put(error)
        else:
            self._out.put(self._finish(result))

    def _train(self) -> TrainingResult:
        from slicepilot.training.online.config import TrainingConfig
        from slicepilot.training.online.train import train
        from slicepilot.training.runs.checkpoint import FILE_NAME, Checkpoint

        config = TrainingConfig.of(self._spec["config"], f"trial {self._spec['name']}")
        checkpoint = Checkpoint.read(self._folder) if (self._folder / FILE_NAME).exists() else None
        self._steps_before = checkpoint.steps if checkpoint is not None else 0
        name, parent = self._spec["run_name"], self._spec["parent_run_id"]
        return train(config, self._folder, name, checkpoint, self._report, parent)

    def _run_id(self) -> str | None:
        from slicepilot.training.runs.checkpoint import FILE_NAME, Checkpoint

        file = self._folder / FILE_NAME
        return Checkpoint.read(file).run_id if file.exists() else None

    def _report(self, now: Progress) -> None:
        """Called by the run, a few times a second."""
        from slicepilot.training.online.train import RunStopped

        if self._ending:
            raise RunStopped
        self._count(now)
        every_pct = FULL_PCT / self._spec["reports"]
        percent = FULL_PCT * now.fraction
        before = self._reported[-1][PROGRESS] if self._reported else 0.0
        if now.fraction >= 1.0 or percent // every_pct <= before // every_pct or not self._means:
            return
        self._out.put(self._new_report(now.steps, now.elapsed_s, percent))
        self._go_on.acquire()
        if self._ending:
            raise RunStopped

    def _count(self, now: Progress) -> None:
        """Means of now's control periods, to be weighed by their number: single rollouts are noise."""
        steps, self._steps_before = now.steps - self._steps_before, now.steps
        if steps <= 0 or math.isnan(now.reward):
            return
        self._steps += steps
        for key, value in {"reward": now.reward, **now.terms}.items():
            self._means[key] = self._means.get(key, 0.0) + steps * value

    def _new_report(self, steps: int, elapsed_s: float, percent: float) -> dict[str, Any]:
        # None where a worker was killed after the last step: nothing is left to be measured, the figures stay.
        means = {key: total / self._steps for key, total in self._means.items()}
        kept = {} if means or not self._reported else self._reported[-1]
        report = {**kept, PROGRESS: percent, "steps": steps, "elapsed_s": round(elapsed_s, 3), **means}
        self._means, self._steps = {}, 0
        self._reported.append(report)
        add_report(self._folder, report)
        return report | {"done": False}

    def _finish(self, result: TrainingResult) -> dict[str, Any]:
        report = self._new_report(result.steps, result.elapsed_s, FULL_PCT)
        document = {"status": "finished", "bundle": str(result.bundle.origin), "run_id": result.run_id}
        write_json(self._folder / RESULT_FILE, document)
        return report | {"done": True}
