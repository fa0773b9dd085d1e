"""Log events from the ticks and notes of a run."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from slicepilot.controller.contracts.latches import NODE_LATCHED, NODE_REMEDY
from slicepilot.controller.contracts.modes import Level, Mode
from slicepilot.controller.contracts.reasons import MEANINGS, Reason, Severity
from slicepilot.controller.record.ring import Records, masks_of

from .counts import REASONS, STAGES, Counts, reason_counts
from .listeners import HttpAddress, Peer
from .logs import EventLogger
from .status import Status

T = TypeVar("T")
AGAIN_S, SUMMARY_S = 1.0, 60.0
MAX_ORDER_CHARS = 500
_GRAVE = tuple(reason for reason in REASONS if MEANINGS[reason].severity >= Severity.WARNING)
_COUNTED = {"missed_ticks": "ticks_missed", "late_ticks": "ticks_late", "failed_applies": "applies_failed"}


@dataclass
class _Given:
    """A reason that begins repeatedly: lines are at least `AGAIN_S` apart, with the number of times."""

    logged_s: float = float("-inf")
    times: int = 0


class EventLog:
    """Follows a `Status`; `update` after each of its updates.

    A reason of the guard is logged when it begins (a tick has it, the tick before had not). Mode and level are logged
    when they change; what cannot be measured, foreign changes and failures when they begin and end.

    Args:
        log, status: where events go, and of what.
        listen: address of the pages, if they are served over a network.
        summary_s: seconds between summaries; ticks and times are always those of the last minute.
    """

    def __init__(
        self, log: EventLogger, status: Status, listen: HttpAddress | None, summary_s: float = SUMMARY_S
    ) -> None:
        self._log, self._status, self._listen, self._summary_s = log, status, listen, summary_s
        self._started = False
        self._mode: Mode | None = None
        self._level: Level | None = None
        self._masks = np.zeros((1, status.num_slices + 1), np.uint32)
        self._given: dict[tuple[int, Reason], _Given] = {}
        self._notes: dict[str, Any] = {}
        self._next_summary_s = time.monotonic() + summary_s
        self._minute: Counts = np.zeros((status.num_slices + 1, len(REASONS)), np.int64)

    def update(self, records: Records) -> None:
        """Log what is new in these records, oldest first, and in the notes."""
        now_s = time.monotonic()
        if len(records):
            if not self._started:  # a start that was refused has no tick
                self._started = True
                self._start()
            self._changes(records)
            self._reasons(records)
        self._flush(now_s)
        notes = self._status.notes
        if notes != self._notes:
            self._compare(self._notes, notes)
            self._notes = notes
        if now_s >= self._next_summary_s:
            self._next_summary_s = now_s + self._summary_s
            self._summary()

    def command(self, peer: Peer, line: bytes, answer: dict[str, Any]) -> None:
        """Log an order and its answer; see `slicepilot.controller.publisher.control_socket`."""
        try:
            order = json.loads(line)
        except (ValueError, RecursionError):  # not confirmed by the controller
            order = line.decode(errors="backslashreplace")[:MAX_ORDER_CHARS]
        client = {"uid": peer.uid, "pid": peer.pid}
        if answer["ok"]:
            self._log.info("command", **client, order=order)
        else:
            self._log.warning("command", **client, order=order, error=answer.get("error"))

    def _start(self) -> None:
        run = self._status.description
        about = {key: run.get(key) for key in ("run_id", "name", "version", "agent", "backend", "pid", "scheduling")}
        self._log.info(
            "start", **about, publisher_pid=os.getpid(), publisher_uid=os.getuid(), listen=str(self._listen or "off")
        )
        if self._listen is not None and not self._listen.loopback:
            self._log.warning("listen", address=str(self._listen), text="the pages can be reached from other machines")

    def _changes(self, records: Records) -> None:
        """Mode and level, tick by tick where they change at all."""
        for tick in records[_where_changed(records["mode"])]:
            mode = Mode(int(tick["mode"]))
            if mode is not self._mode and self._mode is not None:
                self._log.info("mode", mode=mode.label, before=self._mode.label, tick=int(tick["sequence"]))
            self._mode = mode
        for tick in records[_where_changed(records["level"])]:
            level = Level(int(tick["level"]))
            before = Level.NORMAL if self._level is None else self._level
            if level is not before:
                say = self._log.info if level is Level.NORMAL else self._log.warning
                todo = {"text": NODE_LATCHED, "remedy": NODE_REMEDY} if level is Level.LATCHED else {}
                say("guard_level", guard=level.label, before=before.label, tick=int(tick["sequence"]), **todo)
            self._level = level

    def _reasons(self, records: Records) -> None:
        masks = masks_of(records)
        self._minute += reason_counts(masks)
        begun = reason_counts(masks & ~np.concatenate([self._masks, masks[:-1]]))
        self._masks = masks[-1:]
        for reason in _GRAVE:
            for index in np.flatnonzero(begun[:, reason]).tolist():
                self._given.setdefault((index, reason), _Given()).times += int(begun[index, reason])

    def _flush(self, now_s: float) -> None:
        for (index, reason), pending in self._given.items():
            if pending.times and now_s - pending.logged_s >= AGAIN_S:
                say = self._log.error if MEANINGS[reason].severity is Severity.SEVERE else self._log.warning
                say(
                    "guard",
                    slice=self._name(index),
                    reason=reason.label,
                    times=pending.times,
                    text=MEANINGS[reason].text,
                )
                pending.logged_s, pending.times = now_s, 0

    def _compare(self, before: dict[str, Any], notes: dict[str, Any]) -> None:
        for thing in _new(before.get("unmeasured"), notes.get("unmeasured")):
            self._log.warning("unmeasured", what=thing)
        for thing in _new(before.get("remarks"), notes.get("remarks")):
            self._log.info("remark", what=thing)
        for thing in _new(notes.get("unmeasured"), before.get("unmeasured")):
            self._log.info("measured_again", what=thing)
        foreign, foreign_before = _by_knob(notes), _by_knob(before)
        for knob in _new(foreign_before, foreign):
            self._log.warning("foreign_change", **foreign[knob])
        for slice_name, knob_name in _new(foreign, foreign_before):
            self._log.info("foreign_change_over", slice=slice_name, knob=knob_name)
        for event in ("signal", "restored"):
            if (happened := notes.get(event)) is not None and happened != before.get(event):
                self._log.info(event, text=happened["text"])
        self._compare_trips(before, notes)
        self._compare_failures(before, notes)
        self._compare_processes(before, notes)

    def _compare_trips(self, before: dict[str, Any], notes: dict[str, Any]) -> None:
        """Log trips that begin, latch and end."""
        now, known = _by_slice(notes), _by_slice(before)
        for name, trip in now.items():
            before_trip = known.get(name, {})
            if trip["latched"] and not before_trip.get("latched"):
                self._log.error("slice_latched", **trip)
            elif not before_trip:
                self._log.warning("slice_tripped", **trip)
        for name in _new(now, known):
            self._log.info("slice_trip_over", slice=name)

    def _compare_failures(self, before: dict[str, Any], notes: dict[str, Any]) -> None:
        error, reload = notes.get("last_error"), notes.get("reload")
        if error is not None and error != before.get("last_error"):
            self._log.warning("error", error=error)
        if reload is not None and reload != before.get("reload"):
            (self._log.info if reload["ok"] else self._log.warning)("reload", ok=reload["ok"], detail=reload["detail"])
        counted, counted_before = notes.get("totals") or {}, before.get("totals")
        for key, event in _COUNTED.items():
            # An earlier publisher has logged those before the first update.
            more = 0 if counted_before is None else counted.get(key, 0) - counted_before.get(key, 0)
            if more > 0:
                self._log.warning(event, more=more, total=counted[key])

    def _compare_processes(self, before: dict[str, Any], notes: dict[str, Any]) -> None:
        supervisor, known = notes.get("supervisor"), before.get("supervisor")
        if supervisor is None or supervisor == known:
            return
        if not supervisor["alive"]:
            self._log.error("supervisor_gone", pid=supervisor["pid"])
        else:
            again = known is not None and supervisor["restarts"] > known["restarts"]
            (self._log.warning if again else self._log.info)("supervisor", **supervisor)

    def _summary(self) -> None:
        status = self._status
        ticks, late = status.history.ticks(status.history.rows(round(SUMMARY_S)))
        stages = status.history.stages_us(status.history.rows(round(SUMMARY_S)), (0.5, 0.99))
        p50_us, p99_us = (round(value, 1) for value in np.nan_to_num(stages[STAGES.index("total")]).tolist())
        pending = self._minute.sum(axis=0)
        reasons = {reason.label: int(pending[reason]) for reason in REASONS if pending[reason]}
        self._minute[:] = 0
        about = {"mode": status.mode.label, "guard": status.level.label, "ticks": ticks, "late": late}
        self._log.info("minute", **about, total_p50_us=p50_us, total_p99_us=p99_us, reasons=reasons)

    def _name(self, index: int) -> str:
        """The name of a slice; empty for the node."""
        return str(self._status.slices[index]["name"]) if index < self._status.num_slices else ""


def _where_changed(values: Records) -> Records:
    """Indices of the first value and of those unlike their predecessor."""
    return np.concatenate([[0], np.flatnonzero(values[1:] != values[:-1]) + 1])


def _new(before: Iterable[T] | None, now: Iterable[T] | None) -> list[T]:
    known = list(before or ())
    return [thing for thing in now or () if thing not in known]


def _by_slice(notes: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {trip["slice"]: trip for trip in notes.get("trips") or ()}


def _by_knob(notes: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(change["slice"], change["knob"]): change for change in notes.get("foreign") or ()}
