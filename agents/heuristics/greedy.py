"""Greedy: the promises that fit, dearest per CPU first; what is left is shared out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...env.backend import Context
from ...env.knobs import Knobs
from ...env.slices import FloatArray, SliceSet
from ...env.telemetry import Telemetry
from .bounds import filled, most_cpu_mcpu, smoothing, within_bounds

BoolArray = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
TINY = np.float32(1e-3)
# A slice that carries less tells little of what a Mbit costs it.
LEAST_CARRIED_MBPS = np.float32(0.1)
# Of the CPUs, what the slices can always have: an edge application gives way to those whose promises are at stake.
LEAST_SHARE = np.float32(0.5)


@dataclass(frozen=True)
class GreedyConfig:
    """One setting for all nodes.

    Attributes:
        margin: CPU that is set aside for a promise, over what it takes at the measured cost.
        tight_ms: a delay bound below this cannot be kept with a full N3 socket buffer, which any cut leaves: such a
            slice needs all that it offers.
        rise_s, fall_s: time constants of the averages over rates and costs, up and down.
        dead_band: a limit moves when it is to change by more than this share.
        nice: levels of slices that were granted a tight bound, of others that were granted theirs, and of the rest.
        idle_ratio: while more of the CPUs is idle and nothing is limited, all levels are 0.
        uplink_share: of the uplink's rate, what is given out.
        uplink_busy: share of the uplink in use from which on its rate is taken from what is measured.
    """

    margin: float = 1.15
    tight_ms: float = 300.0
    rise_s: float = 0.1
    fall_s: float = 2.0
    dead_band: float = 0.08
    nice: tuple[int, int, int] = (-10, -5, 5)
    idle_ratio: float = 0.2
    uplink_share: float = 0.97
    uplink_busy: float = 0.5


@dataclass(frozen=True, slots=True)
class Workings:
    """What a decision of `Greedy` came from; a policy that improves on it is shown this.

    Attributes:
        kept: promises that were granted both CPU and uplink; tight: bounds that allow no full N3 buffer. (S, L).
        promised_mbps, offered_mbps: what the promise takes, what is offered on average, (S, L).
        cost_mcpu_per_mbps: with the margin, (S, L).
        share_mcpu, share_mbps: what the slice was given of either, also where nothing limits it to that, (S, L).
        capacity_mcpu, uplink_mbps, idle_ratio: what there is to give, (L,).
    """

    kept: BoolArray
    tight: BoolArray
    promised_mbps: FloatArray
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
    beyond that, by weight. While everything fits nothing is limited.

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
        self._most = most_cpu_mcpu(slices, context)
        self._tight = promises.delay_bound_us < np.float32(1e3 * cfg.tight_ms)
        self._rise, self._fall = smoothing(context.period_s, cfg.rise_s), smoothing(context.period_s, cfg.fall_s)
        self._cost = np.zeros(shape, np.float32)
        self._offered = np.zeros(shape, np.float32)
        self._capacity = np.float32(1e3) * context.logical_cpus
        self._idle = np.ones_like(context.logical_cpus)
        self._uplink = np.array(context.uplink_mbps, np.float32)
        self._limit, self._rate = (np.full(shape, np.inf, np.float32) for _ in range(2))
        self.workings: Workings | None = None

    def decide(self, telemetry: Telemetry, knobs: Knobs) -> Knobs:
        """One allocation: of the uplink, and of the CPU to what passes that."""
        self._measure(telemetry)
        cfg, promises = self.config, self._context.promises
        offered = self._offered * telemetry.valid
        promised = np.where(self._tight, offered, np.minimum(offered, promises.committed_mbps))
        passes, rate = allocate(promised, offered, promises.weight, np.float32(cfg.uplink_share) * self._uplink)
        # Without a shaper a UPF that is short of CPU is what keeps a slice off the uplink.
        wanted = offered if self.egress else rate
        cost: FloatArray = np.multiply(self._cost, cfg.margin, dtype=np.float32)
        granted, limit = allocate(np.minimum(promised, wanted) * cost, wanted * cost, promises.weight, self._capacity)
        share = np.minimum(limit, self._most)
        limit = np.where(limit >= offered * cost, np.inf, share)
        self._limit = _settled(limit, self._limit, cfg.dead_band)
        kept = granted & passes
        self.workings = Workings(
            kept, self._tight, promised, offered, cost, share, rate, self._capacity, self._uplink, self._idle
        )
        nice = np.select([kept & self._tight, kept], cfg.nice[:2], cfg.nice[2])
        nice = np.where((self._idle < cfg.idle_ratio) | np.isfinite(self._limit).any(axis=0), nice, 0)
        if self.egress:
            self._rate = _settled(np.where(rate >= offered, np.inf, rate), self._rate, cfg.dead_band)
        return within_bounds(Knobs.of(self._limit, nice, self._rate), self._slices)

    def _measure(self, telemetry: Telemetry) -> None:
        """Averages of rates and costs, quick to rise and slow to fall; what the slices can have of CPUs and uplink."""
        cfg, valid = self.config, telemetry.valid
        carries = valid & (telemetry.carried_mbps > LEAST_CARRIED_MBPS)
        cost = telemetry.cpu_use_mcpu / np.maximum(telemetry.carried_mbps, LEAST_CARRIED_MBPS)
        newest = np.where(self._cost == 0, np.float32(1.0), self._fall) * carries
        self._cost += newest * (cost - self._cost)
        rises = telemetry.offered_mbps > self._offered
        self._offered += np.where(rises, self._rise, self._fall) * (telemetry.offered_mbps - self._offered)
        node = np.float32(1e3) * self._context.logical_cpus
        usable = (telemetry.cpu_use_mcpu * valid).sum(axis=0) + telemetry.cpu_idle_ratio * node
        self._idle += self._fall * (telemetry.cpu_idle_ratio - self._idle)
        self._capacity += self._fall * (np.maximum(usable, LEAST_SHARE * node) - self._capacity)
        # Its rate is known while it is busy: what is carried over how busy that makes it.
        busy = telemetry.uplink_use_ratio > cfg.uplink_busy
        uplink = (telemetry.carried_mbps * valid).sum(axis=0) / np.maximum(telemetry.uplink_use_ratio, cfg.uplink_busy)
        now = np.where(busy, uplink, self._context.uplink_mbps)
        self._uplink += np.where(now < self._uplink, self._rise, self._fall) * (now - self._uplink)


def allocate(
    need: FloatArray, demand: FloatArray, weight: FloatArray, capacity: FloatArray
) -> tuple[BoolArray, FloatArray]:
    """Grant needs in the order of weight per need while they fit, then fill demands by weight with what is left.

    Args:
        need, demand, weight: (S, L); a need is at most the demand.
        capacity: (L,).

    Returns:
        Which needs were granted, and what each slice gets, (S, L) each.
    """
    order = np.argsort(-weight / np.maximum(need, TINY), axis=0, kind="stable")
    granted = np.zeros(need.shape, np.bool_)
    left = np.array(capacity, np.float32)
    lanes = np.arange(need.shape[1])
    for row in order:
        asked = need[row, lanes]
        fits = asked <= left
        granted[row, lanes] = fits
        left -= asked * fits
    return granted, filled(need * granted, demand, weight, capacity)


def _settled(new: FloatArray, held: FloatArray, dead_band: float) -> FloatArray:
    """``new`` where it differs enough from what is held: each write of a quota refills it, see `env.knobs`."""
    with np.errstate(invalid="ignore"):
        small = np.abs(new - held) <= dead_band * held
    return np.where(small & np.isfinite(held), held, new).astype(np.float32)
