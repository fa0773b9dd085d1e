"""The link, the loads and the policies of Grosvik (2023), as simulator and kernel play them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from slicepilot.data.reference import BottleneckScenario
from slicepilot.env.simulator.scenario import UplinkClass, classes_by_promise
from slicepilot.env.slices import SliceSet

LINK_MBPS, HALF_MBPS = 35.0, 17.5
FRAME_BYTES = 1250
"""Size of every packet; the link sends a packet in 0.29 ms."""
PACKET_MS = FRAME_BYTES * 8e-3 / LINK_MBPS
QUEUE_MS, SHORT_QUEUE_MS = 50.0, 10.0
"""Queue limits: the default of the routers' policy language, and that of the policy ``tail_drop``."""
LEAST_MBPS = 0.5
"""Rate guaranteed to best effort where the policy guarantees nothing, since a class needs a rate."""
BURST_MS, PRIORITY_BURST_MS = 1.0, 200.0
"""Depth of token buckets, and the default of the routers' language for a class of strict priority."""
FRAME_HZ = 60.0
"""Of the critical class where it sends all that belongs to a frame at once, as video does."""
BIN_S = 0.05
MOST_CLASSES = 256
AGENT = "greedy-egress"
"""The agent that the study has not, on an uplink with a class for each slice."""
GROUPS = ("critical", "best-effort")


@dataclass(frozen=True)
class Policy:
    """A policy at the bottleneck.

    Attributes:
        name: of the study, or of an agent.
        limit: how best effort is limited to half of the link; None: it is not limited.
        queue_ms: how long what is held back may wait.
        classes: of critical and best effort on the link; None: the link is a single FIFO.
        burst_ms: of the critical class, what it may exceed its ceiling by at once, in time at that rate.
        agent: moves ceilings every control period.
    """

    name: str
    limit: Literal["tbf", "police", "red"] | None = None
    queue_ms: float = QUEUE_MS
    classes: tuple[UplinkClass, UplinkClass] | None = None
    burst_ms: float = BURST_MS
    agent: str | None = None


STRICT = (UplinkClass(HALF_MBPS, HALF_MBPS, priority=0), UplinkClass(LEAST_MBPS, LINK_MBPS, priority=1))
WEIGHTED = (UplinkClass(HALF_MBPS, LINK_MBPS), UplinkClass(HALF_MBPS, LINK_MBPS))
POLICIES = (
    Policy("none"),
    Policy("priority", classes=STRICT, burst_ms=PRIORITY_BURST_MS),
    Policy("shaping", limit="tbf"),
    Policy("policing", limit="police"),
    Policy("bandwidth", classes=WEIGHTED),
    Policy("wred", limit="red"),
    Policy("tail_drop", limit="tbf", queue_ms=SHORT_QUEUE_MS),
)


def with_agents(names: Sequence[str]) -> tuple[Policy, ...]:
    """The policies, and agents on an uplink that has a class for each slice by its promise."""
    critical, best_effort = classes_by_promise(SliceSet.from_yaml("grosvik")).values()
    agents = dict.fromkeys((AGENT, *names))
    return POLICIES + tuple(Policy(name, classes=(critical, best_effort), agent=name) for name in agents)


def share_of(whole: UplinkClass, pairs: int) -> UplinkClass:
    """The part of a class that each of so many gets; a ceiling below the link's rate is shared evenly, too."""
    ceiling = whole.ceiling_mbps or LINK_MBPS
    shared = ceiling if ceiling >= LINK_MBPS else ceiling / pairs
    return replace(whole, guarantee_mbps=whole.guarantee_mbps / pairs, ceiling_mbps=shared)


@dataclass(frozen=True)
class Flow:
    """A constant load, during ``spans`` (from_s, to_s) of a run if given; ``kind`` is an index into `GROUPS`.

    ``burst`` packets are sent at once.
    """

    kind: int
    mbps: float
    spans: tuple[tuple[float, float], ...] = ()
    burst: int = 1


def flows_of(load: BottleneckScenario, seconds: float, phase_s: float, framed: bool = False) -> tuple[Flow, ...]:
    """The loads of a run, whose first on-time begins at ``phase_s`` or a whole cycle before.

    ``framed``: the critical class sends frames (`FRAME_HZ`) instead of packets at equal distances.
    """
    cycle_s = load.on_s + load.off_s
    starts = [phase_s + k * cycle_s for k in range(-1, int(seconds / cycle_s) + 1)]
    spans = tuple((max(start, 0.0), min(start + load.on_s, seconds)) for start in starts)
    percent = LINK_MBPS / 100.0
    critical = percent * load.critical_pct
    burst = round(critical / FRAME_HZ / (FRAME_BYTES * 8e-6)) if framed else 1
    return (
        Flow(0, critical, burst=burst),
        Flow(1, percent * load.best_effort_pct),
        Flow(1, percent * load.on_off_pct, tuple(span for span in spans if span[1] > span[0])),
    )
