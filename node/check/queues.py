"""Counts a slice's packets in the queue of its N6, where a shaper would be; packets that XDP forwards bypass it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from slicepilot.controller.actuators.slice_knobs import SliceTargets
from slicepilot.controller.telemetry.layout import AT_N6
from slicepilot.controller.telemetry.packets import PacketProbe
from slicepilot.controller.telemetry.points import NetPoint, SlicePoints
from slicepilot.node.live.backend import NodeBackend


class Passed(NamedTuple):
    """Packets of a slice that have come to the queue of an interface."""

    device: str
    packets: int

    def share_of(self, left: int) -> str:
        """How many of the packets that left they are; the queue is watched for longer, so that they may be more."""
        if self.packets >= left:
            return f"all {left} packets that left came by the queue of {self.device}"
        return f"of {left} packets that left, {self.packets} came by the queue of {self.device}"


@contextlib.contextmanager
def queues(backend: NodeBackend) -> Iterator[Mapping[str, Passed]]:
    """Packets that came to a slice's queue, for slices that are shaped before their last point; filled at the end.

    An egress hook comes right before the queue (net/core/dev.c, __dev_queue_xmit), so it sees the same packets.
    """
    passed: dict[str, Passed] = {}
    pairs = zip(backend.source.packets.points, backend.targets, strict=True)
    points = [point for point in (_at_queue(*pair) for pair in pairs) if point is not None]
    if not points:
        yield passed
        return
    names = backend.slices.names
    indices = {names.index(item.name): index for index, item in enumerate(points)}
    # The second probe sees no PFCP, so it gets the sessions that the first has learned.
    with PacketProbe(points) as probe, backend.learning.also_for(probe.sharing, indices):
        yield passed
        for index, item in enumerate(points):
            assert item.n6 is not None
            passed[item.name] = Passed(item.n6.device, int(probe.slices["exit"][index, AT_N6]["packets"]))


def _at_queue(points: SlicePoints, target: SliceTargets) -> SlicePoints | None:
    if target.egress_device is None or target.netns is None or points.n6 is None or points.n6.direction == "egress":
        return None
    return dataclasses.replace(points, n6=NetPoint(target.netns, target.egress_device, "egress"), tun=None, n4=None)
