"""A broken service floor: what nobody can keep is no trip, what the safe setting keeps is a trip."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slicepilot.controller.contracts.charge import InCharge, charges_of
from slicepilot.controller.contracts.modes import Level
from slicepilot.controller.contracts.reasons import Reason
from slicepilot.controller.guard.guard import Guard
from slicepilot.env.knobs import Knobs
from tests.effort import examples, repetitions

from .node import NONE, PERIOD_S, Node, column, config, context, knobs, slice_set

OFFERED, FLOOR = 10.0, 5.0  # Mbit/s, of every slice; half is the default floor
SAFE = {"default": {"cpu_limit_mcpu": 900}}
PATIENCE_S, WINDOW_S = 0.3, 0.2
MINUTE = round(60 / PERIOD_S)
WANTED = knobs(1000)


class Contended(Node):
    """A node on which the services of slices (of their floors) follow from who is in charge of each.

    Args:
        policy, safe: services of the first slices, each where its own safe setting holds and where it does not; the
            others get what they offer.
        noise: of what is carried in a tick, relative. on: ticks in which there is load, and then as many without.
    """

    def __init__(
        self,
        policy: tuple[float, ...],
        safe: tuple[float, ...],
        noise: float = 0.0,
        on: int | None = None,
        seed: int = 1,
        hold_s: float = 5.0,
        **sections: Any,
    ) -> None:
        super().__init__(config(safe=SAFE | {"hold_s": hold_s}, **sections))
        self.policy, self.safe, self.noise, self.on = policy, safe, noise, on
        self.random, self.played, self.level = np.random.default_rng(seed), 0, Level.NORMAL

    def play(self, ticks: int, index: int = 0) -> np.ndarray:
        """A slice's levels in so many ticks; the node's is always normal."""
        levels = []
        for _ in range(ticks):
            loaded = self.on is None or self.played // self.on % 2 == 0
            offered = OFFERED if loaded else 0.02 * OFFERED
            self.telemetry.offered_mbps[:] = self.telemetry.carried_mbps[:] = offered
            for s, (policy, safe) in enumerate(zip(self.policy, self.safe, strict=True)):
                service = safe if self.held.cpu_limit_mcpu[s, 0] == SAFE["default"]["cpu_limit_mcpu"] else policy
                noisy = np.exp(self.noise * self.random.standard_normal())
                self.telemetry.carried_mbps[s] = min(service * FLOOR * noisy, 10 * OFFERED) if loaded else offered
            assert self.tick(WANTED).level is self.level
            levels.append(self.level_of(index))
            self.played += 1
        return np.asarray(levels)

    def safe_share(self, ticks: int) -> float:
        return float((self.play(ticks) >= Level.SAFE).mean())


# -- whose fault -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slices", [1, 2])
def test_a_floor_that_the_safe_setting_breaks_too_is_lowered_for_longer_each_time(slices: int) -> None:
    node = Contended((0.7,) * slices, (0.7,) * slices)
    safe = node.play(MINUTE) >= Level.SAFE
    begins = np.flatnonzero(np.diff(np.concatenate([[False], safe]).astype(int)) == 1) * PERIOD_S
    assert begins.tolist() == pytest.approx([PATIENCE_S, 10.0 + 3 * PATIENCE_S + WINDOW_S, 31.9], abs=0.2)
    assert lengths(safe).tolist() == [pytest.approx((WINDOW_S + PATIENCE_S) / PERIOD_S, abs=2)] * 3
    assert column(node.last) == [1000] * 3
    assert [node.why(s) for s in range(3)] == [["floor_infeasible"]] * slices + [[]] * (3 - slices)
    assert node.guard.trips == {}
    assert {Reason.FLOOR_TRIAL, Reason.SAFE_SETTING} <= {reason for reason, s in node.guard.counts if s == 0}
    assert {s for _, s in node.guard.counts} == set(range(slices)), "the others go on"


@pytest.mark.parametrize(
    ("services", "noise", "on"),
    [((0.7, 0.6, 0.8), 0.5, None), ((0.98,), 0.2, None), ((1.05,), 0.2, None), ((0.6,), 0.3, 70)],
)
def test_what_nobody_can_keep_takes_less_and_less_of_the_time(
    services: tuple[float, ...], noise: float, on: int | None
) -> None:
    """Also where the node just keeps a floor, or just does not, so that it is kept by chance."""
    first, later = [], []
    for seed in range(repetitions(3, 100)):
        node = Contended(services, services, noise, on, seed)
        first.append(node.safe_share(MINUTE))
        later.append(node.safe_share(2 * MINUTE))
        assert node.level_of() < Level.LATCHED
        assert node.guard.counts.get((Reason.SAFE_SETTING, 0), 0) == round((first[-1] + 2 * later[-1]) * MINUTE)
    print(f"safe share: first minute {np.mean(first):.1%} (most {max(first):.1%}), later {np.mean(later):.1%}")
    assert np.mean(first) < 0.15
    assert np.mean(later) < 0.06


@settings(max_examples=examples(10), deadline=None)
@given(
    policy=st.sampled_from([0.0, 0.1, 0.3, 0.6, 0.9]),
    safe=st.sampled_from([0.0, 0.3, 0.7, 0.9, 1.3, 3.0]),
    noise=st.floats(0.0, 0.2),
)
@example(policy=0.0, safe=0.0, noise=0.0)
@example(policy=0.2, safe=0.8, noise=0.3)
def test_the_safe_setting_stays_where_it_keeps_the_floor_or_twice_as_much_of_it_and_nowhere_else(
    policy: float, safe: float, noise: float
) -> None:
    node = Contended((policy,), (safe,), noise)
    share = node.safe_share(MINUTE)
    starved = safe > 1.2 or policy < 0.5 * safe
    assert (share > 0.9) == starved
    assert share < 0.15 or starved
    assert (node.level_of() is Level.LATCHED) == starved


def lengths(holds: np.ndarray) -> np.ndarray:
    """Of the stretches in which something holds, in ticks."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], holds, [False]]).astype(int)))
    return edges[1::2] - edges[::2]


