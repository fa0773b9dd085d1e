"""When the guard takes over and when it hands back: services, measurements, late and failing policies, orders."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from slicepilot.controller.contracts.modes import Level
from slicepilot.controller.contracts.reasons import Reason
from slicepilot.controller.guard.config import GuardConfig
from slicepilot.controller.guard.guard import Guard
from slicepilot.env.knobs import Knobs
from slicepilot.env.telemetry import SLICE_FIELDS

from .node import Node, column, config, context, knobs, slice_set

# -- service floors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0.0, 0.9])
def test_a_slice_trips_for_longer_each_time_and_at_last_until_an_order(offset: float) -> None:
    """How long it is starved before: `test_no_policy_starves_a_slice_for_longer_than_stated`."""
    given = config(
        sla_floor={"window_s": 0.195, "default": {"patience_s": 0.295}}, safe={"hold_s": 1.0, "latch_after": 3}
    )
    node, levels, starved = Node(given), list[Level](), 0
    for _ in range(1000):
        starved = starved + 1 if not levels or levels[-1] is Level.NORMAL else 0
        # The first period after a change is carried in part.
        node.telemetry.carried_mbps[0] = 10.0 * offset if starved == 1 else 0.0 if starved else 10.0
        assert starved <= 51, "window and patience, rounded up, and a period"
        assert node.tick(knobs()).level is Level.NORMAL, "it is the slice's matter"
        levels.append(node.level_of())
    assert [node.why_node(), node.why(0), node.why(1)] == [[], ["sla_floor", "safe_setting", "latched"], []]
    first, second, last = "".join(level.label[0] for level in levels).replace("n", " ").split()
    assert (len(first), len(second), last[-1]) == (100, 200, "l"), "twice as long at the second trip"


def test_a_latch_ends_by_an_order_only() -> None:
    node = Node(config(safe={"hold_s": 0.1, "latch_after": 1}))
    node.starved_until(Level.LATCHED, knobs(nice=3))
    node.tick(knobs(nice=3), 1000)
    assert node.level_of(0) is Level.LATCHED
    assert node.level_of(1) is Level.NORMAL
    assert node.guard.trips == {0: 1}
    node.guard.resume()
    node.tick(knobs(nice=3))
    assert node.level_of(0) is Level.NORMAL
    assert node.guard.trips == {}
    assert column(node.last, "nice") == [3] * 3


def test_trips_are_forgotten_in_time() -> None:
    node = Node(config(safe={"hold_s": 0.1, "forget_s": 1.0, "latch_after": 2}))
    for _ in range(3):
        node.starved_until(Level.SAFE, knobs())
        node.tick(knobs(), 112)
        assert node.level_of() is Level.NORMAL
    node.starved_until(Level.SAFE, knobs())
    node.starved_until(Level.LATCHED, knobs())


def test_what_is_carried_is_owed_up_to_the_commitment_only() -> None:
    node = Node(config())
    node.telemetry.offered_mbps[:, 0] = [90, 1, 0]
    node.telemetry.carried_mbps[:, 0] = [5.1, 0.6, 0]
    node.tick(knobs(), 200)
    node.telemetry.carried_mbps[2] = 0.0
    assert node.guard.counts == {}
    node.telemetry.carried_mbps[1] = 0.4
    assert node.until(Level.SAFE, knobs(), index=1) == pytest.approx(0.3 + 0.1, abs=0.021)
    assert (Reason.SLA_FLOOR, 1) in node.guard.counts


def test_who_does_not_act_starves_nobody() -> None:
    node = Node()
    node.guard.in_control = False
    node.telemetry.carried_mbps[:] = 0.0
    node.tick(knobs(), 200)
    assert node.guard.counts == {}
    assert not node.guard.in_control
    for _ in range(2):  # what was below while somebody else acted does not count
        node.guard.in_control = True
        node.tick(knobs(), 20)
        node.guard.in_control = False
        node.tick(knobs(), 20)
        assert node.guard.counts == {}
    node.guard.in_control = True
    assert node.until(Level.SAFE, knobs()) == pytest.approx(0.3)


# -- measurements --------------------------------------------------------------------------------------------------


def put(array: str, at: Any, value: float) -> Callable[[Node], None]:
    """Change some of what is measured."""

    def change(node: Node) -> None:
        getattr(node.telemetry, array)[at] = value

    return change


def spoil(row: str, value: float) -> Callable[[Node], None]:
    return put("slices", (SLICE_FIELDS.index(row), 1), value)


DOUBTFUL = [
    (put("valid", ..., False), "telemetry_missing"),
    *((put("age_s", ..., age_s), "telemetry_stale") for age_s in (0.11, math.nan)),
    (put("age_s", ..., -0.1), "telemetry_implausible"),
    *((spoil(row, value), "telemetry_implausible") for row in SLICE_FIELDS for value in (math.nan, math.inf, -1.0)),
    *((put("node", row, value), "telemetry_implausible") for row in (0, 1) for value in (math.nan, math.inf, -0.1)),
    (put("node", 0, 1.2), "telemetry_implausible"),
]


def unchanged(node: Node) -> None:
    del node


def number(knob: int, value: float) -> Knobs:
    wanted = knobs(400, 4, 30)
    wanted.values[knob, 2] = value
    return wanted


UNUSABLE = [None, knobs(count=2), knobs(count=4), knobs(scope="process"), Knobs(np.zeros((3, 3), np.float32))]
NO_NUMBERS = [(0, math.nan), (1, math.nan), (1, math.inf), (1, -math.inf), (2, math.nan)]
BAD: list[tuple[Callable[[Node], None], Knobs | None, str, float, float]] = [
    *((change, knobs(nice=5), reason, 0.24, 1.0) for change, reason in DOUBTFUL),
    *((unchanged, wanted, "policy_error", 0.09, 1.0) for wanted in UNUSABLE),
    *((unchanged, number(knob, value), "not_a_number", 0.04, 0.1) for knob, value in NO_NUMBERS),
]


@pytest.mark.parametrize(("change", "wanted", "reason", "hold_s", "recover_s"), BAD)
def test_bad_measurements_and_decisions_hold_then_are_safe_until_all_is_well(
    change: Callable[[Node], None], wanted: Knobs | None, reason: str, hold_s: float, recover_s: float
) -> None:
    node = Node(config(safe={"default": {"nice": 2}}, not_a_number={"patience_s": 0.05, "recover_s": 0.1}))
    held = node.tick(knobs(nice=1)).allowed
    good = node.telemetry.copy()
    change(node)
    assert node.tick(wanted).allowed.same_as(held)
    assert node.last.level is Level.HOLD
    assert reason in node.why_node()
    assert node.until(Level.SAFE, wanted) == pytest.approx(hold_s)
    assert column(node.last, "nice") == [2] * 3
    assert reason in node.why_node()
    node.tick(wanted, 50)
    assert column(node.last, "nice") == [2] * 3
    node.telemetry = good
    assert node.until(Level.NORMAL, knobs(nice=5)) == pytest.approx(recover_s)
    assert column(node.last, "nice") == [5] * 3


def test_a_moment_without_measurements_is_no_reason_to_be_safe() -> None:
    node = Node()
    for _ in range(20):
        node.telemetry.age_s[:] = 0.5
        assert node.tick(knobs(nice=1), 20).level is Level.HOLD
        node.telemetry.age_s[:] = 0.0
        assert node.tick(knobs(nice=1)).level is Level.NORMAL


def test_measurements_of_a_loaded_node_do_not_repeat_themselves() -> None:
    node = Node(GuardConfig())
    assert node.until(Level.HOLD, knobs()) == pytest.approx(0.2)
    assert node.why_node() == ["telemetry_frozen"]
    node.telemetry.cpu_use_mcpu[1] = 1.0
    assert node.tick(knobs()).level is Level.NORMAL
    node.telemetry.slices[:] = 0.0
    assert node.tick(knobs(), 100).level is Level.NORMAL, "an idle node's do"


@pytest.mark.parametrize(("row", "most"), [("carried_mbps", 125.0), ("cpu_use_mcpu", 2500.0)])
def test_more_than_the_node_can_do_is_believed_for_a_moment_only(row: str, most: float) -> None:
    node = Node(GuardConfig())
    figures = node.telemetry.slices[SLICE_FIELDS.index(row)]
    for n in range(200):  # now and then a full buffer leaves, or a late counter catches up
        node.telemetry.offered_mbps[0] = 10.0 + n % 2
        figures[1] = 4 * most if n % 10 == 0 else 1.0
        node.telemetry.carried_mbps[0] = node.telemetry.carried_mbps[2] = 10.0
        node.tick(knobs())
        assert not node.last.node_reasons
    node.telemetry.offered_mbps[1] = figures[1] = 1.05 * most  # of the carried rate, all was offered
    for n in range(20):
        node.telemetry.offered_mbps[0] = 10.0 + n % 2
        node.tick(knobs())
    assert node.why_node() == ["telemetry_implausible"]


def test_cpus_that_come_and_go_are_taken_into_account() -> None:
    """By what CPU use can be: a CPU that has come may be used, and a CPU that comes back is used before it is seen."""
    node = Node(config(), cpus=1.0)
    given = context(slice_set(), cpus=1.0)
    node.guard = Guard(config(), slice_set(), given)
    node.telemetry.cpu_use_mcpu[:] = 600.0  # of three slices
    node.tick(knobs(), 100)
    assert "telemetry_implausible" in node.why_node()
    given.logical_cpus[:] = 2.0
    node.tick(knobs(), 1000)
    assert node.why_node() == []
    given.logical_cpus[:] = 1.0
    node.tick(knobs(), 100)
    assert node.why_node() == []


def not_measured(node: Node) -> None:
    node.telemetry.valid[1] = False
    node.telemetry.slices[:, 1] = math.nan  # which is not read then


ALONE = [
    (not_measured, "slice_missing"),
    *((spoil(row, 1.2), "telemetry_implausible") for row in ("loss_ratio", "throttled_ratio")),
    *((spoil(row, 3.7e9), "telemetry_implausible") for row in ("delay_p50_us", "delay_p99_us", "runqueue_delay_us")),
    *((spoil(row, 1.1e7), "telemetry_implausible") for row in ("offered_mbps", "carried_mbps")),
]


@pytest.mark.parametrize(("change", "reason"), ALONE)
def test_a_slice_whose_own_figures_are_missing_or_too_large_holds_then_is_safe_alone(
    change: Callable[[Node], None], reason: str
) -> None:
    """A UPF that hangs for an hour is enough for a delay of an hour: it must not take the policy from the others."""
    node, wanted = Node(config(safe={"default": {"nice": 2}})), knobs(nice=-4)
    node.tick(knobs(nice=1), 50)
    good = node.telemetry.copy()
    change(node)
    assert column(node.tick(wanted), "nice") == [-4, 1, -4]
    assert (node.last.level, node.why_node()) == (Level.NORMAL, [])
    assert [node.why(s) for s in range(3)] == [[], [reason], []]
    node.tick(wanted, 25)
    assert column(node.last, "nice") == [-4, 2, -4]
    assert node.why(1) == [reason, "safe_setting"]
    node.telemetry = good
    node.tick(wanted, 100)
    assert column(node.last, "nice") == [-4, 2, -4], "until all has been well for a while"
    assert node.why(1) == [reason, "safe_setting"]
    assert node.tick(wanted).allowed.same_as(wanted)
    assert node.guard.trips == {}


def test_where_no_slice_is_left_to_believe_the_node_is_not_believed() -> None:
    node = Node()
    node.telemetry.delay_p99_us[:] = 3.7e9
    assert node.tick(knobs()).level is Level.HOLD
    assert node.why_node() == ["telemetry_implausible"]


def test_who_carries_what_nobody_sent_is_doubted_alone() -> None:
    """A UPF that makes packets of its own at N6, on an uplink of 100 Mbit/s, beside two that do not."""
    node, wanted = Node(config(safe={"default": {"nice": 2}})), knobs(nice=-4)
    node.tick(knobs(nice=1), 50)
    node.telemetry.carried_mbps[1] = 500.0
    for _ in range(100):
        verdict = node.tick(wanted)
        assert (verdict.level, column(verdict, "nice")[::2]) == (Level.NORMAL, [-4, -4])
    assert column(node.last, "nice") == [-4, 2, -4]
    assert [node.why(s) for s in range(3)] == [[], ["telemetry_implausible", "safe_setting"], []]


@pytest.mark.parametrize(
    ("offered", "carried"),
    [
        ([9.0, 300.0, 10.0], [10.0, 300.0, 10.0]),
        ([108.0, 60.0, 10.0], [120.0, 60.0, 10.0]),  # a queue that leaves blames nobody
        ([140.0, 10.0, 10.0], [140.0, 30.0, 10.0]),  # the second is doubted; the rest cannot be either
    ],
)
def test_more_than_the_uplink_that_was_really_sent_is_the_nodes(offered: list[float], carried: list[float]) -> None:
    """Then the uplink is not what was declared; which slice to doubt is unknown."""
    node = Node()
    node.telemetry.offered_mbps[:, 0], node.telemetry.carried_mbps[:, 0] = offered, carried
    assert node.until(Level.HOLD, knobs()) <= 0.2
    assert node.why_node() == ["telemetry_implausible"]


# -- the loop, the policy and the operator -------------------------------------------------------------------------


def test_too_many_late_decisions_are_safe() -> None:
    node = Node(config(overruns={"most": 3, "window_s": 0.1}, safe={"default": {"nice": 2}, "hold_s": 0.5}))
    for _ in range(20):
        node.tick(knobs(), 4)
        node.guard.overran(node.now_ns)
    assert node.tick(knobs()).level is Level.NORMAL, "three in 0.1 s are no more than three"
    for _ in range(4):
        node.guard.overran(node.now_ns)
    assert node.tick(knobs(nice=1)).level is Level.SAFE
    assert node.why_node() == ["overrun", "safe_setting"]
    for _ in range(10):
        node.guard.overran(node.now_ns)
    assert node.until(Level.NORMAL, knobs(nice=1)) == pytest.approx(0.49)
    assert node.guard.counts[Reason.OVERRUN, -1] == 50
    assert node.guard.trips == {-1: 1}


def test_orders_are_followed() -> None:
    node = Node(config(safe={"default": {"nice": 2}}))
    guard, wanted = node.guard, knobs(nice=5)
    held = node.tick(knobs(nice=1)).allowed
    guard.pause()
    assert node.tick(wanted).allowed.same_as(held)
    assert (node.last.level, node.why_node(), node.why(), guard.paused) == (Level.HOLD, ["paused"], ["paused"], True)
    guard.order_safe()
    assert column(node.tick(wanted), "nice") == [2] * 3
    assert node.why_node() == ["safe_setting", "paused", "ordered_safe"]
    assert node.tick(wanted, 1000).level is Level.SAFE
    assert guard.ordered_safe
    guard.resume()
    assert node.tick(wanted).allowed.same_as(wanted)
    assert (guard.paused, guard.ordered_safe, node.last.level) == (False, False, Level.NORMAL)


def test_a_pause_does_not_keep_from_being_safe() -> None:
    node = Node(config(safe={"default": {"nice": 2}}))
    node.guard.pause()
    node.telemetry.age_s[:] = 1.0
    node.until(Level.SAFE, knobs(nice=5))
    assert column(node.last, "nice") == [2] * 3


def test_a_new_configuration_takes_over_holds_and_latches() -> None:
    slices = slice_set()
    old = Node(config(safe={"hold_s": 0.1, "latch_after": 1}))
    old.starved_until(Level.LATCHED, knobs())
    old.guard.pause()
    new = Guard(config(sla_floor={"window_s": 1.0}, oscillation={"reversals": 3}), slices, context(slices))
    new.follow(old.guard)
    old.guard = new
    assert old.tick(knobs()).level is Level.HOLD
    assert old.level_of(0) is Level.LATCHED
    assert old.why(0) == ["sla_floor", "safe_setting", "latched"]
    new.resume()
    old.tick(knobs(nice=1))
    assert old.level_of(0) is Level.NORMAL
