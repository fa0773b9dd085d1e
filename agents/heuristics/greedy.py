"""Rules that grant the promises that fit, in the order of weight per need, and share out what is left."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slicepilot.agents.bounds import filled, most_cpu_mcpu, smoothing, within_bounds
from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Context
from slicepilot.env.knobs import Knobs
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry

BoolArray = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
TINY, ONE = np.float32(1e-3), np.float32(1.0)
# A slice that carries less tells little of what a Mbit costs it.
LEAST_CARRIED_MBPS = np.float32(0.1)
# Of a capacity, what goes at most to the least that slices are to have; promises are admitted from the rest.
LEAST_OF_ALL = np.float32(0.5)
UPLINK_FULL = np.float32(0.995)


@dataclass(frozen=True)
class GreedyConfig:
    """One setting for all nodes.

    Attributes:
        margin: CPU that is set aside for a promise, over what it takes at the measured cost.
        tight_ms: a delay bound below this cannot be kept with a full N3 socket buffer, which any cut leaves: such a
            slice needs all that it offers.
        rise_s, fall_s: time constants of the averages over rates and costs, up and down.
        dead_band: a limit moves when it is to change by more than this share.
        nice: levels of slices that were admitted a tight bound, of others that got theirs, and of the rest.
        step_back_s: a slice that is no longer admitted keeps its level for this long.
        idle_ratio: while more of the CPUs is idle and nothing is limited, all levels are 0.
        uplink_share, uplink_share_by_cpu: of the uplink's rate, what is given out where a shaper keeps slices to it,
            and where only a lack of CPU does.
        drain: of the uplink's rate, what is left for its queue to drain when it has been full.
        shrink_s: time constant of the average of what CPUs the slices can have, down; up it is ``fall_s``.
        least_share: of the CPUs, what the slices can always have: an edge application gives way to those whose promises
            are at stake.
        uplink_busy: share of the uplink in use from which on its rate is taken from what is measured.
        spare_cpu, spare_uplink: of what no promise needs, what is shared out; the rest is there when loads rise.
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
    below_shaper: float = 0.97
    least_margin: float = 1.25
    loyalty: float = 1.0


@dataclass(frozen=True, slots=True)
class Needs:
    """Rates that keep a promise, of what is offered: through the UPF, and through the shaper; (S, L) each.

    ``order`` multiplies a slice's place in the order of weight per need.
    """

    cpu_mbps: FloatArray
    uplink_mbps: FloatArray
    order: FloatArray | np.float32


@dataclass(frozen=True, slots=True)
class Workings:
    """What a decision of `Greedy` came from; a policy that improves on it is shown this.

    Attributes:
        kept: promises that were admitted both CPU and uplink; tight: bounds below ``tight_ms``. (S, L).
        need_cpu_mbps, need_uplink_mbps: what the promise takes of each, offered_mbps: on average, (S, L).
        cost_mcpu_per_mbps: with the margin, (S, L).
        share_mcpu, share_mbps: what the slice was given of either, also where nothing limits it to that, (S, L).
        capacity_mcpu, uplink_mbps, idle_ratio: what there is to give, (L,).
    """

    kept: BoolArray
    tight: BoolArray
    need_cpu_mbps: FloatArray
    need_uplink_mbps: FloatArray
    offered_mbps: FloatArray
    cost_mcpu_per_mbps: FloatArray
    share_mcpu: FloatArray
    share_mbps: FloatArray
    capacity_mcpu: FloatArray
    uplink_mbps: FloatArray
    idle_ratio: FloatArray


