"""The bound: nobody beats it, it is what can be computed by hand, and it is not far above what can be had."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slicepilot.agents.heuristics.registry import make
from slicepilot.env.reward import RewardWeights
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.training.evaluation.bound import bound
from slicepilot.training.evaluation.drawn import draw_scenarios
from slicepilot.training.evaluation.rollouts import simulate_rollout
from slicepilot.training.evaluation.scores import violation_s

RIVALS = ("no-control", "greedy", "greedy-egress", "static-weights-promise", "proportional-share", "clairvoyant")


def assert_nobody_beats_it(scenario: Scenario, lanes: int, rivals: tuple[str, ...]) -> None:
    weights = RewardWeights.from_yaml()
    limit = bound(scenario, lanes, 3, weights)
    weight = scenario.slice_set().column("weight")
    for name in rivals:
        run = simulate_rollout(make(name, scenario.slice_set(), scenario.hardware_spec()), scenario, lanes, 3, weights)
        broken_s = (violation_s(run) * weight / weight.sum()).sum(axis=0)
        assert np.all(run.reward.mean(axis=0) <= limit.returns + 1e-4), name
        assert np.all(broken_s >= limit.violation_s - 1e-4), name


@pytest.mark.parametrize(
    "name",
    [
        "slice-churn",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("multi-promise", "link-degradation", "testbed-bursts")),
    ],
)
def test_nobody_beats_it_on_shipped_scenarios(name: str) -> None:
    assert_nobody_beats_it(Scenario.from_yaml(name), 2, RIVALS)


@pytest.mark.slow
def test_nobody_beats_it_on_drawn_scenarios(tmp_path: Path) -> None:
    for scenario in draw_scenarios(tmp_path, 0, 12):
        assert_nobody_beats_it(scenario, 2, RIVALS[:-1])


SLICES = """
slices:
  - {name: a, s_nssai: {sst: 1, sd: "000001"}, weight: 3, sla: {committed_mbps: 100, delay_bound_ms: 5000}}
  - {name: b, s_nssai: {sst: 1, sd: "000002"}, weight: 1, sla: {committed_mbps: 100, delay_bound_ms: 5000}}
"""


def scenario_of(folder: Path, uplink_mbps: float, cost_us: float) -> Scenario:
    """Two slices that offer what they are promised, on a node of one CPU without noise."""
    (folder / "slices.yaml").write_text(SLICES)
    (folder / "node.yaml").write_text(
        "source: test\nhardware: {logical_cpus: 1, physical_cores: 1, smt_yield: 1, rx_cost_us: 0, tx_cost_us: 0, "
        f"upf_cost_us: {cost_us}, uplink_mbps: {uplink_mbps}, n3_buffer_packets: 100}}\n"
    )
    (folder / "scenario.yaml").write_text(
        f"name: two\ndescription: two\nslices: {folder}/slices.yaml\nhardware: {folder}/node.yaml\n"
        "duration_s: 40\ncontrol_period_s: 1\n"
        "loads:\n  a: [{kind: cbr, rate_mbps: 100, packet_bytes: 1250}]\n"
        "  b: [{kind: cbr, rate_mbps: 100, packet_bytes: 1250}]\n"
    )
    return Scenario.from_yaml(str(folder / "scenario.yaml"))


@pytest.mark.parametrize(("uplink_mbps", "cost_us"), [(150.0, 1.0), (1000.0, 1e6 * 0.01 / 150.0)])
def test_half_of_what_is_short_by_half_a_promise_is_broken(tmp_path: Path, uplink_mbps: float, cost_us: float) -> None:
    """150 Mbit/s for two promises of 99, whether the uplink or the CPU allows no more: the dear promise is kept, and
    half of the other, (150 - 99) / 99."""
    limit = bound(scenario_of(tmp_path, uplink_mbps, cost_us), 1, 0, RewardWeights.from_yaml())
    assert limit.violation_s[0] == pytest.approx(0.25 * 40 * (1 - 51 / 99), rel=0.03)


def test_where_there_is_enough_nothing_need_be_broken(tmp_path: Path) -> None:
    limit = bound(scenario_of(tmp_path, 1000.0, 10.0), 1, 0, RewardWeights.from_yaml())
    assert limit.violation_s[0] == 0.0
