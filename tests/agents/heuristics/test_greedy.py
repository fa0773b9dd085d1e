"""Greedy grants the promises that fit, shares out the rest, and leaves alone what needs nothing."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from slicepilot.agents.heuristics.fixed import no_control
from slicepilot.agents.heuristics.greedy import Greedy, GreedyConfig
from slicepilot.agents.heuristics.greedy_kernels import allocate
from slicepilot.agents.heuristics.proportional import ProportionalShare
from slicepilot.agents.heuristics.queue_greedy import QueueGreedy, QueueGreedyConfig
from slicepilot.agents.heuristics.registry import make
from slicepilot.env.backend import PACERS, Context
from slicepilot.env.knobs import Knobs
from slicepilot.env.simulator.backend import ScenarioRuns, SimulatorBackend
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry
from slicepilot.training.evaluation.drawn import draw_scenarios
from slicepilot.training.evaluation.rollouts import simulate_rollout as play_scenario
from slicepilot.training.evaluation.scores import broken_s
from tests.agents.played import play

Granted = tuple[np.ndarray, np.ndarray]


def allocated(need: Any, demand: Any, value: Any, capacity: float, spare: float = 1.0) -> Granted:
    """Which needs `allocate` admits, and what it gives, (S,) each; claims are the values."""
    needs, demands, values = (np.asarray(part, np.float32) for part in (need, demand, value))
    admitted, given_ = np.zeros(len(needs), np.bool_), np.zeros_like(needs)
    room, part = np.float32(capacity), np.float32(spare)
    allocate(needs, demands, values, room, values, part, np.zeros_like(needs), admitted, given_)
    return admitted, given_


def test_promises_are_admitted_by_weight_per_need_while_they_fit() -> None:
    admitted, given_ = allocated([60, 30, 30, 5], [60, 30, 30, 5], [3, 1, 2, 1], 100)
    # By weight per need: the last (0.2), the third (0.07), the first (0.05), and for the second nothing is left.
    assert admitted.tolist() == [True, False, True, True]
    np.testing.assert_allclose(given_, [60, 5, 30, 5], rtol=1e-5)


def test_a_promise_that_does_not_fit_is_passed_over_for_a_smaller_promise() -> None:
    admitted, _ = allocated([90, 50, 40], [90, 50, 40], [9, 1, 0.5], 60)
    assert admitted.tolist() == [False, True, False]


needs = st.lists(st.floats(0, 100, width=32), min_size=2, max_size=6)


@given(need=needs, more=needs, capacity=st.floats(1, 300, width=32), spare=st.floats(0, 1))
def test_nobody_gets_more_than_is_wanted_or_there(
    need: list[float], more: list[float], capacity: float, spare: float
) -> None:
    count = min(len(need), len(more))
    low = np.asarray(need[:count], np.float32)
    demand = low + np.asarray(more[:count], np.float32)
    admitted, given_ = allocated(low, demand, np.ones(count), capacity, spare)
    assert (given_ <= demand * 1.001 + 1e-3).all()
    kept = float((low * admitted).sum())
    assert given_.sum() <= kept + spare * (capacity - kept) + 1e-3 * capacity + 1e-2
    assert (given_ >= low * admitted - 1e-3).all()


def test_nothing_is_limited_where_everything_fits(light: Any) -> None:
    for knobs in play(Greedy(egress=True), light).knobs[5:]:
        assert np.isinf(knobs.cpu_limit_mcpu).all()
        assert np.isinf(knobs.egress_mbps).all()
        assert (knobs.nice == 0).all()


def test_the_slice_of_the_highest_weight_is_kept(contended: Any) -> None:
    before, after = play(no_control(), contended, 4), play(Greedy(), contended, 4)
    assert after.violated[0].max() < 0.1 * before.violated[0].min()


def broken(agent: Any, scenario: Scenario) -> float:
    """Broken seconds by weight, in the mean over four lanes."""
    return float(broken_s(play_scenario(agent, scenario, 4, 0)).mean())


def test_a_rate_is_promised_on_average_over_a_window(node: tuple[SliceSet, Context]) -> None:
    """Who has sent little for a while is owed all of a burst; who has had its average is owed the committed rate."""
    slices, context = node
    assert context.traits is not None
    no_queue = replace(context.traits, n3_buffer_packets=np.ones(1, np.float32))
    context = replace(context, num_steps=1000, period_s=np.full(1, 0.1, np.float32), traits=no_queue)
    committed = np.minimum(context.promises.committed_mbps[:, 0], 100.0)
    still, needs = Knobs.none(len(slices), 1), []
    for before in (0.1, 100.0):
        rule = QueueGreedy(config=QueueGreedyConfig(committed_margin=1.0))
        rule.reset(slices, context, 0)
        for rate in [before] * 20 + [100.0] * 3:
            rule.decide(seen(slices, context, rate, rate, 2.0), still)
        needs.append(rule.state["need_cpu_mbps"][:, 0].copy())
    silent, loud = needs
    # What three periods of the burst have not yet used up of two seconds at the committed rate.
    owed = committed * 20 >= 2 * 3 * 100
    assert owed.sum() >= 2
    assert (silent > np.minimum(1.2 * committed, 80.0))[owed].all()
    assert (loud < silent - 1.0).any()
    assert (loud >= committed - 1e-3).all()


@pytest.mark.parametrize("name", ["slice-churn", "multi-promise", "edge-server", "application-mix"])
def test_more_promises_are_kept_than_by_proportional_shares(name: str) -> None:
    scenario = Scenario.from_yaml(name)
    assert broken(Greedy(), scenario) < 0.7 * broken(ProportionalShare(), scenario)


def test_a_short_uplink_is_divided_by_shaping_and_less_well_by_cpu() -> None:
    scenario = Scenario.from_yaml("link-degradation")
    shaped, limited, free = (broken(agent, scenario) for agent in (Greedy(egress=True), Greedy(), no_control()))
    assert shaped < 0.5 * limited
    assert limited < free


# -- with an eye on queues -----------------------------------------------------------------------------------------


def seen(slices: SliceSet, context: Context, offered: float, carried: float, cost: float) -> Telemetry:
    """All slices offer, carry and cost the same; one full CPU is idle."""
    telemetry = Telemetry.empty(len(slices), 1)
    telemetry.offered_mbps[:], telemetry.carried_mbps[:] = offered, carried
    telemetry.cpu_use_mcpu[:] = cost * carried
    telemetry.cpu_idle_ratio[:] = 1.0 / context.logical_cpus
    telemetry.valid[:] = True
    return telemetry


@pytest.fixture(name="node")
def _node() -> tuple[SliceSet, Context]:
    backend = SimulatorBackend(ScenarioRuns(Scenario.from_yaml("multi-promise")), 1)
    backend.reset(0)
    return backend.slices, backend.context


def needs_of(rule: Greedy, node: tuple[SliceSet, Context], **traits: float) -> np.ndarray:
    """Mbit/s that promises take through the UPFs where each slice offers 400 at 2 mCPU a Mbit, (S,)."""
    slices, context = node
    assert context.traits is not None
    changed = {name: np.full(1, value, np.float32) for name, value in traits.items()}
    context = replace(context, traits=replace(context.traits, **changed))
    rule.reset(slices, context, 0)
    for _ in range(40):
        rule.decide(seen(slices, context, 400.0, 400.0, 2.0), Knobs.none(len(slices), 1))
    return rule.state["need_cpu_mbps"][:, 0].copy()


def test_a_slice_that_is_cut_needs_what_empties_its_queue_in_time(node: tuple[SliceSet, Context]) -> None:
    cfg = QueueGreedyConfig(queue_share=0.8, committed_margin=1.0)
    promises, threads = node[1].promises, node[1].threads[:, 0]
    committed, bound_s = promises.committed_mbps[:, 0], 1e-6 * promises.delay_bound_us[:, 0]
    met = 0
    for packets in (30.0, 300.0, 1000.0, 3000.0, 10_000.0):
        need = needs_of(QueueGreedy(config=cfg), node, n3_buffer_packets=packets)
        # A full queue and what is left of a quota's period, together.
        waits_s = packets * 1400 * 8e-6 / need + 0.1 * (1.0 - need * 2.0 / (1e3 * threads))
        cut = need < 399.0
        assert (waits_s <= 0.8 * bound_s + 1e-5)[cut].all()
        just = cut & (need > 1.001 * committed)
        np.testing.assert_allclose(waits_s[just], 0.8 * bound_s[just], rtol=1e-3)
        met += int(just.sum())
    assert met >= 3


def test_a_shaper_needs_what_empties_its_queue_in_time(node: tuple[SliceSet, Context]) -> None:
    cfg = QueueGreedyConfig(queue_share=0.8, committed_margin=1.0)
    promises = node[1].promises
    committed, bound_s = promises.committed_mbps[:, 0], 1e-6 * promises.delay_bound_us[:, 0]

    def uplink(kind: str, **traits: float) -> np.ndarray:
        rule = QueueGreedy(config=cfg)
        needs_of(rule, node, pacer=PACERS.index(kind), **traits)
        return rule.state["need_uplink_mbps"][:, 0].copy()

    packets = 500.0
    by_queue = packets * 1400 * 8e-6 / (0.8 * bound_s)
    expected = np.minimum(400.0, np.maximum(committed, by_queue))
    np.testing.assert_allclose(uplink("htb", pacer_packets=packets), expected, rtol=2e-3)
    in_time = 800.0 * bound_s >= 40.0
    assert in_time.any()
    assert not in_time.all()
    # A bucket's queue is as long at any rate.
    expected = np.where(in_time, np.minimum(400.0, committed), 400.0)
    np.testing.assert_allclose(uplink("tbf", pacer_ms=40.0), expected, rtol=2e-3)


def test_of_a_node_that_is_not_known_it_takes_what_greedy_takes(node: tuple[SliceSet, Context]) -> None:
    slices, context = node
    context = replace(context, traits=None)
    needs_made = []
    for rule in (Greedy(), QueueGreedy(egress=False)):
        rule.reset(slices, context, 0)
        for _ in range(40):
            rule.decide(seen(slices, context, 400.0, 400.0, 2.0), Knobs.none(len(slices), 1))
        needs_made.append(rule.state["need_cpu_mbps"].copy())
    np.testing.assert_allclose(needs_made[0], needs_made[1], rtol=1e-4)


def test_where_nothing_paces_or_what_does_drops_all_no_rate_is_set() -> None:
    backend = SimulatorBackend(ScenarioRuns(Scenario.from_yaml("link-degradation")), 1)
    telemetry = backend.reset(0)
    context = backend.context
    assert context.traits is not None
    kinds = ("htb", "none", "edt")
    rules = [QueueGreedy() for _ in kinds]
    for rule, kind in zip(rules, kinds, strict=True):
        pacer = np.full(1, PACERS.index(kind), np.float32)
        rule.reset(backend.slices, replace(context, traits=replace(context.traits, pacer=pacer)), 0)
    rated = [False] * len(kinds)
    knobs = Knobs.none(len(backend.slices), 1)
    for _ in range(context.num_steps - 1):
        for k, rule in enumerate(rules):
            wanted = rule.decide(telemetry, knobs)
            rated[k] |= bool(np.isfinite(wanted.egress_mbps).any())
        backend.apply(Knobs.none(len(backend.slices), 1))
        telemetry = backend.observe()
    assert rated == [True, False, False]


def test_a_burst_that_a_quota_held_back_has_more_room_from_then_on(node: tuple[SliceSet, Context]) -> None:
    slices, context = node
    rule = QueueGreedy()
    rule.reset(slices, context, 0)
    still, limits = Knobs.none(len(slices), 1), []
    for period in range(60):
        telemetry = seen(slices, context, 60.0, 60.0, 2.0)
        telemetry.throttled_ratio[0] = 0.3 if period == 30 else 0.0
        limits.append(rule.decide(telemetry, still).cpu_limit_mcpu[:, 0])
    before, after = limits[29], limits[-1]
    assert np.isfinite(before).all()
    assert (before > 40.0).all()
    assert after[0] > 1.5 * before[0]
    np.testing.assert_allclose(after[1:], before[1:], rtol=0.1)


def test_cpu_time_that_no_promise_needs_is_left_to_an_edge_application() -> None:
    scenario = Scenario.from_yaml("testbed-promises")
    used, broken = {}, {}
    for name in ("experiment-7-scaled", "queue-greedy", "queue-greedy-edge"):
        agent = make(name, scenario.slice_set(), scenario.hardware_spec())
        played = play(agent, ScenarioRuns(scenario), 4)
        used[name] = sum(float(seen.cpu_use_mcpu.sum()) for seen in played.telemetry)
        broken[name] = float((played.violated * played.context.promises.weight).sum())
    assert used["queue-greedy-edge"] < 0.95 * used["queue-greedy"]
    assert broken["queue-greedy-edge"] < 0.5 * broken["experiment-7-scaled"]


# -- what is measured, and what follows from it --------------------------------------------------------------------


def test_what_is_dropped_behind_the_upf_does_not_make_a_mbit_dear(node: tuple[SliceSet, Context]) -> None:
    slices, context = node
    rule, still = Greedy(egress=True), Knobs.none(len(slices), 1)
    rule.reset(slices, context, 0)
    costs = []
    for period in range(60):
        telemetry = seen(slices, context, 100.0, 100.0, 2.0)
        if period >= 20:  # the link is full, half of what the UPFs serve is lost there
            telemetry.carried_mbps[:], telemetry.uplink_use_ratio[:] = 50.0, 1.0
        rule.decide(telemetry, still)
        costs.append(rule.state["cost"][:, 0].copy())
    np.testing.assert_allclose(costs[-1], costs[19], rtol=1e-3)


def test_a_full_uplink_is_believed_at_once_and_an_idle_one_slowly(node: tuple[SliceSet, Context]) -> None:
    slices, context = node
    context = replace(context, period_s=np.full(1, 0.01, np.float32), uplink_mbps=np.full(1, 1000.0, np.float32))
    rule, still = Greedy(egress=True), Knobs.none(len(slices), 1)
    rule.reset(slices, context, 0)
    rates = []
    for use in (0.1, 1.0, 0.1):
        telemetry = seen(slices, context, 20.0, 10.0, 2.0)
        telemetry.uplink_use_ratio[:] = use
        rule.decide(telemetry, still)
        rates.append(float(rule.nodes["uplink_mbps"][0]))
    assert rates[0] == pytest.approx(1000.0)
    assert rates[1] == pytest.approx(10.0 * len(slices))
    assert rates[2] < 2 * rates[1]


def test_limits_that_hold_do_not_shrink_the_node(node: tuple[SliceSet, Context]) -> None:
    """Others take what slices leave: what slices use then is not what there is."""
    slices, context = node
    context = replace(context, period_s=np.full(1, 0.1, np.float32))
    rule, still = QueueGreedy(), Knobs.none(len(slices), 1)
    rule.reset(slices, context, 0)
    whole = 1e3 * float(context.logical_cpus[0])
    telemetry = seen(slices, context, 10.0, 10.0, 2.0)
    telemetry.cpu_idle_ratio[:] = 0.0
    result = []
    for _ in range(1000):
        rule.decide(telemetry, still)
        result.append(float(rule.nodes["capacity_mcpu"][0]))
    assert result[10] > 0.85 * whole
    assert result[-1] == pytest.approx(QueueGreedyConfig().least_share * whole, rel=0.02)


def test_a_slice_is_cut_in_one_place(node: tuple[SliceSet, Context]) -> None:
    """Before its UPF, where quotas are even enough: that hands the shaper less than it lets through."""
    slices, context = node
    assert context.traits is not None
    pacer, queue = np.full(1, PACERS.index("htb"), np.float32), np.full(1, 3000.0, np.float32)
    cut = {}
    for cfs_period_s in (0.002, 1.0):
        period = np.full(1, cfs_period_s, np.float32)
        traits = replace(context.traits, pacer=pacer, pacer_packets=queue, cfs_period_s=period)
        short = replace(
            context,
            traits=traits,
            uplink_mbps=np.full(1, 600.0, np.float32),
            logical_cpus=np.full(1, 64.0, np.float32),
        )
        rule = QueueGreedy()
        rule.reset(slices, short, 0)
        knobs = Knobs.none(len(slices), 1)
        for _ in range(40):
            knobs = rule.decide(seen(slices, short, 400.0, 90.0, 8.0), knobs)
        rate, limit = knobs.egress_mbps[:, 0], knobs.cpu_limit_mcpu[:, 0]
        shaped = np.isfinite(rate) & (rate > 15.0)  # what less would take lies below the least limit
        assert shaped.sum() >= 2
        cut[cfs_period_s] = (limit < 8.0 * rate)[shaped]
    assert cut[0.002].all()
    assert not cut[1.0].any()


def test_an_absent_slice_keeps_its_knobs(node: tuple[SliceSet, Context]) -> None:
    rule = QueueGreedy()
    rule.reset(*node, 0)
    telemetry = Telemetry.empty(len(node[0]), 1)
    telemetry.valid[0] = False
    held = Knobs.none(len(node[0]), 1)
    held.values[:, 0] = np.asarray([[750], [-3], [12]], np.float32)
    np.testing.assert_array_equal(
        rule.decide(telemetry, held).values[:, 0], np.asarray([[750], [-3], [12]], np.float32)
    )


def test_a_slice_steps_back_after_a_while(node: tuple[SliceSet, Context]) -> None:
    slices, context = node
    context = replace(context, period_s=np.full(1, 0.05, np.float32), num_steps=1000)
    behind_from = {}
    for step_back_s in (0.0, 0.25):
        config = GreedyConfig(step_back_s=step_back_s, fall_s=0.01, rise_s=0.01, idle_ratio=2.0)
        rule = Greedy(config=config)
        rule.reset(slices, context, 0)
        levels = []
        for period in range(24):
            offered = 10.0 if period < 10 else 4000.0  # what does not fit
            knobs = rule.decide(seen(slices, context, offered, 10.0, 2.0), Knobs.none(len(slices), 1))
            levels.append(knobs.nice[:, 0].copy())
        behind = np.asarray(levels) == config.nice[2]
        assert behind[-1].any()
        assert not behind[:10].any()
        behind_from[step_back_s] = int(behind.any(axis=1).argmax())
    assert behind_from[0.25] - behind_from[0.0] in {4, 5}


def test_a_slice_whose_promise_is_given_up_is_not_cut_off(node: tuple[SliceSet, Context]) -> None:
    """It follows those whose promises are kept: farther behind, it would fall below the guard's floor."""
    slices, context = node
    alike = np.full_like(context.promises.delay_bound_us, 250e3)
    context = replace(context, promises=replace(context.promises, delay_bound_us=alike))
    rule = QueueGreedy(config=QueueGreedyConfig(idle_ratio=2.0))
    rule.reset(slices, context, 0)
    knobs = Knobs.none(len(slices), 1)
    for _ in range(24):  # of which not all fits
        knobs = rule.decide(seen(slices, context, 4000.0, 10.0, 2.0), Knobs.none(len(slices), 1))
    assert set(knobs.nice.ravel()) == {-7.0, 0.0}


