"""``slicepilot top`` over rings that the tests write, as text, and in a terminal of 80 by 24."""

from __future__ import annotations

import dataclasses
import fcntl
import io
import itertools
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console, Group

from slicepilot.configs import ConfigError
from slicepilot.controller.modes import Level, Mode
from slicepilot.controller.reasons import Reason
from slicepilot.controller.record.ring import LATE, PAUSED, Tick, TickRing
from slicepilot.controller.top.figures import duration, percent, short
from slicepilot.controller.top.follower import Follower
from slicepilot.controller.top.frame import View, frame, waiting
from slicepilot.controller.top.glyphs import ASCII, BLOCKS, Glyphs, glyphs_for, resample
from slicepilot.env.knobs import Knobs
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry

PERIOD_S = 0.01
SPEC = dataclasses.asdict(SliceSet.from_yaml("five-video").slices[0])


class Writer:
    """A ring with ticks that are as a test wants them; five slices that keep their promises unless told otherwise."""

    def __init__(self, path: Path, slices: int = 5, name: str = "sp", **description: Any) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.ring = TickRing(path, slices)
        sla = {"committed_mbps": 40.0, "delay_bound_ms": 5.0}
        specs = [SPEC | {"name": f"slice{k + 1}", "sla": sla} for k in range(slices)]
        run = {"run_id": "r", "name": name, "version": "1", "backend": "testbed", "agent": "captain", "bundle": None}
        run |= {"slice_set": {"slices": specs}, "period_s": PERIOD_S, "budget_s": 0.002, "logical_cpus": 2.0}
        run |= {"uplink_mbps": 1000.0, "pid": os.getpid(), "started_ns": time.time_ns(), "scheduling": "SCHED_FIFO"}
        self.ring.describe(run | description)
        self.telemetry = Telemetry.empty(slices)
        self.telemetry.slices[:2] = 45.0
        self.telemetry.slices[2], self.telemetry.slices[3] = 210.0, 1200.0
        self.telemetry.node[:] = [[0.25], [0.5]]
        self.wanted, self.allowed, self.applied = (Knobs.none(slices) for _ in range(3))
        self.tick = Tick(mode=Mode.LIVE, observe_ns=20_000, infer_ns=30_000, guard_ns=10_000, apply_ns=5_000)
        self.reasons = np.zeros(slices, np.uint32)
        self.note()

    def note(self, **notes: Any) -> None:
        self.ring.note({"mode": "live", "supervisor": {"pid": 1, "restarts": 0, "alive": True}} | notes)

    def write(self, ticks: int = 300, seconds: float | None = None) -> None:
        """So many ticks up to now."""
        real_ns, monotonic_ns = time.time_ns(), time.monotonic_ns()
        period_ns = round((PERIOD_S if seconds is None else seconds / ticks) * 1e9)
        for before in reversed(range(ticks)):
            ago_ns = before * period_ns
            tick = self.tick._replace(time_ns=real_ns - ago_ns, monotonic_ns=monotonic_ns - ago_ns)
            self.ring.write(tick, self.telemetry, self.wanted, self.allowed, self.applied, self.reasons)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sp" / "ticks"


def shown(path: Path, width: int = 80, height: int | None = 24, glyphs: Glyphs = BLOCKS, **view: Any) -> list[str]:
    """What the screen says, as lines; each checked against the screen's size."""
    follower = Follower(path)
    assert follower.status is not None
    lines = frame(follower.status.document(60), View(width, height, glyphs, **view))
    follower.close()
    assert all(cell_len(line.plain) <= width for line in lines), [line.plain for line in lines]
    assert height is None or len(lines) <= height
    console = Console(width=width, height=height, file=io.StringIO(), record=True)
    console.print(Group(*lines))
    printed = [line.rstrip() for line in console.export_text().splitlines()]
    assert printed == [line.plain.rstrip() for line in lines], "nothing is wrapped"
    return [line.plain for line in lines]


# -- one picture -------------------------------------------------------------------------------------------------------


