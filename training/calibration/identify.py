"""Identify the simulator's hardware parameters on a running node: play a schedule, fit, judge on another schedule.

A schedule is a list of segments: a second or two of random loads under random, fixed knobs. The same segments run on
the node and in the simulator; what is compared is each slice's carried rate and the 99th percentile of its delay.
Parameters are fitted on one schedule (`fitting` beside this); the error that counts is that on a second schedule, drawn
with another seed.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slicepilot.data.intervals import Array, weighted_quantile
from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Backend
from slicepilot.env.encoding import KnobDecoder
from slicepilot.env.knobs import Knobs
from slicepilot.env.simulator.backend import ScenarioRuns, SimulatorBackend, SimulatorRun
from slicepilot.env.simulator.exogenous import NodeEvents, Traffic
from slicepilot.env.simulator.hardware import Hardware, HardwareArrays
from slicepilot.env.simulator.scenario import Load, Scenario
from slicepilot.env.slices import Promises, SliceSet
from slicepilot.training.evaluation.rollouts import LiveRunBackend

from .fitting import BOUNDS, GENERATIONS, Observed, compare, loss_of, search

# In 1.2 s two runs of the same schedule agree within 10% for two thirds of the rates, in 4 s for nearly all.
SETTLE_S, MEASURE_S = 0.4, 4.0


@dataclass(frozen=True)
class Segment:
    """Loads and knobs of a segment, (S, 1) each."""

    scenario: Scenario
    knobs: Knobs


def first_guess(burn_us: float, uplink_mbps: float, uplink_queue_ms: float, quota_period_ms: float) -> Hardware:
    """Known hardware of this machine and its testbed, with plausible costs to start the search from."""
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
    """Random segments: every kind of load, from an idle node to twice its capacity, under every kind of knob.

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
    segments: Sequence[Segment], backend: LiveRunBackend, seed: int, on_segment: Callable[[], None] | None = None
) -> Observed:
    """Play the segments in sequence on a live backend."""
    rows = []
    for number, segment in enumerate(segments):
        backend.play(segment.scenario)
        rows.append(_play(backend, segment.knobs, seed + number))
        if on_segment is not None:
            on_segment()
    return Observed(*(np.concatenate([row[i] for row in rows]) for i in range(3)))


def simulate(segments: Sequence[Segment], slices: SliceSet, hardware: Hardware, seed: int) -> Observed:
    """Play all segments side by side in the simulator, each in its own lane."""
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
    series = np.asarray([np.stack((item.offered_mbps, item.carried_mbps, item.delay_p99_us)) for item in seen])[skip:]
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
    names = [field.name for field in dataclasses.fields(kind) if isinstance(getattr(parts[0], field.name), np.ndarray)]
    joined: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts], axis) for name in names}
    return kind(**joined)


def _padded_events(parts: Sequence[NodeEvents]) -> NodeEvents:
    """Join node events of single lanes side by side; the last knot of shorter profiles is repeated."""
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


def fit(
    segments: Sequence[Segment],
    observed: Observed,
    slices: SliceSet,
    start: Hardware,
    generations: int = GENERATIONS,
    on_generation: Callable[[float], None] | None = None,
) -> Hardware:
    """The parameters within `BOUNDS` under which the simulator fits the measurements best."""

    def loss(hardware: Hardware) -> float:
        return loss_of(compare(observed, simulate(segments, slices, hardware, seed=1)))

    return search(start, BOUNDS, loss, generations, on_generation=on_generation)
