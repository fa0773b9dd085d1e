"""What traffic shows of a node is identified where it is known; the rest is assumed, and said to be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from slicepilot.configs import FailureError
from slicepilot.env.knobs import KNOB_FIELDS, Knobs
from slicepilot.env.simulator.backend import ScenarioRuns, SimulatorBackend
from slicepilot.env.simulator.hardware import Hardware
from slicepilot.env.simulator.scenario import Load, Scenario
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import SLICE_FIELDS
from slicepilot.node.identify.estimate import Estimate, document, estimate_hardware, known_facts
from slicepilot.node.identify.model import observed, simulate
from slicepilot.node.identify.segments import MEASURE_S, SETTLE_S, Segment, draw

SLICES = SliceSet.from_yaml("testbed-five")
START = Hardware.from_yaml("testbed")
TRUE = replace(START, upf_cost_us=73.0, system_cpus=0.0, rx_cost_us=1.0, tx_cost_us=1.0, cpu_cv=0.0)
PERIOD_S, BYTES = 0.01, 1400.0
OFFERED, CARRIED, P99, USE = (
    SLICE_FIELDS.index(name) for name in ("offered_mbps", "carried_mbps", "delay_p99_us", "cpu_use_mcpu")
)
FACTS = known_facts(2.0, 2.0, 10.0, None)


def segment(rates: tuple[float, ...], limit_mcpu: float = np.inf, seed: int = 0) -> Segment:
    """What a node would have shown whose hardware is `TRUE`."""
    loads = {
        name: (Load("cbr", rate_mbps=rate, packet_bytes=BYTES),)
        for name, rate in zip(SLICES.names, rates, strict=True)
        if rate
    }
    scenario = Scenario("drawn", "", "testbed-five", "testbed", SETTLE_S + MEASURE_S, PERIOD_S, loads)
    backend = SimulatorBackend(ScenarioRuns(scenario, TRUE))
    knobs = Knobs.none(len(SLICES))
    knobs.cpu_limit_mcpu[0] = limit_mcpu
    series, idle, held = [backend.reset(seed).slices[..., 0].copy()], [1.0], [Knobs.none(len(SLICES)).values[..., 0]]
    for _ in range(backend.context.num_steps):
        held.append(backend.apply(knobs).applied.values[..., 0].copy())
        telemetry = backend.observe()
        series.append(telemetry.slices[..., 0].copy())
        idle.append(float(telemetry.cpu_idle_ratio[0]))
    rows = np.asarray(series)
    seconds = PERIOD_S * len(rows)
    carried, offered = (PERIOD_S * 1e6 / 8 * rows[:, row].sum(axis=0, dtype=np.float64) for row in (CARRIED, OFFERED))
    return Segment(
        offered_mbps=rows[:, OFFERED],
        carried_mbps=rows[:, CARRIED],
        delay_p99_us=rows[:, P99],
        use_mcpu=rows[:, USE],
        idle_ratio=np.asarray(idle, np.float32),
        knobs=np.asarray(held),
        valid=np.ones(len(SLICES), np.bool_),
        packets=carried / BYTES,
        bytes=offered,
        cpu_s=1e-3 * PERIOD_S * rows[:, USE].sum(axis=0, dtype=np.float64),
        arrived=offered / BYTES,
        seconds=seconds,
    )


def estimate_of(segments: list[Segment]) -> Estimate:
    return estimate_hardware(segments, SLICES, START, FACTS, PERIOD_S, 6, lambda _: None)


def test_the_cost_of_a_packet_is_identified_though_slices_are_silent() -> None:
    reported = estimate_of([segment((8.0, 4.0, 0.0, 12.0, 0.0), seed=seed) for seed in range(3)])
    assert reported.hardware.upf_cost_us == pytest.approx(73.0, rel=0.03)
    assert np.isnan(reported.cost_us).tolist() == [False, False, True, False, True]
    assert "n3_buffer_packets" in reported.assumed  # no slice was held back
    assert reported.hardware.n3_buffer_packets == START.n3_buffer_packets
    assert set(reported.known) == set(FACTS)
    written = document(reported, "edge", "testbed", "shadow")
    assert written["assumed"] == list(reported.assumed)
    assert set(reported.assumed).isdisjoint({*reported.known, *reported.measured, *reported.fitted})


def test_the_cost_of_waking_up_is_identified_where_loads_differ() -> None:
    rates = [(8.0,) * 5, (60.0, 8.0, 8.0, 8.0, 8.0), (30.0, 8.0, 8.0, 8.0, 8.0)]
    reported = estimate_of([segment(item) for item in rates])
    assert "wake_cost_ratio" in reported.measured
    assert reported.hardware.wake_cost_ratio == pytest.approx(TRUE.wake_cost_ratio, abs=0.02)
    assert reported.hardware.upf_cost_us == pytest.approx(73.0, rel=0.02)


def test_traffic_that_changes_is_simulated_as_it_was() -> None:
    busy = segment((8.0,) * 5)
    part = replace(busy, offered_mbps=busy.offered_mbps * np.linspace(2.0, 0.1, len(busy.offered_mbps))[:, None])
    simulated = simulate([part], SLICES, TRUE, PERIOD_S, 0)
    assert simulated.offered_mbps == pytest.approx(observed([part], PERIOD_S).offered_mbps, rel=0.02)


def test_a_slice_that_is_held_back_tells_how_much_queues() -> None:
    reported = estimate_of([segment((20.0,) * 5, limit_mcpu=90.0, seed=seed) for seed in range(3)])
    assert "n3_buffer_packets" in reported.fitted


def test_without_traffic_nothing_is_identified() -> None:
    with pytest.raises(FailureError, match=r"no slice has had 200 packets.*needed: traffic"):
        estimate_of([segment((0.0,) * 5)] * 3)
    with pytest.raises(FailureError, match=r"handled elsewhere, in softirqs"):
        estimate_of([replace(segment((8.0,) * 5), cpu_s=np.full(5, 1e-4))] * 3)


def test_knobs_are_drawn_by_what_slices_do() -> None:
    first = segment((8.0, 4.0, 0.0, 12.0, 0.0))
    for number, agent in enumerate(draw(first, 9, seed=1)):
        if number % 3 == 0:
            assert agent.name == "as-found"
            continue
        context = SimulatorBackend(ScenarioRuns(Scenario.from_yaml("testbed-contention")))
        telemetry = context.reset(0)
        agent.reset(SLICES, context.context, 0)
        knobs = agent.decide(telemetry, Knobs.none(len(SLICES)))
        limits = knobs.cpu_limit_mcpu[:, 0]
        assert np.isinf(limits[[2, 4]]).all()  # silent
        assert (limits[np.isfinite(limits)] <= 1.5 * first.use_mcpu.max() + 1).all()
        assert (np.abs(knobs.nice) <= 10).all()
    assert KNOB_FIELDS[0] == "cpu_limit_mcpu"
