"""The status of a running controller as one document: for the status page, ``/status.json`` and ``slicepilot top``."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from slicepilot.controller.contracts.charge import shares
from slicepilot.controller.contracts.modes import Level, Mode
from slicepilot.controller.contracts.reasons import MEANINGS, Reason
from slicepilot.controller.record.cpu_time import CPU_TIME_FIELDS, gets_group
from slicepilot.controller.record.ring import Records
from slicepilot.controller.record.ring_reader import TickReader
from slicepilot.env.knobs import KNOB_FIELDS
from slicepilot.env.telemetry import NODE_FIELDS, SLICE_FIELDS

from .counts import REASONS, STAGES, DelayCounter
from .history import SECONDS, StatusHistory

NOW_S, REASONS_S, LOOP_S = 2, 5, 60
QUANTILES = {"p50_us": 0.5, "p99_us": 0.99, "p999_us": 0.999}
SERIES = ("offered_mbps", "carried_mbps", "delay_p50_us", "delay_p99_us", "loss_ratio")
_RUN = (
    *("run_id", "name", "version", "backend", "agent", "bundle", "period_s", "budget_s", "logical_cpus"),
    *("uplink_mbps", "pid", "started_ns", "scheduling", "nice_scope", "hardware"),
)


class Status:
    """Follows a ring; call `update` a few times a second, and `document` at any time.

    Args:
        num_slices: of the ring.
        since_start: ticks that were overwritten before the first `update` are counted as lost.

    Attributes:
        description: of the run, as in the ring; generation: its number in the ring.
        notes: as in the ring.
        last: the newest record, as an array (1,); empty before the first.
        delays: packets by delay since the probe's start, as far as this process has seen.
        history: figures by second.
        estimate: what a shadow run's policy would have changed, set by the user of this class.
        confined: how the publisher is confined.
    """

    def __init__(self, num_slices: int, since_start: bool = False) -> None:
        self.num_slices, self._since_start = num_slices, since_start
        self.generation, self.description = 0, dict[str, Any]()
        self.notes: dict[str, Any] = {}
        self.estimate: dict[str, Any] | None = None
        self.last: Records = np.empty(0)
        self.delays = DelayCounter(num_slices)
        self.history = StatusHistory(num_slices)
        self.confined = ""
        self.beat_ns = 0
        self.lost = 0

    def update(self, reader: TickReader) -> Records:
        """Take in what is new; returns the new records, oldest first."""
        records = reader.new()
        if len(records):
            # An onlooker, or a publisher that was started again, has not lost what was overwritten before it looked.
            if not len(self.last) and not (self._since_start and not reader.notes().get("publisher_restarts")):
                reader.lost = 0
            self.last = records[-1:]
            self.history.add(records)
        if not self.description or (len(self.last) and self.last["description"][0] != self.generation):
            self.generation, self.description = reader.description()
        self.notes = reader.notes()
        self.history.add_delays(self.delays.update(reader.delays()))
        self.beat_ns, self.lost = reader.beat_ns, reader.lost
        return records

    @property
    def slices(self) -> list[dict[str, Any]]:
        """The slices' specifications, in order; `{"name": "0"}` and so on while nothing describes them."""
        given = self.description.get("slice_set", {}).get("slices", [])
        if len(given) == self.num_slices:
            return list(given)
        return [{"name": str(index)} for index in range(self.num_slices)]

    @property
    def beat_age_s(self) -> float:
        """Time since the controller's last sign of life."""
        return max(0.0, (time.monotonic_ns() - self.beat_ns) / 1e9)

    @property
    def mode(self) -> Mode:
        """The mode in the newest tick."""
        return Mode(int(self.last["mode"][0])) if len(self.last) else Mode.SHADOW

    @property
    def level(self) -> Level:
        """The guard's, as of the newest tick."""
        return Level(int(self.last["level"][0])) if len(self.last) else Level.NORMAL

    def level_of(self, index: int) -> Level:
        """The level of a slice in the newest tick: SAFE or LATCHED where it has its safe setting for its own reason."""
        reasons = int(self.last["reasons"][0, index]) if len(self.last) and self.level < Level.SAFE else 0
        if reasons & Reason.LATCHED.bit:
            return Level.LATCHED
        return Level.SAFE if reasons & Reason.SAFE_SETTING.bit else Level.NORMAL

    @property
    def paused(self) -> bool:
        return bool(len(self.last) and self.last["node_reasons"][0] & Reason.PAUSED.bit)

    def acts_on(self, name: str) -> bool:
        """Whether decisions on a slice are applied in this mode."""
        return self.mode is Mode.LIVE or (self.mode is Mode.CANARY and name in self.notes.get("canary", ()))

    def has_cpu_time(self, name: str) -> bool:
        """Whether a slice's `CPU_TIME_FIELDS` are measured in this mode."""
        return self.acts_on(name) or not gets_group(self.description, name)

    def document(self, history_s: int = 60) -> dict[str, Any]:
        """Everything as strict JSON: None for what is not known and for knobs without a limit.

        Rates and the like are means over the last one to two seconds; reasons are those of the last five seconds with
        the number of ticks that had them; ``loop`` has quantiles over the last minute. Histories are of whole seconds,
        oldest first; ``history_s`` is their length, at most 119, and 0 leaves them out. ``wanted`` is None where the
        policy failed.
        """
        history, minute = self.history, self.history.rows(LOOP_S)
        ticks, late = history.ticks(minute)
        stages = history.stages_us(minute, tuple(QUANTILES.values()))
        reasons = history.reasons(history.rows(REASONS_S))
        node = history.node(history.rows(NOW_S))
        started_ns = self.description.get("started_ns")
        return {
            "run": {key: self.description.get(key) for key in _RUN},
            "mode": self.mode.label,
            "level": self.level.label,
            "paused": self.paused,
            "agent": self.description.get("agent"),
            "time_s": int(self.last["time_ns"][0]) / 1e9 if len(self.last) else None,
            "uptime_s": None if started_ns is None else max(0.0, (time.time_ns() - started_ns) / 1e9),
            "beat_age_s": self.beat_age_s,
            "ticks": {
                "written": int(self.last["sequence"][0]) if len(self.last) else 0,
                "missed": int(self.last["missed"][0]) if len(self.last) else 0,
                "last_minute": ticks,
                "late_last_minute": late,
                "lost": self.lost,
            },
            "in_charge": shares(history.charges(minute)),
            "loop": {
                stage: dict(zip(QUANTILES, _numbers(row), strict=True))
                for stage, row in zip(STAGES, stages, strict=True)
            },
            "node": dict(zip(NODE_FIELDS, _numbers(node), strict=True)) | {"reasons": _reasons(reasons[-1])},
            "slices": self._slices(reasons, min(history_s, SECONDS - 1)),
            "notes": self.notes,
            "publisher": {"confined": self.confined},
            "estimate": self.estimate,
        }

    def _slices(self, reasons: npt.NDArray[np.int64], history_s: int) -> list[dict[str, Any]]:
        now = self.history.rows(NOW_S)
        means, worst = self.history.means(now), self.history.worst_us(now)
        rows = self.history.rows(history_s, whole=True)
        series, worst_series = self.history.series(rows), self.history.worst_us(rows)
        documents = []
        for s, spec in enumerate(self.slices):
            promise = spec.get("sla", {})
            bound_ms = promise.get("delay_bound_ms")
            document = {
                "name": spec["name"],
                "valid": bool(len(self.last) and self.last["valid"][0, s]),
                "acting": self.acts_on(spec["name"]),
                "level": self.level_of(s).label,
                "committed_mbps": promise.get("committed_mbps"),
                "delay_bound_us": None if bound_ms is None else 1e3 * bound_ms,
                **dict(zip(SLICE_FIELDS, _numbers(means[:, s]), strict=True)),
                **({} if self.has_cpu_time(spec["name"]) else dict.fromkeys(CPU_TIME_FIELDS)),
                "delay_worst_us": _numbers(worst[-1:, s])[0],
                "knobs": {stage: self._knobs(stage, s) for stage in ("wanted", "allowed", "applied")},
                "fixed": self.description.get("fixed", {}).get(spec["name"], []),
                "reasons": _reasons(reasons[s]),
            }
            if history_s:
                columns = {field: _numbers(series[:, SLICE_FIELDS.index(field), s]) for field in SERIES}
                document["history"] = columns | {"delay_worst_us": _numbers(worst_series[:, s])}
            documents.append(document)
        return documents

    def _knobs(self, stage: str, index: int) -> dict[str, float | None] | None:
        if not len(self.last):
            return None
        values = self.last[stage][0, :, index]
        return None if np.isnan(values).any() else dict(zip(KNOB_FIELDS, _numbers(values), strict=True))


def _numbers(values: npt.NDArray[Any]) -> list[float | None]:
    """Plain numbers of four significant digits; None for what JSON does not have."""
    return [float(f"{value:.4g}") if math.isfinite(value) else None for value in values.tolist()]


def _reasons(counts: npt.NDArray[np.int64]) -> list[dict[str, Any]]:
    """The reasons that were given, the most severe first, then the most frequent."""
    given = [reason for reason in REASONS if counts[reason]]
    given.sort(key=lambda reason: (-MEANINGS[reason].severity, -counts[reason]))
    return [
        {
            "reason": reason.label,
            "severity": MEANINGS[reason].severity.label,
            "text": MEANINGS[reason].text,
            "ticks": int(counts[reason]),
        }
        for reason in given
    ]
