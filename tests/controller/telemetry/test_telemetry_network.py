"""The probe on real interfaces: counts, delays, flows, and that it leaves nothing behind."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from slicepilot.controller.system.bpf.errors import ProbeError
from slicepilot.controller.system.bpf.libbpf import count_run_time
from slicepilot.controller.telemetry import attachments, flows
from slicepilot.controller.telemetry.attachments import Unsupported
from slicepilot.controller.telemetry.layout import AT_N6, AT_TUN
from slicepilot.controller.telemetry.packets import PacketProbe
from slicepilot.controller.telemetry.source import KernelSource


@pytest.fixture(params=["tcx", "clsact"])
def hook(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, network: Any) -> str:
    """Both ways of attaching, where the kernel has both."""
    if request.param == "clsact":
        monkeypatch.setattr(attachments, "Attachment", functools.partial(attachments.Attachment, tcx=False))
    else:
        monkeypatch.setattr(attachments, "ClsactFilter", _no_tcx)
    return str(request.param)


def _no_tcx(*_: Any) -> None:
    pytest.skip("needs TCX: Linux 6.6")


def numbered(packets: Any, number: int, **udp: int) -> bytes:
    return packets.ipv4(packets.udp(struct.pack("!Q", number) + bytes(80), **udp))


def through(network: Any, packets: Any, count: int, gap_s: float = 0.0) -> bytes:
    """Send packets through the UPF until they have arrived; returns one of them."""
    with contextlib.closing(network.sink()) as sink:
        for number in range(count):
            network.send(packets.gtpu(numbered(packets, number)))
            time.sleep(gap_s)
            assert sink.recv(2048)
    return numbered(packets, 0)


def test_every_packet_is_counted_and_matched(hook: str, network: Any, forwarder: Any, packets: Any) -> None:
    with PacketProbe([network.points()], by_flow=True) as probe:
        inner = through(network, packets, 300)
        [item, rest] = probe.slices
        assert item["n3"]["packets"] == 300
        assert item["n3"]["bytes"] == 300 * len(inner)
        for at in (AT_TUN, AT_N6):
            assert item["exit"][at]["packets"] == 300
            assert item["exit"][at]["bytes"] == 300 * len(inner)
            assert item["exit"][at]["missed"] == 0
            assert item["delay"][at].sum() == 300
        assert rest["exit"][AT_N6]["packets"] < 10, "no more than the kernel's own, such as MLD reports (RFC 3810)"
        [flow] = flows.read(probe)
        assert (flow.teid, flow.qfi, flow.packets, flow.carried_bytes) == (1, 9, 300, 300 * len(inner))
        assert flow.delay.sum(axis=1).tolist() == [300, 300]


@pytest.mark.realtime
def test_delay_is_time_inside_the_upf(network: Any, forwarder: Any, packets: Any) -> None:
    with KernelSource([network.points(tun=False)]) as source, contextlib.closing(network.sink()) as sink:
        forwarder.paused.set()
        time.sleep(0.05)
        source.measure()
        sent = time.monotonic()
        network.send(packets.gtpu(numbered(packets, 1)))
        time.sleep(0.03)
        waiting = source.measure().copy()
        forwarder.paused.clear()
        sink.recv(2048)
        inside_us = 1e6 * (time.monotonic() - sent)
        done = source.measure()
    assert waiting.delay_p99_us[0, 0] >= 30_000  # a lower bound while it is inside
    assert waiting.carried_mbps[0, 0] == 0
    assert waiting.loss_ratio[0, 0] == 1
    assert waiting.delay_p99_us[0, 0] <= done.delay_p99_us[0, 0] <= 1.07 * inside_us
    assert done.loss_ratio[0, 0] == 0


def hooks_in_use(network: Any) -> list[str]:
    """What tc(8) shows of the three devices' clsact hooks."""
    result = []
    for home, devices in ((network.upf, ("n3", "n4", "tun")), (network.dn, ("n6",))):
        for device in devices:
            shown = home.sh(f"[ -e /proc/sys/net/ipv4/conf/{device} ] && tc qdisc show dev {device} || true")
            result += [line for line in shown.splitlines() if "clsact" in line]
            result += home.sh(
                f"[ -e /proc/sys/net/ipv4/conf/{device} ] && tc filter show dev {device} ingress || true"
            ).splitlines()
    return result


