"""Model-predictive control: its model goes on as telemetry shows, it sees nothing of the future, and planning helps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from slicepilot.agents.heuristics.planners.mpc import PredictedModel
from slicepilot.agents.heuristics.registry import make
from slicepilot.env.knobs import Knobs
from slicepilot.env.simulator.backend import ScenarioRuns, SimulatorBackend
from slicepilot.env.simulator.scenario import Load, Scenario
from slicepilot.training.evaluation.rollouts import simulate_rollout


def steady(rates: list[float]) -> Scenario:
    """Constant loads on the study's node."""
    scenario = Scenario.from_yaml("multi-promise")
    names = scenario.slice_set().names
    loads = {n: (Load("cbr", rate_mbps=r, packet_bytes=1400),) for n, r in zip(names, rates, strict=False)}
    return replace(scenario, loads=loads, duration_s=40.0, uplink_profile=(), cpu_profile=(), absent={})


@pytest.mark.parametrize("mbps", [20.0, 150.0])
def test_its_model_foresees_what_steady_loads_come_to(mbps: float) -> None:
    scenario = steady([mbps] * 8)
    node = replace(scenario.hardware_spec(), access_cv=0.0, cpu_cv=0.0, placement_cv=0.0)
    backend = SimulatorBackend(ScenarioRuns(scenario, hardware=node), 1)
    telemetry = backend.reset(0)
    model = PredictedModel(node, backend.slices, backend.context, 2)
    none = Knobs.none(len(backend.slices), 1)
    for _ in range(15):
        telemetry = backend.observe()
        model.see(telemetry, none)
    model.start(4)
    model.engine.apply(Knobs.none(len(backend.slices), 2))
    foreseen = model.engine.telemetry
    for _ in range(4):
        foreseen, telemetry = model.engine.advance(), backend.observe()
    np.testing.assert_allclose(foreseen.carried_mbps, np.repeat(telemetry.carried_mbps, 2, axis=1), rtol=0.1)


def test_it_sees_nothing_of_the_future() -> None:
    """Two runs that part after half of their time are controlled alike until then."""
    scenario = steady([120.0] * 8)
    period_s = scenario.control_period_s
    half_s = 20.0
    parting = {
        name: (replace(load, profile=((half_s, 1.0), (half_s + period_s, 0.1))),)
        for name, (load,) in scenario.loads.items()
    }
    going_on = {
        name: (replace(load, profile=((half_s, 1.0), (half_s + period_s, 1.0))),)
        for name, (load,) in scenario.loads.items()
    }
    first, second = (
        simulate_rollout(make("mpc", s.slice_set(), s.hardware_spec()), s, 1, 0)
        for s in (replace(scenario, loads=parting), replace(scenario, loads=going_on))
    )
    until = int(half_s / period_s) - 2
    for knob in ("cpu_limit_mcpu", "nice", "egress_mbps"):
        np.testing.assert_array_equal(first.row(knob)[:until], second.row(knob)[:until])
    assert any((first.row(knob) != second.row(knob)).any() for knob in ("cpu_limit_mcpu", "nice"))


@pytest.mark.parametrize("name", ["multi-promise", "testbed-bursts"])
def test_what_it_plans_for_is_the_return_and_that_is_better(name: str) -> None:
    scenario = Scenario.from_yaml(name)
    planned, greedy, free = (
        simulate_rollout(make(agent, scenario.slice_set(), scenario.hardware_spec()), scenario, 2, 0).reward.mean()
        for agent in ("mpc", "greedy", "no-control")
    )
    assert planned > max(greedy, free)
