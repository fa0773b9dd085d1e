"""A pod whose group and interface are real."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicepilot.controller.system.cgroup import CpuHierarchy
from tests.controller.conftest import remove_group
from tests.controller.namespaces import Namespace
from tests.node.traffic import ending

from .servers import Pod

QUOTA_RATIO = 0.3
# Ten datagrams of 1000 octets a second, at least, by a process that does nothing else.
DATAGRAMS = """
import socket, time
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while True:
    sender.sendto(bytes(1000), ("10.231.7.2", 9))
    time.sleep(0.002)
"""


@pytest.fixture(scope="module")
def pod() -> Iterator[Pod]:
    """A group of the CPU controller with a busy process and a quota, and a namespace with a veth that packets pass."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    hierarchy = CpuHierarchy.find()
    group = hierarchy.root / f"prom{os.getpid()}"
    groups = [group]
    if hierarchy.version == 1 and not (group.parent / "cpuacct.usage").exists():
        groups.append(Path("/sys/fs/cgroup/cpuacct") / group.name)
    quota_us, device = round(QUOTA_RATIO * 100_000), f"hp{os.getpid()}"
    with contextlib.ExitStack() as undo:
        for item in groups:
            item.mkdir(exist_ok=True)
            undo.callback(remove_group, item)
        file, text = (
            ("cpu.cfs_quota_us", f"{quota_us}") if hierarchy.version == 1 else ("cpu.max", f"{quota_us} 100000")
        )
        (group / file).write_text(text)
        home = undo.enter_context(contextlib.closing(Namespace()))
        add = f"ip link add {device} type veth peer name eth0 netns {home.pid}"
        host = f"{add}; ip addr add 10.231.7.1/24 dev {device}; ip link set {device} up"
        subprocess.run(["sh", "-ec", host], check=True)
        home.sh("ip addr add 10.231.7.2/24 dev eth0; ip link set eth0 up")
        commands = (
            ["nsenter", f"--net={home.path}", "sh", "-c", "while :; do :; done"],
            [sys.executable, "-c", DATAGRAMS],
        )
        busy, _ = (undo.enter_context(ending(subprocess.Popen(command))) for command in commands)
        for item in groups:
            (item / "cgroup.procs").write_text(str(busy.pid))
        yield Pod("upf-1", group, busy.pid, quota="30000")