class Greedy:
    """Grant promises in the order of weight per need as long as they fit, then share out what is left.

    What a promise needs is the lesser of its committed and its offered rate, or all that is offered where the delay
    bound is tight, times what a Mbit/s of that slice costs, with a margin. The first in the order of weight per need
    that fits is taken, which is Dantzig's greedy rule for the knapsack problem. What is left goes to what slices offer
    beyond that, by weight. While everything fits nothing is limited. Before all that every slice gets the least that it
    is to have (`slicepilot.env.slices.Promises`).

    Args:
        egress: shape the uplink in the same way.
        config: see there.
    """

    request_mcpu: FloatArray | None = None

    def __init__(self, egress: bool = False, config: GreedyConfig | None = None) -> None:
        self.egress, self.config = egress, config or GreedyConfig()
        self.name = "greedy-egress" if egress else "greedy"

    def reset(self, slices: SliceSet, context: Context, seed: int) -> None:
        """Forget rates and costs."""
        cfg = self.config
        self._slices, self._context, promises = slices, context, context.promises
        shape = promises.weight.shape
        self._look_at_cpus()
        self._tight = promises.delay_bound_us < np.float32(1e3 * cfg.tight_ms)
        self._kept_nice = np.where(self._tight, *cfg.nice[:2]).astype(np.float32)
        self._rise, self._fall = smoothing(context.period_s, cfg.rise_s), smoothing(context.period_s, cfg.fall_s)
        self._shrinks = smoothing(context.period_s, cfg.shrink_s)
        self._cost, self._taken, self._carried = (np.zeros(shape, np.float32) for _ in range(3))
        self._kept: BoolArray = np.zeros(shape, np.bool_)
        self._forward = np.zeros(shape, np.float32)
        self._wears_off = np.asarray(context.period_s / max(cfg.step_back_s, 1e-9), np.float32)
        self._offered = np.zeros(shape, np.float32)
        self._capacity = np.float32(1e3) * context.logical_cpus
        self._idle = np.ones_like(context.logical_cpus)
        self._uplink = np.array(context.uplink_mbps, np.float32)
        self._full = np.zeros_like(self._uplink)
        self._limit, self._rate = (np.full(shape, np.inf, np.float32) for _ in range(2))
        self._cut_by_cpu = np.full(shape, not self.egress)
        self.shape_on(np.full(shape[1], self.egress))
        self.workings: Workings | None = None

    def shape_on(self, lanes: BoolArray) -> None:
        """Lanes (L,) whose uplink is shaped by egress rates; on the others CPU alone keeps slices off it."""
        cfg = self.config
        self._shapes = lanes
        self._given_out = np.where(lanes, np.float32(cfg.uplink_share), np.float32(cfg.uplink_share_by_cpu))
        self._by_cpu_share = np.where(lanes, np.float32(cfg.below_shaper), ONE)

    def decide(self, telemetry: Telemetry, knobs: Knobs) -> Knobs:
        """One allocation: of the uplink, and of the CPU to what passes that."""
        self.measure(telemetry)
        limit, nice, rate = self.grant()
        limit, rate = self.settle(limit, rate)
        return within_bounds(Knobs.of(limit, nice, rate), self._slices)

    def grant(
        self, bid: FloatArray | np.float32 = ONE, need: FloatArray | np.float32 = ONE
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """CPU limits, nice levels and egress rates for what was measured last, (S, L) each; remembers its `workings`.

        Args:
            bid: multiplies each slice's place in the order of weight per need.
            need: multiplies what it is taken to need.
        """
        cfg, promises = self.config, self._context.promises
        offered = self._offered * self._valid
        needs = self._needs(offered)
        weight, need_cpu, need_uplink = bid * promises.weight, needs.cpu_mbps * need, needs.uplink_mbps * need
        uplink: FloatArray = self._given_out * (ONE - np.float32(cfg.drain) * self._full) * self._uplink
        order = weight * needs.order * np.where(self._kept, np.float32(cfg.loyalty), ONE)
        least = np.minimum(offered, np.float32(cfg.least_margin) * promises.least_mbps)
        uplink_need = np.minimum(need_uplink, offered)
        passes, rate = allocate(uplink_need, offered, order, uplink, weight, cfg.spare_uplink, least)
        # A UPF that is short of CPU can keep a slice off the uplink too. Beside a shaper it then hands over less than
        # that lets through, or two queues would stand, one behind the other.
        by_cpu = self._cut_by_cpu & (rate < offered)
        wanted = np.where(by_cpu, rate * self._by_cpu_share, offered)
        cost: FloatArray = np.multiply(self._cost, cfg.margin, dtype=np.float32)
        # What is to stay off the uplink for want of CPU gets no margin.
        exact = np.where(by_cpu & (self._shapes | ~passes), self._cost, cost)
        demand, cpu_need, least = (np.minimum(mbps, wanted) * exact for mbps in (wanted, need_cpu, least))
        admitted, limit = allocate(cpu_need, demand, order, self._capacity, weight, cfg.spare_cpu, least)
        share = np.minimum(limit, self._most)
        limit = np.where(limit >= offered * cost, self._enough(), share)
        kept = admitted & passes
        self.workings = Workings(
            kept=kept,
            tight=self._tight,
            need_cpu_mbps=need_cpu,
            need_uplink_mbps=need_uplink,
            offered_mbps=offered,
            cost_mcpu_per_mbps=cost,
            share_mcpu=share,
            share_mbps=rate,
            capacity_mcpu=self._capacity,
            uplink_mbps=self._uplink,
            idle_ratio=self._idle,
        )
        # Ahead at once, back only after a while: weights that come and go help nobody.
        nice = np.where(kept | (self._forward > 0), self._kept_nice, cfg.nice[2])
        acts = (self._idle < cfg.idle_ratio) | (limit < offered * cost).any(axis=0)
        return limit, np.where(acts, nice, 0), np.where((rate >= offered) | ~self._shapes, np.inf, rate)

    def settle(self, limit: FloatArray, rate: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Limits and rates (S, L) that move little stay where they were."""
        self._limit = _settled(limit, self._limit, self.config.dead_band)
        self._rate = _settled(rate, self._rate, self.config.dead_band)
        return self._limit, self._rate

    def _look_at_cpus(self) -> None:
        context = self._context
        self._threads, self._cpus = context.threads.copy(), context.logical_cpus.tobytes()
        self._most = most_cpu_mcpu(self._slices, context)

    def _enough(self) -> FloatArray | float:
        """Limits (S, L) of slices that get all they offer."""
        return np.inf

    def _needs(self, offered: FloatArray) -> Needs:
        promised = np.where(self._tight, offered, np.minimum(offered, self._context.promises.committed_mbps))
        return Needs(promised, promised, ONE)

    def measure(self, telemetry: Telemetry) -> None:
        """Averages of rates and costs, quick to rise and slow to fall; what the slices can have of CPUs and uplink."""
        cfg, valid = self.config, telemetry.valid
        self._valid = valid
        # Somebody has set a limit above a UPF's group, or taken CPUs away.
        if (
            not np.array_equal(self._threads, self._context.threads)
            or self._cpus != self._context.logical_cpus.tobytes()
        ):
            self._look_at_cpus()
        if self.workings is not None:
            self._kept = self.workings.kept
        self._forward = np.maximum(np.where(self._kept, ONE, self._forward) - self._wears_off, np.float32(0.0))
        carries = valid & (telemetry.carried_mbps > LEAST_CARRIED_MBPS)
        full = telemetry.uplink_use_ratio > UPLINK_FULL
        # What is dropped behind the UPF has cost CPU too, so that a Mbit that gets through seems dear.
        dear = telemetry.cpu_use_mcpu >= self._cost * telemetry.carried_mbps
        dropped = dear & (full | np.isfinite(self._rate))
        # Means first, then their ratio: a period in which hardly a packet passed says nothing about what one costs.
        newest = np.where(self._carried == 0, ONE, self._fall * ~dropped) * carries
        self._taken = _towards(telemetry.cpu_use_mcpu, self._taken, newest)
        self._carried = _towards(telemetry.carried_mbps, self._carried, newest)
        self._cost = np.asarray(self._taken / np.maximum(self._carried, LEAST_CARRIED_MBPS), np.float32)
        rises = telemetry.offered_mbps > self._offered
        pace = np.where(self._offered == 0, ONE, np.where(rises, self._rise, self._fall))
        self._offered = _towards(telemetry.offered_mbps, self._offered, pace)
        node = np.float32(1e3) * self._context.logical_cpus
        usable = (telemetry.cpu_use_mcpu * valid).sum(axis=0) + telemetry.cpu_idle_ratio * node
        self._idle = _towards(telemetry.cpu_idle_ratio, self._idle, self._fall)
        usable = np.maximum(usable, np.float32(cfg.least_share) * node)
        # Where limits hold, others take what slices would have had: that says little of what there is.
        pace = np.where(usable > self._capacity, self._fall, self._shrinks)
        self._capacity = _towards(usable, self._capacity, pace)
        # Its rate is known while it is busy: what is carried over how busy that makes it.
        busy = telemetry.uplink_use_ratio > cfg.uplink_busy
        uplink = (telemetry.carried_mbps * valid).sum(axis=0) / np.maximum(telemetry.uplink_use_ratio, cfg.uplink_busy)
        now = np.where(busy, uplink, self._context.uplink_mbps)
        pace = np.where(full, ONE, self._rise)
        self._uplink = _towards(now, self._uplink, np.where(now < self._uplink, pace, self._fall))
        # A queue that stands before the link goes on delaying all slices until less comes than the link carries.
        self._full = np.where(full, ONE, (ONE - self._fall) * self._full)


def allocate(
    need: FloatArray,
    demand: FloatArray,
    value: FloatArray,
    capacity: FloatArray,
    claim: FloatArray,
    spare: float,
    least: FloatArray,
) -> tuple[BoolArray, FloatArray]:
    """Admit needs in the order of value per need while they fit, then fill demands by claim with a share of the rest.

    Args:
        need, demand, value, claim: (S, L); a need is at most the demand.
        capacity: (L,).
        spare: that share.
        least: what each slice gets first, (S, L), at most the demand; scaled down to `LEAST_OF_ALL` of the capacity.

    Returns:
        Which needs were admitted, and what each slice gets, (S, L) each.
    """
    order = np.argsort(-value / np.maximum(need, TINY), axis=0, kind="stable")
    admitted = np.zeros(need.shape, np.bool_)
    least = least * np.minimum(ONE, LEAST_OF_ALL * capacity / np.maximum(least.sum(axis=0), TINY))
    more = np.maximum(need - least, np.float32(0.0))
    left = np.asarray(capacity - least.sum(axis=0), np.float32)
    lanes = np.arange(need.shape[1])
    for row in order:
        requested = more[row, lanes]
        fits = requested <= left
        admitted[row, lanes] = fits
        left -= requested * fits
    kept_back: FloatArray = np.float32(1.0 - spare) * np.maximum(left, np.float32(0.0))
    return admitted, filled(least + more * admitted, demand, claim, capacity - kept_back)


def _towards(new: FloatArray, old: FloatArray, weight: FloatArray) -> FloatArray:
    """Old moved by a weight (0..1) towards new; neither is subtracted, so that one huge value leaves nothing behind."""
    return np.asarray(weight * new + (ONE - weight) * old, np.float32)


def _settled(new: FloatArray, held: FloatArray, dead_band: float) -> FloatArray:
    """``new`` where it differs enough from what is held: each write of a quota refills it, see `env.knobs`."""
    with np.errstate(invalid="ignore"):
        small = np.abs(new - held) <= dead_band * held
    return np.where(small & np.isfinite(held), held, new).astype(np.float32)
