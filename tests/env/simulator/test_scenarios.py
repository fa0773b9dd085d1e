"""The shipped scenarios can be played, contend for the node some of the time, and differ in what happens."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from slicepilot.agents.heuristics.fixed import no_control
from slicepilot.agents.heuristics.registry import make
from slicepilot.configs import available
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.training.evaluation.rollouts import Rollout, simulate_rollout
from slicepilot.training.evaluation.scores import broken_s

# Those of the testbed are for real UPFs, in real time.
UNSEEN = sorted(
    name
    for name in set(available("scenarios")) - {"andrade-ramp", "andrade-ramp-priority"}
    if not name.startswith("testbed-")
)
LANES, SEED = 4, 11


@cache
def played(name: str, agent: str = "no-control") -> Rollout:
    scenario = Scenario.from_yaml(name)
    return simulate_rollout(make(agent, scenario.slice_set(), scenario.hardware_spec()), scenario, LANES, SEED)


def weighted_violation_share(recording: Rollout) -> float:
    return float(broken_s(recording).mean() / (len(recording.time_s) * recording.period_s))


@pytest.mark.parametrize("name", UNSEEN)
def test_scenario_is_well_formed(name: str) -> None:
    scenario = Scenario.from_yaml(name)
    assert scenario.name == name
    assert 300 <= scenario.duration_s <= 600
    assert set(scenario.loads) == set(scenario.slice_set().names), "every slice has something to send"
    assert len(scenario.description) > 80


@pytest.mark.parametrize("name", UNSEEN)
def test_promises_are_neither_all_kept_nor_all_broken_without_control(name: str) -> None:
    assert 0.05 < weighted_violation_share(played(name)) < 0.6


@pytest.mark.parametrize("name", UNSEEN)
def test_a_simple_heuristic_already_keeps_more(name: str) -> None:
    heuristics = ("proportional-share", "reactive-sla", "static-weights-3")
    best = min(weighted_violation_share(played(name, heuristic)) for heuristic in heuristics)
    assert best < weighted_violation_share(played(name))


def test_they_cover_more_than_one_node_period_and_size() -> None:
    scenarios = [Scenario.from_yaml(name) for name in UNSEEN]
    assert len({s.hardware_spec().logical_cpus for s in scenarios}) > 1
    assert {s.control_period_s for s in scenarios} >= {0.1, 1.0}
    assert max(len(s.slice_set()) for s in scenarios) >= 12
    assert {load.kind for s in scenarios for loads in s.loads.values() for load in loads} == {
        "video", "cbr", "poisson", "onoff", "apps", "tcp",
    }  # fmt: skip


def test_slices_arrive_and_depart() -> None:
    recording = played("slice-churn")
    names = recording.slices.names
    there = recording.valid[:, :, 0]
    embb, agv = there[:, names.index("embb-office")], there[:, names.index("urllc-agv")]
    assert not embb[:110].any()
    assert embb[125:].all()
    assert np.flatnonzero(np.diff(agv.astype(int))).size == 2, "it leaves and comes back"
    offered = recording.row("offered_mbps")
    assert not offered[~recording.valid].any(), "nothing is offered by a slice that is not there"
    assert not recording.violated[~recording.valid].any()


def test_the_uplink_is_what_limits_while_it_is_degraded() -> None:
    scenario = Scenario.from_yaml("link-degradation")
    healthy = simulate_rollout(no_control(), replace(scenario, uplink_profile=()), LANES, SEED)
    degraded = played("link-degradation")
    during = (degraded.time_s > 100) & (degraded.time_s < 210)
    carried = [r.row("carried_mbps")[during].sum(axis=1).mean() for r in (degraded, healthy)]
    capacity = 0.4 * scenario.hardware_spec().uplink_mbps
    assert carried[0] == pytest.approx(capacity, rel=0.02)
    assert carried[1] > 1.05 * capacity