@pytest.mark.parametrize("name", ["slice-churn", "multi-promise", "edge-server", "application-mix", "link-degradation"])
def test_it_breaks_no_more_promises_than_greedy(name: str) -> None:
    scenario = Scenario.from_yaml(name)
    assert broken(QueueGreedy(), scenario) < 1.1 * broken(Greedy(egress=True), scenario) + 0.5


def test_short_queues_let_a_tight_promise_be_kept_at_the_committed_rate(tmp_path: Path) -> None:
    """A development scenario in which all that is offered does not fit, and what is promised does."""
    scenario = draw_scenarios(tmp_path, seed=4, count=13)[12]
    assert broken(QueueGreedy(), scenario) < 0.9 * broken(Greedy(egress=True), scenario)


SHORT_UPLINK = """
slices:
  - name: critical
    s_nssai: {sst: 1, sd: "000001"}
    weight: 10
    sla: {committed_mbps: 10, delay_bound_ms: 50}
  - name: best-effort
    s_nssai: {sst: 1, sd: "000002"}
    sla: {committed_mbps: 1, delay_bound_ms: 1000}
"""


@pytest.mark.parametrize("mode", ["edt", "tbf"])
def test_on_a_short_uplink_best_effort_has_what_the_critical_slice_leaves(tmp_path: Path, mode: str) -> None:
    uplink_mbps = 33.0
    node = {"logical_cpus": 2, "upf_cost_us": 100, "uplink_mbps": uplink_mbps, "cfs_period_ms": 10, "egress_mode": mode}
    (tmp_path / "slices.yaml").write_text(SHORT_UPLINK)
    (tmp_path / "hardware.yaml").write_text(yaml.safe_dump({"source": "test", "hardware": node}))
    scenario: dict[str, Any] = {
        "name": "short",
        "description": "A short uplink.",
        "slices": "slices.yaml",
        "hardware": "hardware.yaml",
    }
    scenario |= {"duration_s": 20, "control_period_s": 0.02, "loads": {}}
    for name, rate_mbps in (("critical", 10), ("best-effort", 33)):
        scenario["loads"][name] = [{"kind": "cbr", "rate_mbps": rate_mbps, "packet_bytes": 1400}]
    (tmp_path / "short.yaml").write_text(yaml.safe_dump(scenario))
    played = play_scenario(QueueGreedy(), Scenario.from_yaml(str(tmp_path / "short.yaml")), 1, 0)
    critical, others = played.row("carried_mbps")[200:].mean(axis=0)[:, 0]
    assert critical > 9.9
    assert others > (0.9 if mode == "edt" else 0.7) * (uplink_mbps - critical)
