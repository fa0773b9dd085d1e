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
    "times in a table": lambda item: {"error": None, "rows": item.rows(taken_s=[[1.0], [1.0], [1.0]])},
    "values in a table": lambda item: {"error": None, "rows": item.rows(values=[[0.25]])},
    "a time of the node in a table": lambda item: {
        "error": None,
        "rows": [row | ({"taken_s": [[1.0], [1.0]]} if row["kind"] == "node" else {}) for row in item.rows()],
    },
    "too many": lambda item: {"error": None, "rows": item.rows(values=[0.25, 0.25])},
    "too few": lambda item: {"error": None, "rows": item.rows(taken_s=[])},
    "one number": lambda item: {"error": None, "rows": item.rows(values=0.25)},
    "no number": lambda item: {"error": None, "rows": item.rows(values=["0.25"])},
    "null": lambda item: {"error": None, "rows": item.rows(values=[None])},
    "true": lambda item: {"error": None, "rows": item.rows(values=[True])},
    "very large": lambda item: {"error": None, "rows": item.rows(taken_s=[10**400])},
    "reasons that are no text": lambda item: {"error": None, "rows": item.rows(why=[{"a": 1}])},
    "too many reasons": lambda item: {"error": None, "rows": item.rows(why=["a", "b"])},
    "an error that is no text": lambda item: {"error": {"a": [1]}, "rows": []},
    "a name that is none": lambda item: {"error": None, "rows": item.rows(name=[])},
    "no rows": lambda item: {"error": None, "rows": 7},
    "no error": lambda item: {"rows": item.rows()},
    "a list": lambda item: [1],
    "UTF-16": lambda item: json.dumps({"error": None, "rows": item.rows()}).encode("utf-16-be"),
    "deep": lambda item: b"[" * 100_000,
}


def test_what_is_no_message_is_no_measurement(tmp_path: Path) -> None:
    """Neither at once nor later: what was there before stays, and grows old."""
    document = yaml.safe_load(locate("prometheus", "cadvisor").read_text())
    idle = {"query": "idle_ratio", "samples": "idle_ratio"}
    (tmp_path / "queries.yaml").write_text(yaml.safe_dump(document | {"node": {"cpu_idle_ratio": idle}}))
    with (
        taken_over(queries=str(tmp_path / "queries.yaml")) as item,
        np.errstate(all="raise"),
        contextlib.closing(TickRing(tmp_path / "ticks", 1)) as ring,
    ):
        for name, message in NO_MESSAGE.items():
            item.say({"error": None, "rows": item.rows()})
            assert (valid(item.source), item.source.check()) == ([True], []), name
            before = item.source.measure().slices.tolist()
            item.say(message(item))
            assert item.source.measure().slices.tolist() == before, name
            assert item.source.check() == ["prometheus: the client process says what it should not"], name
            assert item.source.measure().age_s.item() > 0
            ring.note({"unmeasured": item.source.check()})


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
    with taken_over() as item, np.errstate(all="raise"):
        item.say({"error": None, "rows": item.rows(**FIGURES_THAT_CANNOT_BE[case])})
        assert valid(item.source) == [False]
        telemetry = item.source.measure()
        assert not telemetry.slices.any()
        assert np.isfinite(telemetry.node).all()
        assert 0 <= telemetry.age_s.item() < 60
        item.say({"error": None, "rows": item.rows()})
        assert valid(item.source) == [True]


@pytest.mark.parametrize("text", ["\u00e9" * 60_000, "\U0001f4a5" * 30_000, "\x1b[2J\n" * 10_000])
def test_a_long_error_is_one_short_line(text: str, tmp_path: Path) -> None:
    with taken_over() as item, contextlib.closing(TickRing(tmp_path / "ticks", 1)) as ring:
        message = {"error": text, "rows": []}
        item.say(message)
        [line] = item.source.check()
        assert line.isprintable()
        assert len(line) <= LONGEST_LINE + 3
        ring.note({"unmeasured": [line]})


def test_reasons_without_number_go_into_the_notes_of_a_run(tmp_path: Path) -> None:
    slices = 60
    with taken_over(slices) as item, contextlib.closing(TickRing(tmp_path / "ticks", slices)) as ring:
        item.say({"error": None, "rows": item.rows(why=["\u00e9" * 130] * slices)})
        lines = item.source.check()
        assert all(line.isprintable() for line in lines)
        assert lines[0].startswith("s1: \u00e9")
        assert lines[-1] == f"and {slices * len(item.source._asked) - len(lines) + 1} more"
        ring.note({"unmeasured": lines})


def test_a_process_that_says_nothing_of_use_from_the_start_is_one_line() -> None:
    with taken_over() as item:
        item.source._taken_s[:] = -np.inf
        item.say({"error": None, "rows": item.rows(values=[float("nan")])})
        with pytest.raises(FailureError, match=r"^prometheus: nothing is had of any slice$"):
            item.source._begin()
