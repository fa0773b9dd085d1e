"""Logs: an event is a line, whatever its text, and which events are logged."""

from __future__ import annotations

import io
import json
import logging
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicepilot.controller.contracts.reasons import Reason
from slicepilot.controller.publisher.events import AGAIN_S, SUMMARY_S, EventLog
from slicepilot.controller.publisher.listeners import HttpAddress
from slicepilot.controller.publisher.logs import Form, JsonFormatter, PrettyFormatter, configure
from slicepilot.controller.publisher.status import Status


class Log:
    """Events of a controller, as they would be logged."""

    def __init__(
        self, controller: Any, form: Form = "json", listen: HttpAddress | None = None, summary_s: float = SUMMARY_S
    ) -> None:
        self.stream, self._controller = io.StringIO(), controller
        self.status, self.reader = Status(controller.count), controller.reader()
        self.events = EventLog(configure(form, self.stream), self.status, listen, summary_s)

    def look(self) -> list[dict[str, Any]]:
        """What one more look brings, in lines."""
        self.events.update(self.status.update(self.reader))
        return self.lines()

    def lines(self) -> list[dict[str, Any]]:
        text = self.stream.getvalue()
        self.stream.seek(0)
        self.stream.truncate()
        return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers, root.level
    yield
    root.handlers, _ = before
    root.setLevel(before[1])


@pytest.fixture
def log(controller: Any) -> Log:
    log = Log(controller)
    controller.tick()
    assert [line["event"] for line in log.look()] == ["start"]
    return log


def short(lines: list[dict[str, Any]], *keys: str) -> list[tuple[Any, ...]]:
    return [(line["level"], line["event"], *(line[key] for key in keys)) for line in lines]


def test_modes_and_levels_are_logged_where_they_change(controller: Any, log: Log) -> None:
    controller.tick(10)
    controller.tick(5, mode=0)
    controller.tick(5, mode=2, level=2)
    controller.tick(5, mode=2)
    lines = log.look()
    assert short([line for line in lines if line["event"] == "mode"], "before", "mode", "tick") == [
        ("info", "mode", "live", "shadow", 12),
        ("info", "mode", "shadow", "canary", 17),
    ]
    assert short([line for line in lines if line["event"] == "guard_level"], "before", "guard", "tick") == [
        ("warning", "guard_level", "normal", "safe", 17),
        ("info", "guard_level", "safe", "normal", 22),
    ]
    controller.tick(5, mode=2)
    assert log.look() == []


def test_a_reason_is_logged_when_it_begins_at_most_once_a_second(controller: Any, log: Log) -> None:
    controller.reasons[1] = Reason.SLEW.bit  # only shapes a decision
    controller.tick(5)
    assert log.look() == []
    controller.reasons[1] |= Reason.OUT_OF_RANGE.bit
    controller.tick(50)
    assert short(log.look(), "slice", "reason", "times") == [("warning", "guard", "slice2", "out_of_range", 1)]
    for _ in range(7):
        controller.reasons[1] = 0
        controller.tick(3)
        controller.reasons[1] = Reason.OUT_OF_RANGE.bit
        controller.tick(3)
        assert log.look() == [], "lasts, or began again too soon"
    time.sleep(AGAIN_S)
    assert short(log.look(), "slice", "reason", "times") == [("warning", "guard", "slice2", "out_of_range", 7)]
    controller.tick(node_reasons=Reason.OVERRUN.bit)
    assert short(log.look(), "slice", "reason", "times") == [("error", "guard", "", "overrun", 1)]