def test_nothing_is_left_behind(hook: str, network: Any, forwarder: Any, packets: Any) -> None:
    with PacketProbe([network.points()]) as probe, count_run_time():
        through(network, packets, 5)
        assert {point: cost.runs >= 5 for point, cost in probe.cost().items()} == dict.fromkeys(
            ("n3", "tun", "n6"), True
        )
        assert bool(hooks_in_use(network)) == (hook == "clsact")
        assert probe.hooks.heal() == {}
    assert hooks_in_use(network) == []
    through(network, packets, 5)


def test_filters_and_hooks_of_others_stay(hook: str, network: Any, forwarder: Any, packets: Any) -> None:
    network.upf.sh(
        "tc qdisc add dev n3 clsact; tc filter add dev n3 ingress prio 1 protocol ip u32 match u32 0 0 flowid 1:1"
    )
    before = network.upf.sh("tc filter show dev n3 ingress")
    with PacketProbe([network.points()]) as probe:
        through(network, packets, 5)
        if hook == "tcx":
            assert probe.slices[0]["n3"]["packets"] == 5
    assert network.upf.sh("tc filter show dev n3 ingress") == before


ATTACH_AND_WAIT = """
import functools, sys, time
from slicepilot.controller.telemetry import attachments
from slicepilot.controller.telemetry.packets import PacketProbe
from slicepilot.controller.telemetry.points import NetPoint, SlicePoints
attachments.Attachment = functools.partial(attachments.Attachment, tcx=sys.argv[1] == "tcx")
probe = PacketProbe([SlicePoints("a", NetPoint(sys.argv[2], "n3"), None, NetPoint(sys.argv[3], "n6"))])
print("attached", flush=True)
time.sleep(60)
"""


@contextlib.contextmanager
def somebody_elses_probe(hook: str, network: Any) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", ATTACH_AND_WAIT, hook, network.upf.path, network.dn.path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "attached\n"
            yield process
        finally:
            process.kill()


def test_what_a_killed_probe_left_is_removed(hook: str, network: Any, forwarder: Any, packets: Any) -> None:
    with somebody_elses_probe(hook, network) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert bool(hooks_in_use(network)) == (hook == "clsact")
    with PacketProbe([network.points()]) as probe:
        through(network, packets, 5)
        assert probe.slices[0]["n3"]["packets"] == 5
    assert hooks_in_use(network) == []


def test_a_living_probe_is_left_alone_and_lets_every_packet_through(
    hook: str, network: Any, forwarder: Any, packets: Any
) -> None:
    with somebody_elses_probe(hook, network):
        before = hooks_in_use(network)
        with PacketProbe([network.points(tun=False)]) as probe:
            through(network, packets, 5)
            assert (probe.slices[0]["n3"]["packets"], probe.slices[0]["delay"][AT_N6].sum()) == (5, 5)
        assert hooks_in_use(network) == before


def test_a_kernel_without_tcx_gets_a_filter(network: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise Unsupported

    monkeypatch.setattr(attachments, "TcxProgram", refuse)
    with PacketProbe([network.points(tun=False)]):
        assert any("slicepilot/n3 pid=" in line for line in hooks_in_use(network))
    assert hooks_in_use(network) == []


def test_a_filter_that_takes_the_place_of_ours_is_not_removed(
    network: Any, forwarder: Any, packets: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DataDog/datadog-agent#13692: two agents use the same priority and handle, and each cleans up."""
    monkeypatch.setattr(attachments, "Attachment", functools.partial(attachments.Attachment, tcx=False))
    theirs = "tc filter replace dev n3 ingress prio 1 handle 1 protocol all bpf da bytecode '1,6 0 0 4294967295'"
    with PacketProbe([network.points(tun=False)]):
        network.upf.sh(theirs)
    assert "bytecode '1,6 0 0" in network.upf.sh("tc filter show dev n3 ingress")
    network.upf.sh("tc qdisc del dev n3 clsact")


def test_where_a_point_is_missing_nothing_stays_attached(
    hook: str, network: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """aws/aws-network-policy-agent#621: what was attached before the failure stayed."""
    points = network.points(tun=False)
    missing = dataclasses.replace(points, n6=dataclasses.replace(points.n6, device="nowhere"))
    with pytest.raises(ProbeError, match="nowhere"):
        PacketProbe([missing])
    assert hooks_in_use(network) == []
