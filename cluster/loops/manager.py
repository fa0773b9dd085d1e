"""Keeps the running loops as planned: starts them, sets their modes, ends them, restarts them after failures."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from slicepilot.cluster.client.errors import BackOff
from slicepilot.cluster.plan.plan import LoopPlan, SetPlan
from slicepilot.controller.publisher.listeners import LOCAL
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.controller.system.own_programs import environment, python
from slicepilot.controller.watchdog.journal import journal_path

from .leftovers import Leftovers
from .process import LoopProcess
from .reading import LoopFigures, LoopReader

RELIABLE_S = 30.0
"""A loop that has run for so long is restarted at once again if it fails."""
RESTORE_S = 60.0


@dataclass
class LoopState:
    """A SliceSet's loop.

    Attributes:
        process: None while none runs.
        figures: as last read; None before its first tick.
        instance: its name.
        starts, failures: how often it was started; how often it ended unexpectedly or could not be started.
        failure: error of a loop that ended unexpectedly or could not be started; None once it runs again.
    """

    instance: str = ""
    process: LoopProcess | None = None
    reader: LoopReader | None = None
    figures: LoopFigures | None = None
    failure: str | None = None
    starts: int = 0
    failures: int = 0
    again_s: float = 0.0
    back_off: BackOff = field(default_factory=lambda: BackOff(1.0, 60.0))

    @property
    def refused(self) -> str | None:
        """Why it has refused a mode."""
        return None if self.process is None else self.process.refused


class LoopManager:
    """For the main thread only: the kernel ends a loop when the thread that started it has ended.

    Args:
        folder: of the loops' configurations.
        roots: folders of their sockets, and of their journals.
        records_mb: disk space for the decision records of each.
        log: called with a loop's name and each line that it prints.
        pages: whether each loop serves its pages on a Unix socket.
    """

    def __init__(
        self,
        folder: Path,
        roots: tuple[Path, Path],
        records_mb: float,
        log: Callable[[str, str], None],
        pages: bool = False,
    ) -> None:
        self._folder, self._roots, self._records_mb, self._log = folder, roots, records_mb, log
        self._pages = pages
        self._leftovers = Leftovers(folder, roots)
        self.states: dict[str, LoopState] = {}

    def restore(self, instance: str | None = None) -> None:
        """Restore the knobs of loops that died together with their supervisors.

        Args:
            instance: a loop that has ended; None: all, before any loop is started.
        """
        if not self._roots[1].is_dir():
            return
        command = [*python("slicepilot.cli"), "restore", "--state", str(self._roots[1])]
        if instance is not None:
            command += ["--name", instance]
        try:
            done = subprocess.run(
                command, cwd="/", env=environment(), capture_output=True, text=True, timeout=RESTORE_S, check=False
            )
        except subprocess.TimeoutExpired:
            self._log("restore", f"not finished within {RESTORE_S:g} s")
            return
        for line in (done.stdout + done.stderr).strip().splitlines():
            self._log("restore", line)

    def reconcile(self, plans: Iterable[SetPlan], now_s: float) -> None:
        """Take the next step towards the plans, without waiting; to be called repeatedly."""
        wanted = {plan.identity.uid: plan.loop for plan in plans if plan.loop is not None}
        for uid in [*self.states]:
            self._reap(uid, now_s)
            if uid not in wanted:
                self._end(uid)
        for uid, plan in wanted.items():
            state = self.states.setdefault(uid, LoopState())
            if state.process is None:
                if now_s >= state.again_s and not self._name_taken(uid, plan.instance):
                    self._start(state, plan, now_s)
            elif not state.process.plan.starts_as(plan):
                state.process.stop()
                state.figures, state.again_s = None, 0.0
            elif state.figures is not None:  # it accepts orders once it ticks
                state.process.keep_mode(plan)
        used = {plan.instance for plan in wanted.values()}
        used |= {state.process.plan.instance for state in self.states.values() if state.process is not None}
        for text in self._leftovers.tidy(used, now_s):
            self._log("leftovers", text)

    def read(self) -> None:
        """Read the figures of all running loops."""
        for state in self.states.values():
            if state.reader is not None and state.process is not None and state.process.ending_s is None:
                state.figures = state.reader.read()
                if state.figures is not None:
                    state.failure = None
                    if time.monotonic() - state.process.started_s > RELIABLE_S:
                        state.back_off.succeeded()

    def close(self) -> None:
        """End all loops, and wait until they have restored their knobs."""
        running = [state.process for state in self.states.values() if state.process is not None]
        for process in running:
            process.stop()
        deadline_s = time.monotonic() + 15.0
        for process in running:
            process.wait(max(0.1, deadline_s - time.monotonic()))
        for state in self.states.values():
            if state.reader is not None:
                state.reader.close()
        self.states = {}

    def _start(self, state: LoopState, plan: LoopPlan, now_s: float) -> None:
        state.instance = plan.instance
        # Estimates for loops in shadow are shown nowhere here, and would cost the simulator's 70 MiB.
        publish = {"records_mb": self._records_mb, "estimate_s": 0, **({"listen": LOCAL} if self._pages else {})}
        try:
            self._leftovers.mark(plan.instance)
            process = LoopProcess(plan, self._folder, self._roots, publish, lambda text: self._log(plan.instance, text))
            state.starts += 1
        except (OSError, RuntimeError) as error:  # no memory, no processes, no threads
            state.failures += 1
            state.failure = f"cannot be started: {getattr(error, 'strerror', None) or error}"
            state.again_s = now_s + state.back_off.failed()
            return
        self._log(plan.instance, f"loop started, in mode {plan.mode}, as process {process.pid}")
        state.process, state.reader, state.figures = process, LoopReader(process.ring, process.pid), None

    def _reap(self, uid: str, now_s: float) -> None:
        state = self.states[uid]
        process = state.process
        if process is None or process.ended() is None:
            return
        if process.ending_s is None:
            state.failure = process.why()
            state.failures += 1
            state.again_s = now_s + state.back_off.failed()
        self._log(process.plan.instance, "loop ended" if state.failure is None else f"loop ended: {state.failure}")
        if state.reader is not None:
            state.reader.close()
        state.process = state.reader = state.figures = None
        # A journal is left where its supervisor restores at this moment, or has died as well. The command waits for a
        # supervisor, and this thread waits for nothing.
        with contextlib.suppress(ActuatorError, RuntimeError):  # no folder, no threads: the next loop or agent restores
            if journal_path(self._roots[1] / (instance := process.plan.instance)).exists():
                threading.Thread(target=self.restore, args=(instance,), name="restore", daemon=True).start()

    def _end(self, uid: str) -> None:
        state = self.states[uid]
        if state.process is None:
            del self.states[uid]
        else:
            state.process.stop()

    def _name_taken(self, uid: str, instance: str) -> bool:
        """Whether the loop of a deleted SliceSet of the same name has not ended yet."""
        others = (state.process for other, state in self.states.items() if other != uid)
        return any(process is not None and process.plan.instance == instance for process in others)
