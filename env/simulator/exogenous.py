"""Everything that does not depend on the agent: arrivals, noise, node events, produced in blocks of steps.

Because nothing here depends on an action, agents that run on the same seed meet exactly the same arrivals and noise
(common random numbers), and a clairvoyant player can look ahead.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import numpy as np

from slicepilot.data.traces.trace import Replay
from slicepilot.env.arrays import FloatArray, IntArray
from slicepilot.env.slices import SliceSet

from . import arrivals, kernels
from .generators import LaneGenerators
from .hardware import HardwareArrays
from .scenario import NEVER_S, Load, Profile, Scenario

T = TypeVar("T")

BLOCK_ELEMENTS = 1 << 16
MAX_BLOCK_STEPS = 256


class ReplayedSource(NamedTuple):
    """A source of a slice that plays a trace, the same in all lanes."""

    source: int
    slice: int
    replay: Replay


@dataclass
class Traffic:
    """Sources as arrays (C, S, L): C sources per slice. All rates are of the whole source, not per flow.

    ``flow_mbps`` x active flows x gate x profile is the rate; ``first_flows`` grows by one every ``ramp_every_s`` up to
    ``max_flows``; the gate is open ``on_s`` of every ``cycle_s``, shifted by ``phase_s``. Profile knots are
    (C, S, L, P). The rates of sources in ``replayed`` come from their traces; ``flow_mbps`` is their mean.
    """

    flow_mbps: FloatArray
    first_flows: FloatArray
    max_flows: FloatArray
    ramp_every_s: FloatArray
    packet_bytes: FloatArray
    burst_s: FloatArray
    cycle_s: FloatArray
    on_s: FloatArray
    phase_s: FloatArray
    start_s: FloatArray
    end_s: FloatArray
    rate_cv: FloatArray
    elastic: FloatArray
    profile_time_s: FloatArray
    profile_factor: FloatArray
    replayed: tuple[ReplayedSource, ...] = ()

    @classmethod
    def blank(cls, sources: int, num_slices: int, lanes: int, knots: int = 1) -> Traffic:
        """Silent sources."""
        shape = (sources, num_slices, lanes)

        def full(value: float) -> FloatArray:
            return np.full(shape, value, np.float32)

        return cls(
            flow_mbps=full(0),
            first_flows=full(1),
            max_flows=full(1),
            ramp_every_s=full(NEVER_S),
            packet_bytes=full(float(kernels.DEFAULT_PACKET_BYTES)),
            burst_s=full(1e-4),
            cycle_s=full(1),
            on_s=full(1),
            phase_s=full(0),
            start_s=full(0),
            end_s=full(NEVER_S),
            rate_cv=full(0),
            elastic=full(0),
            profile_time_s=np.zeros((*shape, knots), np.float32),
            profile_factor=np.ones((*shape, knots), np.float32),
        )

    @classmethod
    def measured(cls, offered_mbps: FloatArray, packet_bytes: FloatArray, period_s: float) -> Traffic:
        """One source per slice of rates that were measured, (T, S, L), one a control period, in packets (S, L)."""
        steps, num_slices, lanes = offered_mbps.shape
        traffic = cls.blank(1, num_slices, lanes, steps)
        traffic.flow_mbps[:] = 1.0
        traffic.packet_bytes[:] = packet_bytes
        traffic.profile_time_s[:] = period_s * np.arange(steps, dtype=np.float64)
        traffic.profile_factor[:] = np.moveaxis(offered_mbps, 0, -1)
        return traffic

    @classmethod
    def of(cls, scenario: Scenario, slices: SliceSet, lanes: int, rng: np.random.Generator | LaneGenerators) -> Traffic:
        """A scenario's sources; on/off phases and cycle lengths are drawn per lane."""
        per_slice = [scenario.loads.get(name, ()) for name in slices.names]
        sources = max([1, *(len(loads) for loads in per_slice)])
        knots = max([1, *(len(load.profile) for loads in per_slice for load in loads)])
        traffic = cls.blank(sources, len(slices), lanes, knots)
        for s, loads in enumerate(per_slice):
            for c, load in enumerate(loads):
                traffic._place(c, s, load)
        stretch = rng.uniform(0.8, 1.2, traffic.cycle_s.shape).astype(np.float32)
        gated = traffic.on_s < traffic.cycle_s
        traffic.cycle_s = np.where(gated, traffic.cycle_s * stretch, traffic.cycle_s)
        traffic.on_s = np.where(gated, traffic.on_s * stretch, traffic.cycle_s)
        phase = rng.uniform(0.0, 1.0, traffic.cycle_s.shape).astype(np.float32)
        traffic.phase_s = traffic.cycle_s * phase
        return traffic

    def _place(self, c: int, s: int, load: Load) -> None:
        at = (c, s)
        self.flow_mbps[at] = load.mean_rate_mbps
        self.first_flows[at] = load.flows
        self.max_flows[at] = load.ramp.max_flows if load.ramp else load.flows
        self.ramp_every_s[at] = load.ramp.every_s if load.ramp else NEVER_S
        self.packet_bytes[at] = load.mean_packet_bytes
        self.burst_s[at] = load.burst_s
        self.start_s[at], self.end_s[at] = load.start_s, load.end_s
        self.rate_cv[at] = load.rate_cv
        self.elastic[at] = float(load.kind == "tcp")
        if (replay := load.replay()) is not None:
            self.replayed += (ReplayedSource(c, s, replay),)
            self.start_s[at], self.end_s[at] = 0.0, NEVER_S  # the replay knows, exactly
        if load.kind == "onoff":
            self.on_s[at], self.cycle_s[at] = load.on_s, load.on_s + load.off_s
        times, factors = _pad_profile(load.profile, self.profile_time_s.shape[-1])
        self.profile_time_s[at], self.profile_factor[at] = times, factors