def test_80_by_24_holds_five_slices_with_everything(path: Path) -> None:
    writer = Writer(path)
    writer.wanted.cpu_limit_mcpu[0], writer.wanted.nice[0], writer.wanted.egress_mbps[0] = 450, -12, 60
    writer.applied.cpu_limit_mcpu[0], writer.applied.nice[0], writer.applied.egress_mbps[0] = 500, -10, 80
    writer.allowed.cpu_limit_mcpu[0], writer.allowed.nice[0], writer.allowed.egress_mbps[0] = 500, -10, 80
    writer.reasons[0] = Reason.SLEW.bit
    writer.write(2000, seconds=60)
    lines = shown(path)
    text = "\n".join(lines)
    assert re.match(r"slicepilot sp  LIVE  guard NORMAL  captain .* up \d+s$", lines[0])
    assert re.match(r"loop  10 ms: p50 6\d p99 6\d p99.9 6\d of 2000 us \[░+\] late 0/min missed 0$", lines[1])
    assert lines[2] == "node  CPU idle 25% of 2 · uplink 50% of 1000 Mbit/s · supervisor up"
    assert lines[3] == "nothing to report"
    assert [line.split()[0] for line in lines if line.startswith("slice") and line[5].isdigit()] == [
        f"slice{k}" for k in range(1, 6)
    ]
    figures = next(line for line in lines if line.startswith("slice1"))
    assert figures.split() == ["slice1", "45", "45", "0.0%", "0.210", "1.20", "5", "0.500", "-10", "80", "ok"]
    wishes = lines[lines.index(figures) + 1]
    assert re.match(r"  wants 0.450 -12 60  may 0.500 -10 80 · slew \d+$", wishes)
    sparklines = lines[lines.index(figures) + 2]
    assert re.match(r"  off +█{9,} out +█{9,} p50 +▄{9,} p99 +▆{9,}$", sparklines), sparklines
    assert text.count(" p99 ") >= 6
    assert lines[-1].startswith("q quit")


def test_ascii_is_all_ascii(path: Path) -> None:
    writer = Writer(path, agent="Käpt'n\x1b[31m")
    writer.note(unmeasured=["n3 \N{EM DASH} gone"])
    writer.write()
    lines = shown(path, glyphs=ASCII)
    assert all(line.isascii() and line.isprintable() for line in lines)
    assert "K?pt'n?[31m" in lines[0]
    assert "! not measured: n3 ? gone" in lines


def test_states_are_words(path: Path) -> None:
    writer = Writer(path, 6)
    writer.telemetry.slices[3, 1] = 7000.0
    writer.telemetry.slices[1, 2] = 30.0
    writer.telemetry.slices[1, 3], writer.telemetry.slices[3, 3] = 30.0, 7000.0
    writer.telemetry.valid[4] = False
    writer.write()
    lines = shown(path)
    states = {line.split()[0]: line.split()[-1] for line in lines if re.match(r"slice\d", line)}
    expected = {"slice1": "ok", "slice2": "LATE", "slice3": "SHORT", "slice4": "BROKEN", "slice5": "unseen"}
    assert states == expected | {"slice6": "ok"}
    [unseen] = [line for line in lines if line.startswith("slice5")]
    assert unseen.split()[1:6] == ["-"] * 5


def test_shadow_and_canary_leave_slices_alone(path: Path) -> None:
    writer = Writer(path)
    writer.tick = writer.tick._replace(mode=Mode.CANARY)
    writer.note(canary=["slice2"])
    writer.write()
    lines = shown(path)
    assert "CANARY on slice2" in lines[0]
    assert {line.split()[0]: line.split()[-1] for line in lines if re.match(r"slice\d", line)} == {
        f"slice{k}": "ok" if k == 2 else "left" for k in range(1, 6)
    }
    assert sum("left alone" in line for line in lines) == 4
    writer.tick = writer.tick._replace(mode=Mode.SHADOW)
    writer.write()
    assert "SHADOW" in shown(path)[0]


@pytest.mark.parametrize("level", list(Level))
def test_the_guards_level_is_a_word(path: Path, level: Level) -> None:
    writer = Writer(path)
    writer.tick = writer.tick._replace(level=level, node_reasons=Reason.OVERRUN.bit, flags=PAUSED | LATE)
    writer.write()
    lines = shown(path)
    assert f"guard {level.name}  PAUSED" in lines[0]
    assert any("overrun" in line and "too many late decisions" in line for line in lines)
    assert any("slicepilot control resume" in line for line in lines) is (level is Level.LATCHED)
    assert re.search(r"late 300/min", lines[1])


