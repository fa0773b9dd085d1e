"""Structured logs: a line per event, as JSON or for people.

A JSON line has ``time`` (RFC 3339, UTC), ``level``, ``event`` and the event's own fields. Fields hold numbers, names
and text from outside; neither form lets them break a line or forge a field.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import sys
import threading
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

Form = Literal["json", "pretty", "off"]
_COLOURS = {logging.WARNING: "\33[33m", logging.ERROR: "\33[31m"}
_FIELDS = "slicepilot_fields"
_OF_THE_LINE = {"time", "level", "event"}
MAX_LINES = 1000
LAST_S = 1.0


class NonBlockingLogHandler(logging.Handler):
    """Hands lines to a thread that writes them to a file descriptor, a pipe whose reader may have stopped.

    Lines beyond the queue are dropped and counted. Lines are kept until it is started, which should be after
    capabilities were given up, because threads keep those of their start. ``lost`` lines were dropped.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._lines: queue.Queue[bytes | None] = queue.Queue(MAX_LINES)
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self.lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.put_nowait(self.format(record).encode("utf-8", "backslashreplace") + b"\n")
        except queue.Full:
            self.lost += 1

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Write the remaining lines, for a second at most, and end."""
        if not self._thread.is_alive():
            self.start()
        try:
            self._lines.put(None, timeout=LAST_S)
        except queue.Full:
            return
        self._thread.join(LAST_S)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                while line:
                    line = line[os.write(self._descriptor, line) :]
            except OSError:  # the pipe has no reader any more
                self.lost += 1


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        head = {"time": _time(record).isoformat(timespec="milliseconds").replace("+00:00", "Z")}
        head |= {"level": record.levelname.lower(), "event": record.getMessage()}
        return json.dumps(head | _fields(record, self), default=str)


def json_line(event: str, **fields: Any) -> str:
    """The line of an event, for processes that have no log of their own."""
    return JsonFormatter().format(logging.makeLogRecord({"msg": event, "levelname": "INFO", _FIELDS: fields}))


class PrettyFormatter(logging.Formatter):
    """Local time, level, event and fields in columns; colour for warnings and errors."""

    def __init__(self, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        fields = "  ".join(f"{key}={_plain(value)}" for key, value in _fields(record, self).items())
        clock = _time(record).astimezone().strftime("%H:%M:%S.%f")[:-3]
        line = f"{clock}  {record.levelname:<7}  {_plain(record.getMessage()):<16}  {fields}".rstrip()
        colour = _COLOURS.get(record.levelno, "") if self._colour else ""
        return f"{colour}{line}\33[0m" if colour else line


def configure(
    form: Form, stream: TextIO = sys.stderr, non_blocking: NonBlockingLogHandler | None = None
) -> EventLogger:
    """Send this process's logs, those of libraries included, to a stream; ``off`` sends none.

    A non-blocking handler replaces the stream, which then only determines whether it is a terminal.
    """
    root = logging.getLogger()
    handler: logging.Handler = logging.NullHandler() if form == "off" else non_blocking or logging.StreamHandler(stream)
    handler.setFormatter(PrettyFormatter(stream.isatty()) if form == "pretty" else JsonFormatter())
    root.handlers = [handler]
    root.setLevel(logging.INFO)
    return EventLogger(logging.getLogger("slicepilot"))


class EventLogger:
    """Writes events with fields."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def info(self, event: str, **fields: Any) -> None:
        self._logger.info(event, extra={_FIELDS: fields})

    def warning(self, event: str, **fields: Any) -> None:
        self._logger.warning(event, extra={_FIELDS: fields})

    def error(self, event: str, **fields: Any) -> None:
        self._logger.error(event, extra={_FIELDS: fields})


def _fields(record: logging.LogRecord, formatter: logging.Formatter) -> dict[str, Any]:
    """The event's own fields; a field named like a part of every line gets an underscore."""
    given: dict[str, Any] = getattr(record, _FIELDS, {})
    fields = {f"{key}_" if key in _OF_THE_LINE else key: value for key, value in given.items()}
    return fields | {"trace": formatter.formatException(record.exc_info)} if record.exc_info else fields


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _plain(value: Any) -> str:
    """Unchanged if that is unambiguous, else as JSON."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    plain = text.isascii() and text.isprintable() and " " not in text and "=" not in text and '"' not in text
    return text if plain or not isinstance(value, str) else json.dumps(text)