def test_a_lowered_floor_is_no_licence_to_starve() -> None:
    node = Contended((0.7,), (0.7,))
    node.play(200)
    assert node.why(0) == ["floor_infeasible"]
    node.policy = (0.4,)
    assert node.safe_share(200) == 0, "more than half of what the safe setting did"
    node.policy = (0.3,)
    levels = node.play(2000)
    starved_s = PERIOD_S * lengths(levels < Level.SAFE)
    assert max(starved_s) <= WINDOW_S + PATIENCE_S + PERIOD_S + 1e-9
    assert (levels >= Level.SAFE).mean() > 0.9


def test_a_slice_that_is_starved_keeps_safe_whatever_nobody_can_do_for_another() -> None:
    node = Contended((0.7, 0.2), (0.7, 2.0), hold_s=2)
    levels = node.play(150, index=1)
    assert (levels[40:] == Level.SAFE).all()
    assert node.why(0) == ["floor_infeasible"]
    node.policy = (0.7, 2.0)
    assert node.play(150, index=1)[-1] == Level.NORMAL


def test_a_trial_waits_for_measurements() -> None:
    node = Contended((0.7,), (0.7,))
    node.play(40)
    assert node.level_of() is Level.SAFE
    node.telemetry.age_s[:] = 1.0
    assert node.tick(WANTED, 40).level is Level.SAFE
    node.telemetry.age_s[:] = 0.0
    node.tick(WANTED, 100)
    assert (node.play(60)[-10:] == Level.NORMAL).all()
    assert node.guard.trips == {}


def test_a_slice_that_is_not_measured_has_no_floor_and_counts_no_trip() -> None:
    """Its probe may be what is starved: a moment of that forgets what was seen, and a trip waits for its end."""
    node = Node(config(safe=SAFE))
    node.tick(WANTED, 100)
    before = node.guard.charges
    for _ in range(20):  # blind for 0.25 s, noticed, and so on
        node.telemetry.carried_mbps[0] = 0.0
        node.tick(WANTED, 25)
        node.telemetry.valid[0] = False
        node.tick(WANTED)
        assert node.why() == ["slice_missing"]
        assert column(node.last)[0] == WANTED.cpu_limit_mcpu[0, 0], "it holds"
        node.telemetry.valid[0] = True
    assert node.guard.trips == {}
    assert node.guard.tripped == []
    assert node.guard.charges["guard"] == before["guard"] + 20, "those ticks are not the policy's"

    node.until(Level.SAFE, WANTED)
    node.telemetry.valid[0] = False
    node.tick(WANTED, 2000)  # many times as long as the safe setting stays at first
    assert [trip.trips for trip in node.guard.tripped] == [0]
    node.telemetry.valid[0] = True
    node.telemetry.carried_mbps[0] = 0.0  # nor does the safe setting keep it
    node.tick(WANTED, 200)
    assert (node.guard.trips, node.guard.tripped) == ({}, [])


