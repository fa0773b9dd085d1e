"""What the control loop sees of a Prometheus server: `PrometheusSource.measure`, which waits for nobody."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from slicepilot.configs import ConfigError, FailureError
from slicepilot.configs.reading import read_file
from slicepilot.configs.text import as_many_as_fit, printable, shortened
from slicepilot.controller.system.own_programs import environment, python
from slicepilot.controller.telemetry.layout import BUCKETS
from slicepilot.env.telemetry import NODE_FIELDS, SLICE_FIELDS, Telemetry

from .answers import MOST, Floats
from .config import PrometheusSpec, Queries, Row, credential_files, rows_of

ROUNDS = 2
"""Of questions in a scrape interval: what is new is known half an interval later at most."""
START_S = 15.0
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
MOST_SECRET_BYTES = 1 << 18
MESSAGE_BYTES = 1 << 17
MESSAGES = 8
"""Taken at most at once: who sends without end must not hold up the loop."""
LONGEST_LINE, MOST_TOLD_BYTES = 400, 1 << 16
"""Of what it says: a line, and all of them as JSON, which have to go into the notes of a run."""
_OFFERED, _CARRIED, _LOSS = (SLICE_FIELDS.index(name) for name in ("offered_mbps", "carried_mbps", "loss_ratio"))
_UPLINK = NODE_FIELDS.index("uplink_use_ratio")


class PrometheusSource:
    """Telemetry of slices out of a Prometheus server, one lane, asked by a process of its own.

    Figures are means over a control period and a scrape interval before the newest sample, whose age is in ``age_s``.
    A slice is valid while all that the queries name is had of it: one series for each row, not stale, a number. Loss is
    what follows from offered and carried; rows that the queries do not name are 0, as they are of a slice without a
    cgroup. No packet is timed here, so delays have no histogram.

    Args:
        spec: the server.
        names: of the slices.
        period_s: of control.
        uplink_mbps: for ``uplink_use_ratio``; inf: it reads 0.
        harden: confine the process to the system calls and files that it needs.

    Attributes:
        queries: that are asked.

    Raises:
        ConfigError: settings that do not fit, a period that is too short for the scrapes.
        FailureError: the server does not answer, or has nothing of any slice; no process is left.
    """

    def __init__(
        self,
        spec: PrometheusSpec,
        names: Sequence[str],
        period_s: float,
        uplink_mbps: float = float("inf"),
        harden: bool = True,
    ) -> None:
        self.queries: Queries = spec.asked()
        self._names, self._uplink_mbps = tuple(names), uplink_mbps
        rows = [row for row in rows_of(self.queries, spec, self._names, period_s) if row.kind != "knob"]
        self._asked = [(row.kind, row.name) for row in rows]
        self._client = _ClientProcess(spec, rows, self.queries, harden)
        self._figures = np.zeros((len(SLICE_FIELDS), len(names)), np.float32)
        self._node = np.zeros(len(NODE_FIELDS), np.float32)
        self._taken_s = np.full(len(names), -np.inf)
        self._last_s = _clock_s()
        self._error: str | None = None
        self._why: list[str] = []
        self._telemetry = Telemetry.empty(len(names))
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> PrometheusSource:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def measure(self) -> Telemetry:
        """The newest figures there are, in buffers that the next call overwrites; no answer is waited for."""
        self._receive_all()
        telemetry, now_s = self._telemetry, _clock_s()
        age_s = now_s - self._taken_s
        valid = age_s <= self.queries.most_age_s
        telemetry.valid[:, 0] = valid
        telemetry.slices[:, :, 0] = np.where(valid, self._figures, 0.0)
        telemetry.node[:, 0] = self._node
        telemetry.age_s[0] = age_s[valid].max() if valid.any() else max(now_s - self._last_s, 0.0)
        return telemetry

    def warm_up(self) -> None:
        """Nothing here is worth it: control periods are seconds."""

    def check(self) -> list[str]:
        """What is not measured, and why; starts the client process again where it has ended, or where a token or a
        certificate is another one now."""
        self._receive_all()
        return [*self._client.look_after(), *([self._error] if self._error else []), *self._why]

    def delay_counts(self) -> npt.NDArray[np.uint32]:
        """Zeros (S, BUCKETS): no packet is timed."""
        return np.zeros((len(self._names), BUCKETS), np.uint32)

    def close(self) -> None:
        """End the process."""
        self._client.close()

    def _begin(self) -> None:
        """Wait for the first answer; raises FailureError where it is of no use."""
        message = self._client.wait(START_S)
        if message is None:
            raise FailureError(f"prometheus: the client process has said nothing within {START_S:g} s")
        self._take_or_report(message)
        if not self.measure().valid.any():
            raise FailureError(self._error or next(iter(self._why), "prometheus: nothing is had of any slice"))

    def _receive_all(self) -> None:
        for _ in range(MESSAGES):
            if (message := self._client.received()) is None:
                return
            self._take_or_report(message)

    def _take_or_report(self, message: dict[str, Any]) -> None:
        try:
            self._take(message)
        except (IndexError, KeyError, RecursionError, TypeError, ValueError):
            self._error = "prometheus: the client process says what it should not"

    def _take(self, message: dict[str, Any]) -> None:
        """What a round has brought. What it has not is as it was, and grows old.

        Raises IndexError, KeyError, RecursionError, TypeError, ValueError for what is no such message: who sends it
        talks to the world, and may have been taken over. Nothing is changed then.
        """
        error, rows = _line(message["error"]), message["rows"]
        if not rows:
            self._error = error
            return
        known = {(row["kind"], row["name"]): row for row in rows}
        figures, taken = np.zeros_like(self._figures), np.full(len(self._names), np.inf)
        now_s, node, report = _clock_s(), self._node.copy(), list[str]()
        for kind, name in self._asked:
            row = known.get((kind, name))
            if row is None:
                taken[:] = -np.inf
                continue
            names = self._names if kind == "slice" else ("node",)
            values, times = _numbers(row["values"], len(names)), _numbers(row["taken_s"], len(names))
            age_s = now_s - times  # of what is yet to come it is below 0: such a figure would not grow old
            believed = (values >= 0) & (values < MOST) & (age_s >= 0) & (age_s < MOST)
            taken = np.minimum(taken, np.where(believed, times, -np.inf))
            if kind == "slice":
                figures[SLICE_FIELDS.index(name)] = np.where(believed, values, 0.0)
            elif believed.all():
                node[NODE_FIELDS.index(name)] = values[0]
            whys = map(_line, row["why"])
            report += [f"{whose}: {why}" for whose, why in zip(names, whys, strict=True) if why is not None]
        figures[_LOSS] = np.clip(1.0 - figures[_CARRIED] / np.maximum(figures[_OFFERED], 1e-6), 0.0, 1.0)
        if ("node", NODE_FIELDS[_UPLINK]) not in self._asked:
            node[_UPLINK] = figures[_CARRIED].sum() / self._uplink_mbps
        self._error, self._why = error, as_many_as_fit(report, MOST_TOLD_BYTES)
        self._figures, self._node, self._taken_s = figures, node, taken
        if np.isfinite(taken).any():
            self._last_s = float(taken[np.isfinite(taken)].min())


def secrets_of(spec: PrometheusSpec) -> dict[str, str]:
    """What the files of a configuration hold; raises ConfigError, with nothing of it."""
    result = {}
    for name, path in credential_files(spec).items():
        what = f"telemetry.prometheus: {name} file {str(path)!r}"
        try:
            text = read_file(path, MOST_SECRET_BYTES, what).decode()
        except UnicodeDecodeError:
            raise ConfigError(f"{what}: not text") from None
        if name in {"token", "password"} and (not text.strip() or not text.strip().isprintable()):
            raise ConfigError(f"{what}: accepted: one line of printable characters")
        result[name] = text
    return result


def _read(data: bytes) -> dict[str, Any] | None:
    """A message; whoever talks to the world may have been taken over, so it may be anything."""
    if not data:
        return None
    try:
        message = json.loads(data.decode())
    except (RecursionError, ValueError):
        message = None
    return message if isinstance(message, dict) else {}


def _numbers(given: Any, count: int) -> Floats:
    """So many of a message, each as it is sent; raises ValueError for anything else, which NumPy might take."""
    if not isinstance(given, list) or len(given) != count or not all(isinstance(item, float) for item in given):
        raise ValueError("not the numbers that were asked for")
    return np.array(given, np.float64)


def _line(text: Any) -> str | None:
    """One line of a message, short enough to be told; raises TypeError."""
    if text is None:
        return None
    if not isinstance(text, str):
        raise TypeError("neither text nor null")
    return shortened(printable(text[: LONGEST_LINE + 1]), LONGEST_LINE)


@dataclass(frozen=True)
class _Stamp:
    """What tells that a file is another one now."""

    inode: int
    modified_ns: int
    size: int


class _ClientProcess:
    """The process, and what it says."""

    def __init__(self, spec: PrometheusSpec, rows: Sequence[Row], queries: Queries, harden: bool) -> None:
        self._spec, self._rows, self._queries, self._harden = spec, rows, queries, harden
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._wait_s, self._started_s = FIRST_WAIT_S, 0.0
        self._start()

    def received(self) -> dict[str, Any] | None:
        """The next message, if there is one; at once."""
        if self._socket is None:
            return None
        try:
            data = self._socket.recv(MESSAGE_BYTES)
        except OSError:
            return None
        return _read(data)

    def wait(self, seconds: float) -> dict[str, Any] | None:
        """The next message, waited for; None where the process ends before, or says nothing."""
        assert self._socket is not None
        readable, _, _ = select.select([self._socket], [], [], seconds)
        return self.received() if readable else None

    def look_after(self) -> list[str]:
        """Start it again where that helps; what it could not be started for."""
        ended = self._process is None or self._process.poll() is not None
        lived_s = time.monotonic() - self._started_s
        if not (ended and lived_s >= self._wait_s) and self._stamps() == self._read:
            return ["prometheus: the client process has ended"] if ended else []
        if ended:
            self._wait_s = FIRST_WAIT_S if lived_s > LONGEST_WAIT_S else min(2 * self._wait_s, LONGEST_WAIT_S)
        try:
            self._start()
        except (ConfigError, OSError) as error:
            return [str(error)]
        return []

    def close(self) -> None:
        """End it; more than once does nothing."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
            if process.poll() is None:
                process.kill()
                process.wait()

    def _start(self) -> None:
        """Read what it needs, then replace the one there is; raises ConfigError, OSError."""
        self._started_s = time.monotonic()
        self._read = self._stamps()
        settings = {
            "spec": dataclasses.asdict(self._spec),
            "secrets": secrets_of(self._spec),
            "rows": [dataclasses.asdict(row) for row in self._rows],
            "most_age_s": self._queries.most_age_s,
            "every_s": self._queries.scrape_interval_s / ROUNDS,
            "harden": self._harden,
        }
        self.close()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        # In memory, so that nobody waits until it is read, and no argument shows it.
        given = os.memfd_create("settings", os.MFD_CLOEXEC)
        try:
            os.write(given, json.dumps(settings).encode())
            os.lseek(given, 0, os.SEEK_SET)
            command = [*python(f"{__package__}.reader"), str(theirs.fileno())]
            self._process = subprocess.Popen(
                command, stdin=given, pass_fds=[theirs.fileno()], start_new_session=True, cwd="/", env=environment()
            )
        except BaseException:
            ours.close()
            raise
        finally:
            os.close(given)
            theirs.close()
        self._socket = ours

    def _stamps(self) -> dict[str, _Stamp | None]:
        return {name: _stamp(path) for name, path in credential_files(self._spec).items()}


def _stamp(path: Path) -> _Stamp | None:
    try:
        result = path.stat()
    except OSError:
        return None
    return _Stamp(result.st_ino, result.st_mtime_ns, result.st_size)


def _clock_s() -> float:
    """Of this machine, whoever sets its time, suspended or not; that of the client process."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
