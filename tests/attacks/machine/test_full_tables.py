"""A slice with tunnels or conversations without number takes no room of other slices in the tables."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slicepilot.controller.telemetry import layout
from slicepilot.controller.telemetry.flows import IdleFlows, read
from slicepilot.controller.telemetry.histogram import quantiles_us
from slicepilot.controller.telemetry.source import KernelSource
from slicepilot.node.live.points import points_of_node
from tests.node.foreign import Foreign, written
from tests.node.test_foreign import until

from .faults import IN_REAL_TIME_AS_ROOT, conversations, flood, tunnels

pytestmark = IN_REAL_TIME_AS_ROOT


def p99s_us(source: KernelSource, before: Any) -> list[float]:
    return np.nan_to_num(quantiles_us(source.delay_counts() - before, (0.99,))[:, 0]).tolist()


def test_tunnels_without_number_take_no_room_of_other_slices(foreign: Foreign, node: Path) -> None:
    """The table of flows is that of `probe`. What is seen of the others is what somebody sees who does not look at the
    hostile slice; once it has ended, there is room again."""
    points = points_of_node(str(node))
    with KernelSource(points, by_flow=True) as source, KernelSource(points[:2], by_flow=True) as alone:
        idle = IdleFlows(source.packets)
        with flood(foreign, 3, tunnels(3, 60_000), per_s=10_000):
            time.sleep(2.0)
            [line] = [line for line in source.check() if "slice3" in line]
            assert "of more senders or flows than there is room for" in line
            foreign.load(seconds=6, mbps=4)  # of flows that come when the table is full
            time.sleep(1.5)
            sources, before = (source, alone), [item.delay_counts() for item in (source, alone)]
            for item in sources:
                item.measure()
            time.sleep(3.0)
            rates = [item.measure().carried_mbps[:2, 0].copy() for item in sources]
            p99_us = [
                p99s_us(item, old[: len(item.delay_counts())])[:2] for item, old in zip(sources, before, strict=True)
            ]
            idle.free()
            print(f"\ncarried {rates} Mbit/s, p99 {np.round(p99_us)} us, with the hostile slice and without")
            assert rates[0] == pytest.approx(rates[1], rel=0.05)
            assert p99_us[0] == pytest.approx(p99_us[1], rel=0.2)
            assert min(rates[0]) > 3.0
        result = read(source.packets)
        assert {flow.slice for flow in result} == {0, 1, 2}, "the others' flows have room"
        assert sum(flow.slice == 2 for flow in result) == layout.FLOWS // 2
        assert "slice3" in " ".join(source.check())
        foreign.carried_mbps()
        idle.free()
        idle.free()
        assert np.count_nonzero(source.packets.flow_keys) == source.packets.flows_of.sum()
        if np.count_nonzero(source.packets.flow_keys) <= 0.75 * layout.FLOWS:  # room enough, so that none was freed
            source.packets.flow_keys[:] = source.packets.flows_of[:] = 0
        with flood(foreign, 3, tunnels(3, 1), per_s=100):
            time.sleep(0.5)
        assert any(flow.slice == 2 and flow.teid == 3 for flow in read(source.packets)), "usable again"


def test_a_slices_conversations_without_number_take_no_room_of_other_slices(tmp_path: Path) -> None:
    """Slices that QFIs distinguish: a sender is a conversation there, of which any UE may have as many as it likes, and
    its UPF lets them through. Newcomers of the other slice are measured all the same."""
    with Foreign(tmp_path, count=1, sessions=2, prefix="mq") as foreign:
        [item] = foreign.document()["slices"]
        slices = [
            item | {"name": name, "s_nssai": {"sst": i}, "traffic": {"ue_pools": ["10.61.1.0/24"], "qfis": [qfi]}}
            for i, (name, qfi) in enumerate((("victim", 9), ("hostile", 8)), 1)
        ]
        node = written(tmp_path, foreign.prefix, *slices)
        hostile = conversations("10.61.1.3", 101, 8, range(1024, 61_024))
        victims = [conversations("10.61.1.2", 1, 9, range(first, first + 1000)) for first in (1024, 2024)]
        with KernelSource(points_of_node(str(node))) as source:
            for pressed, newcomers in enumerate(victims):
                with contextlib.ExitStack() as undo:
                    if pressed:
                        undo.enter_context(flood(foreign, 1, hostile, per_s=6_000))
                        time.sleep(5.0)  # the table is full by then, of senders that have proven to be there
                        source.check()
                    # A new conversation begins every 40 packets.
                    packets = [packet for packet in newcomers for _ in range(40)]
                    sent = undo.enter_context(flood(foreign, 1, packets, per_s=1_000))
                    time.sleep(0.5)
                    source.measure()
                    began, count = time.monotonic(), sent()
                    time.sleep(3.0)
                    telemetry = source.measure()
                    mbps = 8e-6 * (sent() - count) * 60 / (time.monotonic() - began)
                    carried, offered = telemetry.carried_mbps[0, 0], telemetry.offered_mbps[0, 0]
                    lines = source.check()
                print(f"\nsent {mbps:.3f}, offered {offered:.3f}, carried {carried:.3f} Mbit/s, {pressed=}; {lines}")
                assert offered == pytest.approx(mbps, rel=0.05)
                assert 0.85 * mbps < carried < 1.05 * mbps, "a busy machine may lose some"
                if pressed:
                    assert any("hostile" in line and "than there is room for" in line for line in lines)
                    assert not any("victim" in line for line in lines)
                else:
                    assert lines == []
            until(
                lambda: all_measured(foreign, source), "newcomers of the slice that was hostile are not measured", 30.0
            )


def all_measured(foreign: Foreign, source: KernelSource) -> bool:
    """Whether conversations of the slice that was hostile have room."""
    source.check()
    with flood(foreign, 1, conversations("10.61.1.3", 101, 8, range(62_000, 62_100)), per_s=500):
        time.sleep(0.5)
    return source.check() == []
