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

from slicepilot.data.intervals import Array
from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Backend
from slicepilot.env.encoding import KnobDecoder
from slicepilot.env.knobs import Knobs
from slicepilot.env.simulator.backend import ScenarioRuns, SimulatorBackend, SimulatorRun
from slicepilot.env.simulator.hardware import Hardware, HardwareArrays
from slicepilot.env.simulator.scenario import Load, Scenario
from slicepilot.env.slices import SliceSet
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

    ``hardware`` is roughly the node, and fixes how much load is much. The same seed gives the same schedule.
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
    loads: dict[str, tuple[Load, ...]] = {}
    for name, rate in zip(slices.names, rates.tolist(), strict=True):
        kind, packet_bytes = rng.choice(["cbr", "poisson", "video"]), float(rng.choice([1400, 1400, 700]))
        loads[name] = (Load(kind, rate_mbps=round(rate, 2), packet_bytes=packet_bytes),)
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
    series = []
    for number, segment in enumerate(segments):
        backend.play(segment.scenario)
        series.append(_play(backend, segment.knobs, seed + number))
        if on_segment is not None:
            on_segment()
    return Observed.of(np.concatenate(series, axis=-1))


def simulate(segments: Sequence[Segment], slices: SliceSet, hardware: Hardware, seed: int) -> Observed:
    """Play all segments side by side in the simulator, each in its own lane."""
    backend = SimulatorBackend(ScheduleEpisodes(segments, slices, hardware), len(segments))
    knobs = Knobs(np.concatenate([segment.knobs.values for segment in segments], axis=2))
    return Observed.of(_play(backend, knobs, seed))


def _play(backend: Backend, knobs: Knobs, seed: int) -> FloatArray:
    """Offered and carried rate and p99 delay after settling, (T, 3, S, L)."""
    backend.reset(seed)
    backend.apply(knobs)
    seen = (backend.observe() for _ in range(backend.context.num_steps))
    series = np.asarray([np.stack((item.offered_mbps, item.carried_mbps, item.delay_p99_us)) for item in seen])
    return series[round(SETTLE_S / float(backend.context.period_s[0])) :]


class ScheduleEpisodes:
    """A different segment in every lane, on the same node."""

    def __init__(self, segments: Sequence[Segment], slices: SliceSet, hardware: Hardware) -> None:
        self.segments, self.slices, self.hardware = segments, slices, hardware

    def draw(self, lanes: int, rng: np.random.Generator) -> SimulatorRun:
        """One run of all segments; ``lanes`` is their number."""
        assert lanes == len(self.segments)
        # With as many knots in all of them.
        profiles = [segment.scenario.uplink_profile or ((0.0, 1.0), (1e6, 1.0)) for segment in self.segments]
        runs = [
            ScenarioRuns(
                dataclasses.replace(segment.scenario, uplink_profile=profile), self.hardware, slices=self.slices
            ).draw(1, rng)
            for segment, profile in zip(self.segments, profiles, strict=True)
        ]
        return SimulatorRun(
            traffic=_joined([run.traffic for run in runs], axis=2),
            events=_joined([run.events for run in runs], axis=0, absent_from_s=-1, absent_to_s=-1),
            hardware=HardwareArrays(self.hardware, lanes),
            period_s=np.concatenate([run.period_s for run in runs]),
            promises=_joined([run.promises for run in runs], axis=-1),
            threads=np.concatenate([run.threads for run in runs], axis=-1),
            request_mcpu=np.concatenate([run.request_mcpu for run in runs], axis=-1),
            num_steps=runs[0].num_steps,
        )


def _joined(parts: Sequence[Any], axis: int, **axes: int) -> Any:
    """Dataclasses of arrays side by side; lanes are at an axis of all arrays, or at those named."""
    fields = [field.name for field in dataclasses.fields(parts[0])]
    names = [name for name in fields if isinstance(getattr(parts[0], name), np.ndarray)]
    return type(parts[0])(
        **{name: np.concatenate([getattr(part, name) for part in parts], axes.get(name, axis)) for name in names}
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

    def losses(nodes: Sequence[Hardware]) -> list[float]:
        return [loss_of(compare(observed, simulate(segments, slices, node, seed=1))) for node in nodes]

    return search(start, BOUNDS, losses, generations, on_generation)
