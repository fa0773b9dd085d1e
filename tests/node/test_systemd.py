"""UPFs in units of a real systemd: discovered, checked, controlled; what systemd writes meanwhile is noticed."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from .machine import booted
from .runtimes import SystemdUpfs, changes, checked, controller, metric, until
from .test_foreign import measured

NOTICED_S = 1.2  # it looks once a second


@pytest.fixture(scope="module", name="upfs")
def _upfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SystemdUpfs]:
    with booted(tmp_path_factory.mktemp("systemd")) as machine:
        yield SystemdUpfs(machine)


def weight(upfs: SystemdUpfs, number: int) -> str:
    group = upfs.group(number)
    return next((group / name).read_text() for name in ("cpu.weight", "cpu.shares") if (group / name).exists()).strip()


def test_units_are_selected_by_name_and_checked(upfs: SystemdUpfs) -> None:
    document = upfs.discovered()
    assert [item["name"] for item in document["slices"]] == list(upfs.slices)
    for number, item in enumerate(document["slices"], 1):
        assert item["upf"] == {"unit": f"upf@{number}.service", "user": "0"}
    for item in checked(upfs, upfs.node()).values():
        assert item["measured"]
        assert item["traffic"]["match_ratio"] > 0.99
        assert all(knob["authority"] for knob in item["knobs"].values())
        assert any("systemd (CPUQuota= and CPUWeight=" in note for note in item["notes"])


def test_what_daemon_reload_writes_is_noticed_in_a_second_and_respected(upfs: SystemdUpfs) -> None:
    node, before, result = upfs.node(), upfs.knobs(), weight(upfs, 2)
    with controller(upfs, node, publish={"log": "pretty", "listen": "127.0.0.1:9464"}) as running:
        until(lambda: weight(upfs, 2) != result, "not moved")
        started = time.time()
        upfs.machine.run("systemctl", "daemon-reload")
        assert weight(upfs, 2) == result
        until(lambda: bool(changes(running)), "not noticed", 3.0)
        [item] = [item for item in changes(running) if item["knob"] == "nice"]  # periods are written, too
        assert (item["slice"], item["policy"]) == (upfs.slices[1], "respect")
        assert item["time_ns"] / 1e9 - started < NOTICED_S
        assert "perhaps by systemd" in item["text"]
        until(lambda: metric(upfs.machine, "foreign_changes_total") == len(changes(running)), "not counted", 3.0)
        time.sleep(1.2)
        assert weight(upfs, 2) == result
    assert upfs.knobs() == before


def test_what_set_property_writes_is_set_again_by_rule(upfs: SystemdUpfs) -> None:
    node, before, result = upfs.node(), upfs.knobs(), weight(upfs, 2)
    with controller(upfs, node, foreign={"policy": "reassert"}) as running:
        until(lambda: weight(upfs, 2) != result, "not moved")
        ours, started = weight(upfs, 2), time.time()
        upfs.machine.run("systemctl", "set-property", "--runtime", "upf@2", "CPUWeight=300")
        until(lambda: bool(changes(running)), "not noticed", 3.0)
        until(lambda: weight(upfs, 2) == ours, "not set again", 3.0)
        item = next(item for item in changes(running) if item["slice"] == upfs.slices[1])
        assert item["policy"] == "reassert"
        assert item["time_ns"] / 1e9 - started < NOTICED_S
        assert "perhaps by systemd" in item["text"]
        assert running.notes()["totals"]["foreign_changes"] >= 1
    assert upfs.knobs() == before
    upfs.machine.run("systemctl", "set-property", "--runtime", "upf@2", "CPUWeight=100")


def test_a_unit_that_restarts_is_taken_up_again(upfs: SystemdUpfs) -> None:
    node, before, result = upfs.node(), upfs.knobs(), weight(upfs, 2)
    upfs.load(seconds=20, mbps=4)
    with controller(upfs, node) as running:
        until(lambda: measured(running, 2), "not measured")
        upfs.machine.run("systemctl", "restart", "upf@2")
        fresh = upfs.pid(2)
        until(lambda: not measured(running, 2), "still measured", 3.0)
        until(lambda: measured(running, 2), "not measured again")
        until(lambda: weight(upfs, 2) != result, "not moved again")
        assert upfs.pid(2) == fresh
    assert upfs.knobs() == before
    upfs.unload()
