"""What was found is put back, whatever somebody does to the journal, to groups and devices, or to the disk."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from slicepilot.controller.watchdog.journal import FILE
from slicepilot.controller.watchdog.journal_file import copy_of
from slicepilot.controller.watchdog.supervisor import RESTORED_FILE
from slicepilot.env.slices import SliceSet
from slicepilot.testbed.bench.node import BenchNode

from ..controller.watchdog.test_supervisor import Kernel, command, controller, wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: cgroups and network namespaces")


@pytest.fixture(scope="module", name="node")
def _node() -> Iterator[BenchNode]:
    """Five groups with a device each, and a process in each group."""
    with BenchNode(SliceSet.from_yaml("testbed-five")) as made:
        made.saturate()
        yield made


@pytest.fixture(name="kernel")
def _kernel(node: BenchNode) -> Iterator[Kernel]:
    with closing(Kernel(node.targets)) as made:
        yield made


def removed(state: Path) -> None:
    (state / FILE).unlink()


def truncated(state: Path) -> None:
    os.truncate(state / FILE, 200)


def flipped(state: Path) -> None:
    """A digit of a number that would be written to the kernel."""
    text = (state / FILE).read_text()
    at = text.index('"weight": ') + len('"weight": ')
    (state / FILE).write_text(f"{text[:at]}9{text[at + 1 :]}")


def without_folder(state: Path) -> None:
    shutil.rmtree(state)


def unreadable(state: Path) -> None:
    """A read fails, as on a disk that is broken."""
    (state / FILE).unlink()
    (state / FILE).mkdir()


def overmounted(state: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "none", str(state)], check=True)


HARM = [removed, truncated, flipped, without_folder, overmounted]


@pytest.mark.parametrize("harm", HARM)
def test_the_supervisor_needs_no_disk(
    node: BenchNode, kernel: Kernel, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    state, found = tmp_path / "state", kernel.read()
    with controller(node, state) as one:
        assert kernel.read() != found
        harm(state)
        try:
            one.kill()
            wait_for(lambda: kernel.read() == found)
            wait_for(lambda: not copy_of(state).exists())
        finally:
            if harm is overmounted:
                subprocess.run(["umount", str(state)], check=True)
    if harm is not without_folder:
        document = json.loads((state / RESTORED_FILE).read_text())
        assert (len(document["restored"]), document["failed"]) == (20, [])
        assert not (state / FILE).exists()
    assert json.loads(command("--state", tmp_path, "--json").stdout) == []


@pytest.mark.parametrize("harm", [removed, truncated, flipped, without_folder, unreadable])
def test_after_the_death_of_both_the_other_copy_serves(
    node: BenchNode, kernel: Kernel, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    state, found = tmp_path / "state", kernel.read()
    _die_together(node, state)
    assert kernel.read() != found
    harm(state)
    report = _restored(tmp_path)
    assert kernel.read() == found
    assert (len(report["restored"]), report["failed"]) == (20, [])
    assert len(report["notes"]) == (2 if harm is unreadable else 1)  # what cannot be read cannot be removed either
    assert ("missing" if harm in {removed, without_folder} else str(state / FILE)) in report["notes"][0]


@pytest.mark.parametrize("gone", [False, True], ids=["changed", "gone"])
def test_where_both_copies_are_changed_that_is_said_and_nothing_written(
    node: BenchNode, kernel: Kernel, tmp_path: Path, gone: bool
) -> None:
    state, found = tmp_path / "state", kernel.read()
    _die_together(node, state)
    moved, whole = kernel.read(), (state / FILE).read_bytes()
    flipped(state)
    copy_of(state).write_bytes((state / FILE).read_bytes())
    if gone:
        removed(state)
    done = command("--state", tmp_path)
    assert "changed since it was written" in str(done.exception)
    assert "restore the slices by hand" in str(done.exception)
    assert gone == ("missing" in str(done.exception))
    assert kernel.read() == moved
    (state / FILE).write_bytes(whole)
    _restored(tmp_path)
    assert kernel.read() == found


@pytest.mark.parametrize("both", [False, True], ids=["controller", "all"])
def test_groups_that_were_renamed_crosswise_get_each_its_own(
    node: BenchNode, kernel: Kernel, tmp_path: Path, both: bool
) -> None:
    """And devices as well: names lead to the wrong ones."""
    state, found = tmp_path / "state", kernel.read()
    first, second = (target.group for target in node.targets[:2])
    aside = first.with_name("aside")
    devices = [str(target.egress_device) for target in node.targets[:2]]
    with controller(node, state) as one:
        first.rename(aside)
        second.rename(first)
        aside.rename(second)
        _rename(node, devices[0], "aside")
        _rename(node, devices[1], devices[0])
        _rename(node, "aside", devices[1])
        try:
            if both:
                _kill_both(one)
                report = _restored(tmp_path)
            else:
                one.kill()
                wait_for((state / RESTORED_FILE).exists)
                report = json.loads((state / RESTORED_FILE).read_text())
        finally:
            first.rename(aside)
            second.rename(first)
            aside.rename(second)
            _rename(node, devices[0], "aside")
            _rename(node, devices[1], devices[0])
            _rename(node, "aside", devices[1])
    assert kernel.read() == found
    assert (report["gone"], report["failed"]) == ([], [])
    assert sorted(report["notes"]) == [
        f"{node.targets[0].name}: {first} is {second} now",
        f"{node.targets[1].name}: {second} is {first} now",
    ]


def test_a_disk_that_becomes_read_only_keeps_nobody_from_ending(
    node: BenchNode, kernel: Kernel, tmp_path: Path
) -> None:
    """The knobs are back, and the journal that cannot be removed counts for nothing at the next start."""
    state, found = tmp_path / "state", kernel.read()
    state.mkdir()
    stop = tmp_path / "stop"
    subprocess.run(["mount", "-t", "tmpfs", "none", str(state)], check=True)
    try:
        (state / "stop").symlink_to(stop)
        with controller(node, state, mode="stop") as one:
            subprocess.run(["mount", "-o", "remount,ro", str(state)], check=True)
            stop.touch()
            assert one.process.wait(10) == 1
            assert kernel.read() == found
            wait_for(lambda: not Path(f"/proc/{one.supervisor}").exists())
        assert (state / FILE).exists()
        [report] = json.loads(command("--state", tmp_path, "--json").stdout)
        assert (report["restored"], report["failed"]) == ([], [])
        assert "out of date" in report["notes"][0]
    finally:
        subprocess.run(["umount", "-l", str(state)], check=True)


def _die_together(node: BenchNode, state: Path) -> None:
    with controller(node, state) as one:
        _kill_both(one)


def _kill_both(one: Any) -> None:
    os.kill(one.process.pid, 19)
    os.kill(one.supervisor, 9)
    one.kill()


def _restored(root: Path) -> dict[str, Any]:
    [report] = json.loads(command("--state", root, "--json").stdout)
    return dict(report)


def _rename(node: BenchNode, device: str, name: str) -> None:
    enter = ["nsenter", f"--net={node.targets[0].netns}", "--"]
    subprocess.run([*enter, "ip", "link", "set", device, "name", name], check=True)
