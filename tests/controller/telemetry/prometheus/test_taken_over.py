"""A process that asks, and that somebody else has taken over: it talks to the world."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from slicepilot.configs import FailureError
from slicepilot.configs.loader import locate
from slicepilot.controller.record.ring import TickRing
from slicepilot.controller.telemetry.prometheus.source import LONGEST_LINE, PrometheusSource

from .servers import answer, serving
from .test_source import source_of, spec_of, valid, vector


@dataclasses.dataclass
class TakenOver:
    """A source that has begun well, and the other end of its socket, where somebody else is now."""

    source: PrometheusSource
    socket: socket.socket
    slices: int

    def rows(self, **changed: Any) -> list[dict[str, Any]]:
        """Of all that is asked for, each changed in the same way."""
        count, now_s = self.slices, time.clock_gettime(time.CLOCK_BOOTTIME)
        row = {"values": [0.25] * count, "taken_s": [now_s] * count, "why": [None] * count}
        return [{"kind": kind, "name": name, **row, **changed} for kind, name in self.source._asked]

    def say(self, message: Any) -> None:
        self.socket.send(message if isinstance(message, bytes) else json.dumps(message, ensure_ascii=False).encode())


@contextlib.contextmanager
def taken_over(slices: int = 1, **more: Any) -> Iterator[TakenOver]:
    pods = tuple(f"upf-{number}" for number in range(slices))
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(serving(lambda request: answer(request, vector("0.5", slices=slices))))
        source = stack.enter_context(source_of(spec_of(f"http://{address}", pods, **more)))
        own = source._client._socket
        assert own is not None
        stack.enter_context(own)  # kept open: else the process would end, and another one be started
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        source._client._socket = ours
        yield TakenOver(source, stack.enter_context(theirs), slices)


NO_MESSAGE: dict[str, Callable[[TakenOver], Any]] = {
    "times in a table": lambda one: {"error": None, "rows": one.rows(taken_s=[[1.0], [1.0], [1.0]])},
    "values in a table": lambda one: {"error": None, "rows": one.rows(values=[[0.25]])},
    "a time of the node in a table": lambda one: {
        "error": None,
        "rows": [row | ({"taken_s": [[1.0], [1.0]]} if row["kind"] == "node" else {}) for row in one.rows()],
    },
    "too many": lambda one: {"error": None, "rows": one.rows(values=[0.25, 0.25])},
    "too few": lambda one: {"error": None, "rows": one.rows(taken_s=[])},
    "one number": lambda one: {"error": None, "rows": one.rows(values=0.25)},
    "no number": lambda one: {"error": None, "rows": one.rows(values=["0.25"])},
    "null": lambda one: {"error": None, "rows": one.rows(values=[None])},
    "true": lambda one: {"error": None, "rows": one.rows(values=[True])},
    "very large": lambda one: {"error": None, "rows": one.rows(taken_s=[10**400])},
    "reasons that are no text": lambda one: {"error": None, "rows": one.rows(why=[{"a": 1}])},
    "too many reasons": lambda one: {"error": None, "rows": one.rows(why=["a", "b"])},
    "an error that is no text": lambda one: {"error": {"a": [1]}, "rows": []},
    "a name that is none": lambda one: {"error": None, "rows": one.rows(name=[])},
    "no rows": lambda one: {"error": None, "rows": 7},
    "no error": lambda one: {"rows": one.rows()},
    "a list": lambda one: [1],
    "UTF-16": lambda one: json.dumps({"error": None, "rows": one.rows()}).encode("utf-16-be"),
    "deep": lambda one: b"[" * 100_000,
}


def test_what_is_no_message_is_no_measurement(tmp_path: Path) -> None:
    """Neither at once nor later: what was there before stays, and grows old."""
    document = yaml.safe_load(locate("prometheus", "cadvisor").read_text())
    idle = {"query": "idle_ratio", "samples": "idle_ratio"}
    (tmp_path / "queries.yaml").write_text(yaml.safe_dump(document | {"node": {"cpu_idle_ratio": idle}}))
    with (
        taken_over(queries=str(tmp_path / "queries.yaml")) as one,
        np.errstate(all="raise"),
        contextlib.closing(TickRing(tmp_path / "ticks", 1)) as ring,
    ):
        for name, message in NO_MESSAGE.items():
            one.say({"error": None, "rows": one.rows()})
            assert (valid(one.source), one.source.check()) == ([True], []), name
            before = one.source.measure().slices.tolist()
            one.say(message(one))
            assert one.source.measure().slices.tolist() == before, name
            assert one.source.check() == ["prometheus: the client process says what it should not"], name
            assert one.source.measure().age_s.item() > 0
            ring.note({"unmeasured": one.source.check()})


FIGURES_THAT_CANNOT_BE: dict[str, dict[str, Any]] = {
    "negative": {"values": [-1.0]},
    "too much": {"values": [1e300]},
    "infinite": {"values": [float("inf")]},
    "none": {"values": [float("nan")]},
    "to come": {"taken_s": [1e9]},
    "to come, far": {"taken_s": [1e300]},
    "long ago": {"taken_s": [-1e300]},
    "never": {"taken_s": [float("-inf")]},
}


@pytest.mark.parametrize("case", FIGURES_THAT_CANNOT_BE)
def test_figures_and_times_that_cannot_be_are_no_measurement(case: str) -> None:
    with taken_over() as one, np.errstate(all="raise"):
        one.say({"error": None, "rows": one.rows(**FIGURES_THAT_CANNOT_BE[case])})
        assert valid(one.source) == [False]
        telemetry = one.source.measure()
        assert not telemetry.slices.any()
        assert np.isfinite(telemetry.node).all()
        assert 0 <= telemetry.age_s.item() < 60
        one.say({"error": None, "rows": one.rows()})
        assert valid(one.source) == [True]


@pytest.mark.parametrize("text", ["\u00e9" * 60_000, "\U0001f4a5" * 30_000, "\x1b[2J\n" * 10_000])
def test_a_long_error_is_one_short_line(text: str, tmp_path: Path) -> None:
    with taken_over() as one, contextlib.closing(TickRing(tmp_path / "ticks", 1)) as ring:
        message = {"error": text, "rows": []}
        one.say(message)
        [line] = one.source.check()
        assert line.isprintable()
        assert len(line) <= LONGEST_LINE + 3
        ring.note({"unmeasured": [line]})


def test_reasons_without_number_go_into_the_notes_of_a_run(tmp_path: Path) -> None:
    slices = 60
    with taken_over(slices) as one, contextlib.closing(TickRing(tmp_path / "ticks", slices)) as ring:
        one.say({"error": None, "rows": one.rows(why=["\u00e9" * 130] * slices)})
        lines = one.source.check()
        assert all(line.isprintable() for line in lines)
        assert lines[0].startswith("s1: \u00e9")
        assert lines[-1] == f"and {slices * len(one.source._asked) - len(lines) + 1} more"
        ring.note({"unmeasured": lines})


def test_a_process_that_says_nothing_of_use_from_the_start_is_one_line() -> None:
    with taken_over() as one:
        one.source._taken_s[:] = -np.inf
        one.say({"error": None, "rows": one.rows(values=[float("nan")])})
        with pytest.raises(FailureError, match=r"^prometheus: nothing is had of any slice$"):
            one.source._begin()
