"""What is said about a tick is what was recorded, in words that fit a terminal."""

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slicepilot.cli.schemas.explaining import ExplainedTick, ExplainedWindow
from slicepilot.configs import ConfigError
from slicepilot.configs.documents import dumps
from slicepilot.controller.contracts.modes import Level, Mode
from slicepilot.controller.contracts.reasons import Reason
from slicepilot.controller.record.explain import explain_tick, explain_window
from slicepilot.controller.record.explain_text import WIDTH, tick_lines, window_lines
from slicepilot.controller.record.moments import parse_duration, parse_time, rfc3339
from slicepilot.controller.record.reader import Moment, Stretch
from slicepilot.controller.record.ring import LATE, Records
from slicepilot.controller.record.segments import SegmentWriter
from slicepilot.env.telemetry import SLICE_FIELDS
from tests.command import slicepilot

from .conftest import description, ticks

START_NS = 1_770_000_000_000_000_000

EXPLAINED = [
    "tick 3 at 2026-02-02T02:40:00.010000Z, agent captain (bundle abababababab), run",
    "mode shadow, level normal; 2 ticks missed before it",
    "node: CPUs 12% idle, uplink 20% used, measured 0.5 ms before",
    "slice1         45.0    40.0    10.0   120.0   590.0   391.0    25.0    12.0",
    "slice3     not measured",
    "slice1       412.5     470     500     -3      -3      -3   none    none    none",
    "slice2         500     500     500     -3      -3      -3    nan    none    none",
    "slice5         500     500     500     -3      -3      -3   none    none      25",
    "  slice1: slew (info): moved as far as a step may go",
    "  slice1: allowed CPU limit 500 -> 470 mCPU",
    "  slice5: applied egress none -> 25 Mbit/s",
    "knobs ready after 134 us of 2000 us budget (7%)",
]


@pytest.fixture
def records() -> Records:
    """Three ticks; at the last of them the guard has slowed down slice 1, and slice 3 is not measured."""
    records = ticks(3)
    last = records[2]
    last["missed"] = 2
    last["wanted"][0, 0], last["allowed"][0, 0] = 412.5, 470
    last["wanted"][2, 1] = np.nan
    last["applied"][2, 4] = 25
    last["reasons"][0] = Reason.SLEW.bit | Reason.DWELL.bit
    last["reasons"][2] = Reason.SLICE_MISSING.bit
    last["valid"][2] = 0
    return records


def lines(records: Records, description: dict[str, Any]) -> list[str]:
    return tick_lines(explain_tick(Moment(description, records[-1], records[-2])))


def test_a_tick_in_words(records: Records) -> None:
    text = lines(records, description(digest="ab" * 32))
    assert [line for line in text if line in EXPLAINED] == EXPLAINED


def test_no_line_is_wider_than_a_terminal() -> None:
    explained, worst = description(digest="ab" * 32, agent="a" * 60, run_id="r" * 64), ticks(2)
    for number, spec in enumerate(explained["slice_set"]["slices"]):
        spec["name"] = f"{number}-{'n' * 60}"
    worst["slices"][1] = 1e12
    worst["wanted"][1], worst["allowed"][1], worst["applied"][1] = 123456.7, -20, 98765.4
    worst["reasons"][1] = worst["node_reasons"][1] = sum(reason.bit for reason in Reason)
    worst["flags"][1], worst["missed"][1], worst["level"][1] = 7, 1 << 31, Level.LATCHED
    worst["infer_ns"][1] = 4_000_000_000
    window = [line for run in explain_window([Stretch(explained, worst)]) for line in window_lines(run)]
    for line in [*lines(worst, explained), *window]:
        assert len(line) <= WIDTH, line


def test_json_has_neither_nan_nor_infinity(records: Records) -> None:
    explained = json.loads(dumps(explain_tick(Moment(description(), records[-1], records[-2])), ExplainedTick))
    assert explained["slices"][1]["knobs"]["egress_mbps"] == {"wanted": "nan", "allowed": None, "applied": None}
    assert explained["slices"][0]["reasons"][0]["reason"] == "dwell"
    assert explained["stages_us"]["total"] == 156
    assert explained["time_ns"] == START_NS + 10_000_000
    window = json.loads(dumps(explain_window([Stretch(description(), records)]), list[ExplainedWindow]))
    assert window[0]["slices"][2]["valid_ticks"] == 2


def test_cpu_time_that_a_shadow_does_not_measure_is_not_shown_as_zero() -> None:
    explained, records = description(own_groups=["slice1"]), ticks(4)
    text = lines(records, explained)
    assert "slice1         45.0    40.0    10.0   120.0   590.0       -       -       -" in text
    assert "slice2         45.0    40.0    10.0   120.0   590.0   391.0    25.0    12.0" in text
    assert " ".join(text).count("CPU time is measured only where the mode acts") == 1
    dumps(explain_tick(Moment(explained, records[-1], records[-2])), ExplainedTick)
    [window] = explain_window([Stretch(explained, records)])
    assert window["slices"][0]["mean"]["cpu_use_mcpu"] is None
    assert any(line.startswith("CPU time is measured only") for line in window_lines(window))
    records["mode"][2:] = Mode.LIVE
    assert "is measured only" not in " ".join(lines(records, explained))
    records["slices"][:2, SLICE_FIELDS.index("cpu_use_mcpu"), 0] = 0.0
    [window] = explain_window([Stretch(explained, records)])
    assert window["slices"][0]["mean"]["cpu_use_mcpu"] == 391.0, "of the ticks in which it was measured"
    records["mode"][2:], records["reasons"][2:, 0] = Mode.CANARY, Reason.NOT_ACTING.bit
    assert "is measured only" in " ".join(lines(records, explained)), "a canary of other slices"


