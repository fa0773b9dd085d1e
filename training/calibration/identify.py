"""Identify the simulator's hardware parameters on a running node: play a schedule, fit, judge on another schedule.

A schedule is a list of segments: a second or two of random loads under random, fixed knobs. The same segments run on
the node and in the simulator; what is compared is each slice's carried rate and the 99th percentile of its delay.
Parameters are fitted on one schedule by CMA-ES (Hansen, arXiv:1604.00772); the
error that counts is the one on a second schedule, drawn with another seed.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cma
import numpy as np

from ...data.intervals import Array, weighted_quantile
from ...env.backend import Backend
from ...env.encoding import KnobDecoder
from ...env.knobs import Knobs
from ...env.simulator.backend import ScenarioRuns, SimulatorBackend, SimulatorRun
from ...env.simulator.exogenous import NodeEvents, Traffic
from ...env.simulator.hardware import Hardware, HardwareArrays
from ...env.simulator.scenario import Load, Scenario
from ...env.slices import FloatArray, Promises, SliceSet
from ..evaluation.turns import TurnsBackend

# What is fitted and within which bounds; the rest is known (CPUs, link rate, buffers, CFS period).
BOUNDS: dict[str, tuple[float, float]] = {
    "upf_cost_us": (0.5, 1.6),  # times the testbed's burn, or times 10 us without one
    "rx_cost_us": (0.2, 25.0),
    "tx_cost_us": (0.2, 25.0),
    "sched_slice_ms": (0.2, 10.0),
    "wake_wait_ms": (0.0, 8.0),
    "n3_buffer_packets": (20.0, 400.0),
    "cpu_cv": (0.01, 0.4),
    "wake_cost_ratio": (0.0, 0.5),
    "placement_cv": (0.0, 0.5),
    "placement_tau_s": (0.05, 2.0),
}
# In 1.2 s two plays of one schedule agree within 10% for two thirds of the rates, in 4 s for nearly all.
SETTLE_S, MEASURE_S = 0.4, 4.0
GENERATIONS = 50
# Where the p99 delay of a slice that carries next to nothing says nothing.
MIN_CARRIED_MBPS = 0.5


@dataclass(frozen=True)
class Segment:
    """Loads and what the knobs are meanwhile, (S, 1) each."""

    scenario: Scenario
    knobs: Knobs


@dataclass(frozen=True)
class Observed:
    """What N segments came to, (N, S) each: rates in Mbit/s, 99th percentile of the delay in us."""

    offered_mbps: Array
    carried_mbps: Array
    delay_p99_us: Array


@dataclass(frozen=True)
class Errors:
    """How far a simulation is from what was observed, over all segments and slices.

    Attributes:
        throughput_pct: absolute error of the carried rate in % of the offered one, (K,).
        delay_factor: how many times the p99 delay is too long or too short, at least 1, (M,).
    """

    throughput_pct: Array
    delay_factor: Array

    def summary(self) -> dict[str, float]:
        """Means, medians, 90th percentiles and the shares within 10%, and within factors of 1.5 and 2."""
        return {
            "throughput_mean_pct": float(self.throughput_pct.mean()),
            "throughput_median_pct": float(np.median(self.throughput_pct)),
            "throughput_p90_pct": float(np.quantile(self.throughput_pct, 0.9)),
            "throughput_within_10_pct": float(100 * (self.throughput_pct <= 10).mean()),
            "delay_p99_median_factor": float(np.median(self.delay_factor)),
            "delay_p99_p90_factor": float(np.quantile(self.delay_factor, 0.9)),
            "delay_p99_within_1_5_pct": float(100 * (self.delay_factor <= 1.5).mean()),
            "delay_p99_within_2_pct": float(100 * (self.delay_factor <= 2).mean()),
        }


def first_guess(burn_us: float, uplink_mbps: float, uplink_queue_ms: float, quota_period_ms: float) -> Hardware:
    """What is known of this machine and its testbed, with plausible costs to start the search from."""
    cpus = float(len(os.sched_getaffinity(0)))
    return Hardware(
        logical_cpus=cpus,
        physical_cores=cpus,
        smt_yield=1.0,
        upf_cost_us=burn_us + 10.0,
        cfs_period_ms=quota_period_ms,
        n3_buffer_packets=92.0,
        egress_mode="htb",
        uplink_mbps=uplink_mbps,
        uplink_buffer_ms=uplink_queue_ms,
        access_mbps=max(1000.0, uplink_mbps),
    )


def hardware_document(hardware: Hardware, errors: dict[str, float], what: str) -> dict[str, Any]:
    """Contents of a hardware file: parameters that are not the defaults, and the errors on the unseen schedule."""
    return {
        "source": f"identified on a testbed by `slicepilot testbed identify` ({what}); errors on unseen segments",
        "hardware": {k: v for k, v in dataclasses.asdict(hardware).items() if v != getattr(Hardware(), k)},
        "fit": {name: round(value, 2) for name, value in errors.items()},
    }


def draw_schedule(slices: str, hardware: Hardware, count: int, seed: int) -> list[Segment]:
    """Random segments: every kind of load, from an idle node to twice what it can do, under every kind of knob.

    Args:
        slices: name or file of the slice set.
        hardware: roughly the node; fixes how much load is much.
        count: segments.
        seed: same seed, same schedule.
    """
    rng = np.random.default_rng(seed)
    packet_cost_s = 1e-6 * (hardware.upf_cost_us + hardware.rx_cost_us + hardware.tx_cost_us)
    capacity_mbps = 8e-6 * 1400 * hardware.logical_cpus / packet_cost_s
    return [_segment(slices, rng, capacity_mbps, hardware.uplink_mbps, number) for number in range(count)]


def _segment(
    slices_name: str, rng: np.random.Generator, capacity_mbps: float, uplink_mbps: float, number: int
) -> Segment:
    slices = SliceSet.from_yaml(slices_name)
    num = len(slices)
    parts = rng.dirichlet(np.full(num, 3.0)) * capacity_mbps * rng.uniform(0.3, 1.7)
    rates = np.minimum(parts, 0.9 * uplink_mbps)
    loads: dict[str, tuple[Load, ...]] = {
        name: (_load(rng, float(rate)),) for name, rate in zip(slices.names, rates, strict=True)
    }
    factor = rng.uniform(0.4, 1.2) * rates.sum() / uplink_mbps if rng.uniform() < 0.25 else 1.0
    profile = ((0.0, min(factor, 1.0)), (1e6, min(factor, 1.0))) if factor < 1 else ()
    scenario = Scenario(
        name=f"segment-{number}",
        description="drawn at random",
        slices=slices_name,
        hardware="testbed",
        duration_s=SETTLE_S + MEASURE_S,
        control_period_s=0.01,
        loads=loads,
        uplink_profile=profile,
    )
    return Segment(scenario, _knobs(slices, rng, rates))


def _load(rng: np.random.Generator, rate_mbps: float) -> Load:
    kind = rng.choice(["cbr", "poisson", "video"])
    return Load(kind, rate_mbps=round(rate_mbps, 2), packet_bytes=float(rng.choice([1400, 1400, 700])))


def _knobs(slices: SliceSet, rng: np.random.Generator, rates: Array) -> Knobs:
    knobs = Knobs.none(len(slices))
    use = rng.uniform(size=3) < (0.5, 0.6, 0.25)
    for s in range(len(slices)):
        if use[0] and rng.uniform() < 0.6:
            knobs.cpu_limit_mcpu[s] = rng.uniform(100, 900)
        if use[1]:
            knobs.nice[s] = rng.integers(-20, 20)
        if use[2] and rng.uniform() < 0.5:
            knobs.egress_mbps[s] = rates[s] * rng.uniform(0.4, 1.3)
    decoder = KnobDecoder(slices)
    action = decoder.encode(knobs).transpose(2, 1, 0)
    return decoder.decode(action)[0]


def observe(
    segments: Sequence[Segment], backend: TurnsBackend, seed: int, on_segment: Callable[[], None] | None = None
) -> Observed:
    """Play the segments one after the other on a live backend."""
    rows = []
    for number, segment in enumerate(segments):
        backend.play(segment.scenario)
        rows.append(_play(backend, segment.knobs, seed + number))
        if on_segment is not None:
            on_segment()
    return Observed(*(np.concatenate([row[i] for row in rows]) for i in range(3)))


def simulate(segments: Sequence[Segment], slices: SliceSet, hardware: Hardware, seed: int) -> Observed:
    """Play all segments side by side in the simulator, one lane each."""
    backend = SimulatorBackend(ScheduleEpisodes(segments, slices, hardware), len(segments))
    knobs = Knobs(np.concatenate([segment.knobs.values for segment in segments], axis=2))
    return Observed(*_play(backend, knobs, seed))


def _play(backend: Backend, knobs: Knobs, seed: int) -> tuple[Array, Array, Array]:
    """Offered, carried (means) and p99 delay after settling, (L, S) each."""
    backend.reset(seed)
    backend.apply(knobs)
    period_s = float(backend.context.period_s[0])
    skip, steps = round(SETTLE_S / period_s), backend.context.num_steps
    seen = (backend.observe() for _ in range(steps))
    series = np.asarray([np.stack((one.offered_mbps, one.carried_mbps, one.delay_p99_us)) for one in seen])[skip:]
    offered, carried, delay = (series[:, i].astype(np.float64) for i in range(3))
    return offered.mean(0).T, carried.mean(0).T, weighted_quantile(delay, carried, 0.99).T


class ScheduleEpisodes:
    """A different segment in every lane, on the same node."""

    def __init__(self, segments: Sequence[Segment], slices: SliceSet, hardware: Hardware) -> None:
        self.segments, self.slices, self.hardware = segments, slices, hardware

    def draw(self, lanes: int, rng: np.random.Generator) -> SimulatorRun:
        """One run of all segments; ``lanes`` is their number."""
        assert lanes == len(self.segments)
        runs = [
            ScenarioRuns(segment.scenario, self.hardware, slices=self.slices).draw(1, rng) for segment in self.segments
        ]
        first = runs[0]
        return SimulatorRun(
            traffic=_joined(Traffic, [run.traffic for run in runs]),
            events=_padded_events([run.events for run in runs]),
            hardware=HardwareArrays(self.hardware, lanes),
            period_s=np.concatenate([run.period_s for run in runs]),
            promises=_joined(Promises, [run.promises for run in runs]),
            threads=np.concatenate([run.threads for run in runs], axis=-1),
            request_mcpu=np.concatenate([run.request_mcpu for run in runs], axis=-1),
            num_steps=first.num_steps,
        )


def _joined(kind: type[Any], parts: Sequence[Any]) -> Any:
    """Dataclasses of arrays with the lanes at axis 2 (sources) or last (promises), side by side."""
    axis = 2 if kind is Traffic else -1
    return kind(*(np.concatenate([getattr(p, f.name) for p in parts], axis) for f in dataclasses.fields(kind)))


def _padded_events(parts: Sequence[NodeEvents]) -> NodeEvents:
    """Node events of one lane each, side by side; the last knot of shorter profiles is repeated."""
    knots = max(part.uplink_time_s.shape[1] for part in parts)

    def pad(times: FloatArray, factors: FloatArray) -> tuple[FloatArray, FloatArray]:
        missing = knots - times.shape[1]
        later = times[:, -1:] + np.arange(1, missing + 1, dtype=np.float32)
        return np.concatenate([times, later], 1), np.concatenate([factors, np.repeat(factors[:, -1:], missing, 1)], 1)

    uplink = [pad(part.uplink_time_s, part.uplink_factor) for part in parts]
    cpu = [pad(part.cpu_time_s, part.cpu_factor) for part in parts]
    uplink_time_s, uplink_factor = (np.concatenate(column) for column in zip(*uplink, strict=True))
    cpu_time_s, cpu_factor = (np.concatenate(column) for column in zip(*cpu, strict=True))
    return NodeEvents(
        uplink_time_s,
        uplink_factor,
        cpu_time_s,
        cpu_factor,
        np.concatenate([part.absent_from_s for part in parts], -1),
        np.concatenate([part.absent_to_s for part in parts], -1),
    )


def compare(observed: Observed, simulated: Observed) -> Errors:
    """The simulation's errors; segments in which a slice offers or carries next to nothing say nothing of its delay."""
    throughput = 100 * np.abs(simulated.carried_mbps - observed.carried_mbps) / observed.offered_mbps
    told = (observed.carried_mbps > MIN_CARRIED_MBPS) & (observed.delay_p99_us > 0)
    ratio = np.log(np.maximum(simulated.delay_p99_us, 1.0) / np.maximum(observed.delay_p99_us, 1.0))[told]
    return Errors(throughput.ravel(), np.exp(np.abs(ratio)))