def test_others_give_nothing_for_a_slice_that_is_not_measured() -> None:
    safe = {"default": {"cpu_limit_mcpu": 600, "egress_mbps": 40}}
    wanted = knobs(NONE, 0, [NONE, NONE, 30])
    node = tripped(wanted, safe, sla_floor={"trial": {"enabled": False}})
    node.telemetry.valid[0] = False
    node.telemetry.uplink_use_ratio[:] = 0.95
    node.tick(wanted, 20)
    assert column(node.last) == [600, NONE, NONE]
    node.telemetry.valid[0] = True
    node.tick(wanted, 20)
    assert column(node.last) == [600, 600, 600]


def test_a_delay_may_have_a_floor_of_service() -> None:
    given = {"default": {"carried_ratio": 0}, "slices": {"s0": {"delay_factor": 10}}}  # 50 ms

    def levels(policy_us: float, safe_us: float) -> np.ndarray:
        node, result = Node(config(safe=SAFE, sla_floor=given)), []
        for n in range(300):
            safe = node.held.cpu_limit_mcpu[0, 0] == 900
            node.telemetry.delay_p99_us[0] = safe_us if safe else policy_us if n % 40 != 29 else 49e3
            node.tick(WANTED)
            result.append(node.level_of())
        return np.asarray(result)

    assert (levels(51e3, 1e3)[:60] == Level.NORMAL).all(), "every period counts"
    assert (levels(90e3, 89e3)[115:] == Level.NORMAL).all()
    assert (levels(300e3, 60e3)[200:] == Level.SAFE).all(), "less than half of what the safe setting did"
    assert (levels(90e3, 1e3)[61:] == Level.SAFE).all()


def test_without_trials_the_safe_setting_always_stays() -> None:
    node = Contended((0.7,), (0.7,), sla_floor={"trial": {"enabled": False}})
    assert (node.play(400)[40:] == Level.SAFE).all()
    assert node.why() == ["sla_floor", "safe_setting"]


def test_a_new_configuration_knows_what_is_lowered() -> None:
    node = Contended((0.7,), (0.7,))
    node.play(200)
    new = Guard(config(safe=SAFE), node.slices, context(node.slices))
    new.follow(node.guard)
    node.guard = new
    assert node.safe_share(200) == 0
    assert node.why(0) == ["floor_infeasible"]


@pytest.mark.parametrize(
    ("offered", "committed", "trips"), [(0.9, 10.0, False), (1.0, 10.0, True), (0.1, 0.1, True), (0.09, 0.1, False)]
)
def test_a_floor_asks_for_nothing_below_its_least_rate(offered: float, committed: float, trips: bool) -> None:
    node = Node(config(), slice_set(committed_mbps=committed))
    node.telemetry.offered_mbps[0], node.telemetry.carried_mbps[0] = offered, 0.0
    node.telemetry.delay_p99_us[0] = 1e6
    node.tick(WANTED, 60)
    assert (node.level_of() is Level.SAFE) == trips


def test_a_floor_has_a_window_to_be_proven() -> None:
    """However short the patience: a burst that is gone by then proves nothing."""
    node = Node(config(sla_floor={"default": {"patience_s": 0.0}}))
    node.telemetry.slices[:2] = 0.0
    node.tick(WANTED, 100)
    node.telemetry.offered_mbps[0] = 100.0
    assert node.until(Level.SAFE, WANTED) == pytest.approx(WINDOW_S, abs=0.011)


# -- one slice among others -------------------------------------------------------------------------------------------


def tripped(wanted: Knobs, safe: dict[str, Any], ticks: int = 60, **sections: Any) -> Node:
    """A node whose slice 0 is below its floor, and whose others want these knobs."""
    node = Node(config(safe=safe, dwell={"nice_s": 0, "cpu_limit_s": 0}, **sections))
    node.telemetry.carried_mbps[0] = 1.0
    node.tick(wanted, ticks)
    assert node.level_of(0) is Level.SAFE
    assert node.last.level is Level.NORMAL
    return node


PRIORITY_NICE = {"slices": {"priority": {"nice": -10}, "s1": {"nice": 0}, "s2": {"nice": 0}}}


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ([19, -5, 5], [-15, -5, 5]),  # as far from its safe level as the slice that is favoured most
        ([19, -12, 5], [-15, -5, 5]),  # which is held back where there is no level as low
        ([-5, 5, 7], [-10, 0, 2]),  # all denied something: they move up, so that nobody else gains by it
    ],
)
def test_a_slice_that_trips_has_the_weight_that_the_safe_setting_gives_it_among_the_others(
    policy: list[float], expected: list[float]
) -> None:
    node = tripped(knobs(nice=policy), PRIORITY_NICE)
    assert column(node.last, "nice") == expected


