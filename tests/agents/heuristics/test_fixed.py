import csv
from importlib import resources
from typing import Any

import numpy as np
import pytest

from slicepilot.agents.heuristics.fixed import (
    FixedAgent,
    published,
    scaled,
    static_weights,
    static_weights_by_promise,
)
from slicepilot.env.promises import static_order
from slicepilot.env.simulator.backend import ScenarioRuns, SimulatorBackend
from slicepilot.env.simulator.hardware import Hardware
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.env.slices import SliceSet
from tests.agents.played import loads, play, slice_set

FIVE = SliceSet.from_yaml("five-video")


def knobs_of(agent: FixedAgent, lanes: int = 1) -> Any:
    backend = SimulatorBackend(ScenarioRuns(Scenario.from_yaml("andrade-ramp")), lanes)
    telemetry = backend.reset(0)
    agent.reset(backend.slices, backend.context, 0)
    return agent.decide(telemetry, backend.engine.knobs)


def test_published_settings_are_those_of_the_table() -> None:
    table = resources.files("slicepilot.data.reference").joinpath("andrade_experiments.csv").read_text()
    rows = list(csv.DictReader(table.splitlines()))
    assert len(rows) == 26
    for row in rows:
        agent = published(int(row["experiment"]), FIVE)
        knobs = knobs_of(agent)
        assert agent.active_slices == int(row["active_slices"])
        assert knobs.nice_scope == "process"
        for group, members in (("s1", [0]), ("others", [1, 2, 3, 4])):
            for column, empty, values in (
                ("cpu_mcpu", np.inf, knobs.cpu_limit_mcpu),
                ("nice", 0.0, knobs.nice),
                ("egress_mbps", np.inf, knobs.egress_mbps),
            ):
                expected = float(row[f"{group}_{column}"] or empty)
                assert (values[members] == expected).all(), (row["experiment"], group, column)
            request = float(row[f"{group}_cpu_mcpu"] or 0)  # Kubernetes: request = limit where only a limit is given
            assert agent.request_mcpu is not None
            assert (agent.request_mcpu[members] == request).all()


def test_priority_slice_gets_the_setting_of_slice_1_wherever_it_is() -> None:
    agent = published(8, SliceSet(FIVE.slices[::-1]))
    assert agent.request_mcpu is not None
    assert agent.request_mcpu.tolist() == [250, 250, 250, 250, 1000]


def test_scaled_setting_takes_the_same_shares_of_another_node() -> None:
    knobs = knobs_of(scaled(22, FIVE, logical_cpus=2.0, uplink_mbps=500.0))
    assert knobs.cpu_limit_mcpu[:, 0].tolist() == [500, 125, 125, 125, 125]
    assert knobs.egress_mbps[:, 0].tolist() == [np.inf, 75, 75, 75, 75]
    same, original = knobs_of(scaled(22, FIVE, 4.0, 1000.0)), knobs_of(published(22, FIVE))
    assert (same.cpu_limit_mcpu == original.cpu_limit_mcpu).all()


def test_unknown_experiment_and_wrong_number_of_slices_are_refused() -> None:
    with pytest.raises(ValueError, match=r"experiment = 27; expected 1 to 26"):
        published(27, FIVE)
    with pytest.raises(ValueError, match=r"for 3 slices; expected 5"):
        knobs_of(FixedAgent("three", nice=[0, 1, 2]))


@pytest.mark.parametrize("via", ["request", "nice"])
def test_static_weights_give_the_priority_slice_more_under_contention(via: Any) -> None:
    run = loads([180.0, 220.0, 220.0, 220.0, 220.0], 30, hardware=Hardware(smt_yield=0.55))
    carried = {
        ratio: play(static_weights(ratio, run.slices, 4.0, via), run).telemetry[-1].carried_mbps.mean(axis=1)
        for ratio in (1, 3)
    }
    assert carried[3][0] > 1.1 * carried[1][0]
    assert (carried[3][1:] < carried[1][1:]).all()


def test_requests_fit_on_the_node_and_keep_their_ratio() -> None:
    for slices in (slice_set(2), slice_set(64)):
        request = static_weights(3, slices, 4.0).request_mcpu
        assert request is not None
        assert request.sum() <= 4000
        assert request[0] == pytest.approx(3 * request[1])
    promised = static_weights_by_promise(slice_set(5), Hardware(upf_cost_us=20.0)).request_mcpu
    assert promised is not None
    # 120 Mbit/s of 1470 B packets are 10204 packets/s, 20 us each.
    assert promised[0] == pytest.approx(204.1, rel=1e-3)
    assert promised[0] == pytest.approx(2 * promised[1])


def test_the_static_order_goes_by_weight_and_by_who_is_there() -> None:
    weight = np.asarray([[3.5, 1.0], [1.0, 1.0], [2.0, 1.0]], np.float32)
    there = np.ones_like(weight, bool)
    assert static_order(weight, there)[:, 0].tolist() == [-10.0, 9.0, 0.0]
    assert (static_order(weight, there)[:, 1] == 0.0).all()
    there[2, 0] = False
    assert static_order(weight, there)[:2, 0].tolist() == [-10.0, 9.0]