def test_notes_are_logged_when_they_come_and_go(controller: Any, log: Log) -> None:
    change = {"slice": "slice2", "knob": "nice", "found": 4, "ours": 0, "policy": "respect"}
    controller.note(unmeasured=["n3 of slice3: gone"], foreign=[change], last_error="slice1: no such device")
    assert short(log.look()) == [("warning", "unmeasured"), ("warning", "foreign_change"), ("warning", "error")]
    controller.note(foreign=[change | {"found": 5}])
    assert log.look() == [], "the same knob"
    controller.note(unmeasured=[], foreign=[])
    assert short(log.look()) == [("info", "measured_again"), ("info", "foreign_change_over")]
    alive = {"pid": 7, "restarts": 0, "alive": True}
    controller.note(supervisor=alive)
    assert short(log.look(), "pid") == [("info", "supervisor", 7)]
    controller.note(supervisor=alive | {"alive": False})
    assert short(log.look(), "pid") == [("error", "supervisor_gone", 7)]
    controller.note(supervisor={"pid": 8, "restarts": 1, "alive": True})
    assert short(log.look(), "pid") == [("warning", "supervisor", 8)]
    controller.note(reload={"time_ns": 1, "ok": False, "detail": "sums do not match"})
    assert short(log.look(), "detail") == [("warning", "reload", "sums do not match")]


def test_no_event_has_fields_that_the_line_has_itself(controller: Any) -> None:
    """Every event once, but a summary with every look: level, event and time stay the line's own."""
    log = Log(controller, listen=HttpAddress("0.0.0.0", 9464), summary_s=0.0)
    lines = log.look()
    controller.reasons[0] = Reason.SLA_FLOOR.bit
    controller.tick(3, mode=0, level=2)
    controller.note(
        trips=[{"slice": "slice1", "latched": True, "text": "t"}],
        unmeasured=["a"], foreign=[{"slice": "slice1", "knob": "nice", "level": 3, "found": 1, "ours": 0}],
        last_error="b", supervisor={"pid": 1, "restarts": 0, "alive": False},
        reload={"time_ns": 1, "ok": True, "detail": ""}, totals={"late_ticks": 1},
    )  # fmt: skip
    lines += log.look()
    controller.note(unmeasured=[], foreign=[], trips=[], totals={"late_ticks": 2})
    lines += log.look()
    assert {line["level"] for line in lines} == {"info", "warning", "error"}
    assert {line["event"] for line in lines} >= {"start", "minute", "guard", "foreign_change", "ticks_late", "reload"}
    before, summary, after = [line for line in lines if line["event"] == "minute"]
    assert (before["ticks"], before["reasons"], before["total_p50_us"]) == (0, {}, 0)
    assert (summary["ticks"], summary["reasons"]) == (3, {"sla_floor": 3})
    assert summary["total_p50_us"] == pytest.approx(100, 0.07)
    assert (after["ticks"], after["reasons"]) == (3, {}), "a reason counts once"
    for line in lines:
        assert datetime.fromisoformat(line["time"]).tzinfo is UTC


TEXT = st.text(max_size=60)


def record(event: str, fields: dict[str, Any]) -> logging.LogRecord:
    made = logging.LogRecord("slicepilot", logging.WARNING, "", 0, "%s", (event,), None)
    made.slicepilot_fields = fields
    return made


@given(TEXT, TEXT, st.recursive(TEXT | st.integers() | st.none(), st.lists, max_leaves=4))
def test_no_text_breaks_a_line_or_forges_a_field(event: str, text: str, value: Any) -> None:
    made = record(event, {"text": text, "value": value})
    line = JsonFormatter().format(made)
    assert len(line.splitlines()) == 1
    read = json.loads(line)
    assert (read["event"], read["text"], read["value"]) == (event, text, value)
    pretty = PrettyFormatter(colour=False).format(made)
    assert pretty.isprintable()
    assert len(re.findall(r'  text=("(?:[^"\\]|\\.)*"|[^ ="]*)(?:  |$)', pretty)) >= 1
    assert pretty.count("  text=") == 1 or "  text=" in json.dumps([event, value])


def test_the_process_logs_what_happens_to_it(controller: Any, capfd: pytest.CaptureFixture[str]) -> None:
    controller.tick(20)
    controller.publish(log="json")
    controller.ask({"command": "pause"})
    controller.tick(20, level=2)
    controller.close()
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert short(lines) == [("info", "start"), ("info", "command"), ("warning", "guard_level")]
    assert (lines[1]["uid"], lines[1]["order"]) == (0, {"command": "pause"})
    assert lines[0]["publisher_uid"] == 65534
