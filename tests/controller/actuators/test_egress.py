"""The egress shaper on a real device in a real network namespace."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from slicepilot.controller.actuators.egress import EgressConfig, EgressRate
from slicepilot.controller.actuators.node import NodeActuator, SliceTargets
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.controller.system.net.namespaces import enter
from slicepilot.env.knobs import Knobs

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces")

T = TypeVar("T")
# A namespace lives as long as the process that holds it; nothing is left behind, whatever happens to the test.
HOLDER = """
import ctypes, os, sys
if ctypes.CDLL(None, use_errno=True).unshare(0x40000000):
    sys.exit(os.strerror(ctypes.get_errno()))
print("ready", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def namespace() -> Iterator[Path]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "ready\n"
        yield Path(f"/proc/{holder.pid}/ns/net")
        holder.stdin.close()


def inside(netns: Path, work: Callable[[], T]) -> T:
    """Run in a thread that enters the namespace and ends there."""
    results: list[T] = []

    def run() -> None:
        enter(netns)
        results.append(work())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return results[0]


def tool(netns: Path, *command: str) -> str:
    """A command in the namespace. Not through ``ip netns exec``, which mounts another /sys."""
    done = subprocess.run(
        ["nsenter", f"--net={netns}", *command], capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout


@pytest.fixture
def link() -> Iterator[tuple[Path, Path]]:
    """Two namespaces joined by a veth pair: ``n6`` 10.250.1.1 in one, ``far`` 10.250.1.2 in the other."""
    with namespace() as near, namespace() as far:
        pid = far.parts[2]
        tool(near, "ip", "link", "add", "n6", "type", "veth", "peer", "name", "far", "netns", pid)
        for netns, device, address in ((near, "n6", "10.250.1.1/24"), (far, "far", "10.250.1.2/24")):
            tool(netns, "ip", "address", "add", address, "dev", device)
            tool(netns, "ip", "link", "set", device, "up")
        yield near, far


def carried_mbps(link: tuple[Path, Path], seconds: float, meanwhile: Callable[[int], object] | None = None) -> float:
    """What gets through of more than 60 Mbit/s offered; ``meanwhile`` is called every 5 ms with a count."""

    def open_socket() -> socket.socket:
        return socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)

    payload = bytes(1372)
    with inside(link[0], open_socket) as sender, inside(link[1], open_socket) as receiver:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        receiver.bind(("10.250.1.2", 7000))
        sender.connect(("10.250.1.2", 7000))
        received, calls, start = 0, 0, time.monotonic()
        while (elapsed := time.monotonic() - start) < seconds:
            with contextlib.suppress(BlockingIOError):
                for _ in range(8):
                    sender.send(payload)
            with contextlib.suppress(BlockingIOError):
                while receiver.recv(2048):
                    received += 1
            if meanwhile is not None and elapsed > calls * 0.005:
                meanwhile(calls)
                calls += 1
            time.sleep(0.0005)
    return received * 1400 * 8e-6 / elapsed


def opened(netns: Path, config: EgressConfig | None = None) -> contextlib.closing[EgressRate]:
    return contextlib.closing(EgressRate("n6", netns, config))


def qdiscs(netns: Path) -> str:
    return tool(netns, "tc", "qdisc", "show", "dev", "n6")


@pytest.mark.realtime
def test_a_rate_holds_also_while_it_changes_all_the_time(link: tuple[Path, Path]) -> None:
    with opened(link[0]) as shaper:
        assert shaper.set(20.0) == 20.0
        assert shaper.read() == 20.0
        assert carried_mbps(link, 1.0) == pytest.approx(20, rel=0.15)
        assert carried_mbps(link, 1.0, lambda k: shaper.set(19.0 + 2 * (k % 2))) == pytest.approx(20, rel=0.15)
        for unpaced in (math.inf, 0.0):
            assert shaper.set(unpaced) == unpaced
            assert shaper.read() == math.inf
        assert carried_mbps(link, 0.5) > 40


def test_the_device_is_as_before_after_restoring(link: tuple[Path, Path]) -> None:
    before = qdiscs(link[0])
    with opened(link[0]) as shaper:
        assert "htb" in qdiscs(link[0])
        shaper.set(5.0)
        shaper.restore()
        shaper.restore()
    assert qdiscs(link[0]) == before


def test_a_shaper_that_a_crash_left_is_taken_over(link: tuple[Path, Path]) -> None:
    with opened(link[0]) as crashed:
        crashed.set(1.0)
    with opened(link[0]) as again:
        assert again.read() == math.inf
        again.restore()
    assert "htb" not in qdiscs(link[0])


def test_somebody_elses_qdisc_is_left_alone(link: tuple[Path, Path]) -> None:
    tool(link[0], "tc", "qdisc", "add", "dev", "n6", "root", "handle", "7:", "pfifo", "limit", "99")
    before = qdiscs(link[0])
    with pytest.raises(ActuatorError, match="n6: a qdisc with handle 7: is configured"):
        EgressRate("n6", link[0])
    assert qdiscs(link[0]) == before


def test_dead_band_and_extremes(link: tuple[Path, Path]) -> None:
    with opened(link[0], EgressConfig(dead_band_ratio=0.01)) as shaper:
        assert shaper.set(100.0) == 100.0
        assert shaper.set(100.9) == 100.0
        assert shaper.set(102.0) == 102.0
        assert shaper.set(1e-9) == 0.001, "1 kbit/s is the least"
        assert shaper.set(50_000.0) == 50_000.0, "beyond 32 bits of bytes per second"
        assert shaper.read() == 50_000.0


def test_a_device_that_vanishes_is_told_and_needs_no_restoring(link: tuple[Path, Path]) -> None:
    with opened(link[0]) as shaper:
        tool(link[0], "ip", "link", "delete", "n6")
        with pytest.raises(ActuatorError, match=r"n6: egress rate 5 Mbit/s.*\(ENODEV\)"):
            shaper.set(5.0)
        shaper.restore()


def test_this_thread_stays_where_it_was(link: tuple[Path, Path]) -> None:
    own = Path("/proc/thread-self/ns/net").readlink()
    opened(link[0]).__enter__().close()
    assert Path("/proc/thread-self/ns/net").readlink() == own


def test_a_rehearsal_leaves_a_rate_alone_that_is_not_confirmed_yet(link: tuple[Path, Path]) -> None:
    """The thread is not waited for at all: the receipt is behind, and what it says must not be set again."""
    none = Knobs.none(1)
    with NodeActuator([SliceTargets("a", None, "n6", link[0])], wait_s=0.0) as node:
        behind = 0
        for turn in range(20):
            wanted = Knobs.of(none.cpu_limit_mcpu, none.nice, np.full((1, 1), 10.0 + turn, np.float32))
            behind += node.apply(wanted).applied.egress_mbps.item() != 10.0 + turn
            time.sleep(0.005)
            node.rehearse()
            time.sleep(0.005)
            assert node.read().egress_mbps.item() == 10.0 + turn
        assert behind > 0


def test_a_rate_of_somebody_else_is_not_written_over_before_it_is_judged(link: tuple[Path, Path]) -> None:
    none = Knobs.none(1)
    with NodeActuator([SliceTargets("a", None, "n6", link[0])]) as node:
        ours, next_one = (
            Knobs.of(none.cpu_limit_mcpu, none.nice, np.full((1, 1), rate, np.float32)) for rate in (10.0, 30.0)
        )
        node.apply(ours)
        tool(link[0], "tc", "class", "change", "dev", "n6", "classid", "51ce:1", "htb", "rate", "7mbit")
        node._shapers.look()
        assert node.apply(next_one).applied.egress_mbps.item() == 10.0
        [result] = node.deviations()
        assert result.found == 7.0
        node.yield_knob("a", "egress_mbps")
        assert node.apply(next_one).applied.egress_mbps.item() == 7.0
