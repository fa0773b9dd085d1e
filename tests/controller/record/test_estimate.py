"""Estimates agree with a simulation under the other setting, and report where they are uncertain."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slicepilot.configs import ConfigError
from slicepilot.configs.documents import dumps
from slicepilot.controller.contracts.answers import EstimatedWindow
from slicepilot.controller.contracts.modes import Mode
from slicepilot.controller.record.estimate import Estimator
from slicepilot.controller.record.ring import LATE, Records
from slicepilot.data.intervals import weighted_quantile
from slicepilot.env.arrays import FloatArray
from slicepilot.env.knobs import Knobs
from slicepilot.env.simulator.backend import ScenarioRuns, SimulatorBackend
from slicepilot.env.simulator.scenario import Scenario

from .conftest import description, ticks

COUNT, PERIOD_S = 1300, 0.005
FREE = Knobs.none(5)
# Without luck in who gets which CPU: a replay draws its own, and two seconds are too few to average over it.
NODE = str(Path(__file__).with_name("steady-node.yaml"))
SCENARIO = dataclasses.replace(Scenario.from_yaml("testbed-contention"), hardware=NODE)


def first_ahead() -> Knobs:
    knobs = Knobs.none(5)
    knobs.nice[0] = -15
    return knobs


def others_limited() -> Knobs:
    knobs = Knobs.none(5)
    knobs.cpu_limit_mcpu[1:3] = 150
    return knobs


def last_slowed() -> Knobs:
    knobs = Knobs.none(5)
    knobs.egress_mbps[4] = 10
    return knobs


def played(knobs: Knobs) -> FloatArray:
    """Telemetry (N, 8, S) of the contended node under knobs that hold, period by period."""
    backend = SimulatorBackend(ScenarioRuns(SCENARIO, control_period_s=PERIOD_S))
    series = [backend.reset(0).slices[:, :, 0].copy()]
    for _ in range(COUNT - 1):
        backend.apply(knobs)
        series.append(backend.observe().slices[:, :, 0].copy())
    return np.asarray(series)


def recorded(records: Records, series: FloatArray, held: Knobs, allowed: Knobs) -> Records:
    records["slices"] = series
    for name, knobs in (("wanted", allowed), ("allowed", allowed), ("applied", held)):
        records[name] = knobs.values[:, :, 0]
    return records


def estimates_of(records: Records, description: dict[str, Any], interval_s: float = 2.0) -> list[dict[str, Any]]:
    estimator = Estimator(description, interval_s)
    made = [estimator.add(part) for part in np.array_split(records, 60)]
    estimates = [estimate for estimate in made if estimate is not None]
    dumps(estimates, list[EstimatedWindow])
    return estimates


def figures(series: FloatArray) -> tuple[FloatArray, Any]:
    return series[:, 1].mean(axis=0), weighted_quantile(series[:, 3], series[:, 1], 0.99)


@pytest.mark.parametrize("policy", [first_ahead(), others_limited(), last_slowed()], ids=["nice", "limit", "egress"])
def test_the_estimate_is_what_playing_it_comes_to(policy: Knobs) -> None:
    free, other = played(FREE), played(policy)
    records = recorded(ticks(COUNT), free, FREE, policy)
    estimates = estimates_of(records, description(hardware=NODE))
    assert len(estimates) == 3
    distinguishable = 0
    for estimate in estimates:
        first, last = np.searchsorted(records["time_ns"], [estimate["start_ns"], estimate["end_ns"]])
        window = slice(int(first), int(last) + 1)
        assert estimate["window_s"] == pytest.approx(PERIOD_S * (window.stop - window.start))
        carried, delay = (
            after - before for before, after in zip(figures(free[window]), figures(other[window]), strict=True)
        )
        for s, row in enumerate(estimate["slices"]):
            for quantity, truth in (("carried_mbps", carried[s]), ("delay_p99_us", delay[s])):
                figure = row[quantity]
                scale = 1.0 if quantity == "carried_mbps" else 1e3
                assert abs(figure["difference"] - truth) <= max(figure["error"], 0.01 * scale), (row["slice"], quantity)
                if figure["distinguishable"]:
                    distinguishable += 1
                    assert figure["difference"] * truth > 0
    assert distinguishable > 0


def test_the_errors_are_the_models_and_what_it_gets_wrong_here() -> None:
    series = played(FREE)
    records = recorded(ticks(COUNT), series, FREE, first_ahead())
    [right, *_] = estimates_of(records, description(hardware=NODE))
    assert right["model"]["hardware"] == NODE
    share = right["model"]["throughput_median_pct"] / 100
    for row in right["slices"]:
        carried, delay = row["carried_mbps"], row["delay_p99_us"]
        residual = abs(carried["held"] - carried["measured"])
        assert carried["error"] == pytest.approx(residual + share * row["offered_mbps"], rel=1e-4)
        by_factor = (right["model"]["delay_p99_median_factor"] - 1) * min(delay["held"], delay["policy"])
        off = abs(delay["held"] - delay["measured"])
        assert delay["error"] == pytest.approx(by_factor + off, rel=1e-4)
    records["slices"][:, [1, 5]] *= 0.5  # a node that carries half of what the model says
    records["slices"][:, 3] *= 4
    [wrong, *_] = estimates_of(records, description(hardware=NODE))
    for row, before in zip(wrong["slices"], right["slices"], strict=True):
        assert row["carried_mbps"]["error"] > 3 * before["carried_mbps"]["error"]
        assert row["delay_p99_us"]["error"] > 2 * before["delay_p99_us"]["error"]
        assert not row["carried_mbps"]["distinguishable"]


def test_late_decisions_would_not_have_been_applied() -> None:
    """The policy puts slice 1 first at every tick but some, and it is late at all those that do."""
    records = recorded(ticks(COUNT), played(FREE), FREE, first_ahead())
    records["allowed"][::50] = records["applied"][::50]
    in_time = estimates_of(records, description(hardware=NODE))
    records["flags"] = LATE
    records["flags"][::50] = 0
    late = estimates_of(records, description(hardware=NODE))
    assert len(late) == 3
    for before, after in zip(in_time, late, strict=True):
        assert before["slices"][0]["carried_mbps"]["difference"] > 2
        assert all(row["carried_mbps"]["difference"] == 0 for row in after["slices"])


@pytest.mark.parametrize("spoil", ["live", "gap", "missed", "description", "short"])
def test_no_estimate_of_what_cannot_be_played(spoil: str) -> None:
    records = recorded(ticks(COUNT), played(FREE), FREE, first_ahead())
    if spoil == "live":
        records["mode"] = Mode.LIVE
    elif spoil == "gap":
        records["sequence"] += np.arange(COUNT, dtype=np.uint64) // 5
    elif spoil == "missed":
        records["missed"] = np.arange(COUNT) // 5
    elif spoil == "description":
        records["description"] += (np.arange(COUNT) // 200).astype(np.uint32) * 2
    else:
        records = records[:300]
    assert estimates_of(records, description(hardware=NODE)) == []


def test_a_slice_that_was_not_measured_is_left_out() -> None:
    records = recorded(ticks(COUNT), played(FREE), FREE, first_ahead())
    records["valid"][:, 1] = 0
    records["slices"][:, :, 3] = 0
    [estimate, *_] = estimates_of(records, description(hardware=NODE))
    assert [row["slice"] for row in estimate["slices"]] == ["slice1", "slice3", "slice4", "slice5"]
    assert estimate["slices"][2]["delay_p99_us"] is None


def test_hardware_must_have_been_identified() -> None:
    with pytest.raises(ConfigError, match="unknown name 'nowhere'"):
        Estimator(description(hardware="nowhere"))
    with pytest.raises(ConfigError, match=r"hardware 'edge-server': fit\.\w+ is missing; identify it first"):
        Estimator(description(hardware="edge-server"))
