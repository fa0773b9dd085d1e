"""Programs of others on the probe's hooks: noticed, put behind ours a few times, and then said to hide packets.

What other agents do: netobserv-ebpf-agent#822, aws-network-policy-agent#480, cilium#41393.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slicepilot.controller.system.bpf.libbpf import count_run_time
from slicepilot.controller.telemetry import attachments
from slicepilot.controller.telemetry.attachments import MOST_TRIES
from slicepilot.controller.telemetry.points import NetPoint, SlicePoints
from slicepilot.controller.telemetry.source import KernelSource
from tests.controller.other_programs import DROP, NEXT, PASS, REDIRECT, attached, detach, links, replace, xdp

from .test_telemetry_network import through

HOOKS = {"n3": "ingress", "n6": "ingress"}
TRACING = {"tracing", "raw_tracepoint"}


@pytest.fixture
def clsact(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a kernel without TCX, for ours."""
    monkeypatch.setattr(attachments, "Attachment", functools.partial(attachments.Attachment, tcx=False))


def home(network: Any, device: str) -> Path:
    netns: Path = (network.dn if device == "n6" else network.upf).path
    return netns


@contextlib.contextmanager
def measuring(network: Any, **where: Any) -> Iterator[KernelSource]:
    with KernelSource([network.points(tun=False, **where)]) as source:
        assert source.check() == []
        assert source.measure().valid.all()
        yield source


def counted(source: KernelSource, network: Any, packets: Any) -> tuple[int, int]:
    """Of ten packets that go through: how many are seen at N3, and at N6."""
    [item, _] = source.packets.slices
    before = int(item["n3"]["packets"]), int(item["exit"][1]["packets"])
    through(network, packets, 10)
    return int(item["n3"]["packets"]) - before[0], int(item["exit"][1]["packets"]) - before[1]


@pytest.mark.parametrize("returns", [PASS, REDIRECT, DROP])
@pytest.mark.parametrize("device", list(HOOKS))
def test_a_program_before_ours_is_put_behind_it(
    network: Any, forwarder: Any, packets: Any, device: str, returns: int
) -> None:
    with measuring(network) as source, attached(home(network, device), device, HOOKS[device], returns):
        [said] = source.check()
        assert said.startswith(f"{device} ingress in network namespace")
        assert "the program somebody of somebody else first" in said
        assert said.endswith("attached again, first")
        assert not source.measure().valid.any()  # its window began before ours was first again
        assert source.measure().valid.all()
        assert source.check() == []
        assert source.counts["hooks_taken"] == 1
    with measuring(network) as source, attached(home(network, device), device, HOOKS[device], PASS):
        source.check()
        assert counted(source, network, packets) == (10, 10)


def test_ours_at_an_egress_hook(network: Any, forwarder: Any, packets: Any) -> None:
    points = SlicePoints("a", NetPoint(network.upf.path, "n3"), None, NetPoint(network.upf.path, "n6", "egress"))
    with KernelSource([points]) as source, attached(network.upf.path, "n6", "egress", PASS):
        assert counted(source, network, packets) == (10, 0)
        [said] = source.check()
        assert said.startswith("n6 egress")
        assert counted(source, network, packets) == (10, 10)


def test_what_comes_behind_ours_is_left_there(network: Any) -> None:
    with measuring(network) as source, attached(network.dn.path, "n6", "ingress", DROP, first=False):
        before = links(network.dn.path, "n6", "ingress")
        assert source.check() == []
        assert source.measure().valid.all()
        assert links(network.dn.path, "n6", "ingress") == before
        assert source.counts["hooks_taken"] == 0
        [remark] = source.remarks
        assert "n6 ingress" in remark
        assert remark.endswith("the program somebody of somebody else came behind ours: we see what it drops")