def test_what_is_wrong_is_said_as_far_as_there_is_room(path: Path) -> None:
    writer = Writer(path)
    foreign = [{"slice": "slice2", "knob": "nice", "found": 1, "ours": 2, "policy": "respect"}]
    supervisor = {"pid": 1, "restarts": 1, "alive": False}
    reload = {"time_ns": 1, "ok": False, "detail": "sums differ"}
    writer.note(
        foreign=foreign,
        supervisor=supervisor,
        unmeasured=["n3 of slice1: gone", "n6 of slice3: gone"],
        reload=reload,
        last_error="slice1: EBUSY",
        ordered_safe=True,
    )
    writer.write()
    lines = shown(path)
    assert "SAFE BY ORDER" in lines[0]
    assert lines[2].endswith("supervisor DOWN")
    told = [line for line in lines if line.startswith("! ")]
    assert told[0] == "! no supervisor: nobody restores the knobs if the controller dies"
    assert told[-1].startswith("! +"), "the rest is counted"
    everything = shown(path, height=None)
    assert [line for line in everything if line.startswith("! ")] == [
        told[0],
        "! slice2 nice: set by somebody else (respect)",
        "! not measured: n3 of slice1: gone",
        "! not measured: n6 of slice3: gone",
        "! reload failed: sums differ",
        "! last error: slice1: EBUSY",
    ]


@pytest.mark.parametrize(("slices", "per_slice"), [(1, 3), (5, 3), (6, 3), (7, 2), (9, 2), (10, 1), (12, 1), (18, 1)])
def test_slices_take_as_many_lines_as_let_all_be_seen(path: Path, slices: int, per_slice: int) -> None:
    Writer(path, slices).write(50)
    lines = shown(path)
    first = [number for number, line in enumerate(lines) if re.match(r"slice\d+ ", line)]
    assert len(first) == slices
    assert all(second - one == per_slice for one, second in itertools.pairwise(first))
    assert "page" not in lines[-1]


def test_more_slices_than_lines_have_pages(path: Path) -> None:
    Writer(path, 64).write(50)
    seen = []
    for page in range(4):
        lines = shown(path, page=page)
        seen.append([line.split()[0] for line in lines if re.match(r"slice\d+ ", line)])
        assert f"page {page + 1}/4" in lines[-1]
    assert list(itertools.chain(*seen)) == [f"slice{k}" for k in range(1, 65)]
    lines = shown(path, page=5)
    assert "page 2/4" in lines[-1], "pages go round"


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 10), (20, 3), (200, 60), (80, 1)])
def test_any_terminal_is_big_enough(path: Path, width: int, height: int) -> None:
    writer = Writer(path)
    writer.telemetry.slices[:] = 1e12
    writer.write(50)
    assert shown(path, width, height)


def test_a_ring_without_ticks_or_description_can_be_shown(path: Path) -> None:
    path.parent.mkdir()
    TickRing(path, 3)
    lines = shown(path)
    assert [line.split()[0] for line in lines if re.match(r"\d ", line)] == ["0", "1", "2"]


# -- following ---------------------------------------------------------------------------------------------------------


def test_a_controllers_restart_is_followed(path: Path) -> None:
    first = Writer(path, 5, "first")
    first.write()
    follower = Follower(path)
    assert follower.present
    assert not follower.stale
    first.telemetry.slices[1] = 33.0
    first.write()
    first.ring.close()
    follower.look()
    assert not follower.present
    assert follower.stale
    assert follower.status is not None
    document = follower.status.document()
    assert document["run"]["name"] == "first"
    assert document["slices"][0]["carried_mbps"] < 45, "its last ticks are shown"
    text = "\n".join(line.plain for line in frame(document, View(80, 24, BLOCKS, absent=True, stale=True)))
    assert "waiting for a controller" in text
    Writer(path, 3, "second").write()
    follower.look()
    assert follower.present
    assert not follower.stale
    assert follower.status.document()["run"]["name"] == "second"
    assert len(follower.status.document()["slices"]) == 3
    follower.close()


