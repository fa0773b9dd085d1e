"""The journal as a file, hang detection, locks, and the imports of the supervisor; without root."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slicepilot.configs import ConfigError
from slicepilot.controller.actuators.nice import ThreadOriginal
from slicepilot.controller.actuators.quota import CpuQuota
from slicepilot.controller.actuators.slice_knobs import SliceTargets
from slicepilot.controller.actuators.weight import GroupWeight
from slicepilot.controller.record.header import Pulse
from slicepilot.controller.record.ring import Tick, TickRing
from slicepilot.controller.system.cgroup import CpuGroup
from slicepilot.controller.system.processes import process_of, start_ticks
from slicepilot.controller.watchdog.journal import (
    VERSION,
    EgressOriginals,
    Journal,
    SliceOriginals,
    checksum,
    journal_path,
)
from slicepilot.controller.watchdog.keeper import JournalKeeper
from slicepilot.controller.watchdog.lock import Locks, private_folder
from slicepilot.controller.watchdog.recovery import recover
from slicepilot.controller.watchdog.restore import restore
from slicepilot.controller.watchdog.supervisor import START_GRACE_S, HangDetector
from slicepilot.env.knobs import Knobs
from slicepilot.env.telemetry import Telemetry

SECOND_NS = 1_000_000_000


def journal(**values: Any) -> Journal:
    egress = EgressOriginals("n6", 3, "/run/netns/a", 4, 4026532000)
    threads = (ThreadOriginal(7, 7, 123, -5), ThreadOriginal(8, 7, 124, 0))
    slices = (
        SliceOriginals("a", "/sys/fs/cgroup/none/a", 17, -1, 100_000, 1024, threads, egress),
        SliceOriginals("b", "/sys/fs/cgroup/none/b", 18, 30_000, 100_000, 39),
    )
    return dataclasses.replace(Journal.of(slices, os.getpid()), **values)


# -- the file ----------------------------------------------------------------------------------------------------


def test_a_journal_is_read_as_it_was_written() -> None:
    written = journal(released=(("a", "nice"),))
    assert Journal.parse(written.dump(), "journal") == written
    assert written.alive
    assert not dataclasses.replace(written, start_ticks=written.start_ticks - 1).alive, "a later process of that number"
    assert not dataclasses.replace(written, boot_id="another").alive


@pytest.mark.parametrize(
    ("path", "value"),
    [("pid", "12"), ("pid", True), ("slices.1.quota_us", 1.5), ("slices", {"a": 1}), ("released", [["a"]])],
)
def test_a_damaged_journal_is_refused_with_its_file(tmp_path: Path, path: str, value: object) -> None:
    document = json.loads(journal(pid=1, start_ticks=1).dump())
    *parts, last = path.split(".")
    part: Any = document["journal"]
    for name in parts:
        part = part[int(name) if name.isdigit() else name]
    part[last] = value
    file = journal_path(tmp_path)
    for change, message in (
        ({}, "changed since it was written"),
        ({"sha256": checksum(document["journal"])}, "not the fields of a journal"),
        ({"version": VERSION + 1}, f"version = {VERSION + 1}; expected {VERSION}"),
    ):
        file.write_text(json.dumps(document | change))
        with pytest.raises(ConfigError, match=re.escape(f"{file}: {message}")) as caught:
            recover(tmp_path)
        assert "restore the slices by hand, then remove it" in str(caught.value)
        assert "\n" not in str(caught.value)
    file.unlink()


def test_what_is_left_alone_is_in_the_journal_and_not_put_back(groups: list[Path], tmp_path: Path) -> None:
    targets = [SliceTargets("a", groups[0], left=frozenset({"cpu_limit_mcpu"})), SliceTargets("b", None)]
    keeper = JournalKeeper(tmp_path, targets)
    assert Journal.load(keeper.path).slices[1].cgroup is None
    quota, weight = CpuQuota(CpuGroup.at(groups[0])), GroupWeight(CpuGroup.at(groups[0]))
    quota.set(300.0)
    weight.set(7)
    report = restore(Journal.load(keeper.path))
    assert not report.failed
    assert quota.read() == 300.0
    assert GroupWeight(CpuGroup.at(groups[0])).deviation() is None
    assert any("weight" in line for line in report.restored)


def test_everything_that_is_gone_is_reported(tmp_path: Path) -> None:
    report = restore(journal())
    assert report.failed == report.restored == []
    assert [entry.split(":")[0] for entry in report.gone] == ["a", "b", "a"]
    journal_path(tmp_path).write_bytes(journal(pid=1, start_ticks=1).dump())
    assert "0 restored, 3 gone" in str(recover(tmp_path))
    assert recover(tmp_path) is None


# -- processes and locks -----------------------------------------------------------------------------------------


def test_a_process_is_distinguished_from_later_processes_with_its_number() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started, own = start_ticks(process.pid), start_ticks(os.getpid())
    assert started is not None
    assert own is not None
    assert started >= own
    assert process_of(process.pid) == process.pid
    process.communicate(b"\n")
    assert start_ticks(process.pid) is None
    assert process_of(process.pid) is None


def test_a_folder_is_locked_once(tmp_path: Path) -> None:
    with Locks({"slice a": tmp_path}):
        with pytest.raises(ConfigError, match=rf"slice a: {tmp_path} is controlled by process {os.getpid()}; expected"):
            Locks({"slice a": tmp_path})
        other = tmp_path / "other"
        other.mkdir()
        with pytest.raises(ConfigError, match="slice a"):
            Locks({"slice b": other, "slice a": tmp_path})
        with Locks({"slice b": other}):
            pass
    with Locks({"slice a": tmp_path}):
        pass


LOCK_AND_LEAVE = """
import sys
from pathlib import Path
from slicepilot.configs import ConfigError
from slicepilot.controller.watchdog.lock import Locks, private_folder
folder, inside, other = map(Path, sys.argv[1:])
taken = 0
for _ in range(150):
    with Locks({"other": other}, patience_s=0.0):
        try:
            with Locks({"shared": folder}, patience_s=0.0):
                inside.mkdir()  # raises where another process is inside
                inside.rmdir()
                taken += 1
        except ConfigError:
            pass
