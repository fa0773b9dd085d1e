"""For any decisions and measurements in any order, the knobs that the guard allows lie inside the envelope."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from slicepilot.configs import ConfigError, validate
from slicepilot.controller.contracts.modes import Level
from slicepilot.controller.contracts.reasons import Reason
from slicepilot.controller.guard.config import GuardConfig
from slicepilot.controller.guard.guard import Guard, GuardDecision
from slicepilot.data.nice_weights import PRIO_TO_WEIGHT
from slicepilot.env.knobs import KNOB_FIELDS, Knobs
from slicepilot.env.promises import static_order
from slicepilot.env.slices import KnobBounds, Sla, SliceSet, SliceSpec, SNssai
from slicepilot.env.telemetry import NODE_FIELDS, SLICE_FIELDS, Telemetry
from tests.effort import examples

from .node import context

PERIOD_NS = 10_000_000
NODE_MCPU = 2000.0
HOLD_NS = 250_000_000
ROUNDING = 2e-5
ANY = st.floats(width=32)  # NaN, infinities and denormals
SOME = [0.0, -0.0, math.nan, math.inf, -math.inf, 1.0, 10.0, 49.9, 50.0, 700.0, 1000.0, 1000.005, 1e30, 1e-40, -1.0]
FIGURE = st.one_of(st.sampled_from(SOME), ANY)
LEVELS = st.one_of(st.integers(-21, 20).map(float), FIGURE)


def slice_set(bounds: list[KnobBounds]) -> SliceSet:
    specs = [
        SliceSpec(
            *(f"s{k}", SNssai(1, f"{k:06X}"), Sla(10.0, 5.0), 3.0 - k % 3),
            bounds=own,
            cpu_request_mcpu=100.0 * (1 + k % 3),
        )
        for k, own in enumerate(bounds)
    ]
    return SliceSet(tuple(specs))


@st.composite
def envelopes(draw: st.DrawFn) -> tuple[GuardConfig, SliceSet]:
    """Rules that do not contradict each other, of one to eight slices."""

    def between(low: float, high: float) -> tuple[float, float]:
        return tuple(sorted((draw(st.floats(low, high / 2)), draw(st.floats(high / 1.9, high)))))  # type: ignore[return-value]

    bounds = [
        KnobBounds(between(20, 1000), (draw(st.integers(-20, -1)), draw(st.integers(1, 19))), between(1, 1000))
        for _ in range(draw(st.integers(1, 8)))
    ]
    seconds = st.sampled_from([0.0, 0.01, 0.05, 0.3])
    setting = st.fixed_dictionaries(
        {}, optional={"nice": st.integers(-1, 1), "cpu_limit_mcpu": st.just(1000 / 1.9), "egress_mbps": st.just(0)}
    )
    raw = {
        "floor": {"default": {"cpu_share_mcpu": draw(st.sampled_from([0, 5, 30]))}},
        "safe": {"default": draw(setting), "hold_s": draw(st.sampled_from([0.05, 1.0]))},
        "budget": {"cpu_limits_ratio": draw(st.sampled_from([None, 3.0]))},
        "hysteresis": {"limit_ratio": draw(st.sampled_from([0, 0.02])), "nice_levels": draw(st.sampled_from([0, 2]))},
        "dwell": {"cpu_limit_s": draw(seconds), "nice_s": draw(seconds), "egress_s": draw(seconds)},
        "slew": {
            "cpu_limit_per_s": draw(st.sampled_from([10, 200])),
            "nice_levels_per_s": draw(st.sampled_from([50, 2000])),
        },
        "oscillation": {"reversals": draw(st.integers(2, 12))},
    }
    return validate(GuardConfig, raw, "drawn"), slice_set(bounds)


def decisions(count: int) -> st.SearchStrategy[Knobs]:
    values = arrays.arrays(np.float32, (count, 1), elements=FIGURE)
    return st.builds(Knobs.of, values, arrays.arrays(np.float32, (count, 1), elements=LEVELS), values)


def measurements(count: int) -> st.SearchStrategy[Telemetry]:
    ages = st.one_of(st.just(0.0), FIGURE)
    return st.builds(
        Telemetry,
        arrays.arrays(np.float32, (len(SLICE_FIELDS), count, 1), elements=FIGURE),
        arrays.arrays(np.float32, (len(NODE_FIELDS), 1), elements=FIGURE),
        arrays.arrays(np.float32, (1,), elements=ages),
        arrays.arrays(np.bool_, (count, 1)),
    )


def table(knobs: Knobs) -> np.ndarray:
    """(3, S), double precision."""
    return knobs.values[..., 0].astype(float)


class AnySequence(RuleBasedStateMachine):
    """Telemetry and wishes, good and arbitrary, orders and late decisions; the guard's words hold at the next tick."""

    @initialize(drawn=envelopes(), data=st.data())
    def start(self, drawn: tuple[GuardConfig, SliceSet], data: st.DataObject) -> None:
        self.config, self.slices = drawn
        self.count = len(self.slices)
        try:
            self.guard, self.twin = (Guard(self.config, self.slices, context(self.slices)) for _ in range(2))
        except ConfigError:  # shares that this node has not
            self.config = validate(GuardConfig, {"safe": {"hold_s": 1.0}}, "plain")
            self.guard, self.twin = (Guard(self.config, self.slices, context(self.slices)) for _ in range(2))
        self.low, self.high = (
            np.asarray([[getattr(s.bounds, name)[side] for s in self.slices.slices] for name in KNOB_FIELDS], float)
            for side in (0, 1)
        )
        setting = self.config.safe.default
        limit, rate = setting.cpu_limit_mcpu, setting.egress_mbps
        safe = (math.inf if limit is None else limit, setting.nice or 0, math.inf if rate is None else rate)
        self.safe = np.repeat(np.asarray(safe, np.float32)[:, None], self.count, axis=1).astype(float)
        if setting.nice is None:
            weight = self.slices.column("weight")
            levels = static_order(weight, np.ones_like(weight, bool))
            self.safe[1] = np.clip(levels, *(self.slices.bound("nice", side) for side in (0, 1)))[:, 0]
        self.held = Knobs.none(self.count)
        self.now_ns = data.draw(st.sampled_from([0, 10**9, 10**18]))
        self.bad_since: int | None = None
        self.ticks = 0
        self.verdict: GuardDecision | None = None

    def good(self) -> Telemetry:
        telemetry = Telemetry.empty(self.count)
        telemetry.slices[:2] = 5 + 0.01 * (self.ticks % 50)
        return telemetry

    def tick(self, telemetry: Telemetry, wanted: Knobs | None, pause_ns: int = 0) -> GuardDecision:
        self.now_ns += PERIOD_NS + pause_ns
        self.ticks += 1
        before = self.held
        first = self.guard.judge(telemetry, wanted, before, self.now_ns)
        self.guard.warm_up(Telemetry.empty(self.count), wanted, before)
        second = self.twin.judge(telemetry, wanted, before, self.now_ns)
        self.check_twin(first, second)
        self.check_envelope(before, first)
        self.check_reasons(before, wanted, first)
        self.check_slew(before, first)
        self.check_patience(telemetry, first)
        self.held, self.verdict = first.allowed, first
        return first

    def check_twin(self, first: GuardDecision, second: GuardDecision) -> None:
        """The same again, rehearsed or not."""
        np.testing.assert_array_equal(table(first.allowed), table(second.allowed))
        np.testing.assert_array_equal(first.reasons, second.reasons)
        assert (first.level, first.node_reasons) == (second.level, second.node_reasons)

    def check_envelope(self, before: Knobs, verdict: GuardDecision) -> None:
        allowed, held = table(verdict.allowed), table(before)
        assert not np.isnan(allowed).any()
        assert np.isfinite(allowed[1]).all()
        near = ROUNDING * np.abs([self.low, self.high])
        inside = (allowed >= self.low - near[0]) & (allowed <= self.high + near[1])
        inside[1] &= allowed[1] == np.rint(allowed[1])
        inside[0] |= allowed[0] == math.inf
        inside[2] |= (allowed[2] == math.inf) | (allowed[2] == 0)
        assert (inside | (allowed == held) | (allowed == self.safe)).all()
        if verdict.level >= Level.SAFE:
            np.testing.assert_array_equal(allowed, self.safe)
        if verdict.level is Level.NORMAL:
            self.check_node(allowed)
        if verdict.level < Level.SAFE:
            self.check_balance(allowed, verdict)

    def check_balance(self, allowed: np.ndarray, verdict: GuardDecision) -> None:
        """A slice below its floor has all that the safe setting gives it, against every other; whatever others want."""
        tripped = (verdict.reasons & Reason.SLA_FLOOR.bit) != 0
        if not tripped.any():
            return
        np.testing.assert_array_equal(allowed[::2, tripped], self.safe[::2, tripped])
        demoted = allowed[1] - self.safe[1]
        assert demoted[tripped].max() <= min(demoted.min(), 0.0)
        np.testing.assert_array_equal(demoted[tripped], demoted[tripped][0])

    def check_node(self, allowed: np.ndarray) -> None:
        floor = self.config.floor.default.cpu_share_mcpu
        requests = np.maximum([s.cpu_request_mcpu for s in self.slices.slices], 2.0)
        weights = requests * np.asarray(PRIO_TO_WEIGHT)[allowed[1].astype(int) + 20]
        shares = np.minimum(allowed[0], NODE_MCPU * weights / weights.sum())
        assert (shares >= floor * (1 - ROUNDING)).all()
        ratio = self.config.budget.cpu_limits_ratio
        if ratio is not None:
            assert allowed[0][np.isfinite(allowed[0])].sum() <= ratio * NODE_MCPU * (1 + ROUNDING)

    def check_reasons(self, before: Knobs, wanted: Knobs | None, verdict: GuardDecision) -> None:
        wish = table(before if wanted is None else wanted)
        changed = table(verdict.allowed) != wish
        assert (verdict.reasons[changed.any(axis=0)] != 0).all()
        if not changed.any():
            assert verdict.allowed.same_as(before if wanted is None else wanted)
        elif (table(verdict.allowed) == table(before)).all():
            assert verdict.allowed.same_as(before)
        if verdict.level is Level.NORMAL:
            assert verdict.node_reasons == 0
        else:
            assert verdict.node_reasons != 0

    def check_slew(self, before: Knobs, verdict: GuardDecision) -> None:
        """Between consecutive settings, but for steps to safe and what floors and budget ask for."""
        if verdict.level is not Level.NORMAL:
            return
        exempt = Reason.FLOOR.bit | Reason.BUDGET.bit | Reason.SAFE_SETTING.bit
        free = (verdict.reasons & exempt) == 0
        most_s = 1e-9 * PERIOD_NS * self.config.slew.most_periods
        old, new = table(before), table(verdict.allowed)
        rates = (self.config.slew.cpu_limit_per_s, self.config.slew.nice_levels_per_s, self.config.slew.egress_per_s)
        for k, rate in enumerate(rates):
            if k == 1:
                moved, step = np.abs(new[k] - old[k]), max(math.floor(rate * most_s + 1e-9), 1.0)
            else:
                positions = [
                    np.log(np.where(np.isinf(row) | (row == 0), self.high[k], row)) for row in (new[k], old[k])
                ]
                moved, step = np.abs(positions[0] - positions[1]), rate * most_s + 1e-4
            assert (moved[free] <= step).all()

    def check_patience(self, telemetry: Telemetry, verdict: GuardDecision) -> None:
        bad = (
            telemetry.age_s[0] != 0
            or not telemetry.valid.any()
            or np.isnan(telemetry.slices[:, telemetry.valid[:, 0]]).any()
        )
        if not bad:
            self.bad_since = None
            return
        self.bad_since = self.now_ns if self.bad_since is None else self.bad_since
        assert verdict.level is not Level.NORMAL
        if self.now_ns - self.bad_since >= HOLD_NS:
            np.testing.assert_array_equal(table(verdict.allowed), self.safe)

    @rule(data=st.data(), pause_ns=st.sampled_from([0, 0, 1, PERIOD_NS, 10**9, 10**12]))
    def anything(self, data: st.DataObject, pause_ns: int) -> None:
        wanted = data.draw(st.one_of(st.none(), decisions(self.count)))
        self.tick(data.draw(measurements(self.count)), wanted, pause_ns)

    @rule(data=st.data(), repeats=st.integers(1, 30))
    def a_wild_policy(self, data: st.DataObject, repeats: int) -> None:
        item, other = data.draw(decisions(self.count)), data.draw(decisions(self.count))
        for n in range(repeats):
            self.tick(self.good(), other if n % 2 else item)

    @rule(data=st.data(), repeats=st.integers(1, 40))
    def bad_measurements(self, data: st.DataObject, repeats: int) -> None:
        telemetry = data.draw(measurements(self.count))
        telemetry.age_s[:] = 5.0
        for _ in range(repeats):
            self.tick(telemetry, self.sane())

    @rule(repeats=st.integers(1, 60))
    def a_starved_slice(self, repeats: int) -> None:
        for _ in range(repeats):
            telemetry = self.good()
            telemetry.carried_mbps[0] = 0.1
            self.tick(telemetry, self.sane())

    @rule()
    def orders(self) -> None:
        for guard in (self.guard, self.twin):
            guard.order_safe()
        assert self.tick(self.good(), self.sane()).level >= Level.SAFE

    @rule()
    def pause(self) -> None:
        for guard in (self.guard, self.twin):
            guard.pause()
        assert self.tick(self.good(), self.sane()).level >= Level.HOLD

    @rule(times=st.integers(1, 15))
    def late(self, times: int) -> None:
        counted = self.guard.level < Level.SAFE
        for guard in (self.guard, self.twin):
            for _ in range(times):
                guard.overran(self.now_ns)
        if counted and times > self.config.overruns.most:
            assert self.tick(self.good(), self.sane()).level >= Level.SAFE

    @precondition(lambda self: self.ticks > 0)
    @rule(nice=st.integers(-1, 1), folder=st.floats(0.4, 0.6))
    def a_sane_policy_has_its_way_in_the_end(self, nice: int, folder: float) -> None:
        for guard in (self.guard, self.twin):
            guard.resume()
        wanted = self.sane(nice, folder)
        self.now_ns += 200 * 10**9  # whatever was frozen or held is over
        verdict = [self.tick(self.good(), wanted) for _ in range(150)][-1]
        assert verdict.level is Level.NORMAL
        steady = self.tick(self.good(), wanted)
        if (verdict.reasons & Reason.BUDGET.bit).any():  # all of it that fits
            np.testing.assert_array_equal(table(steady.allowed), table(verdict.allowed))
        elif verdict.reasons.any():  # too near for a change
            assert set(steady.reasons.tolist()) <= {0, Reason.HYSTERESIS.bit}
            small = self.config.hysteresis
            near = (small.limit_ratio, small.nice_levels, small.egress_ratio)
            for k, (allowed, wish) in enumerate(zip(table(steady.allowed), table(wanted), strict=True)):
                scale = 1.0 if k == 1 else 1.001 * allowed  # relative to what holds
                assert (np.abs(allowed - wish) <= near[k] * scale).all()
        else:
            assert steady.allowed.same_as(wanted)

    def sane(self, nice: int = 0, folder: float = 0.5) -> Knobs:
        """Inside every slice's bounds."""
        values: list[Any] = [low + folder * (high - low) for low, high in zip(self.low, self.high, strict=True)]
        values[1] = np.full(self.count, nice)
        limits, nices, rates = (np.asarray(value, np.float32)[:, None] for value in values)
        return Knobs.of(limits, nices, rates)

    @invariant()
    def what_is_counted_was_said(self) -> None:
        if getattr(self, "verdict", None) is None:
            return
        assert self.verdict is not None
        counts = self.guard.counts
        assert counts == self.twin.counts
        charges = self.guard.charges
        assert charges == self.twin.charges
        assert sum(charges.values()) == self.ticks
        assert min(charges.values()) >= 0
        taken = set(self.guard.rules_in_charge)
        assert bool(taken) == (charges["guard"] > 0)
        assert taken <= {reason.label for reason, _ in counts} | {Reason.OVERRUN.label}
        assert all(0 < count <= self.ticks and -1 <= s < self.count for (_, s), count in counts.items())
        said = {reason for reason, s in counts if s < 0}
        assert all(reason in said for reason in Reason if self.verdict.node_reasons & reason.bit)


