"""Keeps the loops that there are as they are planned: starts, orders, ends, and starts again what has failed."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from slicepilot.cluster.client.errors import BackOff
from slicepilot.cluster.plan.plan import LoopPlan, SetPlan
from slicepilot.controller.publisher.listeners import LOCAL
from slicepilot.controller.system.own_programs import environment, python

from .leftovers import Leftovers
from .process import LoopProcess
from .reading import LoopFigures, LoopReader

WELL_S = 30.0
"""What has run for so long may fail again without a longer wait."""
RESTORE_S = 60.0


@dataclass
class LoopState:
    """A SliceSet's loop.

    Attributes:
        process: None while none runs.
        figures: as last read; None before its first tick.
        instance: what it is called.
        starts, failures: how often it was started; and ended by itself, or could not be started.
        failure: the last that a loop said that had ended by itself, or could not be started; None while all is well.
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
        """Why it would not change its mode."""
        return None if self.process is None else self.process.refused


class Keeper:
    """To be used from the main thread alone: the kernel ends a loop when the thread that started it has ended.

    Args:
        folder: for configurations.
        roots: where loops have their sockets, and their journals.
        records_mb: disk space for the decision records of each.
        told: gets each line that a loop prints, with its name.
        pages: whether each serves its pages on a Unix socket.
    """

    def __init__(
        self,
        folder: Path,
        roots: tuple[Path, Path],
        records_mb: float,
        told: Callable[[str, str], None],
        pages: bool = False,
    ) -> None:
        self._folder, self._roots, self._records_mb, self._told = folder, roots, records_mb, told
        self._pages = pages
        self._leftovers = Leftovers(folder, roots)
        self.states: dict[str, LoopState] = {}

    def restore(self) -> None:
        """Put back what loops have left that died together with their supervisors, before any is started."""
        if not self._roots[1].is_dir():
            return
        command = [*python("slicepilot.cli"), "restore", "--state", str(self._roots[1])]
        try:
            done = subprocess.run(
                command, cwd="/", env=environment(), capture_output=True, text=True, timeout=RESTORE_S, check=False
            )
        except subprocess.TimeoutExpired:
            self._told("restore", f"not done in {RESTORE_S:g} s")
            return
        for line in (done.stdout + done.stderr).strip().splitlines():
            self._told("restore", line)

    def follow(self, plans: Iterable[SetPlan], now_s: float) -> None:
        """Do the next step of whatever has to be done; call it again and again."""
        wanted = {plan.who.uid: plan.loop for plan in plans if plan.loop is not None}
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
            elif state.figures is not None and not state.process.plan.acts_as(plan):  # it takes orders once it ticks
                state.process.turn(plan)
        used = {plan.instance for plan in wanted.values()}
        used |= {state.process.plan.instance for state in self.states.values() if state.process is not None}
        for told in self._leftovers.tidy(used, now_s):
            self._told("leftovers", told)

    def look(self) -> None:
        """Read the figures of all that run."""
        for state in self.states.values():
            if state.reader is not None and state.process is not None and state.process.ending_s is None:
                state.figures = state.reader.look()
                if state.figures is not None:
                    state.failure = None
                    if time.monotonic() - state.process.started_s > WELL_S:
                        state.back_off.succeeded()

    def close(self) -> None:
        """End all of them, and wait until what they found is restored."""
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
        # What a shadow run would have changed is told nowhere here, and costs the simulator's 70 MiB.
        publish = {"records_mb": self._records_mb, "estimate_s": 0, **({"listen": LOCAL} if self._pages else {})}
        try:
            self._leftovers.used(plan.instance)
            process = LoopProcess(
                plan, self._folder, self._roots, publish, lambda text: self._told(plan.instance, text)
            )
            state.starts += 1
        except (OSError, RuntimeError) as error:  # no memory, no processes, no threads
            state.failures += 1
            state.failure = f"cannot be started: {getattr(error, 'strerror', None) or error}"
            state.again_s = now_s + state.back_off.failed()
            return
        self._told(plan.instance, f"loop started, in mode {plan.mode}, as process {process.pid}")
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
        self._told(process.plan.instance, "loop ended" if state.failure is None else f"loop ended: {state.failure}")
        if state.reader is not None:
            state.reader.close()
        state.process = state.reader = state.figures = None

    def _end(self, uid: str) -> None:
        state = self.states[uid]
        if state.process is None:
            del self.states[uid]
        else:
            state.process.stop()

    def _name_taken(self, uid: str, instance: str) -> bool:
        """Whether the loop of a SliceSet of the same name that was deleted has not ended yet."""
        others = (state.process for other, state in self.states.items() if other != uid)
        return any(process is not None and process.plan.instance == instance for process in others)
