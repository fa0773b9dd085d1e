"""What ``slicepilot top`` shows, within any terminal, of a controller that is slow, gone or replaced."""

from __future__ import annotations

import itertools
import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicepilot.controller.contracts.modes import Level, Mode
from slicepilot.controller.contracts.reasons import Reason
from slicepilot.controller.record.ring import LATE, TickRing
from slicepilot.controller.top.drawing import ASCII, BLOCKS, Glyphs, glyphs_for, resample, short
from slicepilot.controller.top.frame import View, frame
from slicepilot.controller.top.screen import Follower

from .rings import Writer, shown


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
    assert re.match(r"loop  10 ms: late 0/min missed 0 p50 6\d p99 6\d p99.9 6\d of 2000 us \[░+\]$", lines[1])
    assert lines[2] == "node  CPU idle 25% of 2 · uplink 50% of 1000 Mbit/s · supervisor up"
    assert lines[3] == "in charge  policy 100% · guard 0.0% · safe 0.0% of the last minute"
    assert lines[4] == "nothing to report"
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
    assert "! n3 ? gone" in lines


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


def test_a_shadow_says_that_it_moves_nothing_and_what_it_does_not_measure(path: Path) -> None:
    writer = Writer(path, fixed={"slice1": ["nice"]}, own_groups=["slice1"])
    writer.tick = writer.tick._replace(mode=Mode.SHADOW)
    writer.write()
    lines = shown(path)
    assert [line.split()[-1] for line in lines if re.match(r"slice\d", line)] == ["watched"] * 5
    assert "  wants none 0 none · never moved: nice · not moved (shadow)" in lines
    assert lines[4].startswith("! CPU time is measured only where the mode acts (own_cgroup)")
    writer.tick = writer.tick._replace(mode=Mode.CANARY)
    writer.note(canary=["slice1"])
    writer.write()
    lines = shown(path)
    assert [line.split()[-1] for line in lines if re.match(r"slice\d", line)] == ["ok", *["watched"] * 4]
    assert sum("not moved (not in the canary)" in line for line in lines) == 4
    assert not any("CPU time" in line for line in lines)


def test_late_and_missed_ticks_can_be_read_at_80_columns(path: Path) -> None:
    writer = Writer(path)
    writer.tick = writer.tick._replace(flags=LATE, missed=12_345, observe_ns=98_765_432, infer_ns=1_000)
    writer.write()
    [line] = [line for line in shown(path) if line.startswith("loop")]
    assert "late 300/min missed 12k p50 " in line


@pytest.mark.parametrize("level", list(Level))
def test_the_guards_level_is_a_word(path: Path, level: Level) -> None:
    writer = Writer(path)
    reasons = Reason.OVERRUN.bit | Reason.PAUSED.bit
    writer.tick = writer.tick._replace(level=level, node_reasons=reasons, flags=LATE)
    writer.write()
    lines = shown(path)
    assert f"guard {level.name}  PAUSED" in lines[0]
    assert any("overrun" in line and "too many late decisions" in line for line in lines)
    assert any("slicepilot control resume" in line for line in lines) is (level is Level.LATCHED)
    assert re.search(r"late 300/min", lines[1])


def test_what_is_wrong_is_said_as_far_as_there_is_room(path: Path) -> None:
    writer = Writer(path)
    foreign = [{"slice": "slice2", "knob": "nice", "found": 1, "ours": 2, "policy": "respect", "text": "1, not 2"}]
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
    alerts = [line for line in lines if line.startswith("! ")]
    assert alerts[0] == "! no supervisor: the knobs are not restored if the controller dies"
    assert alerts[-1].startswith("! +"), "the rest is counted"
    everything = shown(path, width=100, height=None)
    assert [line for line in everything if line.startswith("! ")] == [
        alerts[0],
        "! slice2 nice: set by another program: 1, not 2; slicepilot control resume takes it back",
        "! n3 of slice1: gone",
        "! n6 of slice3: gone",
        "! reload failed: sums differ",
        "! last error: slice1: EBUSY",
    ]


@pytest.mark.parametrize(("slices", "per_slice"), [(1, 3), (5, 3), (6, 2), (7, 2), (8, 2), (9, 1), (12, 1), (17, 1)])
def test_slices_take_as_many_lines_as_let_all_be_seen(path: Path, slices: int, per_slice: int) -> None:
    Writer(path, slices).write(50)
    lines = shown(path)
    first = [number for number, line in enumerate(lines) if re.match(r"slice\d+ ", line)]
    assert len(first) == slices
    assert all(second - item == per_slice for item, second in itertools.pairwise(first))
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


# -- following a controller -----------------------------------------------------------------------------------------


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


# -- characters ------------------------------------------------------------------------------------------------------


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


@given(st.floats(0, 1e13))
def test_any_number_is_short_and_close(value: float) -> None:
    text = short(value)
    assert len(text) <= 5
    read = float(text.rstrip("kM")) * {"k": 1e3, "M": 1e6}.get(text[-1], 1.0)
    assert read == pytest.approx(value, rel=0.05 if value < 1e9 else 0.5, abs=0.0006)
