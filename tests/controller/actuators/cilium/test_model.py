"""Real packets past programs that are Cilium's in all that counts here: what a rate and a drop horizon do to them.

What has to hold on a busy machine, too."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicepilot.controller.actuators.cilium.layout import entry_of
from slicepilot.controller.actuators.node import NodeActuator, SliceTargets
from slicepilot.env.knobs import Knobs

from .machine import DIRECTION, ENDPOINT, PLAIN, PRIORITY, Agent, Datapath, value_of
from .packets import in_time, send

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: BPF programs, network namespaces")
MBPS = 125_000


@pytest.fixture(name="path", params=[PLAIN, PRIORITY, DIRECTION])
def _path(agent: Agent, objects: Path, request: pytest.FixtureRequest) -> Iterator[Datapath]:
    with contextlib.closing(Datapath(agent, objects, request.param)) as made, in_time():
        yield made


def knobs(egress_mbps: float) -> Knobs:
    result = Knobs.none(1)
    result.values[2, 0, 0] = egress_mbps
    return result


def test_packets_keep_to_the_rate_that_is_set(agent: Agent, path: Datapath) -> None:
    agent.write(ENDPOINT, value_of(50 * MBPS))
    with NodeActuator([SliceTargets("a", None, "eth0", path.pod.netns, cilium=agent.paths)]) as node:
        assert node.apply(knobs(4)).error is None
        flow = send(path, 6, 1.5)
        passed, paced, dropped = path.counts
        assert paced > 100
        assert dropped == 0, "within the horizon of 2 s"
        assert passed + paced == flow.sent == len(flow.waits_ms)
        assert flow.rate_mbps(0.2) == pytest.approx(4, rel=0.03)
        entry = entry_of(agent.read(ENDPOINT))
        assert entry.last_ns > 0
        assert entry.bytes_per_s == 4 * MBPS
    entry = entry_of(agent.read(ENDPOINT))
    assert entry.bytes_per_s == 50 * MBPS, "and the time of the last departure is the program's"
    assert entry.last_ns > 0


def test_what_would_wait_for_the_horizon_is_dropped(agent: Agent, path: Datapath) -> None:
    agent.write(ENDPOINT, value_of(4 * MBPS, horizon_ns=50_000_000))
    flow = send(path, 12, 1.5)
    dropped = path.counts[2]
    assert dropped > 100
    assert flow.sent == len(flow.waits_ms) + dropped
    assert flow.wait_ms(0.9) < 50 + 1, "a sender that is kept from sending waits longer, before that"
    assert flow.rate_mbps(0.2) < 4 * 1.03
