"""The simulator models causes: each knob and each part of a node moves what it moves on a real node, and nothing else.

All runs here are on a node without noise, so that figures can be computed by hand. A packet of 1470 B is 11.76 kbit; at
50 us of CPU each, one CPU carries 235 Mbit/s.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicepilot.env.knobs import Knobs
from slicepilot.env.simulator import cpu, kernels
from slicepilot.env.simulator.backend import ScenarioRuns
from slicepilot.env.simulator.hardware import Hardware
from slicepilot.env.simulator.scenario import Scenario
from tests.effort import examples
from tests.loads import QUIET, Loads, knobs_of, play

MBPS_PER_CPU = 1470 * 8 / 50.0
CONTENDED = [120.0, 250.0, 250.0, 250.0, 250.0]  # more than four threads at SMT's speed can carry


def without_interrupts(hardware: Hardware) -> Hardware:
    """A thread has its CPU to itself."""
    return replace(hardware, rx_cost_us=0.0, tx_cost_us=0.0)


def filled(capacity: list[float], demand: Any, weight: Any) -> np.ndarray:
    """Shares (S, N) of demands (S, N) by weights (S,)."""
    wanted = np.asarray(demand, np.float32)
    weights = np.broadcast_to(np.asarray(weight, np.float32)[:, None], wanted.shape).copy()
    share = np.zeros_like(wanted)
    cpu.water_fill(np.asarray(capacity, np.float32), wanted, weights, share)
    return share


def test_water_filling_serves_small_demands_and_shares_the_rest_by_weight() -> None:
    demand = np.asarray([[0.2, 2.0, 2.0, 2.0], [0.2, 2.0, 2.0, 0.5], [0.2, 1.0, 1.0, 0.5]]).T
    expected = np.asarray([[0.2, 0.4, 0.8, 1.6], [0.2, 2.3 / 3, 4.6 / 3, 0.5], [0.2, 1.0, 1.0, 0.5]]).T
    weight = [1.0, 1.0, 2.0, 4.0]
    together = filled([3.0] * 3, demand, weight)
    np.testing.assert_allclose(together, expected, rtol=1e-6)
    # A lane does not depend on its neighbours, which may need more rounds.
    for lane in range(3):
        np.testing.assert_array_equal(filled([3.0], demand[:, [lane]], weight), together[:, [lane]])


@given(
    capacity=st.floats(0.05, 64),
    demand=st.lists(st.floats(0, 8), min_size=1, max_size=12),
    weight=st.lists(st.floats(2, 1e5), min_size=12, max_size=12),
)
def test_water_filling_is_work_conserving(capacity: float, demand: list[float], weight: list[float]) -> None:
    wanted = np.asarray(demand, np.float32)
    share = filled([capacity], wanted[:, None], weight[: len(demand)])[:, 0]
    assert np.all((share >= 0) & (share <= wanted))
    assert share.sum(dtype=np.float64) == pytest.approx(min(capacity, wanted.sum(dtype=np.float64)), rel=1e-5, abs=1e-6)


def test_a_higher_group_weight_lifts_a_slice_under_contention() -> None:
    equal = play(Loads(CONTENDED))
    lifted = play(Loads(CONTENDED), knobs_of(5, nice=[-10, 0, 0, 0, 0]))
    assert equal.end("loss_ratio").min() > 0.1
    assert lifted.end("carried_mbps")[0] > 1.15 * equal.end("carried_mbps")[0]
    assert lifted.end("delay_p99_us")[0] < 0.5 * equal.end("delay_p99_us")[0]
    assert np.all(lifted.end("carried_mbps")[1:] < equal.end("carried_mbps")[1:])
    # Work-conserving: weight moves CPU, it does not make or waste any.
    assert lifted.end("carried_mbps").sum() == pytest.approx(equal.end("carried_mbps").sum(), rel=0.02)


def test_weight_changes_nothing_without_contention() -> None:
    light = Loads([40.0, 40.0])
    np.testing.assert_array_equal(play(light).slices, play(light, knobs_of(2, nice=[-20, 19])).slices)


@pytest.mark.parametrize("mbps", [CONTENDED, [100.0, 200.0, 300.0]])
def test_nice_of_process_scope_changes_nothing(mbps: list[float]) -> None:
    nice = [-20, *[19] * (len(mbps) - 1)]
    reniced = play(Loads(mbps), knobs_of(len(mbps), "process", nice=nice))
    np.testing.assert_array_equal(play(Loads(mbps)).slices, reniced.slices)


def test_a_thread_waits_while_its_cpu_serves_interrupts() -> None:
    """One busy UPF on four CPUs that are otherwise idle gets what softirqs leave of one."""
    alone = [1000.0, 0.0]
    carried = {
        rx: play(Loads(alone, replace(QUIET, rx_cost_us=rx, tx_cost_us=0.0))).end("carried_mbps")[0]
        for rx in (0.0, 10.0)
    }
    softirq_cpus = 1000.0 / (8e-6 * 1470.0) * 10.0 * 1e-6
    assert carried[10.0] / carried[0.0] == pytest.approx(1.0 - softirq_cpus / QUIET.logical_cpus, rel=0.03)


def test_a_thread_that_keeps_up_pays_for_waking() -> None:
    plain, waking = (
        play(Loads([20.0, 1000.0], replace(QUIET, wake_cost_ratio=ratio))).end("cpu_use_mcpu") for ratio in (0.0, 0.5)
    )
    assert waking[0] > 1.3 * plain[0]
    assert waking[1] == pytest.approx(plain[1], rel=0.05)


def test_luck_of_placement_moves_shares_of_contended_cpus_only() -> None:
    lucky = replace(QUIET, placement_cv=0.3)
    contended = play(Loads(CONTENDED, lucky)).end("carried_mbps")
    assert np.ptp(contended) > 0.02 * contended.mean()
    assert contended.sum() == pytest.approx(play(Loads(CONTENDED)).end("carried_mbps").sum(), rel=0.03)
    light = [40.0, 40.0]
    np.testing.assert_array_equal(play(Loads(light, lucky)).slices, play(Loads(light)).slices)


def test_slices_share_the_link_to_the_node() -> None:
    crowded = play(Loads([100.0, 300.0], replace(QUIET, ingress_mbps=200.0)))
    np.testing.assert_allclose(crowded.end("offered_mbps"), [50.0, 150.0], rtol=1e-3)


def test_a_request_gives_weight() -> None:
    best_effort = play(Loads(CONTENDED))
    requested = play(Loads(CONTENDED, request_mcpu=[1000, 0, 0, 0, 0]))
    assert requested.end("carried_mbps")[0] > 1.15 * best_effort.end("carried_mbps")[0]
    assert np.all(requested.end("carried_mbps")[1:] < best_effort.end("carried_mbps")[1:])
    # kubelet's MilliCPUToShares: 1024 shares per CPU, 2 for BestEffort.
    assert cpu.group_weight(250.0, 0.0, True) == pytest.approx(256)
    assert cpu.group_weight(0.0, 0.0, True) == 2


def test_who_needs_little_waits_only_while_others_keep_all_cpus_busy() -> None:
    def waits_us(others_mbps: float, nice: float = 0.0, **node: float) -> float:
        loads = Loads([10.0, *[others_mbps] * 4], without_interrupts(replace(QUIET, **node)))
        return float(play(loads, knobs_of(5, nice=[nice, 0, 0, 0, 0])).end("runqueue_delay_us")[0])

    assert waits_us(250.0) == 0
    assert waits_us(250.0, wake_wait_ms=2.0) == pytest.approx(1000, rel=0.01)  # all weigh the same
    assert waits_us(250.0, nice=-20, wake_wait_ms=2.0) < 30
    assert waits_us(250.0, nice=19, wake_wait_ms=2.0) > 1900
    assert waits_us(10.0, wake_wait_ms=2.0) == 0
    # Alone it has nobody to wait for, be the node as small as one CPU.
    assert waits_us(0.0, wake_wait_ms=2.0, logical_cpus=1.0, physical_cores=1.0) == 0


def test_other_work_takes_what_its_weight_allows_and_what_is_left() -> None:
    requests = [500.0] * 5

    def carried(mbps: list[float], **edge: float) -> tuple[float, float]:
        played = play(Loads(mbps, replace(QUIET, **edge), request_mcpu=requests))
        return float(played.end("carried_mbps").sum()), float(played.node[-1, 0, 0])

    alone, idle = carried([20.0] * 5)
    beside, none = carried([20.0] * 5, edge_threads=4.0)
    assert beside == pytest.approx(alone)
    assert idle > 0.3
    assert none == pytest.approx(0, abs=1e-3)
    full = carried(CONTENDED)[0]
    assert carried(CONTENDED, edge_threads=4.0)[0] == pytest.approx(full, rel=0.01)  # BestEffort
    assert carried(CONTENDED, edge_threads=4.0, edge_request_mcpu=2500.0)[0] == pytest.approx(full / 2, rel=0.05)


@settings(max_examples=examples(40))
@given(limit=st.floats(50, 700), period_s=st.sampled_from([0.002, 0.01, 0.025, 0.03, 0.05, 0.1, 0.25, 1.0, 30.0]))
def test_a_quota_caps_the_rate_at_any_control_period(limit: float, period_s: float) -> None:
    steps = max(round(2.0 / period_s), 8)
    run = play(Loads([180.0], period_s=period_s, steps=steps), knobs_of(1, cpu_limit_mcpu=limit))
    settled = run["carried_mbps"][steps // 2 :, 0, 0].mean()
    assert settled == pytest.approx(min(MBPS_PER_CPU * limit / 1000, 180), rel=0.04)
    assert run["cpu_use_mcpu"][steps // 2 :].mean() <= 1.04 * limit


@pytest.mark.parametrize("period_s", [0.002, 0.05, 0.1, 1.0])
def test_throttling_adds_up_to_a_cfs_period_of_delay(period_s: float) -> None:
    """A quota just below the demand: delay beyond the queue is the time the threads stand still in each CFS period."""
    buffer = replace(QUIET, n3_buffer_packets=1.0)  # next to no queue
    limit = 0.9 * 1000 * 60 / MBPS_PER_CPU
    steps = round(10 / period_s) if period_s >= 0.1 else 200

    def p99(hardware: Hardware, knobs: Knobs | None) -> float:
        return float(play(Loads([60.0], hardware, period_s, steps), knobs).end("delay_p99_us")[0])

    free, throttled = p99(buffer, None), p99(buffer, knobs_of(1, cpu_limit_mcpu=limit))
    shorter = p99(replace(buffer, cfs_period_ms=10.0), knobs_of(1, cpu_limit_mcpu=limit))
    assert free < 1_000
    assert 50_000 < throttled - free < 100_000
    assert 5_000 < shorter - free < 10_000 + 1_000


def test_a_throttled_slice_is_served_in_the_first_part_of_the_cfs_period_only() -> None:
    run = play(Loads([180.0], without_interrupts(QUIET), period_s=0.002, steps=549), knobs_of(1, cpu_limit_mcpu=250))
    # The reset has played period 0; drop what belongs to the first CFS period.
    carried = run["carried_mbps"][49:, 0, 0].reshape(-1, 50)
    settled = carried[3:]
    served = settled > 1.0
    # 25 ms of quota at the speed of one thread are 12 or 13 control periods of 2 ms, and then nothing until the refill.
    assert np.all(served[:, :12])
    assert not np.any(served[:, 13:])
    np.testing.assert_allclose(settled.mean(axis=1), 0.25 * MBPS_PER_CPU, rtol=0.02)


@pytest.mark.parametrize("period_s", [0.002, 0.005, 0.05, 1.0])
def test_limits_do_not_make_more_cpus_than_there_are(period_s: float) -> None:
    """Limits that add up to more than the node has: the groups still share what there is, in every control period."""
    steps = max(round(1.0 / period_s), 8)
    free = play(Loads([180.0] * 8, period_s=period_s, steps=steps))
    limited = play(Loads([180.0] * 8, period_s=period_s, steps=steps), knobs_of(8, cpu_limit_mcpu=950.0))
    assert limited["cpu_use_mcpu"].sum(axis=1).max() <= 4000.0 * 1.001
    total = limited["carried_mbps"][steps // 2 :].sum(axis=1).mean()
    assert total <= 1.02 * free["carried_mbps"][steps // 2 :].sum(axis=1).mean()


def test_threads_slow_down_when_their_siblings_are_busy() -> None:
    """Four busy threads on two cores with four logical CPUs: nobody waits, everybody is slower."""

    def carried(slices: int, hardware: Hardware = QUIET) -> float:
        return float(play(Loads([400.0] * slices, hardware)).end("carried_mbps")[0])

    no_softirq = replace(QUIET, rx_cost_us=0.0, tx_cost_us=0.0)
    assert carried(1, no_softirq) == pytest.approx(MBPS_PER_CPU, rel=0.01)
    assert carried(2, no_softirq) == pytest.approx(MBPS_PER_CPU, rel=0.01)
    assert carried(3, no_softirq) == pytest.approx(0.85 * MBPS_PER_CPU, rel=0.01)
    assert carried(4, no_softirq) == pytest.approx(QUIET.smt_yield * MBPS_PER_CPU, rel=0.01)
    without_smt = replace(no_softirq, physical_cores=4.0)
    assert carried(4, without_smt) == pytest.approx(MBPS_PER_CPU, rel=0.01)


@pytest.mark.parametrize("cost_us", [5.0, 25.0, 50.0, 100.0])
def test_an_overloaded_node_carries_as_much_in_every_period(cost_us: float) -> None:
    """What is served is sent in the same period: sending never takes CPU that serving has not left it."""
    run = play(Loads(CONTENDED, replace(QUIET, tx_cost_us=cost_us)))
    carried = run["carried_mbps"][5:, :, 0].sum(axis=1)
    assert carried.max() < 1.02 * carried.min()
    # Four CPUs at SMT's speed divide themselves between serving and sending.
    packets = carried.mean() / (8e-6 * 1470.0)
    received = sum(CONTENDED) / (8e-6 * 1470.0) * QUIET.rx_cost_us
    used = packets * (50.0 + cost_us) + received
    assert used * 1e-6 <= 1.02 * QUIET.logical_cpus * QUIET.smt_yield
    assert used * 1e-6 >= 0.9 * QUIET.logical_cpus * QUIET.smt_yield


def test_the_n3_buffer_bounds_the_delay() -> None:
    worst = {}
    for packets in (200.0, 2000.0):
        run = play(Loads([400.0], without_interrupts(replace(QUIET, n3_buffer_packets=packets))))
        assert run.queues_mbit[-1, 0, 0, 0] == pytest.approx(packets * 1470 * 8e-6, rel=1e-4)
        assert run.dropped_mbit[-1, kernels.DROP_N3, 0, 0] == pytest.approx(400 - MBPS_PER_CPU, rel=0.01)
        worst[packets] = float(run["delay_p99_us"].max())
        # Full buffer, drained at 50 us a packet; bursts and run queue are small here.
        assert packets * 50 <= worst[packets] <= packets * 50 + 2_000


def test_the_uplink_bounds_the_sum() -> None:
    hardware = replace(QUIET, upf_cost_us=5.0, uplink_mbps=300.0)
    run = play(Loads([150.0] * 4, hardware))
    carried = run.end("carried_mbps")
    assert carried.sum() == pytest.approx(300, rel=1e-3)
    np.testing.assert_allclose(carried, 75, rtol=1e-3)  # one queue for all: in proportion
    assert run.node[-1, 1, 0] == 1
    # 10 ms of queue and no more.
    assert 9_000 < run.end("delay_p99_us")[0] < 12_000
    shaped = Loads([150.0] * 4, replace(hardware, egress_mode="tbf"))
    relieved = play(shaped, knobs_of(4, egress_mbps=[np.inf, 40, 40, 40]))
    np.testing.assert_allclose(relieved.end("carried_mbps"), [150, 40, 40, 40], rtol=0.01)
    assert relieved.end("delay_p99_us")[0] < 1_000


def test_uplink_and_cpu_events_change_what_gets_through() -> None:
    degraded = {"uplink_time_s": [10, 11], "uplink_factor": [1, 0.1]}
    run = play(Loads([200.0], QUIET, events=degraded))
    assert run["carried_mbps"][5, 0, 0] == pytest.approx(200, rel=1e-3)
    assert run.end("carried_mbps")[0] == pytest.approx(100, rel=1e-3)
    slower = {"cpu_time_s": [10, 11], "cpu_factor": [1, 0.5]}
    run = play(Loads([200.0], without_interrupts(QUIET), events=slower))
    assert run.end("carried_mbps")[0] == pytest.approx(0.5 * MBPS_PER_CPU, rel=0.01)


def video(mbps: float, hardware: Hardware, flows: float = 4, steps: int = 60, period_s: float = 1.0) -> Any:
    sources = {"flow_mbps": mbps / flows, "first_flows": flows, "max_flows": flows}
    return Loads([mbps], hardware, period_s, steps, sources=sources)


@pytest.mark.parametrize("period_s", [0.1, 1.0])
def test_an_edt_rate_below_the_output_collapses(period_s: float) -> None:
    """The schedule runs to its 2 s horizon and fq holds 100 packets of each flow: 100 packets per flow every 2 s."""
    load = video(110.0, QUIET, steps=round(30 / period_s), period_s=period_s)
    run = play(load, knobs_of(1, egress_mbps=75))
    carried = run.end("carried_mbps", round(10 / period_s))[0]
    assert carried == pytest.approx(4 * 100 * 1470 * 8e-6 / 2, rel=0.1)
    assert carried < 10
    assert run.end("delay_p50_us")[0] == pytest.approx(2e6, rel=0.05)
    assert run.dropped_mbit[-1, kernels.DROP_PACER, 0, 0] > 0


def test_a_token_bucket_shapes_to_its_rate() -> None:
    load = video(110.0, replace(QUIET, egress_mode="tbf"))
    run = play(load, knobs_of(1, egress_mbps=75))
    assert run.end("carried_mbps")[0] == pytest.approx(75, rel=0.01)
    assert run.end("delay_p50_us")[0] == pytest.approx(QUIET.tbf_latency_ms * 1e3, rel=0.1)


def test_htb_shapes_to_its_rate_behind_a_queue_of_packets() -> None:
    load = video(110.0, replace(QUIET, egress_mode="htb", htb_queue_packets=100.0))
    for mbps in (40, 80):
        run = play(load, knobs_of(1, egress_mbps=mbps))
        assert run.end("carried_mbps")[0] == pytest.approx(mbps, rel=0.01)
        assert run.end("delay_p50_us")[0] == pytest.approx(1e6 * 100 * 1470 * 8e-6 / mbps, rel=0.15)


@pytest.mark.parametrize(("mode", "mbps"), [("edt", 0), ("tbf", 0), ("htb", 0), ("edt", 150), ("tbf", 150)])
def test_a_shaper_without_a_rate_or_with_more_than_there_is_does_nothing(mode: str, mbps: float) -> None:
    load = video(110.0, replace(QUIET, egress_mode=mode))
    np.testing.assert_array_equal(play(load).slices, play(load, knobs_of(1, egress_mbps=mbps)).slices)


@pytest.mark.parametrize("period_s", [0.05, 1.0])
def test_tcp_backs_off_to_what_gets_through(period_s: float) -> None:
    steps = round(60 / period_s)
    halved = {"uplink_time_s": [29, 30], "uplink_factor": [1, 0.5]}
    hardware = replace(QUIET, uplink_mbps=200.0)
    load = Loads([1000.0], hardware, period_s, steps, sources={"elastic": 1.0}, events=halved)
    run = play(load)
    for until_s, capacity in ((28, 200.0), (60, 100.0)):
        window = slice(round((until_s - 15) / period_s), round(until_s / period_s))
        offered, carried = (run[name][window, 0, 0].mean() for name in ("offered_mbps", "carried_mbps"))
        assert carried > 0.75 * capacity
        assert offered < 1.15 * capacity


def test_absent_slices_take_nothing_and_show_nothing() -> None:
    away = {"absent_from_s": [1e9, 10, 1e9], "absent_to_s": [1e9, 20, 1e9]}
    run = play(Loads([300.0] * 3, events=away, steps=29))
    there = np.ones(29, bool)
    there[9:19] = False  # the reset has played second 0
    np.testing.assert_array_equal(run.valid[:, 1, 0], there)
    assert np.all(run.valid[:, [0, 2]])
    assert run.slices[~there, :, 1].max() == 0
    assert np.all(run["carried_mbps"][there, 1] > 0)
    # The others run faster meanwhile (SMT); what was queued at the departure is in the books.
    assert np.all(run["carried_mbps"][10:18, 0] > run["carried_mbps"][5:8, 0].mean())
    arrived = run["offered_mbps"][:, 1, 0].sum()
    accounted = run.left_mbit[:, 1, 0].sum() + run.dropped_mbit[:, :, 1, 0].sum()
    queued = run.queues_mbit[-1, :, 1, 0].sum() - run.queues_mbit[0, :, 1, 0].sum()
    assert arrived == pytest.approx(accounted + queued, rel=1e-4)


@settings(max_examples=examples(40))
@given(
    period_s=st.floats(0.002, 30),
    on_s=st.floats(0.01, 20),
    off_s=st.floats(0.01, 20),
    phase=st.floats(0, 1),
)
def test_an_on_off_source_has_its_mean_rate_at_any_control_period(
    period_s: float, on_s: float, off_s: float, phase: float
) -> None:
    cycle = on_s + off_s
    steps = int(min(max(8 * cycle / period_s, 8), 600))
    gate = {"cycle_s": cycle, "on_s": on_s, "phase_s": phase * cycle}
    run = play(Loads([10.0], period_s=period_s, steps=steps, sources=gate))
    offered = run["offered_mbps"][:, 0, 0]
    # An unfinished cycle at the end can shift the sum by at most its on or its off part.
    slack = min(on_s, off_s) / (steps * period_s) + 1e-3
    assert offered.mean() == pytest.approx(10 * on_s / cycle, abs=10 * slack)
    assert offered.max() <= 10 * (1 + 1e-3)


def test_flows_join_as_in_the_andrade_study() -> None:
    """One UE more at 240, 480, 720 and 960 s in each of the others; four UEs from the start in slice1."""
    ramp = ScenarioRuns(Scenario.from_yaml("andrade-ramp"), hardware=QUIET)
    offered = play(ramp)["offered_mbps"][:, :, 0]
    np.testing.assert_allclose(offered[:, 0], 180, rtol=1e-5)
    seconds = np.arange(1, 1201)  # the reset has played second 0
    flows = 1 + np.minimum(seconds // 240, 4)
    for others in range(1, 5):
        np.testing.assert_allclose(offered[:, others], 45.0 * flows, rtol=1e-5)


def test_the_access_path_bounds_what_arrives() -> None:
    run = play(Loads([180.0, 100.0], replace(QUIET, access_mbps=150.0)))
    np.testing.assert_allclose(run.end("offered_mbps"), [150, 100], rtol=1e-5)


def test_noise_has_the_spread_and_the_mean_it_is_given() -> None:
    noisy = replace(QUIET, access_mbps=150.0, access_cv=0.2, access_tau_s=2.0)
    run = play(Loads([1000.0], noisy, steps=400), lanes=16)
    arrived = run["offered_mbps"]
    assert arrived.mean() == pytest.approx(150, rel=0.03)
    assert 0.1 < arrived.std() / arrived.mean() < 0.25