AnySequence.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=12, deadline=None)
TestAnySequence = AnySequence.TestCase


@settings(max_examples=examples(40))
@given(data=st.data(), evil=st.integers(0, 2))
def test_no_policy_starves_a_slice_for_longer_than_stated(data: st.DataObject, evil: int) -> None:
    """Whichever of its settings starve slice 0 (a matter of the knobs that hold), and however it mixes them."""
    slices = slice_set([KnobBounds()] * 3)
    given_config = validate(GuardConfig, {}, "plain")
    guard = Guard(given_config, slices, context(slices))
    held, below_ns, worst_ns = Knobs.none(3), 0, 0
    pattern = data.draw(st.lists(st.booleans(), min_size=1, max_size=12))
    for n in range(800):
        wanted = Knobs.none(3)
        if pattern[n // 25 % len(pattern)]:
            wanted.cpu_limit_mcpu[0], wanted.egress_mbps[0] = (60, 1000) if evil == 0 else (1000, 2)
            wanted.nice[:, 0] = [19, -20, -20] if evil == 2 else 0
        share = min(held.cpu_limit_mcpu[0, 0] / 1000, held.egress_mbps[0, 0] / 10, 1.0) if held.nice[0] < 10 else 0.0
        telemetry = Telemetry.empty(3)
        telemetry.offered_mbps[:] = 10 + 0.01 * (n % 7)
        telemetry.carried_mbps[:] = telemetry.offered_mbps
        telemetry.carried_mbps[0] *= share
        below_ns = below_ns + PERIOD_NS if share < 0.5 else 0
        worst_ns = max(worst_ns, below_ns)
        held = guard.judge(telemetry, wanted, held, n * PERIOD_NS).allowed
    assert worst_ns <= 510_000_000