def test_a_controller_that_stops_beating_is_stale(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Writer(path).write()
    follower = Follower(path)
    assert not follower.stale
    later_ns = time.monotonic_ns() + 4_000_000_000
    monkeypatch.setattr(time, "monotonic_ns", lambda: later_ns)
    assert follower.stale
    lines = shown(path, stale=True)
    assert any(re.match(r"! no sign of life for [34]s", line) for line in lines)
    follower.close()


def test_a_slow_controller_is_not_stale_between_its_ticks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Writer(path, period_s=30.0).write()
    follower = Follower(path)
    later_ns = time.monotonic_ns() + 40_000_000_000
    monkeypatch.setattr(time, "monotonic_ns", lambda: later_ns)
    assert not follower.stale
    follower.close()


def test_without_a_controller_one_can_only_wait(path: Path) -> None:
    with pytest.raises(ConfigError, match="no controller runs there"):
        Follower(path)
    follower = Follower(path, wait=True)
    assert follower.status is None
    assert waiting(str(path), View(80, 24, BLOCKS))[0].plain.startswith("waiting for a controller at ")
    Writer(path).write()
    follower.look()
    assert follower.status is not None
    follower.close()
    path.write_bytes(bytes(8192))
    with pytest.raises(ConfigError, match="accepted"):
        Follower(path, wait=True)


# -- characters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "glyphs"),
    [
        ({"LANG": "en_US.UTF-8"}, BLOCKS),
        ({"LANG": "C"}, ASCII),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, ASCII),  # what Python makes of LANG=C
        ({"LC_ALL": "C", "LANG": "de_DE.UTF-8"}, ASCII),
        ({"LC_CTYPE": "de_DE.utf8", "LANG": "C"}, BLOCKS),
        ({"LANG": "C.UTF-8", "LC_CTYPE": "C.UTF-8"}, BLOCKS),
        ({"LANG": "en_US.UTF-8", "TERM": "linux"}, ASCII),
        ({"LANG": "en_US.ISO-8859-1"}, ASCII),
        ({}, ASCII),
    ],
)
def test_blocks_only_where_the_terminal_has_them(environment: dict[str, str], glyphs: Glyphs) -> None:
    assert glyphs_for(environment) is glyphs


@given(st.lists(st.none() | st.floats(0, 1e9), max_size=200), st.integers(1, 60))
def test_a_sparkline_has_its_width_and_keeps_the_greatest(values: list[float | None], width: int) -> None:
    placed = resample(values, width, max)
    assert len(placed) == width
    assert max((v for v in placed if v is not None), default=None) == max(
        (v for v in values if v is not None), default=None
    )
    if values:
        assert values[-1] is None or (placed[-1] or 0) >= values[-1]
    assert len(BLOCKS.spark(placed)) == width


def test_heights_are_in_order_and_gaps_are_blank() -> None:
    assert BLOCKS.spark([None, 0.0, 0.5, 1.0, 7.0]) == " ▁▅██"
    assert ASCII.spark([0.0, 1.0]) == "_@"
    assert BLOCKS.bar(0.5, 4) == "██░░"


@given(st.floats(0, 1e13))
def test_any_number_is_short(value: float) -> None:
    assert len(short(value)) <= 5


@given(st.floats(0.0011, 1e8))
def test_short_numbers_are_close(value: float) -> None:
    text = short(value)
    read = float(text.rstrip("kM")) * {"k": 1e3, "M": 1e6}.get(text[-1], 1.0)
    assert read == pytest.approx(value, rel=0.05, abs=0.0006)


def test_figures() -> None:
    assert [short(v) for v in (None, 0, 0.0854, 1.2, 99.95, 450.0, 12345.0, 2e6)] == (
        ["-", "0", "0.085", "1.20", "100.0", "450", "12k", "2.0M"]
    )
    assert [percent(v) for v in (None, 0.0, 0.012, 0.0996, 1.0)] == ["-", "0.0%", "1.2%", "10%", "100%"]
    assert [duration(v) for v in (None, 0, 187, 18_720, 273_600)] == ["-", "0s", "3m07s", "5h12m", "3d04h"]


# -- the terminal ------------------------------------------------------------------------------------------------------