def loss_of(errors: Errors) -> float:
    """What the fit minimises: how far throughput is off in tenths, and the delay in factors of 2, capped at 16."""
    delay = np.minimum(np.log2(errors.delay_factor), 4.0)
    return float((errors.throughput_pct / 10).mean() + delay.mean())


def fit(
    segments: Sequence[Segment],
    observed: Observed,
    slices: SliceSet,
    start: Hardware,
    generations: int = GENERATIONS,
    population: int = 16,
    on_generation: Callable[[float], None] | None = None,
) -> Hardware:
    """The parameters within `BOUNDS` under which the simulator comes nearest to what was observed."""
    scale = {"upf_cost_us": start.upf_cost_us}

    def hardware_of(point: Sequence[float]) -> Hardware:
        """Of a point of the unit cube."""
        values: dict[str, Any] = {}
        for x, (name, (low, high)) in zip(point, BOUNDS.items(), strict=True):
            value = (low + (high - low) * min(max(float(x), 0.0), 1.0)) * scale.get(name, 1.0)
            values[name] = float(f"{value:.4g}")
        return dataclasses.replace(start, **values)

    def loss(point: Sequence[float]) -> float:
        outside = sum(max(0.0, -x, x - 1.0) ** 2 for x in point)
        return loss_of(compare(observed, simulate(segments, slices, hardware_of(point), seed=1))) + 50.0 * outside

    first = [
        min(max((getattr(start, name) / scale.get(name, 1.0) - low) / (high - low), 0.05), 0.95)
        for name, (low, high) in BOUNDS.items()
    ]
    options = {"seed": 1, "popsize": population, "maxiter": generations, "verbose": -9}
    search = cma.CMAEvolutionStrategy(first, 0.25, options)
    while not search.stop():
        points = search.ask()
        search.tell(points, [loss(point) for point in points])
        if on_generation is not None:
            on_generation(float(search.result.fbest))
    best = search.result.xbest
    assert best is not None, "it has asked and been told"
    return hardware_of(best)