def test_a_window_counts() -> None:
    records = ticks(200)
    records["reasons"][10:15, 1] = Reason.SLEW.bit
    records["node_reasons"][20:24], records["level"][20:24] = Reason.TELEMETRY_STALE.bit, Level.HOLD
    records["flags"][30] = LATE
    records["node_reasons"][40:42] = Reason.PAUSED.bit
    records["applied"][50:, 0, 2], records["applied"][60:, 0, 2] = 600, 610
    records["wanted"][:, 1, 3] = np.nan
    records["infer_ns"][-1] = 900_000
    records = np.delete(records, slice(100, 103))
    [explained] = explain_window([Stretch(description(), records[:90]), Stretch(description(), records[90:])])
    assert (explained["ticks"], explained["lost_ticks"], explained["flags"]) == (197, 3, {"late": 1, "paused": 2})
    assert explained["levels"] == {"normal": 193, "hold": 4}
    assert explained["slices"][2]["changes"]["cpu_limit_mcpu"] == {"wanted": 0, "allowed": 0, "applied": 2}
    assert explained["slices"][3]["changes"]["nice"]["wanted"] == 0
    text = window_lines(explained)
    assert "mode shadow 197; level normal 193, hold 4; 3 lost, 0 missed; paused 2, late 1" in text
    assert "  slew (info): slice2 5: moved as far as a step may go" in text
    assert "  telemetry_stale (warning): node 4: measurements too old: hold, then safe" in text
    assert "max              12      40     900       9      22     971" in text


def test_what_is_under_way_is_lost_for_a_tick_but_not_for_a_window() -> None:
    records = ticks(2)
    offered, carried, loss = (SLICE_FIELDS.index(name) for name in ("offered_mbps", "carried_mbps", "loss_ratio"))
    records["slices"][:, offered, :] = 10.0
    records["slices"][:, carried, :] = [[5.0], [15.0]]
    records["slices"][:, loss, :] = [[0.5], [0.0]]
    records["slices"][:, carried, 1] = [8.0, 8.0]
    [explained] = explain_window([Stretch(description(), records)])
    losses = [row["mean"]["loss_ratio"] for row in explained["slices"]]
    assert losses[:2] == [0.0, pytest.approx(0.2)]


NOW_NS = parse_time("2026-02-02T12:00:00Z", 0, 0)


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("2026-02-02T02:40:00Z", START_NS),
        ("2026-02-02T03:40:00.25+01:00", START_NS + 250_000_000),
        ("2026-02-02T02:40:00.123456789Z", START_NS + 123_456_789),
        ("2026-02-02 02:40:00", START_NS),
        ("02:40:00.5", START_NS + 500_000_000),
        ("2:40", START_NS),
        ("12:00:01", NOW_NS - 86_399_000_000_000),
        ("last", NOW_NS - 7),
        ("-5s", NOW_NS - 7 - 5_000_000_000),
        ("-1.5min", NOW_NS - 7 - 90_000_000_000),
    ],
)
def test_times_as_people_write_them(text: str, ns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    assert parse_time(text, NOW_NS, NOW_NS - 7) == ns


@pytest.mark.parametrize("text", ["", "now", "-5", "-5 s", "25:00", "2026-02-02", "2026-13-01T00:00:00Z", "-0s"])
def test_other_times_are_bad_input(text: str) -> None:
    with pytest.raises(ConfigError, match="expected"):
        parse_time(text, NOW_NS, NOW_NS)


def test_durations() -> None:
    assert [parse_duration(text, "window") for text in ("500ms", "1s", "2min", "1h")] == [0.5, 1, 120, 3600]
    with pytest.raises(ConfigError, match="window = '1 day': expected"):
        parse_duration("1 day", "window")
    assert rfc3339(START_NS + 1_999) == "2026-02-02T02:40:00.000001Z"


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return slicepilot("explain", *arguments, timeout=60, env=os.environ | {"COLUMNS": "80", "TZ": "UTC"})


@pytest.fixture
def folder(tmp_path: Path, records: Records) -> Path:
    folder = tmp_path / "state" / "node" / "records"
    writer = SegmentWriter(folder, 1 << 20)
    writer.add(records, description(), 2)
    writer.close()
    return folder


def test_the_command_prints_what_was_recorded(tmp_path: Path, folder: Path, records: Records) -> None:
    (folder / "stray.txt").write_text("")
    done = command("--records", str(folder))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == lines(records, description())
    assert done.stderr == "left out: stray.txt: not a segment of records\n"
    roots = ["--state", str(tmp_path / "state"), "--run", str(tmp_path / "run")]
    by_name = command("--name", "node", "--at", "2026-02-02T02:40:00.010Z", "--json", *roots)
    assert json.loads(by_name.stdout)["sequence"] == 3
    window = command("--at", "last", "--window", "6ms", "--json", *roots)
    assert [run["ticks"] for run in json.loads(window.stdout)] == [2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--at", "2026-02-02T01:00:00Z"],
            "nothing recorded at 2026-02-02T01:00:00.000000Z; recorded: 2026-02-02T02:40",
        ),
        (["--window", "3"], "window = '3': expected a number with ms, s, min, h, such as 500ms"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments: list[str], message: str, folder: Path) -> None:
    done = command("--records", str(folder), *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("slicepilot: error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
