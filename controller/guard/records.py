"""Inputs and state of the guard's rules: records of the node, of slices and of knobs, for compiled rules.

Fields that a configuration declares are filled by `envelope`; all others change from tick to tick. Times are ns of a
clock that does not go back. Why records: a guard of plain Python objects took 56 to 104 us for five slices, this guard
takes 6 to 9 us.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from slicepilot.controller.contracts.charge import InCharge
from slicepilot.controller.contracts.modes import Level
from slicepilot.controller.contracts.reasons import Reason
from slicepilot.env.compiled import kernel
from slicepilot.env.knobs import NUM_KNOBS
from slicepilot.env.telemetry import NODE_FIELDS, SLICE_FIELDS

Records: TypeAlias = Any  # structured arrays: numba, not NumPy, reads their fields as attributes

FOLLOW, HOLD, SAFE = int(Level.NORMAL), int(Level.HOLD), int(Level.SAFE)
"""Actions of a slice, or the node, at a tick: follow the policy, keep the knobs, take the safe setting."""

NEVER_NS = -(1 << 62)
"""Long ago, and far enough from the ends of an int64 to take differences."""

RATE, DELAY = range(2)
"""A slice's service floors: what it carries, and its p99 delay."""
_SAFE_BIT = Reason.SAFE_SETTING.bit


def _record(**fields: Any) -> np.dtype[np.void]:
    """Aligned; elements are `numpy.record`, so that Python reads them as compiled code does: ``element.field``."""
    entries = [(name, *(kind if isinstance(kind, tuple) else (kind,))) for name, kind in fields.items()]
    return np.dtype((np.record, np.dtype(entries, align=True)))


CONDITION = _record(
    patience_ns="i8",  # declared
    recover_ns="i8",  # declared
    bad_since_ns="i8",
    good_since_ns="i8",
    active="i8",
)
"""What asks for the safe setting once it has been bad for a patience, until it has been good for a while."""

BACK_OFF = _record(
    first_ns="i8",  # declared
    most_ns="i8",  # declared
    forget_ns="i8",  # declared
    until_ns="i8",
    count="i8",  # in a row
)
"""A time that doubles whenever it has to be started again soon after its end."""

KNOB = _record(
    kind="i8",  # declared, as all down to `significant`: CPU_LIMIT, NICE, EGRESS
    slice="i8",
    movable="i8",  # 0: it stays as it is, under the safe setting too
    low="f8",
    high="f8",
    floor="f8",
    safe="f8",
    small="f8",  # hysteresis: ratio of a limit or rate, levels of nice
    rest_ns="f8",  # dwell
    per_ns="f8",  # slew, on the knob's scale (`on_scale`)
    significant="f8",  # oscillation: a move that can be a reversal, on the scale
    wanted="f8",
    held="f8",
    value="f8",  # what is to be set: rules change it
    last_value="f8",  # what was to be set at the last tick; NaN: nothing yet, as the next
    last_held="f8",
    changed_ns="i8",
    moving="i8",  # -1 or 1 while a step towards less or more for the slice has not reached its end, else 0
    extreme="f8",  # on the scale: the furthest since it last turned back; NaN: nothing yet
    direction="i8",  # of the last significant move: -1, 1; 0: none yet
    turn="i8",  # index of the oldest of its turns
)

FLOOR = _record(
    bar="f8",  # share of the floor that holds: 1, or less while it is lowered
    broken_since_ns="i8",
    lowered=BACK_OFF,
)
"""A service floor of a slice."""

SLICE = _record(
    weight="f8",  # declared, as all down to `safe_share`: of its CPU group at nice 0
    share_mcpu="f8",  # CPU that it has when all are busy
    committed_mbps="f8",
    carried_ratio="f8",
    most_delay_us="f8",
    least_mbps="f8",  # what less is offered than this proves nothing
    patience_ns="i8",
    trial_patience_ns="i8",  # the same for the safe setting
    clearly="f8",  # by what factor the safe setting has to exceed the rate floor
    safe_share="f8",  # of the node's CPU, by the weights of the safe setting
    seen=("f4", (len(SLICE_FIELDS),)),  # the last figures
    valid="i8",
    measured="i8",  # valid, and its figures can be
    samples="i8",  # in the sums over the last ticks
    offered="f8",
    carried="f8",
    cpu="f8",
    missing=CONDITION,  # it is not measured
    missing_reason="i8",
    floors=(FLOOR, (2,)),
    asking_since_ns="i8",  # it has offered enough to prove something since then
    settled_ns="i8",  # from then on rates are of whatever is in charge of the slice now
    waits_us="f8",  # for a CPU, smoothed over the window
    trip=BACK_OFF,
    trip_before_ns="i8",  # the end of the trip before
    tripped="i8",  # it has its safe setting for a broken floor
    latched="i8",
    starved="i8",  # others have what it lacks
    floor="i8",  # which floor tripped, and what was seen then
    began_ns="i8",
    offered_mbps="f8",
    carried_mbps="f8",
    delay_p99_us="f8",
    floor_mbps="f8",
    action="i8",  # FOLLOW, HOLD or SAFE
    reasons="i8",
    urgent="i8",  # what is set for it does not wait for a decision that is in time
    counts=("i8", (len(Reason),)),  # ticks in which a reason was given
)

