"""The egress shaper on a real device in a real network namespace."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from slicepilot.controller.actuators.egress import EgressRate, ShaperClass
from slicepilot.controller.actuators.node import NodeActuator, SliceTargets
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.env.knobs import Knobs
from tests.controller.namespaces import Namespace
from tests.controller.other_programs import load

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces")


@pytest.fixture
def link() -> Iterator[tuple[Namespace, Namespace]]:
    """Two namespaces joined by a veth pair: ``n6`` 10.250.1.1 in one, ``far`` 10.250.1.2 in the other."""
    with contextlib.closing(Namespace()) as near, contextlib.closing(Namespace()) as far:
        near.sh(f"ip link add n6 type veth peer name far netns {far.pid}")
        for home, device, number in ((near, "n6", 1), (far, "far", 2)):
            home.sh(f"ip address add 10.250.1.{number}/24 dev {device}; ip link set {device} up")
        yield near, far


def carried_mbps(
    link: tuple[Namespace, Namespace], seconds: float, meanwhile: Callable[[int], object] | None = None
) -> float:
    """What gets through of more than 60 Mbit/s offered; ``meanwhile`` is called every 5 ms with a count."""
    kind, payload = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, bytes(1372)
    with link[0].socket(kind=kind) as sender, link[1].socket(kind=kind) as receiver:
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


def opened(home: Namespace) -> contextlib.closing[EgressRate]:
    return contextlib.closing(EgressRate("n6", home.path))


def qdiscs(home: Namespace) -> str:
    return home.sh("tc qdisc show dev n6")


@pytest.mark.realtime
def test_a_rate_holds_also_while_it_changes_all_the_time(link: tuple[Namespace, Namespace]) -> None:
    with opened(link[0]) as shaper:
        assert shaper.set(20.0) == 20.0
        assert shaper.read() == 20.0
        assert carried_mbps(link, 1.0) == pytest.approx(20, rel=0.15)
        assert carried_mbps(link, 1.0, lambda k: shaper.set(19.0 + 2 * (k % 2))) == pytest.approx(20, rel=0.15)
        for unpaced in (math.inf, 0.0):
            assert shaper.set(unpaced) == unpaced
            assert shaper.read() == math.inf
        assert carried_mbps(link, 0.5) > 40


def test_the_device_is_as_before_after_restoring(link: tuple[Namespace, Namespace]) -> None:
    before = qdiscs(link[0])
    with opened(link[0]) as shaper:
        assert "htb" in qdiscs(link[0])
        shaper.set(5.0)
        shaper.restore()
        shaper.restore()
    assert qdiscs(link[0]) == before


def test_a_shaper_that_a_crash_left_is_taken_over(link: tuple[Namespace, Namespace]) -> None:
    with opened(link[0]) as crashed:
        crashed.set(1.0)
    with opened(link[0]) as again:
        assert again.read() == math.inf
        again.restore()
    assert "htb" not in qdiscs(link[0])


def test_somebody_elses_qdisc_is_left_alone(link: tuple[Namespace, Namespace]) -> None:
    link[0].sh("tc qdisc add dev n6 root handle 7: pfifo limit 99")
    before = qdiscs(link[0])
    with pytest.raises(ActuatorError, match="n6: a qdisc with handle 7: is configured"):
        EgressRate("n6", link[0].path)
    assert qdiscs(link[0]) == before


def test_dead_band_and_extremes(link: tuple[Namespace, Namespace]) -> None:
    with opened(link[0]) as shaper:
        assert shaper.set(100.0) == 100.0
        assert shaper.set(100.4) == 100.0
        assert shaper.set(102.0) == 102.0
        assert shaper.set(1e-9) == 0.001, "1 kbit/s is the least"
        assert shaper.set(50_000.0) == 50_000.0, "beyond 32 bits of bytes per second"
        assert shaper.read() == 50_000.0


def test_a_device_that_vanishes_is_reported_and_needs_no_restoring(link: tuple[Namespace, Namespace]) -> None:
    with opened(link[0]) as shaper:
        link[0].sh("ip link delete n6")
        with pytest.raises(ActuatorError, match=r"n6: egress rate 5 Mbit/s.*\(ENODEV\)"):
            shaper.set(5.0)
        shaper.restore()


def test_this_thread_stays_where_it_was(link: tuple[Namespace, Namespace]) -> None:
    own = Path("/proc/thread-self/ns/net").readlink()
    opened(link[0]).__enter__().close()
    assert Path("/proc/thread-self/ns/net").readlink() == own


def test_a_rehearsal_leaves_a_rate_alone_that_is_not_confirmed_yet(link: tuple[Namespace, Namespace]) -> None:
    """The thread is not waited for at all: the receipt is behind, and what it says must not be set again."""
    none = Knobs.none(1)
    with NodeActuator([SliceTargets("a", None, "n6", link[0].path)], wait_s=0.0) as node:
        behind = 0
        for turn in range(20):
            wanted = Knobs.of(none.cpu_limit_mcpu, none.nice, np.full((1, 1), 10.0 + turn, np.float32))
            behind += node.apply(wanted).applied.egress_mbps.item() != 10.0 + turn
            time.sleep(0.005)
            node.rehearse()
            time.sleep(0.005)
            assert node.read().egress_mbps.item() == 10.0 + turn
        assert behind > 0


def test_a_rate_of_somebody_else_is_not_written_over_before_it_is_judged(link: tuple[Namespace, Namespace]) -> None:
    none = Knobs.none(1)
    with NodeActuator([SliceTargets("a", None, "n6", link[0].path)]) as node:
        ours, higher = (
            Knobs.of(none.cpu_limit_mcpu, none.nice, np.full((1, 1), rate, np.float32)) for rate in (10.0, 30.0)
        )
        node.apply(ours)
        link[0].sh("tc class change dev n6 classid 51ce:1 htb rate 7mbit")
        node._shapers.look()
        assert node.apply(higher).applied.egress_mbps.item() == 10.0
        [result] = node.deviations()
        assert result.actual == 7.0
        node.yield_knob("a", "egress_mbps")
        assert node.apply(higher).applied.egress_mbps.item() == 7.0


def test_a_filter_that_leads_packets_past_the_shaper_is_seen(link: tuple[Namespace, Namespace]) -> None:
    """Every packet goes by the default class: the rate would hold in the kernel, and pace nothing."""
    with opened(link[0]) as shaper:
        shaper.set(20.0)
        assert shaper.deviation() is None
        link[0].sh("tc filter add dev n6 parent 51ce: prio 1 protocol ip u32 match u32 0 0 flowid 51ce:0")
        assert shaper.deviation() == "the filter of kind u32 of somebody else, which may lead packets past the shaper"
        with pytest.raises(ActuatorError, match="somebody else"):
            shaper.reassert()
        assert shaper.adopt() == math.inf
        link[0].sh("tc filter del dev n6 parent 51ce:")
        shaper.restore()


def test_the_filter_of_a_shared_shaper_is_removed(link: tuple[Namespace, Namespace]) -> None:
    program = load(0)
    try:
        with contextlib.closing(EgressRate("n6", link[0].path, part=ShaperClass(2, program))) as shaper:
            shaper.set(20.0)
            assert shaper.deviation() is None
            link[0].sh("tc filter del dev n6 parent 51ce:")
            assert shaper.deviation() == "no filter that leads packets to the shaper"
            assert shaper.reassert() == 20.0
            assert shaper.deviation() is None
            assert "slicepilot/shaper" in link[0].sh("tc filter show dev n6 parent 51ce:")
            link[0].sh("tc filter del dev n6 parent 51ce:")
            assert shaper.adopt() == math.inf
            shaper.restore()
    finally:
        os.close(program)
