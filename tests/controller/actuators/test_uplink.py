"""A shared uplink with classes on a real device."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator

import numpy as np
import pytest

from slicepilot.controller.actuators.uplink import ClassfulUplink, SliceClass, priority_of
from slicepilot.controller.system.kernel_file import ActuatorError
from tests.controller.namespaces import Namespace

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces")
FIRST = SliceClass(2, 4.0, 20.0, 0, 50, sources="10.251.1.1/32")
SECOND = SliceClass(3, 1.0, 20.0, 1, 50)


@pytest.fixture
def near() -> Iterator[Namespace]:
    """A namespace with the device ``n6``, 10.251.1.1, and with 10.251.1.3, whose peer is in another."""
    with contextlib.closing(Namespace()) as near, contextlib.closing(Namespace()) as far:
        near.sh(f"ip link add n6 type veth peer name far netns {far.pid}")
        near.sh("ip address add 10.251.1.1/24 dev n6; ip address add 10.251.1.3/24 dev n6; ip link set n6 up")
        far.sh("ip address add 10.251.1.2/24 dev far; ip link set far up")
        yield near


def sent_mbps(near: Namespace, uplink: ClassfulUplink, seconds: float) -> np.ndarray:
    """What both classes send while each is offered 20 Mbit/s: the first by its address, the second by its socket."""
    kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK
    with near.socket(kind=kind) as first, near.socket(kind=kind) as second:
        first.bind(("10.251.1.1", 0))
        second.bind(("10.251.1.3", 0))
        second.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, priority_of(3))
        for each in (first, second):
            each.setsockopt(socket.SOL_SOCKET, 32, 1 << 22)  # SO_SNDBUFFORCE
        sent, before, start = 0, uplink.counters(), time.monotonic()
        while (elapsed := time.monotonic() - start) < seconds:
            while sent < elapsed * 20e6 / (8 * 1250):
                for each in (first, second):
                    with contextlib.suppress(BlockingIOError):
                        each.sendto(bytes(1208), ("10.251.1.2", 7000))
                sent += 1
            time.sleep(0.001)
        return (uplink.counters() - before)[:, 0] * 8e-6 / elapsed


def test_guarantee_priority_and_ceiling_in_the_kernel(near: Namespace) -> None:
    uplink = ClassfulUplink("n6", near.path, 10.0, (FIRST, SECOND))
    with contextlib.closing(uplink):
        assert sent_mbps(near, uplink, 0.5) == pytest.approx([9.0, 1.0], rel=0.15), "the first borrows all"
        uplink.set_ceiling(2, 6.0)
        assert sent_mbps(near, uplink, 0.5) == pytest.approx([6.0, 4.0], rel=0.15)
        uplink.set_rate(8.0)
        assert sent_mbps(near, uplink, 0.5) == pytest.approx([6.0, 2.0], rel=0.15)
        assert (uplink.counters()[:, 1] > 0).all(), "what does not fit is counted as dropped"
        uplink.restore()
        assert "htb" not in near.sh("tc qdisc show dev n6")


def test_somebodys_qdisc_and_an_unknown_device_are_left_alone(near: Namespace) -> None:
    with pytest.raises(ActuatorError, match="n7"):
        ClassfulUplink("n7", near.path, 10.0, (FIRST,))
    near.sh("tc qdisc add dev n6 root handle 1: htb")
    with pytest.raises(ActuatorError, match="is configured"):
        ClassfulUplink("n6", near.path, 10.0, (FIRST,))
