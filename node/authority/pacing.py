"""Whether Cilium's entry of a pod is to be its slice's egress rate.

What Cilium holds back waits at the host's own devices. Where packets are counted for the last time before that, neither
the wait nor what is dropped is in any figure: an agent would not see what its rate does, nor the guard which slice it
starves. There a shaper in the pod is taken instead, as long as nobody wants it otherwise: it comes before the last
point, and what it lets through Cilium has nothing to hold back of.
"""

from __future__ import annotations

from pathlib import Path

from slicepilot.controller.actuators.cilium.choice import CiliumPaths
from slicepilot.controller.system.net import namespaces
from slicepilot.controller.telemetry.points import SlicePoints
from slicepilot.node.config.spec import EgressBy

OWN = Path("/proc/self/ns/net")
UNSEEN = "what it holds back waits behind the last point that packets are measured at, and is in no figure"


def cilium_of(wanted: EgressBy, points: SlicePoints, netns: Path | None) -> CiliumPaths | None:
    """Where a slice's entry is looked for; None where a shaper is to be its egress rate in any case.

    Args:
        wanted: ``auto`` is Cilium where what it does is seen; ``cilium`` also where it is not.
        points: where the slice is measured; netns: its UPF's network namespace.
    """
    return CiliumPaths() if wanted == "cilium" or (wanted == "auto" and seen(points, netns)) else None


def seen(points: SlicePoints, netns: Path | None) -> bool:
    """Whether packets are measured after they have left the host: neither in this namespace nor in the pod's."""
    last = points.n6
    if last is None or last.direction == "egress":
        return False
    try:
        here = {namespaces.identity(item) for item in (OWN, netns) if item is not None}
        return namespaces.identity(last.netns) not in here
    except OSError:
        return False