NODE = _record(
    period_ns="i8",  # declared, as all down to `limits_mcpu`
    most_elapsed_ns="f8",
    node_mcpu="f8",
    most_age_s="f8",
    frozen_ticks="f8",
    most_carried_mbps="f8",
    most_gain="f8",  # carried over offered, of a slice that cannot have made too much of it
    most_cpu_mcpu="f8",
    most_of_slice=("f8", (len(SLICE_FIELDS),)),  # what each figure can be
    most_of_node=("f8", (len(NODE_FIELDS),)),
    latch_after="i8",
    floors="i8",  # 0: service floors are switched off
    trials="i8",  # 0: the safe setting always stays
    window_ns="i8",
    tolerance="f8",
    flip_window_ns="f8",
    ranks="i8",  # whether nice levels rank slices
    nice_weight=("f8", (40,)),  # from nice -20 on, 1 at nice 0
    shares="i8",  # whether any slice has a share of the CPU for itself
    limits_mcpu="f8",
    now_ns="i8",
    before_ns="i8",  # the last tick
    telemetry=CONDITION,
    not_a_number=CONDITION,
    policy_error=CONDITION,
    seen=("f4", (len(NODE_FIELDS),)),
    same_ticks="i8",  # in which no figure has changed
    ticks="i8",  # number of ticks in the sums
    usable="i8",  # the measurement can be believed
    failed="i8",  # the policy has made no decision
    paused="i8",
    ordered_safe="i8",
    in_control="i8",
    powerless="i8",  # no knob can be moved
    overran="i8",  # too many decisions were late
    trip=BACK_OFF,  # for late decisions
    tripped="i8",
    latched="i8",
    action="i8",
    reasons="i8",
    charge="i8",  # `InCharge` at the last tick; -1: none yet
    counts=("i8", (len(Reason),)),
    charges=("i8", (len(InCharge),)),  # ticks by what was in charge
    rules_in_charge=("i8", (len(Reason),)),  # of those of the guard, by reason
)


class State(NamedTuple):
    """All of a guard's records.

    Attributes:
        node: `NODE`, (1,). slices: `SLICE`, (S,). knobs: `KNOB`, (3S,), by kind and then by slice.
        past: float32 (N, S, 3): offered, carried and CPU of the last N ticks, a ring.
        turns: ints (3S, R), for each knob a ring of the times at which it turned back.
        out: float32 (3, S, 1), what is let through. reasons: uint32 (S,), masks of `Reason` by slice.
    """

    node: Records
    slices: Records
    knobs: Records
    past: npt.NDArray[np.float32]
    turns: npt.NDArray[np.int64]
    out: npt.NDArray[np.float32]
    reasons: npt.NDArray[np.uint32]

    @classmethod
    def new(cls, num_slices: int, window: int, reversals: int) -> State:
        """Nothing has happened yet, and nothing is declared."""
        node, slices, knobs = np.zeros(1, NODE), np.zeros(num_slices, SLICE), np.zeros(NUM_KNOBS * num_slices, KNOB)
        for condition in (node["telemetry"], node["not_a_number"], node["policy_error"], slices["missing"]):
            condition["bad_since_ns"] = condition["good_since_ns"] = NEVER_NS
        for back_off in (node["trip"], slices["trip"], slices["floors"]["lowered"]):
            back_off["until_ns"] = NEVER_NS
        node["before_ns"] = slices["settled_ns"] = slices["trip_before_ns"] = knobs["changed_ns"] = NEVER_NS
        slices["floors"]["bar"] = node["in_control"] = 1
        node["charge"] = -1
        for field in ("last_held", "last_value", "extreme"):
            knobs[field] = np.nan
        state = cls(
            *(node, slices, knobs),
            np.zeros((window, num_slices, 3), np.float32),
            np.zeros((len(knobs), reversals), np.int64),
            np.zeros((NUM_KNOBS, num_slices, 1), np.float32),
            np.zeros(num_slices, np.uint32),
        )
        state.watch_anew()
        return state

    def watch_anew(self) -> None:
        """Forget rates, and how long what they say has been so; turns of knobs, and what was counted."""
        self.past[:] = 0.0
        self.turns[:] = NEVER_NS
        for field in ("samples", "offered", "carried", "cpu", "counts"):
            self.slices[field] = 0
        for field in ("ticks", "same_ticks", "counts", "charges", "rules_in_charge"):
            self.node[field] = 0
        self.node["seen"] = self.slices["seen"] = np.nan
        self.slices["asking_since_ns"] = self.slices["floors"]["broken_since_ns"] = NEVER_NS
        self.node["charge"], self.knobs["turn"] = -1, 0


@kernel
def asks_for_safe(condition: np.record, bad: bool, now_ns: int) -> bool:
    """Whether a condition asks for the safe setting now."""
    if bad:
        condition.good_since_ns = NEVER_NS
        if condition.bad_since_ns == NEVER_NS:
            condition.bad_since_ns = now_ns
        if now_ns - condition.bad_since_ns >= condition.patience_ns:
            condition.active = 1
    else:
        condition.bad_since_ns = NEVER_NS
        if condition.active != 0:
            if condition.good_since_ns == NEVER_NS:
                condition.good_since_ns = now_ns
            if now_ns - condition.good_since_ns >= condition.recover_ns:
                condition.active = 0
    return bool(condition.active != 0)


@kernel
def start(back_off: np.record, now_ns: int, least_ns: int) -> None:
    """Start a back-off, of ``least_ns`` or more; ``count`` is raised by the caller, who knows what counts."""
    if now_ns - back_off.until_ns > back_off.forget_ns:
        back_off.count = 0
    longer = float(max(back_off.first_ns, least_ns)) * 2.0 ** min(back_off.count, 40)
    back_off.until_ns = now_ns + int(min(longer, float(max(back_off.most_ns, back_off.first_ns, least_ns))))


@kernel
def act(record: np.record, action: int, reasons: int) -> None:
    """Have the node, or a slice, hold its knobs or take its safe setting, for these reasons."""
    record.action = max(record.action, action)
    record.reasons |= reasons | (_SAFE_BIT if action == SAFE else 0)