ESCAPE = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|[()][A-Z0-9])")
ENTER, LEAVE, HIDE, SHOW = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25l", "\x1b[?25h"


class Terminal:
    """``slicepilot top`` in a terminal of 80 by 24."""

    def __init__(self, root: Path, *options: str, **environment: str) -> None:
        self.end, self.terminal = pty.openpty()
        termios.tcsetwinsize(self.terminal, (24, 80))
        self.before = termios.tcgetattr(self.terminal)
        inherited = {key: os.environ[key] for key in ("PATH", "HOME", "PYTHONPATH") if key in os.environ}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "slicepilot.controller.cli", "top", "--run-root", str(root), *options],
            stdin=self.terminal,
            stdout=self.terminal,
            stderr=self.terminal,
            env=inherited | {"TERM": "xterm-256color", "LANG": "C.UTF-8"} | environment,
            start_new_session=True,
            preexec_fn=self._control,  # noqa: PLW1509 (a child without threads)
        )
        self.raw = ""

    @staticmethod
    def _control() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    def read(self, seconds: float = 0.05) -> str:
        """All that was drawn so far."""
        while select.select([self.end], [], [], seconds)[0]:
            self.raw += os.read(self.end, 1 << 16).decode()
        return self.raw

    def until(self, pattern: str, timeout_s: float = 15.0) -> str:
        """The picture that a pattern occurs in, from now on."""
        start, end = len(self.raw), time.monotonic() + timeout_s
        while time.monotonic() < end:
            for picture in reversed(self.read()[start:].split("\x1b[H")):
                text = ESCAPE.sub("", picture)
                if re.search(pattern, text):
                    return text
        raise AssertionError(f"{pattern} does not come; the last: {ESCAPE.sub('', self.raw[-4000:])}")

    def press(self, key: str) -> None:
        os.write(self.end, key.encode())

    def ended(self) -> int:
        """Its exit code; the terminal must be as it was."""
        end = time.monotonic() + 10
        while self.process.poll() is None and time.monotonic() < end:
            self.read()  # else it waits for room to write
        code = self.process.wait(1)
        self.read()
        assert self.raw.count(ENTER) == self.raw.count(LEAVE) == 1
        assert self.raw.rindex(LEAVE) > self.raw.rindex(ENTER)
        assert self.raw.rindex(SHOW) > self.raw.rindex(HIDE)
        assert termios.tcgetattr(self.terminal) == self.before
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for descriptor in (self.end, self.terminal):
            os.close(descriptor)


@pytest.fixture
def terminal(path: Path) -> Iterator[Callable[..., Terminal]]:
    started: list[Terminal] = []

    def start(*options: str, **environment: str) -> Terminal:
        started.append(Terminal(path.parents[1], *options, **environment))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.mark.parametrize(
    ("way", "code"),
    [("q", 0), ("\x03", 0), (signal.SIGINT, 0), (signal.SIGTERM, 0), (signal.SIGHUP, 0)],
)
def test_the_terminal_comes_back(
    path: Path, terminal: Callable[..., Terminal], way: str | signal.Signals, code: int
) -> None:
    Writer(path).write()
    top = terminal()
    lines = top.until("(?s)slice5.*q quit").splitlines()
    assert len(lines) <= 24
    assert all(cell_len(line) <= 80 for line in lines)
    assert "▄" in top.raw
    assert top.raw.startswith(ENTER) or ENTER in top.raw[:200]
    if isinstance(way, str):
        top.press(way)
    else:
        top.process.send_signal(way)
    assert top.ended() == code


def test_nothing_is_opened_for_writing(path: Path, terminal: Callable[..., Terminal]) -> None:
    Writer(path).write()
    top = terminal()
    top.until("slice5")
    folder = Path("/proc") / str(top.process.pid)
    writable = []
    for fd in (folder / "fd").iterdir():
        target = str(fd.readlink())
        [flags] = re.findall(r"^flags:\s+(\d+)$", (folder / "fdinfo" / fd.name).read_text(), re.MULTILINE)
        if int(flags, 8) & os.O_ACCMODE != os.O_RDONLY and not target.startswith("/dev/"):
            writable.append(target)
    assert writable == []
    [mapping] = [line for line in (folder / "maps").read_text().splitlines() if line.endswith(str(path))]
    assert mapping.split()[1] == "r--s"
    top.press("q")
    assert top.ended() == 0


