"""Rules that grant the promises that fit, in the order of weight per need, and share out what is left."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slicepilot.agents.bounds import smoothing
from slicepilot.env.arrays import BoolArray, FloatArray
from slicepilot.env.backend import Context
from slicepilot.env.knobs import KNOB_FIELDS, Knobs
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry

from . import greedy_kernels as kernels

NOT_SHORT = 1e6
"""Times an uplink's rate: more than all slices together offer."""


@dataclass(frozen=True)
class GreedyConfig:
    """One setting for all nodes.

    Attributes:
        margin: CPU that is reserved for a promise, over its need at the measured cost.
        tight_ms: a delay bound below this cannot be kept with a full N3 socket buffer, which any cut of the rate
            causes, so such a slice needs its whole offered rate.
        rise_s, fall_s: time constants of the averages over rates and costs, up and down.
        dead_band: a limit moves when it is to change by more than this share.
        nice: levels of slices that were admitted a tight bound, of others that got theirs, and of the rest.
        step_back_s: a slice that is no longer admitted keeps its level for this long.
        idle_ratio: while more of the CPUs is idle and nothing is limited, all levels are 0.
        uplink_share, uplink_share_by_cpu: of the uplink's rate, what is given out where a shaper keeps slices to it,
            and where only a lack of CPU does. Where the uplink has a class for each slice, these share it out, and
            no slice is held below its offered rate because of the uplink.
        drain: of the uplink's rate, what is left for its queue to drain when it has been full.
        shrink_s: time constant of the average of what CPUs the slices can have, down; up it is ``fall_s``.
        least_share: of the CPUs, what the slices can always have: an edge application gives way to those whose promises
            are at stake.
        uplink_busy: share of the uplink in use from which on its rate is taken from what is measured.
        spare_cpu, spare_uplink, spare_uplink_by_cpu: of what no promise needs, what is shared out; the rest is there
            when loads rise.
        below_shaper: of a shaper's rate, what a slice gets CPU for that is to wait before its UPF.
        least_margin: over the least that a slice is to have, what it gets.
        loyalty: multiplies the position in the order of a slice whose promise was admitted in the period before, so
            that equals do not take turns.
    """

    margin: float = 1.15
    tight_ms: float = 300.0
    rise_s: float = 0.1
    fall_s: float = 2.0
    dead_band: float = 0.08
    nice: tuple[int, int, int] = (-10, -5, 5)
    step_back_s: float = 0.0
    idle_ratio: float = 0.2
    uplink_share: float = 0.97
    uplink_share_by_cpu: float = 0.97
    uplink_busy: float = 0.5
    drain: float = 0.0
    shrink_s: float = 5.0
    least_share: float = 0.5
    spare_cpu: float = 1.0
    spare_uplink: float = 1.0
    spare_uplink_by_cpu: float = 1.0
    below_shaper: float = 0.97
    least_margin: float = 1.25
    loyalty: float = 1.0


