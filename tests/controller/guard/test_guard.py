"""The knobs that the guard allows, by example; test_sequences.py has what holds for any sequence."""

from __future__ import annotations

import math

import numpy as np
import pytest

from slicepilot.configs import ConfigError
from slicepilot.controller.contracts.modes import Level
from slicepilot.controller.contracts.reasons import Reason
from slicepilot.controller.guard.config import GuardConfig
from slicepilot.controller.guard.guard import Guard
from slicepilot.env.telemetry import Telemetry

from .node import AT_ONCE, FAST, NONE, PERIOD_S, Node, column, config, context, knobs, slice_set

# -- bounds and numbers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        *(("limit", value) for value in (49.0, 1001.0, 0.0, -100.0, -math.inf)),
        *(("nice", value) for value in (-16.0, 16.0, 0.5, 1e30)),
        *(("egress", value) for value in (0.99, 1001.0, -1.0, -math.inf)),
    ],
)
def test_a_knob_outside_its_bounds_holds_and_the_others_move(knob: str, value: float) -> None:
    node = Node(config(**AT_ONCE))
    start = node.tick(knobs(500, 3, 20)).allowed
    wanted = knobs(400, 4, 30)
    {"limit": wanted.cpu_limit_mcpu, "nice": wanted.nice, "egress": wanted.egress_mbps}[knob][1] = value
    verdict = node.tick(wanted)
    expected = [[400.0] * 3, [4.0] * 3, [30.0] * 3]
    row = ("limit", "nice", "egress").index(knob)
    expected[row][1] = (500.0, 3.0, 20.0)[row]
    assert [column(verdict), column(verdict, "nice"), column(verdict, "egress_mbps")] == expected
    assert [node.why(s) for s in range(3)] == [[], ["out_of_range"], []]
    assert verdict.level is Level.NORMAL
    assert start.cpu_limit_mcpu[1] == 500, "what was let through before is not written to"


def test_what_is_never_moved_stays_under_the_safe_setting_too() -> None:
    moves = np.ones((3, 3, 1), np.bool_)
    moves[0, 0] = moves[1, 1] = moves[2, 2] = False
    node = Node(
        config(safe={"default": {"cpu_limit_mcpu": 800, "nice": -5, "egress_mbps": 50}}, **AT_ONCE), moves=moves
    )
    result = node.held = knobs(300, 2, 70)
    wanted = knobs(400, 4, 30).only(moves, result)
    assert node.tick(wanted).allowed.same_as(wanted)
    node.guard.order_safe()
    verdict = node.tick(wanted)
    assert verdict.level is Level.SAFE
    assert [column(verdict), column(verdict, "nice"), column(verdict, "egress_mbps")] == [
        [300, 800, 800],
        [-5, 2, -5],
        [50, 50, 70],
    ]


def test_an_original_setting_outside_stays_or_moves_inside() -> None:
    node = Node(config(**FAST))
    node.held = result = knobs(20, -20, 4000)
    assert node.tick(knobs(10, 19, 5000)).allowed.same_as(result)
    assert node.why() == ["out_of_range"]
    assert column(node.tick(knobs(60, -10, 900))) == [60] * 3
    assert column(node.last, "nice") == [-10] * 3
    assert column(node.last, "egress_mbps") == [900] * 3


# -- moves ---------------------------------------------------------------------------------------------------------


def test_small_changes_hold_but_not_to_and_from_none() -> None:
    node = Node(config(**AT_ONCE, hysteresis={"limit_ratio": 0.1, "egress_ratio": 0.1, "nice_levels": 3}))
    held = node.tick(knobs(500, 3, 20)).allowed
    assert node.tick(knobs(545, 5, 18.1)).allowed.same_as(held)
    assert node.why() == ["hysteresis"]
    wanted = knobs(555, 6, 17.9)
    assert node.tick(wanted).allowed.same_as(wanted)
    for wanted in (knobs(1000, 6, 1000), knobs(NONE, 6, NONE), knobs(1000, 6, 1000), knobs(1000, 6, 0)):
        assert node.tick(wanted).allowed.same_as(wanted)
    assert node.guard.counts == {(Reason.HYSTERESIS, s): 1 for s in range(3)}


def test_what_the_kernel_rounds_is_no_change_of_mind() -> None:
    node = Node(config(**FAST))
    wanted = knobs(500, 0, 20)
    node.tick(wanted, 5)
    for _ in range(3):
        node.held = knobs(499, 0, 19.9)
        assert node.tick(wanted).allowed.same_as(wanted)
        assert not node.last.reasons.any()


