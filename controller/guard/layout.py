"""What the guard goes by and remembers: one structured array, whose fields kernels and shell call by the same names.

Every element (the node, a slice, a knob of a slice, a condition) has its ``rules``, fixed for a configuration, and its
``memory``, which the kernels write from tick to tick. The records of elements do not depend on how many slices there
are, so that the kernels are compiled once for all. Times are ns, of a clock that does not go back.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from slicepilot.controller.contracts.charge import InCharge
from slicepilot.controller.contracts.reasons import Reason
from slicepilot.env.knobs import NUM_KNOBS
from slicepilot.env.telemetry import NODE_FIELDS, SLICE_FIELDS

Structured = npt.NDArray[Any]

# "Never" is long ago, and far enough from the ends of an int64 to take differences.
NEVER_NS = -(1 << 62)
REASONS = len(Reason)
NICE_LEVELS = 40

# What a slice may do: follow the policy, stay, or take its safe setting.
FOLLOW, STAY, TO_SAFE = range(3)

# What came out: just what was wanted, what holds, something else, or nothing, since the arrays do not fit each other.
AS_WANTED, AS_HELD, CHANGED, MISSHAPEN = range(4)

# The node's conditions.
TELEMETRY_BAD, NOT_A_NUMBER, POLICY_FAILED = range(3)
CONDITIONS = 3

# A slice's service floors: what it carries, and its p99 delay.
RATE, DELAY = range(2)
FLOORS = 2


def _record(*fields: tuple[Any, ...]) -> np.dtype[np.void]:
    """Aligned; elements are `numpy.record`, so that Python reads them as compiled code does: ``element.field``."""
    return np.dtype((np.record, np.dtype(list(fields), align=True)))


CONDITION_RULES = _record(("patience_ns", "i8"), ("recovery_ns", "i8"))
CONDITION = _record(
    ("rules", CONDITION_RULES),
    ("memory", _record(("bad_since_ns", "i8"), ("good_since_ns", "i8"), ("active", "i8"))),
)
"""What makes the guard hold while it is bad, and go to safe after a patience; recovered when good for long enough."""

KNOB_RULES = _record(
    ("low", "f8"),  # in the knob's unit, as the next three
    ("high", "f8"),
    ("floor", "f8"),
    ("safe", "f8"),
    ("small", "f8"),  # changes below this hold: ratio of a limit or rate, levels of nice
    ("dwell_ns", "f8"),
    ("slew_per_ns", "f8"),  # on the knob's axis: natural logarithm of a limit or rate, levels of nice
    ("significant", "f8"),  # on the axis: a move that can be a reversal
    ("movable", "i8"),  # 0: it stays as it is, under the safe setting too
)
KNOB_MEMORY = _record(
    ("changed_at_ns", "i8"),
    ("frozen_until_ns", "i8"),
    ("freezes", "i8"),  # in a row
    ("direction", "i8"),  # of the last significant move: -1, 1; 0: none yet
    ("reversal", "i8"),  # place of the oldest in `State.reversals`
    ("moving", "i8"),  # -1 or 1 while a step has fallen short of its end, else 0
    ("last_held", "f8"),  # NaN: nothing yet, as the next two
    ("last_allowed", "f8"),
    ("extreme", "f8"),  # on the axis, since the last significant move
)
KNOB = _record(("rules", KNOB_RULES), ("memory", KNOB_MEMORY), ("chosen", "f8"))
"""A knob of a slice; ``chosen`` is what one kernel of a tick hands to the next."""

SLICE_RULES = _record(
    ("share_floor_mcpu", "f8"),
    ("base_weight", "f8"),
    ("committed_mbps", "f8"),
    ("carried_ratio", "f8"),
    ("floor_patience_ns", "f8"),
    ("trial_patience_ns", "f8"),  # the same for the safe setting, on trial
    ("most_delay_us", "f8"),
    ("least_mbps", "f8"),  # what less is offered than this proves nothing
)
SLICE_MEMORY = _record(
    ("asking_since_ns", "i8"),  # as much as proves something is offered since then; NEVER: it is not
    ("wait_us", "f8"),  # for a CPU, smoothed over the window of rates
    ("samples", "i8"),  # in the sums over the last ticks
    ("offered_sum", "f8"),
    ("carried_sum", "f8"),
    ("cpu_sum", "f8"),
    ("cost_mcpu_per_mbps", "f8"),  # the least of late; NaN: not known
)
FLOOR = _record(
    ("since_ns", "i8"),  # broken since then
    # How it was kept of late, while the one or the other was in charge: what the slice got of what the floor asks for.
    ("policy_got", "f8"),
    ("policy_asked", "f8"),
    ("safe_got", "f8"),
    ("safe_asked", "f8"),
    # The trip in force.
    ("tripped", "i8"),  # it is for this floor
    ("compared", "i8"),  # it was broken when the trip came
    ("failed", "i8"),  # the safe setting does no better
    ("load", "f8"),  # what the floor asked for when the trip came
    ("trial_ticks", "i8"),  # with half of that at least
    # Spared: nobody could keep it.
    ("spared_until_ns", "i8"),
    ("again_from_ns", "i8"),  # the earliest end where the load eases
    ("spared", "i8"),  # times in a row
    ("bar", "f8"),  # share of the floor that holds in place of it
    ("spared_load_mbps", "f8"),
    ("spared_idle_ratio", "f8"),
)
"""A service floor of a slice, as the policy and the safe setting have kept it; see `floors`."""
TRIP = _record(
    ("safe_until_ns", "i8"),
    ("count", "i8"),  # in a row
    ("latched", "i8"),
    ("safe_before_ns", "i8"),  # `safe_until_ns` before the trip, and `count`
    ("count_before", "i8"),
)
"""How long the safe setting stays for a trip, of a slice or of the node; see `trips`."""
TRIAL = _record(
    ("on", "i8"),  # the trip in force may turn out to be nobody's fault
    ("settled_at_ns", "i8"),  # from then on rates are of who is in charge of the slice now
    ("counts_at_ns", "i8"),  # when the trip counts at the earliest; NEVER: it does
    ("held_up", "i8"),  # while the trip was in force the slice waited for what others may have taken
)
TOLD = _record(
    ("began_ns", "i8"),
    ("floor", "i8"),  # RATE or DELAY
    ("offered_mbps", "f8"),
    ("carried_mbps", "f8"),
    ("delay_p99_us", "f8"),
    ("floor_mbps", "f8"),
)
"""What was seen when the trip in force came."""
SLICE = _record(
    ("rules", SLICE_RULES),
    ("memory", SLICE_MEMORY),
    ("missing", CONDITION),  # not measured, or doubted
    ("knobs", KNOB, (NUM_KNOBS,)),
    ("floors", FLOOR, (FLOORS,)),
    ("trip", TRIP),
    ("trial", TRIAL),
    ("told", TOLD),
    ("tripped", "i8"),  # at this tick: its trip is in force
    ("protected", "i8"),  # at this tick: what it may have does not wait for a decision that is in time
    ("excused", "i8"),  # at this tick: below a floor that nobody could keep
    ("doubted", "i8"),  # at this tick: it is measured, and its figures alone cannot be
    ("left_out", "i8"),  # reason bit: why it was last held or safe without a trip; not measured, or doubted
    ("filled", "i8"),  # while a share of the CPU is worked out: it wants no more
    ("course", "i8"),  # of this tick: FOLLOW, STAY or TO_SAFE
    ("counts", "i8", (REASONS,)),  # ticks in which a reason was given
    ("seen", "f4", (len(SLICE_FIELDS),)),  # the last measurement
)

NODE_RULES = _record(
    # What knobs may do.
    ("most_elapsed_ns", "f8"),
    ("period_ns", "f8"),
    ("node_mcpu", "f8"),
    ("limits_mcpu", "f8"),
    ("window_ns", "f8"),
    ("freeze_ns", "f8"),
    ("most_freeze_ns", "f8"),
    ("forget_freeze_ns", "f8"),
    ("nice_weight", "f8", (NICE_LEVELS,)),  # from nice -20 on, 1 at nice 0
    # Whom to believe, and what a trip leads to.
    ("most_age_s", "f8"),
    ("frozen_ticks", "f8"),
    ("most_carried_mbps", "f8"),
    ("most_gain", "f8"),  # carried over offered, of a slice that cannot have made too much of it
    ("most_cpu_mcpu", "f8"),
    ("safe_ns", "f8"),
    ("most_safe_ns", "f8"),
    ("forget_trips_ns", "f8"),
    ("latch_after", "f8"),
    # Whose fault a broken service floor is.
    ("settle_ns", "f8"),
    ("settling", "f8"),  # of a slice's wait for a CPU, per tick
    ("short_ratio", "f8"),
    ("better_share", "f8"),
    ("tolerance_ratio", "f8"),
    ("spare_ns", "f8"),
    ("most_spare_ns", "f8"),
    ("eased_load_ratio", "f8"),
    ("eased_idle_ratio", "f8"),
    ("room_ratio", "f8"),  # floors that need more than so many times what there is cannot be kept
    ("uplink_mbps", "f8"),
    ("smoothing", "f8"),  # of the node's load and idle share, per tick
    ("fading", "f8"),  # of how floors were kept, per tick
    ("forgetting", "f8"),  # of the least that was seen, per tick
    ("most_of_slice", "f8", (len(SLICE_FIELDS),)),  # what each figure can be
    ("most_of_node", "f8", (len(NODE_FIELDS),)),
)
NODE_MEMORY = _record(
    ("before_ns", "i8"),  # the last tick
    ("by_overrun", "i8"),  # the trip in force is for late decisions
    ("load_mbps", "f8"),  # offered to all slices, smoothed
    ("idle_ratio", "f8"),  # likewise
    ("others_mcpu", "f8"),  # the least of late that all but the slices have used; NaN: not known
    ("charge", "i8"),  # who was in charge at the last tick (`InCharge`); -1: none yet
    ("same_ticks", "i8"),  # in which no figure has changed
    ("ticks", "i8"),  # in the sums over the last ones
    # Said by the operator and the loop.
    ("paused", "i8"),
    ("ordered_safe", "i8"),
    ("in_control", "i8"),
    ("overran", "i8"),
)
NODE = _record(
    ("rules", NODE_RULES),
    ("memory", NODE_MEMORY),
    ("trip", TRIP),  # for overruns
    ("conditions", CONDITION, (CONDITIONS,)),
    ("counts", "i8", (REASONS,)),
    ("charges", "i8", (len(InCharge),)),  # ticks by who was in charge
    ("rules_in_charge", "i8", (REASONS,)),  # of those of the guard, by reason
    ("seen", "f4", (len(NODE_FIELDS),)),
)

PAST = _record(("offered_mbps", "f4"), ("carried_mbps", "f4"), ("cpu_mcpu", "f4"))


def state_dtype(num_slices: int, window: int, reversals: int) -> np.dtype[np.void]:
    """All of a guard's state; fields as in `State`, of which there is one.

    Args:
        num_slices: S.
        window: ticks that rates are averaged over, N.
        reversals: that a knob may make, R.
    """
    return _record(
        ("node", NODE),
        ("slices", SLICE, (num_slices,)),
        ("past", PAST, (window, num_slices)),
        ("reversals", "i8", (NUM_KNOBS, num_slices, reversals)),
        ("reasons", "u4", (num_slices,)),
    )


class State(NamedTuple):
    """The parts of a state, as views of it.

    Attributes:
        node: `NODE`, (1,). slices: `SLICE`, (S,).
        past: `PAST`, (N, S): what is in the sums, a ring of N ticks.
        reversals: ints (3, S, R), for each knob a ring of the times at which it turned back.
        reasons: uint32 (S,), of the last tick.
    """

    node: Structured
    slices: Structured
    past: Structured
    reversals: npt.NDArray[np.int64]
    reasons: npt.NDArray[np.uint32]

    @classmethod
    def of(cls, state: Structured) -> State:
        """Of an array (1,) of `state_dtype`."""
        return cls(state["node"], *(state[name][0] for name in cls._fields[1:]))

    def begin(self) -> None:
        """Nothing has happened yet; from zeros, with the rules in place."""
        node, knobs = self.node["memory"], self.slices["knobs"]["memory"]
        node["before_ns"] = self.node["trip"]["safe_until_ns"] = NEVER_NS
        node["in_control"] = 1
        node["charge"] = -1
        self.slices["trip"]["safe_until_ns"] = self.slices["memory"]["asking_since_ns"] = NEVER_NS
        self.slices["trial"]["counts_at_ns"] = self.slices["trial"]["settled_at_ns"] = NEVER_NS
        self.slices["memory"]["cost_mcpu_per_mbps"] = np.nan
        node["load_mbps"] = node["idle_ratio"] = node["others_mcpu"] = np.nan
        for field in ("since_ns", "spared_until_ns", "again_from_ns"):
            self.slices["floors"][field] = NEVER_NS
        for conditions in (self.node["conditions"], self.slices["missing"]):
            conditions["memory"]["bad_since_ns"] = conditions["memory"]["good_since_ns"] = NEVER_NS
        knobs["changed_at_ns"] = knobs["frozen_until_ns"] = NEVER_NS
        knobs["last_held"] = knobs["last_allowed"] = knobs["extreme"] = np.nan
        self.node["seen"] = self.slices["seen"] = np.nan
        self.reversals[:] = NEVER_NS


class Measured(NamedTuple):
    """A tick's telemetry, float32: slices (8, S, 1), node (2, 1), age_s (1,); valid: bool (S, 1)."""

    slices: npt.NDArray[np.float32]
    node: npt.NDArray[np.float32]
    age_s: npt.NDArray[np.float32]
    valid: npt.NDArray[np.bool_]