def test_where_packets_stop_a_slice_is_not_measured_until_it_is_known_why(
    network: Any, forwarder: Any, packets: Any
) -> None:
    """Looking may have to wait for a lock of the kernel: here for a call that is made before it."""
    lock = threading.Event()
    with KernelSource([network.points(tun=False)], wait_s=0.001) as source:
        source.watch()
        through(network, packets, 20)
        source.watch()
        assert source.measure().valid.all()
        source.background.call(lock.wait)
        try:
            source.watch()
            assert not source.measure().valid.any()
            assert not source.measure().valid.any()
        finally:
            lock.set()
        deadline_s = time.monotonic() + 5.0
        while not source.measure().valid.all():
            assert time.monotonic() < deadline_s, "it stays unmeasured"
            time.sleep(0.01)


def test_two_that_want_to_be_first_do_not_go_on_for_ever(network: Any, forwarder: Any, packets: Any) -> None:
    with measuring(network) as source, contextlib.ExitStack() as others:
        for _ in range(MOST_TRIES):
            others.enter_context(attached(network.dn.path, "n6", "ingress", PASS))
            assert source.check()[0].endswith("attached again, first")
            assert counted(source, network, packets) == (10, 10)
        others.enter_context(attached(network.dn.path, "n6", "ingress", PASS))
        said = source.check()
        assert len(said) == 1
        assert said[0].endswith(f"again after ours was attached anew {MOST_TRIES} times: it is left as it is for now")
        before = links(network.dn.path, "n6", "ingress")
        for _ in range(3):
            assert not source.measure().valid.any()
            assert source.check() == said, "said in the same words, which are logged once"
        assert links(network.dn.path, "n6", "ingress") == before
        assert source.counts["hooks_taken"] == MOST_TRIES + 1
        others.close()
        assert source.check() == []
        assert source.measure().valid.all()
        assert counted(source, network, packets) == (10, 10)


def test_one_that_came_and_went_between_two_looks(network: Any) -> None:
    with measuring(network) as source:
        with attached(network.dn.path, "n6", "ingress", PASS):
            pass
        [said] = source.check()
        assert "came and went" in said
        assert not source.measure().valid.any()
        assert source.measure().valid.all()
        assert source.check() == []


def test_a_second_probe_is_no_stranger(network: Any, forwarder: Any, packets: Any) -> None:
    with measuring(network) as first:
        with measuring(network) as second:
            before = links(network.upf.path, "n3", "ingress")
            assert first.check() == second.check() == []
            assert links(network.upf.path, "n3", "ingress") == before
            assert counted(first, network, packets) == (10, 10)
        assert first.check() == []
        assert first.counts["hooks_taken"] == 0


@pytest.mark.parametrize("by_force", [detach, functools.partial(replace, returns=NEXT)], ids=["detached", "replaced"])
def test_ours_taken_off_by_force(network: Any, forwarder: Any, packets: Any, by_force: Any) -> None:
    with measuring(network) as source:
        for _ in range(MOST_TRIES):
            by_force(links(network.dn.path, "n6", "ingress")[0])
            assert "somebody detached the program; attached again" in source.check()[0]
            assert counted(source, network, packets) == (10, 10)
        by_force(links(network.dn.path, "n6", "ingress")[0])
        assert source.check()[0].endswith("left as it is for now")
        assert not source.measure().valid.any()


def test_the_interface_is_deleted_and_made_again(network: Any, forwarder: Any, packets: Any) -> None:
    with measuring(network, n6=False) as source:
        pass
    with KernelSource([network.points()]) as source:
        network.upf.sh("ip link del n6")
        assert any("no such device" in line for line in source.check())
        assert not source.measure().valid.any()
        network._veth(network.upf, "n6", network.dn, "n6", "10.102.0", "fd00:102:")
        network.upf.sh("ip route add default via 10.102.0.2")
        assert source.check() == []
        assert not source.measure().valid.any()
        assert source.measure().valid.all()
        assert counted(source, network, packets) == (10, 10)
        assert source.counts["hooks_taken"] == 0