def test_a_change_is_followed_by_a_rest_unless_it_protects() -> None:
    node = Node(config(dwell={"cpu_limit_s": 0.05, "nice_s": 0.03, "egress_s": 0.04}))
    held = node.tick(knobs(500, -1, 500)).allowed
    lower = knobs(300, 2, 300)
    assert node.tick(lower, 2).allowed.same_as(held)
    assert node.why() == ["dwell"]
    assert column(node.tick(lower), "nice") == [2] * 3
    assert column(node.tick(lower), "egress_mbps") == [300] * 3
    assert column(node.last) == [500] * 3
    assert column(node.tick(lower)) == [300] * 3
    higher = knobs(900, -3, 900)
    assert node.tick(higher).allowed.same_as(higher)


def test_knobs_move_as_fast_as_declared() -> None:
    node = Node(config(**FAST, slew={"cpu_limit_per_s": 50, "egress_per_s": 100, "nice_levels_per_s": 250}))
    wanted = knobs(100, 7, 100)
    node.tick(knobs())
    node.tick(wanted)
    np.testing.assert_allclose(column(node.last), 1000 * math.exp(-0.5), rtol=1e-6)
    np.testing.assert_allclose(column(node.last, "egress_mbps"), 1000 * math.exp(-1.0), rtol=1e-6)
    assert column(node.last, "nice") == [2] * 3
    assert node.why() == ["slew"]
    node.now_ns += 20 * node.period_ns  # a pause of 21 periods counts as five
    node.tick(knobs(50, 15, 100))
    np.testing.assert_allclose(column(node.last), 50, rtol=1e-6)
    assert column(node.last, "nice") == [14] * 3
    for _ in range(10):
        node.tick(knobs())
    assert column(node.last) == [NONE] * 3, "from the upper bound it goes on to none"
    assert not node.last.reasons.any()


def test_a_slow_rate_still_moves_a_level_at_each_tick() -> None:
    node = Node(config(**FAST, slew={"nice_levels_per_s": 1}))
    levels = [column(node.tick(knobs(nice=3)), "nice")[0] for _ in range(4)]
    assert levels == [1, 2, 3, 3]


def test_a_move_goes_on_to_its_end_without_rests_and_small_changes() -> None:
    # 1000 mCPU in steps of e^-0.5: 607, 368, 223, 135, 82.1, 81.9
    node = Node(config(slew={"cpu_limit_per_s": 50}, dwell={"cpu_limit_s": 1.0}, hysteresis={"limit_ratio": 0.1}))
    wanted = knobs(81.9)
    seen = [column(node.tick(wanted))[0] for _ in range(6)]
    np.testing.assert_allclose(seen, [1e3 * math.exp(-0.5 * n) for n in range(1, 6)] + [81.9], rtol=1e-5)
    assert node.last.allowed.same_as(wanted)


# -- oscillation ---------------------------------------------------------------------------------------------------


def test_a_knob_that_flips_is_lowered_only_so_often_and_raised_at_once() -> None:
    node = Node(config(**FAST, oscillation={"reversals": 6, "window_s": 0.5}))
    low, high = knobs(300, 0), knobs(600, 1)
    limits, whys = [], []
    for n in range(300):
        wanted = high if n % 2 else low
        node.tick(wanted)
        limits.append(column(node.last)[0])
        whys.append(node.why())
        if wanted is high:
            assert node.last.allowed.same_as(high)
        assert column(node.last, "nice")[0] == n % 2, "a level is no significant move"
    turns = np.diff(limits) != 0
    window = round(0.5 / PERIOD_S)
    in_each = [turns[n : n + window].sum() for n in range(len(turns) - window)]
    assert set(in_each) <= {6, 7}, "six, and a raise"
    assert set(limits) == {np.float32(300), np.float32(600)}
    assert all(
        (why == ["oscillation"]) == (n % 2 == 0 and limit == 600)
        for n, (why, limit) in enumerate(zip(whys, limits, strict=True))
    )
    node.tick(low, window)
    assert node.last.allowed.same_as(low), "it is not lowered for a while, not for ever"


def test_a_policy_that_reacts_to_bursts_is_left_alone() -> None:
    node = Node(GuardConfig())
    rng = np.random.default_rng(1)
    for n in range(1000):  # five bursts a second, answered with weights and limits, and some noise between
        node.telemetry.carried_mbps[:] = node.telemetry.offered_mbps[:] = rng.uniform(8, 12)
        burst = n % 20 < 8
        limit = np.clip((250 if burst else 900) * rng.uniform(0.9, 1.1, 3), 50, 1000)
        node.tick(knobs(limit, [-12, 5, 5] if burst else [0, 0, 0]))
    assert {reason for reason, _ in node.guard.counts} <= {Reason.HYSTERESIS, Reason.DWELL, Reason.SLEW}


