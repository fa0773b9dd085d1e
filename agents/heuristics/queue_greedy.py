"""`Greedy` with an eye on queues, and on the time over which a rate is promised."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slicepilot.env.backend import PACERS, Context
from slicepilot.env.knobs import Knobs
from slicepilot.env.promises import AVERAGING_WINDOW_S, averaging_periods
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry

from . import greedy_kernels as kernels
from .greedy import Greedy, GreedyConfig

PACKET_MBIT = np.float32(8e-6 * 1400)


@dataclass(frozen=True)
class QueueGreedyConfig(GreedyConfig):
    """One setting for all nodes, tuned by hand on development scenarios (docs/results.md).

    Attributes:
        nice: of a slice whose promise is admitted, for a bound of the first and from the second of ``nice_bounds_ms``
            on, by the logarithm of the bound, also below the first; the most of the rest.
        nice_behind: levels by which the rest is behind the longest bound's, so that it is served, and not cut off.
        queue_share: of the delay bound, what a full queue may take.
        committed_margin: over the committed rate, what a slice that is cut to it gets.
        weight_power: of the weight, in the order in which promises are admitted.
        account_s: a committed rate holds on average over a time (`slicepilot.env.promises.AVERAGING_WINDOW_S`); within
            this much of it a slice is to catch up.
        reach: a promise that takes more than this times what its threads can use is admitted last.
        headroom: a slice that gets all it offers is limited to this times what its peak takes.
        peak_periods: control periods in which a peak is forgotten.
        relief: how much more a slice that was throttled all the time gets from then on; burst_periods: control periods
            in which that is forgotten.
    """

    margin: float = 1.08
    nice: tuple[int, int, int] = (-15, 0, 5)
    nice_behind: int = 7
    rise_s: float = 0.1
    fall_s: float = 0.3
    dead_band: float = 0.06
    step_back_s: float = 0.25
    idle_ratio: float = 1.0
    nice_bounds_ms: tuple[float, float] = (20.0, 2000.0)
    queue_share: float = 0.85
    committed_margin: float = 1.03
    account_s: float = 0.2
    weight_power: float = 1.5
    reach: float = 1.0
    headroom: float = 1.5
    peak_periods: float = 100.0
    relief: float = 3.0
    burst_periods: float = 1000.0
    spare_cpu: float = 0.5
    spare_uplink: float = 0.75
    spare_uplink_by_cpu: float = 0.95
    least_share: float = 0.62
    drain: float = 0.01
    uplink_share: float = 0.99
    uplink_share_by_cpu: float = 0.95
    loyalty: float = 3.0


EDGE = QueueGreedyConfig(spare_cpu=0.0, headroom=1.1, relief=1.0)
"""Leaves CPU time that no promise needs to whatever else runs on the node, such as an edge application, and not to the
slices' best effort. Chosen of two settings by four runs of ``testbed-promises`` on real UPFs."""


class QueueGreedy(Greedy):
    """`Greedy` that works out what a promise takes of a slice that is cut, from how long its queue can get.

    A slice that gets less than it offers has a full queue in front of what cuts it: the UPF's N3 socket buffer where it
    is short of CPU, the shaper's queue where its egress is limited. The rate at which the full queue just keeps the
    delay bound is enough, and often far below what is offered. CPU limits also make it wait for the rest of a period of
    the CFS bandwidth control once its threads have used up their quota
    (https://docs.kernel.org/scheduler/sched-bwc.html). Where a node's traits are not known this is `Greedy`.

    Args:
        egress: shape the uplink in the same way.
        config: see there.
        name: as tables show it.
    """

    config: QueueGreedyConfig

    def __init__(self, egress: bool = True, config: QueueGreedyConfig | None = None, name: str | None = None) -> None:
        super().__init__(egress, config or QueueGreedyConfig())
        self.name = name or ("queue-greedy" if egress else "queue-greedy-cpu")

    def reset(self, slices: SliceSet, context: Context, seed: int) -> None:
        """Forget rates and costs; take over how long queues can get."""
        super().reset(slices, context, seed)
        cfg, traits, state, nodes = self.config, context.traits, self.state, self.nodes
        bound_us = context.promises.delay_bound_us
        first, last = np.log(np.multiply(cfg.nice_bounds_ms, 1e3))
        along = np.minimum((np.log(np.maximum(bound_us, kernels.TINY)) - first) / (last - first), 1.0)
        state["kept_nice"] = np.rint(cfg.nice[0] + along * (cfg.nice[1] - cfg.nice[0]))
        nodes["nice_rest"] = np.minimum(cfg.nice[2], state["kept_nice"].max(axis=0) + cfg.nice_behind)
        nodes["window"] = window = averaging_periods(context)
        nodes["ahead"] = np.clip(np.rint(cfg.account_s / AVERAGING_WINDOW_S * window), 1, window)
        self._sum_over(window - nodes["ahead"])
        if traits is None:
            return
        nodes["known"], nodes["cfs_period_s"] = True, traits.cfs_period_s
        # Of a slice that EDT holds below its rate next to nothing is left (docs/simulator.md); lack of CPU is gentler.
        self.shape_on(nodes["shapes"] & np.isin(traits.pacer, [PACERS.index("tbf"), PACERS.index("htb")]))
        state["order_factor"] = context.promises.weight ** np.float32(cfg.weight_power - 1.0)
        state["room_s"] = room_s = np.float32(1e-6 * cfg.queue_share) * bound_us
        state["buffer_mbit"] = PACKET_MBIT * traits.n3_buffer_packets
        # Bursts that quotas let through must not delay other slices on the uplink beyond their bounds.
        nodes["even_cpu"] = traits.cfs_period_s <= (np.float32(1e-6) * bound_us).min(axis=0)
        queue_mbit = PACKET_MBIT * traits.pacer_packets
        in_time = np.float32(1e-3) * traits.pacer_ms <= room_s
        # A queue that is bounded in time keeps the bound at any rate, or at none; EDT's holds seconds.
        kinds = [np.broadcast_to(traits.pacer == PACERS.index(kind), bound_us.shape) for kind in ("tbf", "htb")]
        least = [np.where(in_time, np.float32(0.0), np.inf), queue_mbit / room_s]
        state["least_shaped_mbps"] = np.select(kinds, least, np.inf)

    def decide(self, telemetry: Telemetry, knobs: Knobs) -> Knobs:
        """As `Greedy.decide`, but an absent slice keeps its knobs, as it may need similar knobs when it returns."""
        wanted = super().decide(telemetry, knobs)
        np.copyto(wanted.values, knobs.values, where=~telemetry.valid)
        return wanted

    def _settings(self) -> kernels.Records:
        settings = super()._settings()
        settings["queues"] = 1.0
        return settings