def _pad_profile(profile: Profile, knots: int) -> tuple[FloatArray, FloatArray]:
    """Knots as arrays of fixed length; a short profile repeats its last point, an empty one is 1."""
    points = list(profile) or [(0.0, 1.0)]
    while len(points) < knots:
        points.append((points[-1][0] + 1.0, points[-1][1]))
    table = np.asarray(points, np.float32)
    return table[:, 0], table[:, 1]


def _interpolate(time_s: FloatArray, times: FloatArray, factors: FloatArray) -> FloatArray:
    """Piecewise-linear interpolation along the last axis of the knots, constant outside them."""
    value = np.broadcast_to(factors[..., 0], np.broadcast_shapes(time_s.shape, factors.shape[:-1])).copy()
    for k in range(times.shape[-1] - 1):
        span = times[..., k + 1] - times[..., k]
        share = np.clip((time_s - times[..., k]) / span, 0, 1)
        value += share * (factors[..., k + 1] - factors[..., k])
    return value


@dataclass
class NodeEvents:
    """Multipliers of the node's uplink rate and CPU capacity over time, knots (L, P); absences (S, L)."""

    uplink_time_s: FloatArray
    uplink_factor: FloatArray
    cpu_time_s: FloatArray
    cpu_factor: FloatArray
    absent_from_s: FloatArray
    absent_to_s: FloatArray

    @classmethod
    def of(cls, scenario: Scenario, slices: SliceSet, lanes: int) -> NodeEvents:
        """A scenario's events, the same in every lane."""

        def knots(profile: Profile) -> tuple[FloatArray, FloatArray]:
            times, factors = _pad_profile(profile, max(1, len(profile)))
            return np.tile(times, (lanes, 1)), np.tile(factors, (lanes, 1))

        spans = np.asarray([scenario.absent.get(n, (NEVER_S, NEVER_S)) for n in slices.names], np.float32)
        ones = np.ones((1, lanes), np.float32)
        return cls(
            *knots(scenario.uplink_profile),
            *knots(scenario.cpu_profile),
            spans[:, :1] * ones,
            spans[:, 1:] * ones,
        )

    @classmethod
    def none(cls, num_slices: int, lanes: int, knots: int = 1) -> NodeEvents:
        """No events."""
        times = np.tile(np.arange(knots, dtype=np.float32), (lanes, 1))
        never = np.full((num_slices, lanes), NEVER_S, np.float32)
        return cls(times, np.ones_like(times), times.copy(), np.ones_like(times), never, never.copy())


