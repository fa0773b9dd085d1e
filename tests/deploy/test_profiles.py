"""Profiles of an agent's container: what the systemd unit lets a controller do, and no more."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from slicepilot.controller.system.confinement import CONTROLLER
from slicepilot.controller.system.privileges import LOOP

DEPLOY = Path(__file__).parents[2] / "deploy"
PROFILES = DEPLOY / "helm" / "slicepilot" / "profiles"
UNIT = (DEPLOY / "systemd" / "slicepilot@.service").read_text()
NEVER = {"add_key", "keyctl", "request_key", "mount", "umount2", "pivot_root", "ptrace", "kexec_load", "init_module",
         "finit_module", "delete_module", "reboot", "swapon", "io_uring_setup", "process_vm_writev", "userfaultfd",
         "clone3", "unshare", "perf_event_open", "settimeofday"}  # fmt: skip


def seccomp() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((PROFILES / "seccomp.json").read_text())
    return document


def allowed() -> set[str]:
    result: set[str] = set()
    for item in seccomp()["syscalls"]:
        if item["action"] == "SCMP_ACT_ALLOW":
            result |= set(item["names"])
    return result


@cache
def expanded(word: str) -> frozenset[str]:
    """Of a group of systemd's (systemd.exec(5), SystemCallFilter=), the calls."""
    if not word.startswith("@"):
        return frozenset({word})
    command = ["systemd-analyze", "syscall-filter", word]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[1:]
    words = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    return frozenset().union(*map(expanded, words))


def test_what_the_controller_may_not_do_its_container_may_not() -> None:
    assert seccomp()["defaultAction"] == "SCMP_ACT_ERRNO"
    assert CONTROLLER.conditions.keys() - NEVER <= allowed()
    assert not allowed() & (NEVER | CONTROLLER.refused)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_it_is_the_filter_of_the_unit() -> None:
    calls: set[str] = set()
    for line in re.findall(r"^SystemCallFilter=(.*)$", UNIT, re.MULTILINE):
        names = set().union(*map(expanded, line.lstrip("~").split()))
        calls = calls - names if line.startswith("~") else calls | names
    # Another version of systemd has other groups; ours are those of version 252, without what none of us makes.
    assert allowed() - calls <= {"mincore"}
    assert len({item for item in calls - allowed() - NEVER if not item.startswith(("io_uring_", "process_vm_"))}) < 15


def test_apparmor_allows_the_same_capabilities() -> None:
    text = (PROFILES / "apparmor").read_text()
    named = {f"CAP_{name.upper()}" for name in re.findall(r"^  capability (\w+),$", text, re.MULTILINE)}
    assert named == {*LOOP, "CAP_SETPCAP", "CAP_CHOWN"}
