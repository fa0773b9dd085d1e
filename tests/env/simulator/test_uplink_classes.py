"""The shared uplink with a class for each slice, and egress kinds that drop instead of queueing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from slicepilot.configs import ConfigError
from slicepilot.env.knobs import EGRESS, Knobs
from slicepilot.env.simulator.backend import ScenarioRuns, SimulatorBackend
from slicepilot.env.simulator.kernels import DROP_PACER, DROP_UPLINK
from slicepilot.env.simulator.scenario import Load, Scenario, UplinkClass

BASE = Scenario.from_yaml("testbed-grosvik")
STEPS = 40


def played(
    critical: float,
    best_effort: float,
    classes: tuple[UplinkClass, UplinkClass] | None = None,
    egress: float = np.inf,
    **node: object,
) -> SimulatorBackend:
    """Two slices with constant loads (Mbit/s) on an uplink of 35; the state after two seconds."""
    loads = {
        name: (Load("cbr", rate, packet_bytes=1250),)
        for name, rate in zip(BASE.slice_set().names, (critical, best_effort), strict=True)
    }
    named = {} if classes is None else dict(zip(BASE.slice_set().names, classes, strict=True))
    scenario = replace(BASE, loads=loads, uplink_classes=named)
    backend = SimulatorBackend(ScenarioRuns(scenario, replace(BASE.hardware_spec(), **node)))
    backend.reset(1)
    knobs = Knobs.none(2)
    knobs.values[EGRESS, 1] = egress
    for _ in range(STEPS):
        backend.apply(knobs)
        backend.observe()
    return backend


def test_a_node_with_classes_needs_no_kernels_of_its_own() -> None:
    """They are compiled for each memory order, for half a minute."""
    assert played(
        10.0, 10.0, (UplinkClass(10, 35), UplinkClass(1, 35))
    ).engine.hardware.uplink_classes.flags.c_contiguous


def carried(backend: SimulatorBackend) -> list[float]:
    return [round(float(rate), 2) for rate in backend.engine.telemetry.carried_mbps[:, 0]]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (UplinkClass(10, 35, 0), UplinkClass(1, 35, 1), [25.0, 10.0]),  # the first borrows before the second
        (UplinkClass(10, 35, 1), UplinkClass(1, 35, 0), [10.0, 25.0]),  # and the other way round
        (UplinkClass(10, 12, 0), UplinkClass(1, 35, 1), [12.0, 23.0]),  # up to its ceiling
        (UplinkClass(24, 35), UplinkClass(6, 35), [25.0, 10.0]),  # equals, the first satisfied
        (UplinkClass(20, 35), UplinkClass(5, 35), [25.0, 10.0]),
        (UplinkClass(6, 35), UplinkClass(6, 35), [17.5, 17.5]),  # equals share evenly
        (UplinkClass(30, 35, 1), UplinkClass(30, 35, 0), [5.0, 30.0]),  # guarantees that do not fit
    ],
)
def test_guarantee_ceiling_and_priority(first: UplinkClass, second: UplinkClass, expected: list[float]) -> None:
    assert carried(played(25.0, 30.0, (first, second))) == pytest.approx(expected, abs=0.05)


def test_a_class_waits_for_its_own_queue_alone() -> None:
    backend = played(15.0, 30.0, (UplinkClass(17.5, 35, 0), UplinkClass(1, 35, 1)))
    critical, best_effort = backend.engine.telemetry.delay_p99_us[:, 0]
    packet_us = 1250 * 8 / 35.0
    assert packet_us < critical < 1.2 * packet_us, "one packet that is being sent"
    assert best_effort == pytest.approx(50e3, rel=0.02), "its own queue of 50 ms"
    assert backend.engine.dropped_mbit[DROP_UPLINK, 0, 0] == 0.0
    weighted = played(15.0, 30.0, (UplinkClass(17.5, 35), UplinkClass(17.5, 35)))
    longer = weighted.engine.telemetry.delay_p99_us[0, 0] - critical
    assert longer == pytest.approx(1250 * 8 / 17.5 - packet_us, rel=1e-3), "at its guaranteed rate instead"


def test_nothing_is_made_or_lost_between_classes() -> None:
    backend = played(25.0, 30.0, (UplinkClass(10, 20, 0), UplinkClass(5, 35, 1)))
    engine = backend.engine
    state = engine.state.copy()
    telemetry = backend.observe()
    queues = (engine.state - state)[3, :, 0] / 0.05
    lost = engine.dropped_mbit[:, :, 0].sum(axis=0) / 0.05
    np.testing.assert_allclose(telemetry.offered_mbps[:, 0], telemetry.carried_mbps[:, 0] + queues + lost, rtol=1e-4)


def test_classes_that_do_not_bind_are_a_fifo() -> None:
    free = played(10.0, 12.0)
    same = played(10.0, 12.0, (UplinkClass(10, 35), UplinkClass(10, 35)))
    assert np.array_equal(free.engine.telemetry.slices, same.engine.telemetry.slices)


@pytest.mark.parametrize(("mode", "delay_ms"), [("police", 0.0), ("red", 0.57), ("tbf", 10.0)])
def test_kinds_that_drop_early_keep_the_rate_and_not_the_queue(mode: str, delay_ms: float) -> None:
    backend = played(10.0, 22.0, None, 17.5, egress_mode=mode, tbf_latency_ms=10.0)
    assert carried(backend)[1] == pytest.approx(17.5, abs=0.05)
    delay_us = backend.engine.telemetry.delay_p99_us[1, 0]
    assert delay_us == pytest.approx(1e3 * delay_ms, abs=60.0)
    assert backend.engine.dropped_mbit[DROP_PACER, 1, 0] / 0.05 == pytest.approx(4.5, abs=0.05)


def test_lanes_and_copies_have_the_same_classes() -> None:
    backend = SimulatorBackend(ScenarioRuns(BASE), 4, copies=2)
    backend.reset(1)
    assert backend.engine.hardware.uplink_classes.shape == (3, 2, 4)
    assert backend.context.traits is not None
    assert backend.context.traits.uplink_classes is not None
    assert backend.context.traits.uplink_classes.all()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{critical: {guarantee_mbps: 5}}", "none for best-effort"),
        ("{critical: {guarantee_mbps: 5}, others: {guarantee_mbps: 5}}", "unknown slice 'others'"),
        ("{critical: {guarantee_mbps: 0}, best-effort: {guarantee_mbps: 5}}", "guarantee_mbps"),
        ("{critical: {guarantee_mbps: 5, priority: 8}, best-effort: {guarantee_mbps: 5}}", "priority"),
    ],
)
def test_bad_classes_are_one_line(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "bad.yaml"
    lines = "name: bad\ndescription: x\nslices: grosvik\nhardware: grosvik\nduration_s: 1\ncontrol_period_s: 0.05\n"
    file.write_text(f"{lines}loads: {{}}\nuplink_classes: {text}\n")
    with pytest.raises(ConfigError, match=expected):
        Scenario.from_yaml(str(file))