@dataclass(frozen=True, slots=True)
class Block:
    """K consecutive steps of exogenous figures: per slice (K, 10, S, L) and per node (K, 2, L), float32.

    `slicepilot.env.simulator.kernels` names the fields of axis 1.
    """

    slices: FloatArray
    node: FloatArray


class BlockSource(Protocol):
    """Where an engine gets its exogenous figures from: `Exogenous`, copies of it, or a window of a known future."""

    def next_block(self) -> Block:
        """The next steps, at least one."""
        ...


class Exogenous:
    """Generates `Block`s one after the other from a seeded generator.

    The draws are ordered by step, so the same seed gives the same figures whatever the block length. With
    `LaneGenerators` a lane's figures are those of a run of a single lane with the lane's generator.
    """

    def __init__(
        self,
        traffic: Traffic,
        events: NodeEvents,
        hardware: HardwareArrays,
        period_s: FloatArray,
        rng: np.random.Generator | LaneGenerators,
        num_steps: int,
    ) -> None:
        self.traffic, self.events, self.hardware = traffic, events, hardware
        self.period_s, self.rng, self.num_steps = period_s, rng, num_steps
        self.num_sources, self.num_slices, self.lanes = traffic.flow_mbps.shape
        if traffic.replayed and (period_s != period_s[0]).any():
            raise ValueError("lanes that play a trace have the same control period")
        # What a user wrote: 0.02 s, and not the nearest float32, which drifts away from the bins of a trace.
        self._replay_period_s = float(str(period_s[0]))
        self.step, self._begun = 0, np.zeros(self.lanes)
        size = self.num_slices * self.lanes
        self.block_steps = int(np.clip(BLOCK_ELEMENTS // size, 4, MAX_BLOCK_STEPS))
        self._sources = np.stack([getattr(traffic, name) for name in arrivals.SOURCE_ROWS])
        self._path = np.stack([getattr(hardware, name) for name in arrivals.PATH_ROWS])
        # Autoregressive processes per slice, the logarithms of factors in the order of `arrivals.NUM_NOISE` rows.
        load_tau_s = np.full_like(hardware.cpu_tau_s, 5.0)
        tau = np.stack([hardware.access_tau_s, hardware.cpu_tau_s, load_tau_s, hardware.placement_tau_s])
        shape = (arrivals.NUM_NOISE, self.num_slices, self.lanes)
        keep = np.broadcast_to(np.exp(-period_s / tau)[:, None], shape).astype(np.float32)
        self._keep, self._innovation = keep.ravel(), np.sqrt(1.0 - keep**2).ravel()
        self._state = rng.standard_normal(shape, np.float32).ravel()
        load_cv = np.sqrt((traffic.rate_cv**2 * traffic.flow_mbps * traffic.first_flows).sum(0))
        total = np.maximum((traffic.flow_mbps * traffic.first_flows).sum(0), 1e-6)
        cv = np.empty(shape, np.float32)
        cv[0], cv[1], cv[2] = hardware.access_cv, hardware.cpu_cv, load_cv / np.sqrt(total)
        cv[3] = hardware.placement_cv
        self._scale = (cv * _averaging(period_s / tau)[:, None]).ravel()
        # Rates keep their mean, exactly so in periods much shorter than tau; the cost is a median.
        mean_kept = np.asarray([1, 0, 1, 0], np.float32)[:, None, None]
        self._offset = (-0.5 * mean_kept * cv**2).ravel()

    def next_block(self) -> Block:
        """The next steps (fewer at the end of the run)."""
        steps = max(1, min(self.block_steps, self.num_steps - self.step + int(self._begun.max())))
        first_steps = self.step - self._begun
        slices = np.empty((steps, kernels.NUM_SLICE_EXOGENOUS, self.num_slices, self.lanes), np.float32)
        node = np.empty((steps, kernels.NUM_NODE_EXOGENOUS, self.lanes), np.float32)
        events, traffic = self.events, self.traffic
        arrivals.arrivals(
            first_steps,
            self._sources,
            traffic.profile_time_s,
            traffic.profile_factor,
            events.absent_from_s,
            events.absent_to_s,
            self._path,
            self._replayed(steps),
            self._noise(steps),
            self.period_s,
            slices,
        )
        lane_time_s = (np.arange(steps)[:, None] + first_steps).astype(np.float32) * self.period_s
        self.step += steps
        node[:, kernels.UPLINK_MBPS] = self.hardware.uplink_mbps * _interpolate(
            lane_time_s, events.uplink_time_s, events.uplink_factor
        )
        node[:, kernels.CPU_FACTOR] = _interpolate(lane_time_s, events.cpu_time_s, events.cpu_factor)
        return Block(slices, node)

    def _replayed(self, steps: int) -> FloatArray:
        """Factors (K, C, S, L) on ``flow_mbps`` for the mean rate of traces in each period; empty without any."""
        if not self.traffic.replayed:
            return np.empty((0, 0, 0, 0), np.float32)
        factors = np.ones((steps, self.num_sources, self.num_slices, self.lanes), np.float32)
        edges = np.arange(self.step, self.step + steps + 1, dtype=np.float64)
        for begun in np.unique(self._begun):
            lanes, edges_s = self._begun == begun, self._replay_period_s * (edges - begun)
            for c, s, replay in self.traffic.replayed:
                mean = max(float(self.traffic.flow_mbps[c, s, 0]), 1e-9)
                factors[:, c, s, lanes] = (replay.mean_mbps(edges_s) / mean)[:, None]
        return factors

    def adopt(self, part: Exogenous, lanes: IntArray, begun: IntArray) -> None:
        """Go on with ``part``, of the same scenario and node, in the lanes of these numbers; ``begun``: `Engine`'s."""
        if not isinstance(self.rng, LaneGenerators) or not isinstance(part.rng, LaneGenerators):
            raise TypeError("lanes that share a generator start together")
        self.rng.replace(lanes, part.rng)
        self._begun[:] = begun
        self._sources[..., lanes] = part._sources
        shape = (arrivals.NUM_NOISE, self.num_slices, -1)
        self._state.reshape(shape)[..., lanes] = part._state.reshape(shape)

    def _noise(self, steps: int) -> FloatArray:
        """(K, 4, S, L) log-normal factors, averaged over a control period where that is long."""
        draws = self.rng.standard_normal((steps, arrivals.NUM_NOISE, self.num_slices, self.lanes), np.float32)
        arrivals.autoregress(
            self._state, self._keep, self._innovation, self._scale, self._offset, draws.reshape(steps, -1)
        )
        return np.exp(draws, out=draws)


def _averaging(ratio: np.ndarray) -> FloatArray:
    """Standard deviation of a unit AR(1)/Ornstein-Uhlenbeck process averaged over ``ratio`` correlation times."""
    r = np.maximum(ratio.astype(np.float64), 1e-6)
    variance = 2.0 / r * (1.0 - (1.0 - np.exp(-r)) / r)
    return np.sqrt(np.clip(variance, 0.0, 1.0)).astype(np.float32)


def tile(value: T, copies: int) -> T:
    """Repeat the last axis of an array, or of all arrays in an object: lane l of copy c lands at c * L + l."""
    if isinstance(value, np.ndarray):
        return cast("T", np.tile(value, (1,) * (value.ndim - 1) + (copies,)))
    if is_dataclass(value):
        names = [field.name for field in fields(value)]
    elif hasattr(value, "__dict__"):
        names = list(vars(value))
    else:
        return value
    tiled: Any = copy.copy(value)
    for name in names:
        object.__setattr__(tiled, name, tile(getattr(value, name), copies))
    return cast("T", tiled)


class Window:
    """Gives an engine the same block whenever it asks: the exogenous side of an alternative future."""

    block: Block

    def next_block(self) -> Block:
        """That block."""
        return self.block


class TiledSource:
    """A block source whose lanes all meet the same as those of ``source``, ``copies`` times over."""

    def __init__(self, source: BlockSource, copies: int) -> None:
        self.source, self.copies = source, copies

    def next_block(self) -> Block:
        """The next steps, at least one."""
        return tile(self.source.next_block(), self.copies)