print(taken)
"""


def test_files_of_locks_that_nobody_holds_are_removed(tmp_path: Path) -> None:
    folders = {str(number): tmp_path / str(number) for number in range(20)}
    for folder in folders.values():
        folder.mkdir()
    names = {f"lock-{folder.stat().st_dev:x}-{folder.stat().st_ino:x}" for folder in folders.values()}
    present = lambda: names & {path.name for path in private_folder().iterdir()}  # noqa: E731
    held = Locks({"kept": folders["0"]})
    kept = names & present()
    with Locks({name: folder for name, folder in folders.items() if name != "0"}):
        assert present() == names
    assert present() == kept
    assert len(kept) == 1
    with pytest.raises(ConfigError, match="kept"):
        Locks({"kept": folders["0"]})
    held.close()
    assert not present()


def test_no_lock_is_held_twice_while_others_remove_files(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    commands = []
    for number in range(3):
        own = tmp_path / f"own{number}"
        own.mkdir()
        commands.append([sys.executable, "-c", LOCK_AND_LEAVE, shared, tmp_path / "inside", own])
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    answers = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert all(int(answer) > 0 for answer in answers), answers


# -- hangs -------------------------------------------------------------------------------------------------------


class Clock:
    """A supervisor's waits and a controller's beats, in simulated time."""

    def __init__(self, hang_s: float) -> None:
        self.now_ns, self.beat_ns = 10 * SECOND_NS, 10 * SECOND_NS
        self.detector = HangDetector(self.beat_ns, hang_s)

    def look(self, asleep_s: float = 0.0, beats: bool = False, beat_age_s: float = 0.0) -> bool:
        """One wait, ``asleep_s`` longer than intended, with or without a beat; whether it is a hang."""
        began_ns = self.now_ns
        self.now_ns += self.detector.next_look_ns() + round(asleep_s * 1e9)
        if beats:
            self.beat_ns = self.now_ns - round(beat_age_s * 1e9)
        return self.detector.look(self.beat_ns, began_ns, self.now_ns)


def test_a_hang_counts_from_the_last_beat_and_is_noticed_in_time() -> None:
    clock = Clock(1.0)
    assert not clock.look(beats=True)
    assert not clock.look(beats=True, beat_age_s=0.07)
    last_ns = clock.beat_ns
    while not clock.look():
        pass
    assert (clock.now_ns - last_ns) / 1e9 == pytest.approx(1.0, abs=0.001)


def test_time_in_which_the_supervisor_did_not_run_does_not_count() -> None:
    clock = Clock(1.0)
    assert not clock.look(beats=True)
    assert not any(clock.look(asleep_s=3600) for _ in range(7))
    assert not clock.look(beats=True)
    assert not any(clock.look() for _ in range(9))
    assert clock.look()


def test_before_its_first_beat_a_controller_may_take_its_time() -> None:
    clock, start_ns = Clock(1.0), 10 * SECOND_NS
    while not clock.look():
        pass
    assert (clock.now_ns - start_ns) / 1e9 == pytest.approx(START_GRACE_S, abs=0.01)


def test_the_pulse_is_the_rings_beat(tmp_path: Path) -> None:
    ring = TickRing(tmp_path / "ticks", 2, 4)
    pulse = Pulse(tmp_path / "ticks")
    before_ns, now_ns = pulse.beat_ns(), time.monotonic_ns()
    knobs = Knobs.none(2)
    ring.write(Tick(monotonic_ns=now_ns), Telemetry.empty(2), knobs, knobs, knobs, np.zeros(2, np.uint32))
    assert before_ns < pulse.beat_ns() == now_ns
    pulse.close()
    (tmp_path / "other").write_bytes(bytes(4096))
    with pytest.raises(ValueError, match="not a tick ring"):
        Pulse(tmp_path / "other")


# -- the process, and configuration ------------------------------------------------------------------------------


def test_the_supervisor_is_small() -> None:
    code = (
        "import sys; import slicepilot.controller.watchdog.supervisor\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    bare = subprocess.run(
        [sys.executable, "-c", "import sys; print(*{name.partition('.')[0] for name in sys.modules})"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert set(done.stdout.split()) - set(bare.stdout.split()) == {"slicepilot"}


def test_what_nobody_thought_of_costs_its_own_slice_alone(tmp_path: Path) -> None:
    """A path that no call of the kernel takes: Python says so by another exception than OSError."""
    originals = [
        SliceOriginals(name, path, 1, -1, 100_000, 1024) for name, path in (("a", "/a\0b"), ("b", f"{tmp_path}/gone"))
    ]
    report = restore(Journal.of(tuple(originals), os.getpid()))
    assert report.failed == ["a: ValueError: embedded null byte"]
    assert report.gone == [f"b: {tmp_path}/gone"]
