"""One slice against all: traffic that its own UPF drops, or serves as somebody likes, to take the policy from the node.

A slice below its service floor has the safe setting, because a policy may be what starves it. A sender, or the
owner of the UPF, can starve it without any policy. The others must not pay for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from pydantic import TypeAdapter

from slicepilot.controller.contracts.answers import Trip
from slicepilot.controller.contracts.modes import Level
from slicepilot.controller.contracts.reasons import Reason
from slicepilot.controller.service.controller import trips_of
from tests.controller.guard.node import PERIOD_S, Node, column, config, knobs
from tests.effort import repetitions

MINUTE = round(60 / PERIOD_S)
HOSTILE = 2
PRIORITY_SAFE = -10.0
SAFE = {"default": {"cpu_limit_mcpu": 900}, "slices": {"priority": {"cpu_limit_mcpu": 900, "nice": PRIORITY_SAFE}}}
POLICY = knobs(1000, [-5, 5, 5])
Tick = tuple[float, float, float, float]
"""What the hostile slice offers and carries (Mbit/s), uses (mCPU) and waits for a CPU (us) in a period."""


class Attacked(Node):
    """A node whose policy serves everybody, and one slice that only looks starved.

    Args:
        attack: its period, given its number and whether the slice has its safe setting.
    """

    def __init__(self, attack: Callable[[int, bool], Tick]) -> None:
        super().__init__(config(safe=SAFE))
        self.attack, self.played = attack, 0
        self.telemetry.cpu_use_mcpu[:] = 300.0

    def play(self, ticks: int) -> dict[str, float]:
        """Shares of the time.

        *order*: the others do not keep the relative priorities of the policy. *back*: one of them has a lower CPU limit
        than it wants. *weight*: the priority slice has less against the hostile slice than the safe setting gives it.
        """
        node, own, others, back, first = 0, 0, 0, 0, 0
        for _ in range(ticks):
            safe = self.held.cpu_limit_mcpu[HOSTILE, 0] == 900
            tick = self.attack(self.played, bool(safe))
            rows = self.telemetry.offered_mbps, self.telemetry.carried_mbps, self.telemetry.cpu_use_mcpu
            for row, value in zip((*rows, self.telemetry.runqueue_delay_us), tick, strict=True):
                row[HOSTILE] = value
            verdict = self.tick(POLICY)
            self.played += 1
            nices = column(verdict, "nice")
            node += verdict.level >= Level.SAFE
            own += column(verdict)[HOSTILE] == 900
            others += nices[1] - nices[0] != 10
            back += column(verdict)[:2] != [1000, 1000]
            assert min(column(verdict)[:2]) >= 900, "no less than the safe setting"
            first += nices[0] - nices[HOSTILE] > PRIORITY_SAFE
        shares = {"node safe": node, "slice safe": own, "order": others, "back": back, "weight": first}
        return {name: count / ticks for name, count in shares.items()}


def few(tick: int, safe: bool) -> Tick:
    """20 packets of 100 bytes a second, of which none is carried."""
    return (0.08 if tick % 5 == 0 else 0.0), 0.0, 1.0, 20.0


def dropped(tick: int, safe: bool) -> Tick:
    """50 Mbit/s that its UPF drops by a rule of its own."""
    return 50.0, 0.0, 120.0, 50.0


def a_tenth(tick: int, safe: bool) -> Tick:
    """Packets so small that its UPF uses what CPU it gets and carries a tenth of them."""
    return 50.0, 1.0 + 0.01 * (tick % 7), 890.0, 6000.0


def in_turns(tick: int, safe: bool) -> Tick:
    """One after the other, and nothing between, for times that fit no back-off."""
    return (few, dropped, a_tenth, few)[tick // 70 % 4](tick, safe) if tick % 310 < 250 else (0.0, 0.0, 1.0, 20.0)


def pretends(tick: int, safe: bool) -> Tick:
    """Its owner sees who is in charge: it serves well under the safe setting, and starves under the policy."""
    return (10.0, 10.0, 300.0, 5000.0) if safe else (10.0, 0.0, 700.0, 5000.0)


@pytest.mark.parametrize(
    ("attack", "first", "later", "held_back"),
    [
        (few, 0.0, 0.0, 0.0),
        (dropped, 0.06, 0.02, 0.0),
        (a_tenth, 0.06, 0.02, 0.0),
        (in_turns, 0.2, 0.1, 0.06),
        (pretends, 1.0, 1.0, 0.0),
    ],
)
def test_a_hostile_slice_is_safe_alone(
    attack: Callable[[int, bool], Tick], first: float, later: float, held_back: float
) -> None:
    """``first`` and ``later``: most share of the time that it has its safe setting, in the first minute and after.

    ``held_back``: that another has no more than its own safe setting, because the hostile one waits for a CPU. A
    UPF can wait on purpose; the others keep what the safe setting gives them.
    """
    node = Attacked(attack)
    begun, after = node.play(MINUTE), node.play(repetitions(4, 9) * MINUTE)
    print(f"{attack.__name__}: first minute", *(f"{name} {share:.2%}" for name, share in begun.items()), sep=", ")
    print(f"{attack.__name__}: later", *(f"{name} {share:.2%}" for name, share in after.items()), sep=", ")
    for shares in (begun, after):
        assert (shares["node safe"], shares["order"], shares["weight"]) == (0, 0, 0)
        assert shares["back"] <= held_back
    assert begun["slice safe"] <= first
    assert after["slice safe"] <= later
    assert node.guard.charges["safe"] == 0


def test_who_pretends_ends_latched_alone_and_the_latch_says_what_it_saw() -> None:
    node = Attacked(pretends)
    node.play(MINUTE)
    assert node.last.level is Level.NORMAL
    assert [bool(mask & Reason.LATCHED.bit) for mask in node.last.reasons.tolist()] == [False, False, True]
    [trip] = node.guard.tripped
    assert (trip.slice_index, trip.floor, trip.latched, trip.on_trial, trip.trips) == (HOSTILE, "rate", True, False, 3)
    assert trip.offered_mbps == pytest.approx(10.0)
    assert trip.carried_mbps < trip.floor_mbps == pytest.approx(5.0)
    [reported] = trips_of(node.guard, node.slices.names)
    TypeAdapter(Trip).validate_python(reported)
    assert reported["slice"] == "s2"
    assert re.fullmatch(
        r"latched since \d\d:\d\d:\d\dZ \(3 in a row\): carried 0 of 10 Mbit/s, floor 5", reported["text"]
    )
    assert "`slicepilot control resume` ends it; look first, `slicepilot explain --at 2" in reported["remedy"]
    node.guard.resume()
    assert not node.tick(POLICY).reasons.any()
    assert node.guard.tripped == []


def test_hostile_or_not_a_slice_that_a_policy_starves_has_its_share() -> None:
    """The same slice, and a policy that takes the CPU from it: at once it has what the safe setting gives it."""
    node = Node(config(safe=SAFE, dwell={"nice_s": 0}))
    evil = knobs(1000, [-15, -12, 15])
    for _ in range(60):
        node.telemetry.carried_mbps[HOSTILE] = 1.0
        node.tick(evil)
    nices = column(node.last, "nice")
    assert nices[HOSTILE] - nices[1] <= 0
    assert nices[HOSTILE] - nices[0] <= -PRIORITY_SAFE
