"""The thin layers over the kernel: structs, ring buffer, owners of filters, missing permissions."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from slicepilot.controller.system.bpf.errors import ProbeError
from slicepilot.controller.telemetry import clsact, layout
from slicepilot.controller.telemetry.layout import AT_N6, PACKET_EVENT

from .conftest import bench_of


def test_structs_are_those_that_were_compiled(bench: Any) -> None:
    """A field that moved would show another counter: write through one map, read through the programs' eyes."""
    assert bench.slices.dtype.itemsize == bench.programs.object.map("slices").value_bytes
    assert bench.programs.flows.dtype.itemsize == bench.programs.object.map("flows").value_bytes
    old = r"^packets\.bpf\.o was compiled from other sources \(it has .+\): run `make bpf`"
    with pytest.raises(ProbeError, match=old):
        layout.mapped(bench.programs.object, "slices", np.dtype("V3836"))
    for missing in (bench.programs.object.map, bench.programs.object.program):
        with pytest.raises(ProbeError, match=old):
            missing("from_tomorrow")


def test_without_permission(lone: Any) -> None:
    """Root without capabilities is nobody to the kernel."""
    code = (
        "from slicepilot.controller.telemetry.packets import PacketPrograms\n"
        "from slicepilot.controller.telemetry.points import NetPoint, SlicePoints\n"
        "PacketPrograms([SlicePoints('a', NetPoint('x', 'n3'))])\n"
    )
    command = ["setpriv", "--inh-caps=-all", "--bounding-set=-all", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "the kernel refuses BPF (EPERM): run as root" in done.stderr.splitlines()[-1]


def test_owners_of_filters() -> None:
    me = clsact.Owner.current()
    assert not me.dead()
    assert clsact.Owner(me.pid, me.start - 1, me.pidns).dead()
    assert not clsact.Owner(me.pid, me.start - 1, me.pidns + 1).dead()
    with subprocess.Popen(["sleep", "0"]) as ended:
        ended.wait()
    assert clsact.Owner(ended.pid, 1, me.pidns).dead()


def test_the_ring_buffer_wraps_and_counts_what_did_not_fit(packets: Any) -> None:
    """1 MiB holds 32,768 events of 24 bytes and their headers."""
    room = (1 << 20) // (8 + PACKET_EVENT.itemsize)
    with bench_of(report_every=1) as bench:

        def run(size: int, count: int) -> None:
            inner = packets.ipv4(packets.udp(bytes(size)))
            bench.enter(packets.n3(packets.gtpu(inner)))
            bench.programs.object.program("n6_exit").test_run(packets.frame(inner), repeat=count)

        for first, second in ((room - 100, 50), (10, 300)):  # the second time over the end
            run(40, first)
            run(80, second)
            events = bench.programs.events.read()
            assert events["bytes"].tolist() == [68] * first + [108] * second
            assert (events["exit_ns"] >= events["n3_ns"]).all()
        assert bench.slices[0]["exit"][AT_N6]["unreported"] == 0
        run(40, room + 50)
        result = len(bench.programs.events.read())
        assert room - 2 <= result <= room
        assert bench.slices[0]["exit"][AT_N6]["unreported"] == room + 50 - result
        assert len(bench.programs.events.read()) == 0
