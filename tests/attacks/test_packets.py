"""Packets that a UPF drops change no measurement of a slice, whatever source they claim."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slicepilot.controller.telemetry.source import KernelSource
from slicepilot.env.telemetry import SLICE_FIELDS
from slicepilot.testbed.backend.backend import points_of
from slicepilot.testbed.lifecycle.layout import SINK_ADDRESS, SINK_PORT, SlicePlan
from slicepilot.testbed.lifecycle.processes import binary
from slicepilot.testbed.lifecycle.spec import TestbedSpec
from slicepilot.testbed.lifecycle.testbed import Testbed

from .hostile.packets import flooding, spoofed

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces")

WARM_UP_S, LOOK_S = 1.5, 3.0
MBPS = 8.0
OFFERED, CARRIED, LOSS = map(SLICE_FIELDS.index, ("offered_mbps", "carried_mbps", "loss_ratio"))


@pytest.fixture(scope="module", name="testbed")
def _testbed() -> Iterator[Testbed]:
    """Five UPFs, whose packets are last seen behind one uplink."""
    testbed = Testbed.up(TestbedSpec(name="spatk", burn_us=0.0))
    try:
        yield testbed
    finally:
        testbed.down()


def flow(into: SlicePlan, ue: str, mbps: float, name: str, packet_bytes: int = 400, tunnel: int = 0) -> dict[str, Any]:
    return {
        "name": name,
        "kind": "cbr",
        "rate_mbps": mbps,
        "packet_bytes": packet_bytes,
        "seed": 1,
        "qfi": 9,
        "from": into.n3_ran,
        "to": into.n3_upf,
        "teid": into.teid(tunnel),
        "ue": ue,
        "dst": f"{SINK_ADDRESS}:{SINK_PORT}",
    }


@contextlib.contextmanager
def load(testbed: Testbed, folder: Path, flows: Sequence[dict[str, Any]]) -> Iterator[None]:
    plan = folder / "plan.json"
    plan.write_text(json.dumps({"duration_s": 60, "flows": list(flows)}))
    layout, enter = testbed.layout, ["ip", "netns", "exec"]
    sink = subprocess.Popen(
        [*enter, layout.data_network, binary("sink"), f"--listen={SINK_ADDRESS}:{SINK_PORT}"], stdout=subprocess.DEVNULL
    )
    source = subprocess.Popen([*enter, layout.ran, binary("load"), f"--plan={plan}"], stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        for process in (source, sink):
            process.terminate()
            process.wait(10)


def measured(testbed: Testbed) -> np.ndarray[Any, Any]:
    """What a controller would see of each slice over some seconds, (fields, slices)."""
    with closing(KernelSource(points_of(testbed), uplink_mbps=testbed.spec.uplink_mbps)) as source:
        time.sleep(WARM_UP_S)
        source.measure()
        time.sleep(LOOK_S)
        return np.array(source.measure().slices[..., 0])


def flood(
    testbed: Testbed, plan: SlicePlan, senders: int, per_s: int, teid: int | None = None
) -> contextlib.AbstractContextManager[Callable[[], int]]:
    """Packets from so many senders in turn, into one N3."""
    packets = [spoofed(number, plan.teid(0) if teid is None else teid, SINK_ADDRESS) for number in range(senders)]
    return flooding(testbed.layout.ran, plan.n3_ran, plan.n3_upf, packets, per_s)


def all_is_well(seen: np.ndarray[Any, Any], slices: int) -> None:
    """The first slices carry what they were sent and all that they are said to be offered; the sender is not on time
    on a busy machine."""
    for index in range(slices):
        assert 0.7 * MBPS < seen[CARRIED, index] < 1.3 * MBPS, index
        assert seen[OFFERED, index] == pytest.approx(seen[CARRIED, index], rel=0.03), index
        assert seen[LOSS, index] < 0.03, index


def test_an_address_of_another_slices_ue_moves_nothing_of_that_slice(testbed: Testbed, tmp_path: Path) -> None:
    """The attacker's UPF drops them, as it has to; behind the uplink only the victim's are seen."""
    attacker, victim = testbed.layout.slices[:2]
    flows = [
        flow(victim, victim.ue(0), MBPS, "victim"),
        flow(attacker, attacker.ue(0), MBPS, "own"),
        flow(attacker, victim.ue(0), MBPS, "spoofed", packet_bytes=60),
    ]
    with load(testbed, tmp_path, flows):
        seen = measured(testbed)
    all_is_well(seen, 2)


def test_senders_without_number_take_nobodys_room(testbed: Testbed, tmp_path: Path) -> None:
    """More than the table has room for, again and again."""
    attacker, victim = testbed.layout.slices[:2]
    flows = [flow(victim, victim.ue(number), MBPS / 2, f"victim{number}", tunnel=number) for number in range(2)]
    flows.append(flow(attacker, attacker.ue(0), MBPS, "own"))
    with load(testbed, tmp_path, flows), flood(testbed, attacker, senders=60_000, per_s=15_000):
        seen = measured(testbed)
    all_is_well(seen, 2)


@pytest.mark.parametrize("teid", [None, 0xDEAD], ids=["foreign source", "wrong tunnel"])
def test_what_the_upf_drops_is_not_offered(testbed: Testbed, tmp_path: Path, teid: int | None) -> None:
    attacker = testbed.layout.slices[0]
    with (
        load(testbed, tmp_path, [flow(attacker, attacker.ue(0), MBPS, "own")]),
        flood(testbed, attacker, senders=100, per_s=2_000, teid=teid),
    ):
        seen = measured(testbed)
    all_is_well(seen, 1)


def test_a_slice_none_of_whose_packets_has_ever_left_is_said_to_offer(testbed: Testbed, tmp_path: Path) -> None:
    """Or a UPF that is dead from the start would look idle."""
    plan = testbed.layout.slices[0]
    with load(testbed, tmp_path, []), flood(testbed, plan, senders=1, per_s=2_000):
        seen = measured(testbed)
    assert seen[OFFERED, 0] > 0.5
    assert seen[LOSS, 0] > 0.95
