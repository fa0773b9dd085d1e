"""The original settings are restored, whatever happens to the journal, to groups and devices, or to the disk."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slicepilot.controller.watchdog.journal import journal_path
from slicepilot.controller.watchdog.supervisor import RESTORED_FILE
from slicepilot.testbed.bench.node import BenchNode
from tests.controller.watchdog.test_supervisor import Controller, Kernel, command, controller, wait_for

from .test_renamed_groups import swap

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: cgroups and network namespaces")


def flip(path: Path) -> None:
    """Change a digit of a number that would be written to the kernel."""
    text = path.read_text()
    at = text.index('"weight": ') + len('"weight": ')
    path.write_text(f"{text[:at]}9{text[at + 1 :]}")


HARMS: dict[str, Callable[[Path], object]] = {
    "removed": lambda state: journal_path(state).unlink(),
    "truncated": lambda state: os.truncate(journal_path(state), 200),
    "flipped": lambda state: flip(journal_path(state)),
    "without folder": shutil.rmtree,
    "mounted over": lambda state: subprocess.run(["mount", "-t", "tmpfs", "none", str(state)], check=True),
}


@pytest.mark.parametrize("harm", HARMS)
def test_the_supervisor_needs_no_file(node: BenchNode, kernel: Kernel, tmp_path: Path, harm: str) -> None:
    state, original = tmp_path / "state", kernel.read()
    with controller(node, state) as victim:
        assert kernel.read() != original
        HARMS[harm](state)
        try:
            victim.kill()
            wait_for(lambda: kernel.read() == original)
            wait_for(lambda: not journal_path(state).exists())
            if harm != "without folder":
                document = json.loads((state / RESTORED_FILE).read_text())
                assert (len(document["restored"]), document["failed"]) == (20, [])
        finally:
            if harm == "mounted over":
                subprocess.run(["umount", str(state)], check=True)
    assert json.loads(command("--state", tmp_path, "--json").stdout) == []


@pytest.mark.parametrize("harm", ["without folder", "truncated", "flipped"])
def test_after_the_death_of_both_only_an_intact_journal_is_restored(
    node: BenchNode, kernel: Kernel, tmp_path: Path, harm: str
) -> None:
    state, original = tmp_path / "state", kernel.read()
    with controller(node, state) as victim:
        _kill_both(victim)
    moved, whole = kernel.read(), journal_path(state).read_bytes()
    assert moved != original
    HARMS[harm](state)
    if harm != "without folder":
        assert "restore the slices by hand" in str(command("--state", tmp_path).exception)
        assert kernel.read() == moved
        journal_path(state).write_bytes(whole)
    report = _restored(tmp_path)
    assert kernel.read() == original
    assert (len(report["restored"]), report["failed"]) == (20, [])


@pytest.mark.parametrize("both", [False, True], ids=["controller", "all"])
def test_groups_that_were_renamed_crosswise_get_each_its_own(
    node: BenchNode, kernel: Kernel, tmp_path: Path, both: bool
) -> None:
    """And devices as well: names lead to wrong devices."""
    state, original = tmp_path / "state", kernel.read()
    first, second = (target.group for target in node.targets[:2])
    with controller(node, state) as victim:
        _swap(node)
        try:
            if both:
                _kill_both(victim)
                report = _restored(tmp_path)
            else:
                victim.kill()
                wait_for((state / RESTORED_FILE).exists)
                report = json.loads((state / RESTORED_FILE).read_text())
        finally:
            _swap(node)
    assert kernel.read() == original
    assert (report["gone"], report["failed"]) == ([], [])
    assert sorted(report["notes"]) == [
        f"{node.targets[0].name}: {first} is {second} now",
        f"{node.targets[1].name}: {second} is {first} now",
    ]


def _kill_both(victim: Controller) -> None:
    os.kill(victim.process.pid, signal.SIGSTOP)
    os.kill(victim.supervisor, signal.SIGKILL)
    victim.kill()


def _restored(root: Path) -> dict[str, Any]:
    [report] = json.loads(command("--state", root, "--json").stdout)
    return dict(report)


def _swap(node: BenchNode) -> None:
    """The first two groups, and devices, have each other's name."""
    one, two = node.targets[:2]
    swap(one.group, two.group)
    a, b = str(one.egress_device), str(two.egress_device)
    for device, name in ((a, "spare"), (b, a), ("spare", b)):
        words = ["nsenter", f"--net={one.netns}", "ip", "link", "set", device, "name", name]
        subprocess.run(words, check=True)
