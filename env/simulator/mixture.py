"""Random nodes, slices and loads for training: every lane of every run is another deployment.

Loads are sized by the CPU they need, so that lanes range from a third of the node to far overloaded, whatever the node;
promises are sized by the loads; load changes are timed in control periods, so that a lane with periods of 2 ms sees as
many changes as a lane with periods of 30 s.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Annotated

import numpy as np
from pydantic import AfterValidator, ConfigDict, Field

from slicepilot.configs import load
from slicepilot.env.arrays import FloatArray
from slicepilot.env.encoding import PERIOD_RANGE_S
from slicepilot.env.slices import PositiveRange, Promises, SliceSet

from .backend import SimulatorRun
from .exogenous import NodeEvents, Traffic
from .hardware import Hardware, HardwareArrays, Ratio
from .scenario import NEVER_S, VIDEO_FRAME_HZ

SOURCES = 2
EVENT_SHARE = 0.4


def _check_periods(bounds: tuple[float, float]) -> tuple[float, float]:
    low, high = PERIOD_RANGE_S
    if not (low <= bounds[0] <= bounds[1] <= high):
        raise ValueError(f"expected increasing values from {low:g} to {high:g} seconds")
    return bounds


def _check_span(bounds: tuple[float, float]) -> tuple[float, float]:
    if not 0 <= bounds[0] <= bounds[1]:
        raise ValueError("expected two increasing values, not negative")
    return bounds


Span = Annotated[tuple[float, float], AfterValidator(_check_span)]


@dataclass(frozen=True)
class Mixture:
    """Ranges that `MixtureEpisodes` draws from; (low, high) pairs are uniform, ``*_factor`` pairs log-uniform.

    Attributes:
        slices: slice set that fixes how many slices there are and their knob bounds; promises are drawn.
        num_slices: so many instead, these again and again; None = as many as there are.
        hardware: node around which hardware is drawn.
        steps: control periods per run.
        nominal_share: lanes that keep the hardware as it is, the slice set's promises (times ``nominal_factor``) and a
            period of 1 s, and run video flows that join over time (as in the published ramp, at random times and
            sizes).
        declared_node_share, one_second_share: of the other lanes, how many have the hardware as it is (but for its
            uplink and the kind of shaper), and how many a period of 1 s, independently.
        period_s: range of the control period, log-uniform in the remaining lanes.
        present: share of slices that exist in a lane.
        demand: CPU that all loads would need over the node's CPUs.
        promised: committed rate over a slice's mean rate.
        admitted_share: lanes whose operator promises no more than the node has: together, promises take no more of its
            CPUs and its uplink than ``admitted``.
        delay_bound_ms: log-uniform.
        weight: log-uniform; the first slice of a lane is not special. In ``ranked_share`` of the lanes the tighter a
            delay bound the more it weighs: who is promised milliseconds seldom counts least.
        least_share: lanes in which every slice should have ``least`` of its committed rate while its promise is given
            up.
        cost_factor, buffer_factor, uplink_factor, cpus_factor: multiply the node's costs, buffers, uplink, CPUs.
        wake_factor: multiplies ``wake_wait_ms``, of declared nodes too: of what `training.identify` fits, the least
            certain, and what a priority slice's delay depends on most.
        smt_yield, placement_cv: drawn instead of the node's.
        sched_slice_ms, wake_wait_ms: the same, log-uniform, the latter 0 in half of the lanes; (0, 0): the node's.
        near_share: lanes whose delays are measured on the node alone, without the UEs' link: no round trip, no access
            path that is ever short.
        tbf_share, htb_share: lanes with a token bucket instead of EDT, its queue bounded in time or in packets.
        cycle_steps: length of on/off cycles in control periods.
        event_factor: what is left of the uplink or the CPU in an event.
        edge_share: lanes whose node also runs an edge application with as many threads as CPUs; edge_request_mcpu: its
            CPU request.
        requested_share: lanes whose pods have CPU requests; of what their loads take on average they request
            ``request``. In the others it is what the slice set says.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)
    slices: str
    hardware: str
    num_slices: Annotated[int, Field(ge=1, le=256)] | None = None
    steps: Annotated[int, Field(ge=8)] = 96
    nominal_share: Ratio = 0.3
    nominal_factor: PositiveRange = (0.8, 1.25)
    declared_node_share: Ratio = 0.5
    one_second_share: Ratio = 0.3
    period_s: Annotated[tuple[float, float], AfterValidator(_check_periods)] = (0.002, 30.0)
    present: Span = (0.4, 1.0)
    demand: Span = (0.3, 2.0)
    promised: Span = (0.5, 1.0)
    admitted_share: Ratio = 0.0
    admitted: PositiveRange = (0.5, 1.1)
    delay_bound_ms: PositiveRange = (2.0, 1000.0)
    weight: PositiveRange = (0.5, 20.0)
    ranked_share: Ratio = 0.0
    least_share: Ratio = 0.0
    least: Span = (0.2, 0.5)
    cost_factor: PositiveRange = (0.5, 2.0)
    buffer_factor: PositiveRange = (0.25, 1.5)
    uplink_factor: PositiveRange = (0.1, 2.0)
    cpus_factor: PositiveRange = (0.5, 2.0)
    wake_factor: PositiveRange = (1.0, 1.0)
    smt_yield: Span = (0.6, 1.0)
    placement_cv: Span = (0.0, 0.4)
    sched_slice_ms: Span = (0.0, 0.0)
    wake_wait_ms: Span = (0.0, 0.0)
    near_share: Ratio = 0.0
    tbf_share: Ratio = 0.35
    htb_share: Ratio = 0.25
    cycle_steps: PositiveRange = (8.0, 120.0)
    event_factor: PositiveRange = (0.2, 0.9)
    edge_share: Ratio = 0.0
    edge_request_mcpu: Span = (0.0, 200.0)
    requested_share: Ratio = 0.0
    request: Span = (0.3, 1.0)


