"""What the control loop sees of a Prometheus server: `PrometheusSource.measure`, which waits for nobody.

A thread queries the server twice in a scrape interval, reads credentials again when their files have changed, and
leaves the newest figures behind. A server can only make them old or absent: `client` bounds the size and the time of an
answer, `answers` what is believed of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slicepilot.configs import ConfigError, FailureError
from slicepilot.configs.reading import read_file
from slicepilot.configs.text import as_many_as_fit
from slicepilot.controller.telemetry.layout import BUCKETS
from slicepilot.env.telemetry import NODE_FIELDS, SLICE_FIELDS, Telemetry

from .answers import MOST, Floats
from .client import Client, OutOfReachError, PrometheusError
from .config import PrometheusSpec, Queries, credential_files, rows_of

ROUNDS = 2
"""Rounds of queries in a scrape interval: a new sample is known half an interval later at most."""
JOIN_S = 0.2
MOST_SECRET_BYTES = 1 << 18
MOST_REPORT_BYTES = 1 << 16
"""Reasons that are reported, as JSON: they have to fit into the notes of a run."""
MOST_REMARK_BYTES = 1 << 12
_OFFERED, _CARRIED, _LOSS = (SLICE_FIELDS.index(name) for name in ("offered_mbps", "carried_mbps", "loss_ratio"))
_UPLINK = NODE_FIELDS.index("uplink_use_ratio")


@dataclass(frozen=True)
class _Figures:
    """What the last round that was answered has brought.

    Attributes:
        slices: (rows, S). node: (rows,).
        taken_s: (S,), CLOCK_BOOTTIME of the oldest sample; -inf for a slice of which something is missing.
        why: what is missing.
        error: what was wrong with the last round; None where nothing was.
    """

    slices: Floats
    node: Floats
    taken_s: Floats
    why: list[str]
    error: str | None = None


class PrometheusSource:
    """Telemetry of slices out of a Prometheus server, one lane, queried by a thread.

    Figures are means over a control period and a scrape interval before the newest sample, whose age is in ``age_s``.
    A slice is valid while each row that the queries name has a single series with a fresh sample that is a number. Loss
    follows from offered and carried; rows that the queries do not name are 0, as they are of a slice without a cgroup.
    No packet is timed here, so delays have no histogram.

    The first round is made at construction; the thread starts with the first `measure`, after privileges were dropped.

    Args:
        spec: the server.
        names: of the slices.
        period_s: of control.
        uplink_mbps: for ``uplink_use_ratio``; inf: it reads 0.

    Attributes:
        queries: the queries of each round.
        counts: answers so far that the server itself called partial, which are not used, and answers with remarks.
        remarks: what the server remarked in the last round (``infos`` of the HTTP API), which does not concern data.

    Raises:
        ConfigError: settings that do not fit, a period that is too short for the scrapes.
        FailureError: the server does not answer, or has nothing of any slice.
    """

    def __init__(
        self, spec: PrometheusSpec, names: Sequence[str], period_s: float, uplink_mbps: float = float("inf")
    ) -> None:
        self.queries: Queries = spec.loaded_queries()
        self._spec, self._names, self._uplink_mbps = spec, tuple(names), uplink_mbps
        self._rows = [row for row in rows_of(self.queries, spec, self._names, period_s) if row.kind != "knob"]
        self._telemetry = Telemetry.empty(len(names))
        self._closed, self._begun = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._query, name="prometheus", daemon=True)
        slices, node = np.zeros((len(SLICE_FIELDS), len(names))), np.zeros(len(NODE_FIELDS))
        self._figures = _Figures(slices, node, np.full(len(names), -np.inf), [])
        self.counts = {"prometheus_partial_answers": 0, "prometheus_remarked_answers": 0}
        self.remarks: list[str] = []
        self._last_s = _clock_s()
        self._stamps = _stamps(spec)
        self._client = Client(spec, secrets_of(spec))
        self._figures = self._round()
        if not np.isfinite(self._figures.taken_s).any():
            first = next(iter(self._figures.why), "prometheus: no figures of any slice")
            raise FailureError(self._figures.error or first)

    tasks: tuple[tuple[Callable[[], object], float], ...] = ()

    def __enter__(self) -> PrometheusSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def measure(self) -> Telemetry:
        """The newest figures there are, in buffers that the next call overwrites; only the first call, which starts the
        thread, waits for answers, so that a run does not begin with those of its preparations."""
        if self._thread.ident is None:
            self._thread.start()
            self._begun.wait(self._spec.timeout_s)
        figures, telemetry, now_s = self._figures, self._telemetry, _clock_s()
        if np.isfinite(figures.taken_s).any():
            self._last_s = figures.taken_s[np.isfinite(figures.taken_s)].min()
        age_s = now_s - figures.taken_s
        valid = age_s <= self.queries.most_age_s
        telemetry.valid[:, 0] = valid
        telemetry.slices[:, :, 0] = np.where(valid, figures.slices, 0.0)
        telemetry.node[:, 0] = figures.node
        telemetry.age_s[0] = age_s[valid].max() if valid.any() else max(now_s - self._last_s, 0.0)
        return telemetry

    def warm_up(self) -> None:
        """Nothing: control periods are seconds."""

    def check(self) -> list[str]:
        figures = self._figures
        return [*([figures.error] if figures.error else []), *figures.why]

    def delay_counts(self) -> npt.NDArray[np.uint32]:
        """Zeros (S, BUCKETS): no packet is timed."""
        return np.zeros((len(self._names), BUCKETS), np.uint32)

    def close(self) -> None:
        """End the thread, which finishes a query that hangs in the background; safe to repeat."""
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join(JOIN_S)

    def _query(self) -> None:
        """The thread: rounds of queries that start at even intervals."""
        every_s, due_s = self.queries.scrape_interval_s / ROUNDS, time.monotonic()
        while not self._closed.wait(due_s - time.monotonic()):
            try:
                if (stamps := _stamps(self._spec)) != self._stamps:
                    self._client, self._stamps = Client(self._spec, secrets_of(self._spec)), stamps
                self._figures = self._round()
            except Exception as error:  # noqa: BLE001 (no answer may end the thread)
                text = str(error) if isinstance(error, (ConfigError, FailureError)) else f"prometheus: {error!r}"
                self._figures = dataclasses.replace(self._figures, error=text)
            self._begun.set()
            due_s = max(due_s + every_s, time.monotonic())

    def _round(self) -> _Figures:
        """Query every row once; without any answer figures stay as they were, and grow old."""
        count, report, remarks, error = len(self._names), list[str](), list[str](), None
        slices, taken_s, node = np.zeros((len(SLICE_FIELDS), count)), np.full(count, np.inf), self._figures.node.copy()
        answered = False
        for row in self._rows:
            try:
                reading = self._client.now(row, self.queries.most_age_s)
            except OutOfReachError as gone:
                return dataclasses.replace(self._figures, error=str(gone))
            except PrometheusError as bad:
                error, taken_s[:] = error or str(bad), -np.inf
                continue
            if reading.infos:
                self.counts["prometheus_remarked_answers"] += 1
                remarks += [f"prometheus {row.name}: {text}" for text in reading.infos]
            if reading.partial is not None:
                self.counts["prometheus_partial_answers"] += 1
                error, taken_s[:] = error or reading.partial, -np.inf
                continue
            answered = True
            values = reading.values[-1]
            believed = np.isfinite(values) & (values < MOST)
            times_s = _clock_s() - np.maximum(time.time() - reading.newest_s[-1], 0.0)
            taken_s = np.minimum(taken_s, np.where(believed, times_s, -np.inf))
            if row.kind == "slice":
                slices[SLICE_FIELDS.index(row.name)] = np.where(believed, values, 0.0)
            elif believed.all():
                node[NODE_FIELDS.index(row.name)] = values[0]
            names = self._names if row.kind == "slice" else ("node",)
            report += [f"{name}: {why}" for name, why in zip(names, reading.why, strict=True) if why is not None]
        self.remarks = as_many_as_fit(remarks, MOST_REMARK_BYTES)
        if not answered:
            return dataclasses.replace(self._figures, error=error)
        slices[_LOSS] = np.clip(1.0 - slices[_CARRIED] / np.maximum(slices[_OFFERED], 1e-6), 0.0, 1.0)
        if ("node", NODE_FIELDS[_UPLINK]) not in {(row.kind, row.name) for row in self._rows}:
            node[_UPLINK] = slices[_CARRIED].sum() / self._uplink_mbps
        return _Figures(slices, node, taken_s, as_many_as_fit(report, MOST_REPORT_BYTES), error)


def secrets_of(spec: PrometheusSpec) -> dict[str, str]:
    """What the files of a configuration hold; raises ConfigError, with nothing of it."""
    result = {}
    for name, path in credential_files(spec).items():
        what = f"telemetry.prometheus: {name} file {str(path)!r}"
        try:
            text = read_file(path, MOST_SECRET_BYTES, what).decode()
        except UnicodeDecodeError:
            raise ConfigError(f"{what}: not text") from None
        header = name.startswith("headers.")
        bad = not text.strip() or not text.strip().isprintable() or (header and not text.isascii())
        if bad and (header or name in {"token", "password"}):
            raise ConfigError(f"{what}: expected one line of printable characters")
        result[name] = text
    return result


def _stamps(spec: PrometheusSpec) -> dict[str, tuple[int, int, int]]:
    """Inode, time of change and size of each credential file, to notice a new file."""
    result = {}
    for name, path in credential_files(spec).items():
        with contextlib.suppress(OSError):
            status: os.stat_result = path.stat()
            result[name] = status.st_ino, status.st_mtime_ns, status.st_size
    return result


def _clock_s() -> float:
    """A clock of this machine that nobody sets, and that goes on while it is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