def test_pages_are_turned_by_keys(path: Path, terminal: Callable[..., Terminal]) -> None:
    Writer(path, 40).write(50)
    top = terminal()
    top.until("page 1/3")
    top.press("n")
    assert "slice19 " in top.until("page 2/3")
    top.press("\x1b[6~")
    assert "slice40 " in top.until("page 3/3")
    top.press("p")
    top.until("page 2/3")
    top.press("\x1a")  # Ctrl-Z would leave the screen to a process that is stopped
    top.press("n")
    top.until("page 3/3")
    top.press("q")
    assert top.ended() == 0


def test_a_restart_is_seen_in_the_terminal(path: Path, terminal: Callable[..., Terminal]) -> None:
    top = terminal("--name", "sp", "--wait")
    top.until("waiting for a controller")
    first = Writer(path, name="first")
    first.write()
    top.until("slicepilot first")
    first.ring.close()
    top.until("the controller has ended: waiting for a controller")
    Writer(path, name="second").write()
    top.until("slicepilot second")
    top.until("no sign of life for [3-9]s")
    top.press("q")
    assert top.ended() == 0


def test_colour_and_blocks_are_left_out_where_they_are_not_wanted(
    path: Path, terminal: Callable[..., Terminal]
) -> None:
    Writer(path).write()
    plain = terminal(LANG="C", NO_COLOR="1")
    plain.until("slice5")
    plain.press("q")
    assert plain.ended() == 0
    assert plain.raw.isascii()
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", plain.raw)
    coloured = terminal()
    coloured.until("slice5")
    assert re.search(r"\x1b\[[0-9;]*3[0-7]m", coloured.raw)


@pytest.mark.live
def test_it_costs_next_to_nothing(path: Path, terminal: Callable[..., Terminal]) -> None:
    writer, done = Writer(path), threading.Event()

    def keep_writing() -> None:
        while not done.wait(PERIOD_S):
            writer.write(1)

    thread = threading.Thread(target=keep_writing)
    thread.start()
    try:
        top = terminal()
        top.until("slice5")
        top.until("slice5")
        before, start = cpu_s(top.process.pid), time.monotonic()
        while time.monotonic() - start < 5:
            top.read()
        used = (cpu_s(top.process.pid) - before) / (time.monotonic() - start)
    finally:
        done.set()
        thread.join()
    print(f"CPU of top: {100 * used:.2f}%")
    assert used < 0.02
    top.press("q")
    assert top.ended() == 0


def cpu_s(pid: int) -> float:
    """From schedstat: exact, where /proc/PID/stat counts ticks."""
    return sum(
        int((task / "schedstat").read_text().split()[0]) / 1e9 for task in (Path("/proc") / str(pid) / "task").iterdir()
    )


# -- without a terminal ------------------------------------------------------------------------------------------------


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "slicepilot.controller.cli", "top", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=os.environ | {"COLUMNS": "80"} | environment,
    )


def test_one_picture_for_scripts(path: Path) -> None:
    Writer(path, 20).write()
    root = str(path.parents[1])
    for options in (["--once"], []):  # not a terminal: the same
        done = run("--run-root", root, *options, LANG="C", LC_ALL="C")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.isascii()
        assert len(re.findall(r"^slice\d+ ", done.stdout, re.MULTILINE)) == 20, "all of them, however many"
        assert max(map(len, done.stdout.splitlines())) <= 80


def test_one_status_document(path: Path) -> None:
    Writer(path).write()
    done = run("--run-root", str(path.parents[1]), "--name", "sp", "--json")
    document = json.loads(done.stdout, parse_constant=pytest.fail)
    assert document["run"]["name"] == "sp"
    assert [one["name"] for one in document["slices"]] == [f"slice{k}" for k in range(1, 6)]


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        ([], [], "no controller runs there; accepted: "),
        (["a"], ["--name", "b"], "b/ticks: no controller runs there; accepted: the folder of a running one"),
        (["a", "b"], [], "--name: not given, and several controllers run; accepted: a, b"),
        (["a"], ["--interval", "0"], "--interval"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    tmp_path: Path, names: list[str], options: list[str], message: str
) -> None:
    for name in names:
        Writer(tmp_path / name / "ticks").write(5)
    done = run("--run-root", str(tmp_path), *options, "--once")
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