def test_slow_periods_are_watched_over_as_many_ticks() -> None:
    node = Node(config(), period_s=1.0)
    whys = []
    for n in range(30):
        node.tick(knobs(nice=10 if n % 2 else -10))
        whys.append(node.why())
    first = whys.index(["oscillation"])
    assert first == 13, "a tick to have a direction, and twelve that turn back"


def test_a_flipping_policy_is_held_back_beside_a_slice_below_its_floor_too() -> None:
    """There the levels that it asks for are not those that it gets, and turns are of these."""
    node = Node(config(safe={"default": {"nice": 9}, "slices": {"s0": {"nice": -5}}}))
    levels = []
    for n in range(200):
        node.telemetry.carried_mbps[0] = 1.0 if n < 35 else 10.0
        node.tick(knobs(nice=np.where(node.held.nice[:, 0] > 0, -15.0, 15.0)))
        levels.append(column(node.last, "nice"))
    assert "sla_floor" in node.why()
    changes = (np.abs(np.diff(levels[-100:], axis=0)) > 4).sum(axis=0)
    assert (changes <= 13).all(), "as many turns as it may in a second, and a raise"


# -- floors and budget ---------------------------------------------------------------------------------------------


def test_no_knob_is_lower_than_its_floor() -> None:
    floor = {"default": {"cpu_limit_mcpu": 80}, "slices": {"s1": {"cpu_limit_mcpu": 200, "egress_mbps": 5}}}
    node = Node(config(**AT_ONCE, floor=floor))
    node.tick(knobs(60, 0, 2))
    assert column(node.last) == [80, 200, 80]
    assert column(node.last, "egress_mbps") == [2, 5, 2]
    assert [node.why(s) for s in range(3)] == [["floor"]] * 3
    node.held = knobs(60, 0, 2)
    node.tick(knobs(81, 0, 0))
    assert column(node.last) == [81, 200, 81], "also where somebody else has set less"
    assert column(node.last, "egress_mbps") == [0, 0, 0], "a shaper without a rate paces nothing"


def test_nice_levels_leave_every_slice_its_share_of_a_busy_node() -> None:
    # Two CPUs, equal requests: 15 to -15 is 36 to 29154, 2.5 mCPU of 2000.
    node = Node(config(**AT_ONCE, floor={"default": {"cpu_share_mcpu": 100}}))
    node.tick(knobs(nice=[15, -15, -15]), 3)
    nices = np.asarray(column(node.last, "nice"))
    weights = 1.25**-nices
    assert 100 <= 2000 * weights[0] / weights.sum() < 250
    assert [node.why(s) for s in range(3)] == [["floor"]] * 3
    wanted = knobs(nice=[5, -1, -1])
    assert node.tick(wanted).allowed.same_as(wanted)
    assert column(node.tick(knobs(60)))[0] == 100, "a limit below the share would deny it"


def test_requests_weigh_and_the_nice_of_processes_does_not() -> None:
    slices = slice_set()
    share = config(**AT_ONCE, floor={"slices": {"s0": {"cpu_share_mcpu": 900}}})
    with pytest.raises(ConfigError, match=r"floor of s0: cpu_share_mcpu = 900: expected at most 666\.667"):
        Guard(share, slices, context(slices))
    guard = Guard(share, slices, context(slices), request_mcpu=np.asarray([200, 100, 100], np.float32))
    verdict = guard.judge(Telemetry.empty(3), knobs(nice=[5, 0, 0]), knobs(), 0)
    assert verdict.reasons[0] == Reason.FLOOR.bit
    share = config(**AT_ONCE, floor={"default": {"cpu_share_mcpu": 600}})
    guard = Guard(share, slices, context(slices), "process")
    wanted = knobs(nice=[15, -15, -15], scope="process")
    assert guard.judge(Telemetry.empty(3), wanted, knobs(scope="process"), 0).allowed.same_as(wanted)


def test_limits_together_fit_the_budget() -> None:
    node = Node(config(**AT_ONCE, budget={"cpu_limits_ratio": 0.5}, floor={"slices": {"s1": {"cpu_limit_mcpu": 200}}}))
    wanted = knobs([900, 400, NONE])
    node.tick(wanted, 3)
    # 1000 in all; 200 are a floor, the other 1100 wanted become 800.
    np.testing.assert_allclose(column(node.last), [900 * 8 / 11, 200 + 200 * 8 / 11, NONE], rtol=1e-6)
    assert [node.why(s) for s in range(3)] == [["budget"], ["budget"], []]
    wanted = knobs([500, 400, NONE])
    assert node.tick(wanted).allowed.same_as(wanted)