class MixtureEpisodes:
    """A `RunSource` that draws every lane at random; see `Mixture`."""

    def __init__(self, mixture: Mixture) -> None:
        self.mixture = mixture
        declared = SliceSet.from_yaml(mixture.slices)
        self.slices = declared if mixture.num_slices is None else declared.repeated(mixture.num_slices)
        self.hardware = Hardware.from_yaml(mixture.hardware)

    @classmethod
    def from_yaml(cls, name_or_path: str, hardware: str | None = None) -> MixtureEpisodes:
        """Load ``configs/mixtures/NAME.yaml`` or a user's file; ``hardware`` replaces the mixture's hardware."""
        mixture = load("mixtures", name_or_path, Mixture)
        return cls(mixture if hardware is None else replace(mixture, hardware=hardware))

    def draw(self, lanes: int, rng: np.random.Generator) -> SimulatorRun:
        """One random deployment and run per lane."""
        mix, slices = self.mixture, self.slices
        shape = (len(slices), lanes)
        nominal = rng.random(lanes) < mix.nominal_share
        hardware = self._hardware(nominal, lanes, rng)
        one_second = nominal | (rng.random(lanes) < mix.one_second_share)
        period_s = np.where(one_second, 1.0, _log_uniform(rng, mix.period_s, lanes)).astype(np.float32)
        present = rng.random(shape) < rng.uniform(*mix.present, lanes)
        few = np.arange(len(slices))[:, None] < rng.integers(2, min(6, len(slices)) + 1, lanes)
        present = np.where(nominal, few, present)
        present[0] |= ~present.any(axis=0)
        traffic = self._random_traffic(hardware, period_s, present, rng)
        declared = Promises.of(slices, lanes)
        # Promises follow what is offered on average; the sum of them stays within what the node can carry about half
        # the time, because demand and the committed share are drawn independently.
        mean = _mean_rate(traffic)

        def near(value: FloatArray) -> FloatArray:
            return value * _log_uniform(rng, mix.nominal_factor, shape)

        promises = Promises(
            weight=np.where(nominal, near(declared.weight), _log_uniform(rng, mix.weight, shape)),
            committed_mbps=np.maximum(
                np.where(nominal, near(declared.committed_mbps), mean * rng.uniform(*mix.promised, shape)), 0.1
            ).astype(np.float32),
            delay_bound_us=np.where(
                nominal, near(declared.delay_bound_us), 1e3 * _log_uniform(rng, mix.delay_bound_ms, shape)
            ),
            least_mbps=np.zeros(shape, np.float32),
        )
        if mix.admitted_share:
            fits = self._admitted(promises.committed_mbps * present, traffic, hardware, rng)
            promises = replace(promises, committed_mbps=np.maximum(promises.committed_mbps * fits, np.float32(0.1)))
        if mix.ranked_share:
            promises = replace(promises, weight=self._ranked(promises, rng))
        if mix.least_share:
            ratio = np.where(rng.random(lanes) < mix.least_share, rng.uniform(*mix.least, lanes), 0.0)
            promises = replace(promises, least_mbps=(ratio * promises.committed_mbps).astype(np.float32))
        self._nominal_traffic(traffic, nominal, rng)
        events = NodeEvents.none(*shape, knots=2)
        self._events(events, nominal, period_s, rng)
        events.absent_from_s = np.where(present, NEVER_S, -1.0).astype(np.float32)
        return SimulatorRun(
            traffic=traffic,
            events=events,
            hardware=hardware,
            period_s=period_s,
            promises=promises,
            threads=slices.column("upf_threads") * np.ones((1, lanes), np.float32),
            request_mcpu=self._requests(traffic, hardware, lanes, rng),
            num_steps=mix.steps,
        )

    def _admitted(
        self, committed_mbps: FloatArray, traffic: Traffic, hardware: HardwareArrays, rng: np.random.Generator
    ) -> FloatArray:
        """What is left of promises (S, L) where an operator promises what the node has, (L,); 1 elsewhere."""
        lanes, mix = committed_mbps.shape[1], self.mixture
        cpus = (committed_mbps * _cpu_per_mbit(traffic, hardware)[0]).sum(axis=0) / hardware.logical_cpus
        taken = np.maximum(cpus, committed_mbps.sum(axis=0) / hardware.uplink_mbps)
        fits = np.minimum(rng.uniform(*mix.admitted, lanes) / np.maximum(taken, 1e-6), 1.0)
        return np.where(rng.random(lanes) < mix.admitted_share, fits, 1.0).astype(np.float32)

    def _ranked(self, promises: Promises, rng: np.random.Generator) -> FloatArray:
        """Weights (S, L), in some lanes dealt out by how tight the delay bounds are."""
        rank = promises.delay_bound_us.argsort(axis=0).argsort(axis=0)
        by_bound = np.take_along_axis(-np.sort(-promises.weight, axis=0), rank, axis=0)
        return np.where(rng.random(rank.shape[1]) < self.mixture.ranked_share, by_bound, promises.weight)

    def _requests(self, traffic: Traffic, hardware: HardwareArrays, lanes: int, rng: np.random.Generator) -> FloatArray:
        """CPU requests (S, L)."""
        mix = self.mixture
        declared = self.slices.column("cpu_request_mcpu") * np.ones((1, lanes), np.float32)
        if not mix.requested_share:
            return declared
        used = 1e3 * (traffic.flow_mbps * traffic.on_s / traffic.cycle_s * _cpu_per_mbit(traffic, hardware)).sum(0)
        requested = rng.random(lanes) < mix.requested_share
        return np.where(requested, used * rng.uniform(*mix.request, lanes), declared).astype(np.float32)

    def _hardware(self, nominal: np.ndarray, lanes: int, rng: np.random.Generator) -> HardwareArrays:
        """Per-lane nodes; costs, buffers and sizes move by their factors."""
        mix = self.mixture
        arrays = HardwareArrays(self.hardware, lanes)
        declared = nominal | (rng.random(lanes) < mix.declared_node_share)

        def vary(name: str, value: np.ndarray, fixed: np.ndarray = declared) -> None:
            setattr(arrays, name, np.where(fixed, getattr(arrays, name), value).astype(np.float32))

        for field in fields(self.hardware):
            if field.name in {"upf_cost_us", "rx_cost_us", "tx_cost_us"}:
                vary(field.name, getattr(arrays, field.name) * _log_uniform(rng, mix.cost_factor, lanes))
            elif field.name in {"n3_buffer_packets", "uplink_buffer_ms"}:
                vary(field.name, getattr(arrays, field.name) * _log_uniform(rng, mix.buffer_factor, lanes))
        cpus = _log_uniform(rng, mix.cpus_factor, lanes)
        siblings = np.where(rng.random(lanes) < 0.5, self.hardware.logical_cpus / self.hardware.physical_cores, 1.0)
        vary("logical_cpus", np.maximum(np.rint(self.hardware.logical_cpus * cpus), 1.0))
        vary("physical_cores", np.maximum(arrays.logical_cpus / siblings, 0.5))
        vary("smt_yield", rng.uniform(*mix.smt_yield, lanes))
        vary("placement_cv", rng.uniform(*mix.placement_cv, lanes))
        size = arrays.logical_cpus / self.hardware.logical_cpus
        uplink_mbps = self.hardware.uplink_mbps * size * _log_uniform(rng, mix.uplink_factor, lanes)
        vary("uplink_mbps", uplink_mbps, fixed=nominal)
        vary("access_mbps", np.where(rng.random(lanes) < 0.5, arrays.access_mbps, 1e5))
        vary("access_cv", arrays.access_cv * rng.uniform(0.0, 1.0, lanes))
        vary("cpu_cv", arrays.cpu_cv * rng.uniform(0.2, 1.0, lanes))
        if mix.sched_slice_ms[1]:
            vary("sched_slice_ms", _log_uniform(rng, mix.sched_slice_ms, lanes))
        if mix.wake_wait_ms[1]:
            waits = rng.random(lanes) < 0.5
            vary("wake_wait_ms", np.where(waits, _log_uniform(rng, mix.wake_wait_ms, lanes), 0.0))
        if mix.near_share:
            near = rng.random(lanes) < mix.near_share
            arrays.round_trip_ms = np.where(near, 0.0, arrays.round_trip_ms).astype(np.float32)
            arrays.access_mbps = np.where(near, 1e5, arrays.access_mbps).astype(np.float32)
        if mix.wake_factor != (1.0, 1.0):
            vary("wake_wait_ms", arrays.wake_wait_ms * _log_uniform(rng, mix.wake_factor, lanes), fixed=nominal)
        if mix.edge_share:
            edge = rng.random(lanes) < mix.edge_share
            arrays.edge_threads = np.where(edge, arrays.logical_cpus, 0.0).astype(np.float32)
            arrays.edge_request_mcpu = rng.uniform(*mix.edge_request_mcpu, lanes).astype(np.float32)
        kind = rng.random(lanes)
        arrays.is_edt = np.where(nominal, arrays.is_edt, kind >= mix.tbf_share + mix.htb_share)
        arrays.is_htb = np.where(nominal, arrays.is_htb, kind < mix.htb_share)
        return arrays

    def _random_traffic(
        self, hardware: HardwareArrays, period_s: FloatArray, present: np.ndarray, rng: np.random.Generator
    ) -> Traffic:
        """A steady and an on/off source per slice, of random kinds, sized by the CPU they need together."""
        mix = self.mixture
        num_slices, lanes = present.shape
        traffic = Traffic.blank(SOURCES, num_slices, lanes, knots=3)
        shape = traffic.flow_mbps.shape
        traffic.packet_bytes = np.where(rng.random(shape) < 0.3, rng.uniform(120, 600, shape), 1400.0).astype(
            np.float32
        )
        cpu_per_mbit = _cpu_per_mbit(traffic, hardware)
        share = rng.exponential(1.0, shape) * present
        share[1] *= rng.random(present.shape) < 0.6
        share[0] *= rng.uniform(0.2, 1.0, present.shape)
        share /= np.maximum(share.sum(axis=(0, 1)), 1e-6)
        demand = rng.uniform(*mix.demand, lanes) * hardware.logical_cpus
        traffic.flow_mbps = np.minimum(share * demand / cpu_per_mbit, 0.8 * hardware.uplink_mbps).astype(np.float32)
        duty = rng.uniform(0.15, 0.8, shape)
        traffic.cycle_s = (period_s * _log_uniform(rng, mix.cycle_steps, shape)).astype(np.float32)
        traffic.on_s = np.where(np.arange(SOURCES)[:, None, None] == 1, traffic.cycle_s * duty, traffic.cycle_s).astype(
            np.float32
        )
        traffic.phase_s = (traffic.cycle_s * rng.random(shape)).astype(np.float32)
        traffic.burst_s = np.where(rng.random(shape) < 0.4, 1.0 / VIDEO_FRAME_HZ, 2e-4).astype(np.float32)
        traffic.rate_cv = np.where(rng.random(shape) < 0.3, rng.uniform(0.05, 0.5, shape), 0.0).astype(np.float32)
        traffic.elastic[0] = rng.random(present.shape) < 0.1
        self._drift(traffic, period_s, rng)
        return traffic

    def _drift(self, traffic: Traffic, period_s: FloatArray, rng: np.random.Generator) -> None:
        """Half of the sources ramp up, down or through a hump during the run."""
        run_s = self.mixture.steps * period_s
        at = np.sort(rng.random((*traffic.flow_mbps.shape, 3)), axis=-1) + np.arange(3) * 1e-3
        traffic.profile_time_s = (at * run_s[:, None]).astype(np.float32)
        factor = rng.uniform(0.1, 1.5, at.shape)
        steady = rng.random(traffic.flow_mbps.shape) < 0.5
        traffic.profile_factor = np.where(steady[..., None], 1.0, factor).astype(np.float32)

    def _nominal_traffic(self, traffic: Traffic, nominal: np.ndarray, rng: np.random.Generator) -> None:
        """Video as in the published study: flows of random size that start one after another."""
        num_slices, lanes = traffic.flow_mbps.shape[1:]
        run_s = float(self.mixture.steps)
        video: dict[str, np.ndarray | float] = {
            "flow_mbps": np.broadcast_to(rng.uniform(30.0, 60.0, lanes), (num_slices, lanes)),
            "first_flows": rng.integers(1, 5, (num_slices, lanes)),
            "max_flows": rng.integers(3, 6, (num_slices, lanes)),
            "ramp_every_s": run_s * rng.uniform(0.1, 1.0, (num_slices, lanes)),
            "packet_bytes": 1470.0,
            "burst_s": 1.0 / VIDEO_FRAME_HZ,
            "rate_cv": 0.0,
            "elastic": 0.0,
        }
        for name, value in video.items():
            array = getattr(traffic, name)
            array[0] = np.where(nominal, value, array[0])
        traffic.on_s[0] = np.where(nominal, traffic.cycle_s[0], traffic.on_s[0])
        traffic.flow_mbps[1] *= ~nominal
        traffic.profile_factor[0] = np.where(nominal[:, None], 1.0, traffic.profile_factor[0])

    def _events(self, events: NodeEvents, nominal: np.ndarray, period_s: FloatArray, rng: np.random.Generator) -> None:
        """Let the uplink, and the CPU, lose capacity at some time in `EVENT_SHARE` of the lanes each."""
        lanes = len(period_s)
        run_s = self.mixture.steps * period_s
        for times, factors in (
            (events.uplink_time_s, events.uplink_factor),
            (events.cpu_time_s, events.cpu_factor),
        ):
            start = rng.uniform(0.1, 0.8, lanes) * run_s
            times[:] = np.stack([start, start + 2 * period_s], axis=1)
            hit = (rng.random(lanes) < EVENT_SHARE) & ~nominal
            factors[:, 1] = np.where(hit, rng.uniform(*self.mixture.event_factor, lanes), 1.0)


def _cpu_per_mbit(traffic: Traffic, hardware: HardwareArrays) -> FloatArray:
    """CPU seconds that a Mbit of each source takes, (sources, S, L)."""
    cost = 1e-6 * (hardware.upf_cost_us + hardware.rx_cost_us + hardware.tx_cost_us)
    return np.asarray(cost / (8e-6 * traffic.packet_bytes), np.float32)


def _log_uniform(rng: np.random.Generator, bounds: tuple[float, float], size: int | tuple[int, ...]) -> FloatArray:
    return np.exp(rng.uniform(np.log(bounds[0]), np.log(bounds[1]), size)).astype(np.float32)


def _mean_rate(traffic: Traffic) -> FloatArray:
    """Average rate of each slice while its sources send, (S, L)."""
    return np.asarray((traffic.flow_mbps * traffic.first_flows * traffic.on_s / traffic.cycle_s).sum(0), np.float32)
