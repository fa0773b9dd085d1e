"""The arrays that the guard's kernels share: names of their rows, and what is remembered from tick to tick."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...env.knobs import NUM_KNOBS
from ...env.telemetry import NODE_FIELDS, SLICE_FIELDS
from ..contracts.reasons import Reason

FloatRows = npt.NDArray[np.float64]
IntRows = npt.NDArray[np.int64]

# Times are ns throughout; "never" is long ago, and far enough from the ends of an int64 to take differences.
NEVER_NS = -(1 << 62)
REASONS = len(Reason)

# What a slice may do: follow the policy, stay, or take its safe setting.
FOLLOW, STAY, TO_SAFE = range(3)

# What came out: the very wish, what holds, something else, or nothing, since the arrays do not fit each other.
AS_WANTED, AS_HELD, CHANGED, MISSHAPEN = range(4)

# Rules of a knob, float (KNOB_RULES, 3, S). `SLEW` (per ns) and `SIGNIFICANT` are on the knob's axis: natural logarithm
# of a limit or rate, levels of nice.
LOW, HIGH, FLOOR_AT, SAFE_AT, SMALL, DWELL_NS, SLEW, SIGNIFICANT = range(8)
KNOB_RULES = 8

# Rules of a slice, float (SLICE_RULES, S).
SHARE_FLOOR, BASE_WEIGHT, COMMITTED, CARRIED_RATIO, FLOOR_PATIENCE, MOST_DELAY_US = range(6)
SLICE_RULES = 6

# Rules of the node, float: what knobs may do.
MOST_ELAPSED_NS, PERIOD_NS, NODE_MCPU, LIMITS_MCPU, WINDOW_NS, FREEZE_NS, MOST_FREEZE_NS, FORGET_FREEZE_NS = range(8)
MOVE_RULES = 8

# Rules of the node, float: whom to believe.
MOST_AGE_S, FROZEN_TICKS, MOST_CARRIED, MOST_CPU, SAFE_NS, MOST_SAFE_NS, FORGET_TRIPS_NS, LATCH_AFTER = range(8)
TRUST_RULES = 8

# What makes the guard hold and then go to safe, each with patience and recovery: ints (2, CONDITIONS + S); a slice
# that is not measured is a condition of its own.
TELEMETRY_BAD, NOT_A_NUMBER, POLICY_FAILED = range(3)
CONDITIONS = 3
PATIENCE, RECOVERY = range(2)

# Rows of a condition's memory.
BAD_SINCE, GOOD_SINCE, ACTIVE = range(3)

# Memory of a knob.
CHANGED_AT, FROZEN_UNTIL, FREEZES, DIRECTION, REVERSAL, MOVING = range(6)
KNOB_TIMES = 6
LAST_HELD, LAST_ALLOWED, EXTREME = range(3)

# Memory of a slice's service.
BELOW_SINCE, SLOW_SINCE, TRIPPED, SAMPLES = range(4)
OFFERED_SUM, CARRIED_SUM, CPU_SUM = range(3)

# Memory of the node.
BEFORE, SAFE_UNTIL, TRIPS, LATCHED, BY_OVERRUN, SAME_TICKS, TICKS = range(7)
# Orders, in the same array: what the operator and the loop have said.
PAUSED, ORDERED_SAFE, ACTING, OVERRAN = range(7, 11)
NODE_MEMORY = 11


@dataclass(frozen=True)
class Memory:
    """What the kernels remember, (rows, ..., S).

    Attributes:
        node: ints (NODE_MEMORY,).
        conditions: ints (3, CONDITIONS + S).
        knob_times: ints (KNOB_TIMES, 3, S); knob_values: floats (3, 3, S).
        reversals: ints (3, S, R), a ring of the times at which a knob turned back.
        service: ints (4, S); sums: floats (3, S) over past: float32 (N, 3, S), a ring of N ticks.
        seen: float32 (8, S) and seen_node: float32 (2,), the last measurement.
        counts: ints (REASONS, S + 1), ticks in which a reason was given; the last column is the node's.
    """

    node: IntRows
    conditions: IntRows
    knob_times: IntRows
    knob_values: FloatRows
    reversals: IntRows
    service: IntRows
    sums: FloatRows
    past: npt.NDArray[np.float32]
    seen: npt.NDArray[np.float32]
    seen_node: npt.NDArray[np.float32]
    counts: IntRows

    @classmethod
    def fresh(cls, num_slices: int, reversals: int, window: int) -> Memory:
        """Nothing has happened yet."""
        s = num_slices
        memory = cls(
            np.zeros(NODE_MEMORY, np.int64),
            np.zeros((3, CONDITIONS + s), np.int64),
            np.zeros((KNOB_TIMES, NUM_KNOBS, s), np.int64),
            np.full((3, NUM_KNOBS, s), np.nan),
            np.full((NUM_KNOBS, s, reversals), NEVER_NS, np.int64),
            np.zeros((4, s), np.int64),
            np.zeros((3, s)),
            np.zeros((window, 3, s), np.float32),
            np.full((len(SLICE_FIELDS), s), np.nan, np.float32),
            np.full(len(NODE_FIELDS), np.nan, np.float32),
            np.zeros((REASONS, s + 1), np.int64),
        )
        memory.node[[BEFORE, SAFE_UNTIL]] = NEVER_NS
        memory.node[ACTING] = 1
        memory.conditions[[BAD_SINCE, GOOD_SINCE]] = NEVER_NS
        memory.knob_times[[CHANGED_AT, FROZEN_UNTIL]] = NEVER_NS
        memory.service[[BELOW_SINCE, SLOW_SINCE]] = NEVER_NS
        return memory