def test_others_have_no_more_than_the_safe_setting_gives_them_while_one_waits_for_it() -> None:
    safe = {"default": {"cpu_limit_mcpu": 600, "egress_mbps": 40}}
    wanted = knobs(NONE, 0, [NONE, NONE, 30])
    node = tripped(wanted, safe, sla_floor={"trial": {"enabled": False}})
    assert column(node.last) == [600, NONE, NONE], "it does not wait: its packets are lost for other reasons"
    node.telemetry.cpu_use_mcpu[:, 0] = [590, 700, 700]
    node.tick(wanted, 20)
    node.telemetry.runqueue_delay_us[0] = 30e3
    node.tick(wanted, 20)
    assert column(node.last) == [600, NONE, NONE], "it waits, and has its share: it is short of something else"
    node.telemetry.cpu_use_mcpu[:, 0] = [200, 900, 900]
    node.tick(wanted, 20)
    assert column(node.last) == [600] * 3
    assert column(node.last, "egress_mbps") == [40, 40, 30]
    assert all("floor" in node.why(s) for s in (1, 2))


def test_what_is_late_does_not_keep_a_slice_from_being_safe() -> None:
    node = Node(config(safe=SAFE))
    node.telemetry.carried_mbps[0] = 1.0
    urgent = [node.tick(WANTED).urgent for _ in range(60)]
    assert sum(urgent) == 1, "when the safe setting comes"
    node.held = knobs(1000)  # it could not be set
    assert node.tick(WANTED).urgent


# -- who is in charge --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("act", "expected", "rules"),
    [
        (lambda node: node.tick(WANTED), {"policy": 1}, {}),
        (lambda node: (node.tick(knobs(500)), node.tick(knobs(50))), {"policy": 2}, {}),  # slower than it wants
        (lambda node: node.tick(knobs(nice=[1, 16, 1])), {"guard": 1}, {"out_of_range": 1}),
        (lambda node: node.tick(None), {"guard": 1}, {"policy_error": 1}),
        (lambda node: (node.guard.pause(), node.tick(WANTED)), {"guard": 1}, {"paused": 1}),
        (lambda node: (node.tick(WANTED), node.guard.overran(node.now_ns)), {"guard": 1}, {"overrun": 1}),
        (lambda node: (node.guard.order_safe(), node.tick(WANTED)), {"safe": 1}, {}),
    ],
)
def test_each_tick_is_charged_to_policy_guard_or_safe_setting(
    act: Callable[[Node], object], expected: dict[str, int], rules: dict[str, int]
) -> None:
    node = Node(config(dwell={"cpu_limit_s": 0}))
    act(node)
    assert {name: count for name, count in node.guard.charges.items() if count} == expected
    assert node.guard.rules_in_charge == rules


def test_records_say_the_same() -> None:
    """A reader of the records of ticks counts as the guard does, whether one slice is safe, all are, or the node."""
    node, said, no = Contended((0.2, 0.2, 2.0), (2.0,) * 3), list[int](), np.asarray([False])

    def tick(wanted: Knobs | None) -> None:
        for s in range(3):
            safe = node.held.cpu_limit_mcpu[s, 0] == 900
            node.telemetry.carried_mbps[s] = OFFERED if safe else node.policy[s] * FLOOR
        node.tick(wanted)
        masks = np.asarray([[*node.last.reasons.tolist(), node.last.node_reasons]], np.uint32)
        said.append(charges_of(np.asarray([node.last.level]), no, no, masks).item())

    for n in range(900):
        node.policy = (0.2, 0.2, 0.2 if n > 100 else 2.0)
        if n == 700:
            node.guard.order_safe()
        tick(None if n % 50 == 0 else WANTED)
    counts = {element.label: said.count(element) for element in InCharge}
    assert counts == node.guard.charges
    assert counts.pop(InCharge.NOBODY.label) == 0
    assert all(count > 20 for count in counts.values())
    levels, nothing = np.asarray([Level.NORMAL, Level.SAFE]), np.zeros((2, 2), np.uint32)
    late = charges_of(levels, np.asarray([True, True]), np.asarray([False, False]), nothing)
    assert late.tolist() == [InCharge.GUARD, InCharge.SAFE]
    powerless = charges_of(levels, np.asarray([True, True]), np.asarray([True, True]), nothing)
    assert powerless.tolist() == [InCharge.NOBODY] * 2