def test_a_filter_before_ours(clsact: None, network: Any, forwarder: Any, packets: Any) -> None:
    add = "tc filter add dev n3 ingress prio 1 protocol ip u32 match u32 0 0 flowid 1:1"
    with measuring(network) as source:
        network.upf.sh(f"tc filter del dev n3 ingress; {add}")
        said = source.check()
        assert any("the u32 filter 80000000 of priority 1 of somebody else first" in line for line in said), said
        assert not source.measure().valid.any()
        assert counted(source, network, packets)[0] == 0
        network.upf.sh("tc filter del dev n3 ingress prio 1")
        source.check()
        source.measure()
        assert source.measure().valid.all()
        assert counted(source, network, packets) == (10, 10)


def test_a_filter_that_was_there_before_ours(clsact: None, network: Any) -> None:
    network.upf.sh(
        "tc qdisc add dev n3 clsact; tc filter add dev n3 ingress prio 1 protocol ip u32 match u32 0 0 flowid 1:1"
    )
    with KernelSource([network.points(tun=False)]) as source:
        assert not source.measure().valid.any()
        assert "of priority 1 of somebody else first" in source.check()[0]


def test_our_filter_is_removed(clsact: None, network: Any, forwarder: Any, packets: Any) -> None:
    with measuring(network) as source:
        network.dn.sh("tc filter del dev n6 ingress")
        assert source.check()[0].endswith("somebody removed the filter; attached again, first")
        assert counted(source, network, packets) == (10, 10)
        network.dn.sh("tc qdisc del dev n6 clsact")
        assert source.check()[0].endswith("somebody removed the filter; attached again, first")
        assert counted(source, network, packets) == (10, 10)


def test_tcx_programs_come_before_filters(clsact: None, network: Any, forwarder: Any, packets: Any) -> None:
    with measuring(network) as source, attached(network.dn.path, "n6", "ingress", PASS):
        assert counted(source, network, packets) == (10, 0)
        [said] = source.check()
        assert "the program somebody of somebody else first" in said
        assert not source.measure().valid.any()


def test_an_xdp_program_that_comes_later(network: Any) -> None:
    with measuring(network) as source:
        with xdp(network.upf.path, "n3"):
            for _ in range(2):
                [said] = source.check()
                assert said.startswith("n3 ingress")
                assert "an XDP program has come to the device" in said
                assert source.reachable, "a probe goes on"
                assert not source.measure().valid.any()
            assert source.counts["hooks_taken"] == 1
        assert source.check() == []
        source.measure()
        assert source.measure().valid.all()
    with xdp(network.upf.path, "n3"), measuring(network):  # what is there already is the UPF's, or has been judged
        pass


def test_no_tracepoint_is_detached_by_force(network: Any) -> None:
    """The kernel detaches no tracing link by its number, nor gives it another program: there is nothing to notice."""
    with measuring(network) as source:
        told = [_text_of(file).split() for file in Path("/proc/self/fdinfo").iterdir()]
        numbers = {int(words[words.index("link_id:") + 1]) for words in told if TRACING & {*words}}
        assert len(numbers) >= len(source.sched.cost())
        for number in numbers:
            for by_force in (detach, functools.partial(replace, returns=NEXT)):
                with pytest.raises(OSError, match=r"not supported|Invalid"):
                    by_force(number)
        before = source.sched.cost()
        with count_run_time():
            time.sleep(0.1)
        assert all(cost.runs > before[name].runs for name, cost in source.sched.cost().items() if "switch" in name)


def _text_of(file: Path) -> str:
    with contextlib.suppress(OSError):
        return file.read_text()
    return ""


@pytest.mark.parametrize("first", [0, 4], ids=["between two looks", "soon after a look"])
def test_packets_that_stop_are_looked_for_at_once(network: Any, forwarder: Any, packets: Any, first: int) -> None:
    """A service floor is judged within half a second: a slice must not be starved by its probe for as long as that."""
    with measuring(network) as source:
        source.watch()
        through(network, packets, 20)
        source.watch()
        if first:
            through(network, packets, first)
        with attached(network.dn.path, "n6", "ingress", PASS):
            for _ in range(2 if first else 1):
                assert source.counts["hooks_taken"] == 0
                through(network, packets, 20)
                source.watch()
                source.measure()
            assert source.counts["hooks_taken"] == 1
            assert counted(source, network, packets) == (10, 10)
