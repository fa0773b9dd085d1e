"""The status document: what happened in which second, as strict JSON."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slicepilot.configs.documents import dumps
from slicepilot.controller.contracts import answers
from slicepilot.controller.contracts.modes import Mode
from slicepilot.controller.contracts.reasons import Reason
from slicepilot.controller.publisher.counts import Totals
from slicepilot.controller.publisher.logs import EventLogger
from slicepilot.controller.publisher.metrics import Metrics
from slicepilot.controller.publisher.recorder import Recorder
from slicepilot.controller.publisher.status import Status
from slicepilot.controller.record.segments import list_segments, open_segment
from slicepilot.controller.telemetry.histogram import edges_ns
from slicepilot.env.knobs import Knobs

from .conftest import Controller

SECOND = 1_000_000_000


@pytest.fixture
def at_a_second(controller: Any) -> Any:
    """A controller whose next tick is the first of a second."""
    controller.now_ns = (controller.now_ns // SECOND + 1) * SECOND - 10_000_000
    return controller


def test_histories_have_a_figure_a_second(at_a_second: Any) -> None:
    controller = at_a_second
    status, reader = Status(5), controller.reader()
    for second in range(5):
        controller.telemetry.slices[0], controller.telemetry.slices[1] = 10.0 * (second + 1), 9.0 * (second + 1)
        controller.telemetry.slices[3, :, 0] = 100.0 * (second + 1)
        for _ in range(4):
            controller.tick(25)
            status.update(reader)
    controller.tick()
    status.update(reader)
    item = status.document(6)["slices"][2]
    assert item["name"] == "slice3"
    assert item["history"]["offered_mbps"] == [None, 10, 20, 30, 40, 50]
    assert item["history"]["carried_mbps"] == [None, 9, 18, 27, 36, 45]
    assert item["history"]["loss_ratio"] == [None, *[pytest.approx(0.1)] * 5]
    assert item["history"]["delay_worst_us"] == [None, 100, 200, 300, 400, 500]
    assert "history" not in status.document(0)["slices"][0]
    assert item["offered_mbps"] == 50


def test_delays_are_those_of_the_packets_in_a_second(at_a_second: Any) -> None:
    controller = at_a_second
    status, reader = Status(5), controller.reader()
    controller.counts[:, 300] = 1_000_000  # before the first look: nobody knows when
    controller.ring.delays(controller.counts)
    status.update(reader)
    fast, slow = (int(np.searchsorted(edges_ns(), ns, side="right")) - 1 for ns in (500_000, 20_000_000))
    for second in range(4):
        controller.tick(100)
        if second != 2:  # a second without news
            controller.counts[0, fast] += 980
            controller.counts[0, slow] += 20 * second
            controller.ring.delays(controller.counts)
        status.update(reader)
    controller.tick()
    status.update(reader)
    history = status.document(4)["slices"][0]["history"]
    assert history["delay_p50_us"] == [pytest.approx(500, rel=0.07)] * 4
    assert history["delay_p99_us"] == [
        pytest.approx(500, rel=0.07), pytest.approx(20_000, rel=0.07), pytest.approx(20_000, rel=0.07),
        pytest.approx(20_000, rel=0.07),
    ]  # fmt: skip
    assert status.document(4)["slices"][1]["history"]["delay_p99_us"] == [None] * 4, "no packet of it was counted"


def test_ticks_that_were_overwritten_before_the_publisher_read_are_lost(controller: Any) -> None:
    slots = controller.reader().slots
    controller.tick(slots + 30)
    for restarts, lost in ((0, 30), (1, 0)):
        controller.note(publisher_restarts=restarts)
        publisher, onlooker = Status(5, since_start=True), Status(5)
        for status in (publisher, onlooker):
            status.update(controller.reader())
        assert (publisher.document(0)["ticks"]["lost"], onlooker.document(0)["ticks"]["lost"]) == (lost, 0)


@pytest.mark.parametrize(("records_mb", "lost"), [(1.0, 30), (0.0, 0)])
def test_ticks_that_were_never_read_are_missing_in_records(tmp_path: Path, records_mb: float, lost: int) -> None:
    recorder = Recorder(tmp_path, records_mb, 0.0, EventLogger(logging.getLogger()))
    assert recorder.figures(overwritten=30)["records_lost_ticks_total"][0] == lost


def test_records_are_kept_below_a_folder_that_their_writer_may_not_enter(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    inner = closed / "open"
    inner.mkdir()
    controller = Controller(inner)
    try:
        controller.publish(records_mb=1.0)
        controller.tick(20)
        assert controller.ask({"command": "status"})["status"]["publisher"]["confined"].startswith("seccomp")
    finally:
        controller.close()
    [segment] = list_segments(controller.state / "records")
    with open_segment(segment.path) as file:
        assert file.metadata.num_rows == 20


@pytest.mark.parametrize(
    ("mode", "canary", "known"),
    [
        (Mode.SHADOW, [], False),
        (Mode.CANARY, ["slice1"], False),
        (Mode.CANARY, ["slice2"], True),
        (Mode.LIVE, [], True),
    ],
)
def test_cpu_time_of_a_group_that_is_made_for_a_slice_is_unknown_without_it(
    controller: Any, mode: Mode, canary: list[str], known: bool
) -> None:
    controller.ring.describe(controller.description | {"own_groups": ["slice2"]})
    controller.note(canary=canary)
    status, reader = Status(5), controller.reader()
    controller.tick(5, mode=int(mode))
    status.update(reader)
    first, second = status.document(0)["slices"][:2]
    assert first["cpu_use_mcpu"] is not None
    assert (second["cpu_use_mcpu"] is not None) is known
    families = {family.name: family for family in Metrics(status, Totals(5)).collect()}
    uses = {sample.labels["slice"]: sample.value for sample in families["slicepilot_slice_cpu_use_cores"].samples}
    assert not math.isnan(uses["slice1"])
    assert math.isnan(uses["slice2"]) is not known


def test_reasons_are_the_gravest_first_with_their_ticks(controller: Any) -> None:
    status, reader = Status(5), controller.reader()
    controller.reasons[1] = Reason.SLEW.bit
    controller.tick(20)
    controller.reasons[1] = Reason.SLEW.bit | Reason.OVERRUN.bit | Reason.OUT_OF_RANGE.bit
    controller.tick(3, node_reasons=Reason.SAFE_SETTING.bit, level=2)
    status.update(reader)
    document = status.document()
    given = document["slices"][1]["reasons"]
    assert [(item["reason"], item["severity"], item["ticks"]) for item in given] == [
        ("overrun", "severe", 3),
        ("out_of_range", "warning", 3),
        ("slew", "info", 23),
    ]
    assert [item["reason"] for item in document["node"]["reasons"]] == ["safe_setting"]
    assert document["slices"][0]["reasons"] == []
    assert document["level"] == "safe"


def test_the_document_is_strict_json_whatever_was_measured(controller: Any) -> None:
    status, reader = Status(5), controller.reader()
    dumps(status.document(), answers.Status)
    status.update(reader)
    dumps(status.document(), answers.Status)
    controller.telemetry.slices[:, 0] = math.nan
    controller.telemetry.slices[:, 1] = math.inf
    controller.telemetry.valid[2] = False
    nothing = np.full((5, 1), np.nan, np.float32)
    controller.wanted = Knobs.of(nothing, nothing, nothing)
    controller.tick(150)
    status.update(reader)
    document = json.loads(dumps(status.document(), answers.Status))
    first, _, third, fourth, _ = document["slices"]
    assert (first["offered_mbps"], third["offered_mbps"], fourth["offered_mbps"]) == (None, None, 40)
    assert (third["valid"], fourth["valid"]) == (False, True)
    assert fourth["knobs"]["wanted"] is None
    assert fourth["knobs"]["applied"] == {"cpu_limit_mcpu": None, "nice": 0, "egress_mbps": None}


def test_a_new_description_is_taken_up_and_lost_ticks_are_counted(controller: Any) -> None:
    controller.tick(5000)  # more than the ring holds, before anybody looked
    status, reader = Status(5), controller.reader()
    assert len(status.update(reader)) == 4096
    assert status.lost == 0
    controller.ring.describe(controller.description | {"agent": "another"})
    controller.tick(4100)
    status.update(reader)
    assert status.lost == 4
    assert status.document()["agent"] == "another"