class Greedy:
    """Grant promises in the order of weight per need as long as they fit, then share out what is left.

    What a promise needs is the lesser of its committed and its offered rate, or all that is offered where the delay
    bound is tight, times what a Mbit/s of that slice costs, with a margin. The first in the order of weight per need
    that fits is taken, which is Dantzig's greedy rule for the knapsack problem. What is left goes to what slices offer
    beyond that, by weight. While everything fits nothing is limited. Before all that every slice gets the least that it
    is to have (`slicepilot.env.slices.Promises`). The arithmetic is in `slicepilot.agents.heuristics.greedy_kernels`.

    Args:
        egress: shape the uplink in the same way.
        config: see there.

    Attributes:
        state, nodes: records (S, L) of slices and (L,) of nodes: what was measured, and what the last decision was.
    """

    request_mcpu: FloatArray | None = None

    def __init__(self, egress: bool = False, config: GreedyConfig | None = None) -> None:
        self.egress, self.config = egress, config or GreedyConfig()
        self.name = "greedy-egress" if egress else "greedy"

    def reset(self, slices: SliceSet, context: Context, seed: int) -> None:
        """Forget rates and costs."""
        cfg, promises = self.config, context.promises
        num_slices, lanes = promises.weight.shape
        self._context = context
        self.settings = self._settings()
        self.state = state = np.zeros((num_slices, lanes), kernels.SLICE)
        self.nodes = nodes = np.zeros(lanes, kernels.NODE)
        state["weight"], state["committed_mbps"] = promises.weight, promises.committed_mbps
        state["bound_us"], state["least_mbps"] = promises.delay_bound_us, promises.least_mbps
        state["tight"] = promises.delay_bound_us < np.float32(1e3 * cfg.tight_ms)
        state["kept_nice"] = np.where(state["tight"], *cfg.nice[:2])
        state["lowest_mcpu"], state["highest_mcpu"] = (slices.bound("cpu_limit_mcpu", side) for side in (0, 1))
        state["order_factor"] = state["burst"] = 1.0
        state["held_mcpu"] = state["held_mbps"] = np.inf
        nodes["rise"], nodes["fall"] = smoothing(context.period_s, cfg.rise_s), smoothing(context.period_s, cfg.fall_s)
        nodes["shrinks"] = smoothing(context.period_s, cfg.shrink_s)
        nodes["wears_off"] = context.period_s / max(cfg.step_back_s, 1e-9)
        nodes["declared_mbps"] = nodes["uplink_mbps"] = context.uplink_mbps
        nodes["capacity_mcpu"], nodes["idle"] = np.float32(1e3) * context.logical_cpus, 1.0
        nodes["window"] = nodes["ahead"] = 1
        nodes["nice_rest"] = cfg.nice[2]
        self.shape_on(np.full(lanes, self.egress))
        self._bounds = np.stack([[slices.bound(knob, side)[:, 0] for side in (0, 1)] for knob in KNOB_FIELDS])
        self._ones = np.ones((num_slices, lanes), np.float32)
        self._sum_over(nodes["window"] - nodes["ahead"])

    def shape_on(self, lanes: BoolArray) -> None:
        """Lanes (L,) whose uplink is shaped by egress rates; on the others CPU alone keeps slices off it."""
        cfg, traits = self.config, self._context.traits
        self.nodes["shapes"] = lanes
        self.nodes["spare_uplink"] = np.where(lanes, cfg.spare_uplink, cfg.spare_uplink_by_cpu)
        self.nodes["given_out"] = np.where(lanes, cfg.uplink_share, cfg.uplink_share_by_cpu)
        if traits is not None and traits.uplink_classes is not None:
            self.nodes["given_out"][traits.uplink_classes] = NOT_SHORT
        self.nodes["by_cpu_share"] = np.where(lanes, cfg.below_shaper, 1.0)

    def decide(self, telemetry: Telemetry, knobs: Knobs) -> Knobs:
        """One allocation: of the uplink, and of the CPU to what passes that."""
        self.measure(telemetry)
        values = np.empty((len(KNOB_FIELDS), *self.state.shape), np.float32)
        kernels.decide(self._ones, self._bounds, self.settings, self.state, self.nodes, values)
        return Knobs(values)

    def measure(self, telemetry: Telemetry) -> None:
        """Take a period into account; to be called once for each."""
        context = self._context
        measured = telemetry.slices, telemetry.node, telemetry.valid, context.threads, context.logical_cpus
        kernels.measure(*measured, self.settings, self.state, self.nodes, self._past, self._sums, self._seen)
        self._seen += 1

    def _sum_over(self, periods: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> None:
        """Make room for the rates of so many periods, (L,)."""
        num_slices, lanes = self.state.shape
        self._past = np.zeros((max(int(periods.max()), 1), kernels.NUM_SUMS, num_slices, lanes), np.float32)
        self._sums = np.zeros(self._past.shape[1:])
        self._seen = 0

    def _settings(self) -> kernels.Records:
        values = {"queues": 0.0}
        settings = np.zeros(1, kernels.SETTINGS)
        for name in kernels.SETTINGS.fields or ():
            settings[name] = values.get(name, getattr(self.config, name, 1.0))
        return settings
