"""Faults of the machine below a controller, for the length of a block: CPUs offline, cpusets, clocks, full tables, the
least quota."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from slicepilot.controller.actuators.bandwidth import bandwidth_files
from slicepilot.controller.system.cgroup import CpuGroup
from slicepilot.controller.system.cores import online_cpus
from slicepilot.testbed.bench.rig import Controller
from slicepilot.testbed.lifecycle.carrying import g_pdu, udp_packet
from tests.attacks.hostile.packets import flooding
from tests.controller.conftest import remove_group
from tests.node.foreign import Foreign
from tests.node.test_foreign import until

IN_REAL_TIME_AS_ROOT = [
    pytest.mark.realtime,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: cgroups, namespaces, CPU hotplug"),
]

UPFS = 3
NOTICED_S = 1.2  # it looks once a second
LAST_CPU = max(online_cpus())
SWITCH = Path(f"/sys/devices/system/cpu/cpu{LAST_CPU}/online")
CPUSETS = Path("/sys/fs/cgroup/cpuset")
HOST = IPv4Address("10.213.0.1")


def ticking(running: Controller) -> None:
    """The loop goes on."""
    before = running.ticks()
    until(lambda: running.ticks() > before + 20, "the loop does not go on", 5.0)


def reported(running: Controller, text: str) -> float:
    """Wait until it is said; returns after how many seconds that was."""
    return until(lambda: any(text in line for line in running.notes()["unmeasured"]), f"not reported: {text}", 5.0)


def nothing_reported(running: Controller) -> None:
    until(lambda: not running.notes()["unmeasured"], "still reported", 5.0)


@contextlib.contextmanager
def cpu_away(seconds: float = 2.0) -> Iterator[None]:
    """One CPU is taken offline; it comes back whatever becomes of this process."""
    with subprocess.Popen(["sh", "-c", f"sleep {seconds:g}; echo 1 >{SWITCH}"], start_new_session=True) as again:
        try:
            SWITCH.write_text("0")
            yield
        finally:
            SWITCH.write_text("1")
            again.kill()
    assert LAST_CPU in online_cpus()


hotplug = pytest.mark.skipif(not SWITCH.exists() or LAST_CPU == 0, reason=f"no {SWITCH}: this CPU cannot be taken away")


@contextlib.contextmanager
def spinning(cpu: int) -> Iterator[None]:
    """A program that wants one CPU for itself."""
    with subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) as process:
        try:
            os.sched_setaffinity(process.pid, {cpu})
            yield
        finally:
            process.kill()


@contextlib.contextmanager
def cpuset(name: str, cpus: str, *pids: int) -> Iterator[Path]:
    """A cpuset (cgroup v1) with processes in it, which are back in the root afterwards, those that are left."""
    if not (CPUSETS / "cpuset.cpus").exists():
        pytest.skip(f"no cpusets of cgroup v1 at {CPUSETS}")
    path = CPUSETS / f"sp-{name}-{os.getpid()}"
    path.mkdir()
    try:
        (path / "cpuset.mems").write_text((CPUSETS / "cpuset.mems").read_text())
        (path / "cpuset.cpus").write_text(cpus)
        for pid in pids:
            (path / "cgroup.procs").write_text(str(pid))
        yield path
    finally:
        for line in (path / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                (CPUSETS / "cgroup.procs").write_text(line)
        remove_group(path)


def pids(foreign: Foreign) -> list[int]:
    return [foreign.pid(number) for number in range(1, UPFS + 1)]


two_cpus = pytest.mark.skipif(len(online_cpus()) < 2, reason="needs two CPUs")


def other_clocks(offset_s: int) -> list[str]:
    """Before a command: it runs by clocks that are so far ahead (time_namespaces(7), unshare(1))."""
    return ["unshare", "--time", "--monotonic", str(offset_s), "--boottime", str(offset_s)]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


BACK_S = -int(time.clock_gettime(time.CLOCK_MONOTONIC) / 2)  # as far as the clock allows, and half of that
able = pytest.mark.skipif(
    run(*other_clocks(0), "true").returncode != 0, reason="no time namespaces here (CONFIG_TIME_NS, unshare --time)"
)


@contextlib.contextmanager
def with_clocks(foreign: Foreign, number: int, offset_s: int) -> Iterator[None]:
    """A UPF that was started with other clocks."""
    foreign.stop_upf(number)
    foreign.start_upf(number, WITHIN=" ".join(other_clocks(offset_s)))
    until(lambda: clocks_of(foreign.pid(number)) != clocks_of(os.getpid()), "the same clocks")
    try:
        yield
    finally:
        foreign.stop_upf(number)
        foreign.start_upf(number)


def clocks_of(pid: int) -> str:
    return str(Path(f"/proc/{pid}/ns/time").readlink())


def flood(
    foreign: Foreign, number: int, packets: Sequence[bytes], per_s: int
) -> contextlib.AbstractContextManager[Callable[[], int]]:
    """Packets in turn into one N3, as its gNB; yields how many were sent so far."""
    return flooding(f"{foreign.prefix}-ran", f"10.210.{number}.1", f"10.210.{number}.2", packets, per_s)


def tunnels(number: int, count: int) -> list[bytes]:
    """Small packets of one UE through tunnels without number, of which its UPF knows one."""
    packet = udp_packet(IPv4Address(f"10.61.{number}.2"), HOST, 9, 9, bytes(32))
    return [g_pdu(number + 1000 * i, 9, packet) for i in range(count)]


def conversations(ue: str, teid: int, qfi: int, ports: range) -> list[bytes]:
    """A packet of each of a UE's conversations, through its own tunnel."""
    return [g_pdu(teid, qfi, udp_packet(IPv4Address(ue), HOST, port, port, bytes(32))) for port in ports]


@contextlib.contextmanager
def bandwidth(group: Path, quota_us: int, period_us: int) -> Iterator[None]:
    """A group that somebody has limited; what it had before comes back."""
    with closing(bandwidth_files(CpuGroup.at(group))) as files:
        before = files.read()
        files.write(quota_us, period_us)
        try:
            yield
        finally:
            files.write(*before)
