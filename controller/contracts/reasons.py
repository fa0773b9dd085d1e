"""Why the guard changed the policy's decision: for records, metrics and logs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .modes import Labelled


class Severity(Labelled):
    """How much an intervention says about a policy or a node.

    ``INFO``: the envelope shaped a sound decision. ``WARNING``: a decision or a measurement that should not be.
    ``SEVERE``: the guard took over, of a slice or of the node.
    """

    INFO = 0
    WARNING = 1
    SEVERE = 2


class Reason(Labelled):
    """One bit each in a tick's masks, per slice or for the node."""

    HYSTERESIS = 0
    DWELL = 1
    SLEW = 2
    BUDGET = 3
    FLOOR = 4
    NOT_ACTING = 5
    OUT_OF_RANGE = 6
    OSCILLATION = 7
    SLICE_MISSING = 8
    FOREIGN_CHANGE = 9
    NOT_A_NUMBER = 10
    TELEMETRY_MISSING = 11
    TELEMETRY_STALE = 12
    TELEMETRY_FROZEN = 13
    TELEMETRY_IMPLAUSIBLE = 14
    OVERRUN = 15
    SLA_FLOOR = 16
    POLICY_ERROR = 17
    SAFE_SETTING = 18
    PAUSED = 19
    ORDERED_SAFE = 20
    FLOOR_INFEASIBLE = 21
    FLOOR_TRIAL = 22
    LATCHED = 23

    @property
    def bit(self) -> int:
        return 1 << self


@dataclass(frozen=True)
class Meaning:
    """Severity and explanation of a reason."""

    severity: Severity
    text: str


MEANINGS: dict[Reason, Meaning] = {
    Reason.HYSTERESIS: Meaning(Severity.INFO, "too small a change: the knob holds"),
    Reason.DWELL: Meaning(Severity.INFO, "changed a moment ago: the knob holds"),
    Reason.SLEW: Meaning(Severity.INFO, "moved as far as a step may go"),
    Reason.BUDGET: Meaning(Severity.INFO, "CPU limits scaled to the node's budget"),
    Reason.FLOOR: Meaning(Severity.INFO, "raised to a floor, or moved for another slice that is below its floor"),
    Reason.NOT_ACTING: Meaning(Severity.INFO, "this mode does not act on the slice"),
    Reason.OUT_OF_RANGE: Meaning(Severity.WARNING, "outside the declared bounds: the knob holds"),
    Reason.OSCILLATION: Meaning(Severity.WARNING, "the knob turns back too often: it is not lowered for a while"),
    Reason.SLICE_MISSING: Meaning(Severity.WARNING, "the slice is not measured: its knobs hold, then go to safe"),
    Reason.FOREIGN_CHANGE: Meaning(Severity.WARNING, "another program has set the knob: that value holds"),
    Reason.NOT_A_NUMBER: Meaning(Severity.SEVERE, "a decision without a number: the knobs hold"),
    Reason.TELEMETRY_MISSING: Meaning(Severity.WARNING, "no slice is measured: hold, then safe"),
    Reason.TELEMETRY_STALE: Meaning(Severity.WARNING, "measurements too old: hold, then safe"),
    Reason.TELEMETRY_FROZEN: Meaning(Severity.WARNING, "measurements that do not change: hold, then safe"),
    Reason.TELEMETRY_IMPLAUSIBLE: Meaning(Severity.WARNING, "measurements that cannot be: hold, then safe"),
    Reason.OVERRUN: Meaning(Severity.SEVERE, "too many late decisions: safe setting"),
    Reason.SLA_FLOOR: Meaning(Severity.SEVERE, "below its service floor for too long: the slice is safe"),
    Reason.POLICY_ERROR: Meaning(Severity.SEVERE, "the policy failed: hold, then safe"),
    Reason.SAFE_SETTING: Meaning(Severity.INFO, "the declared safe setting"),
    Reason.PAUSED: Meaning(Severity.INFO, "paused: the knobs hold"),
    Reason.ORDERED_SAFE: Meaning(Severity.INFO, "an operator has ordered the safe setting"),
    Reason.FLOOR_INFEASIBLE: Meaning(Severity.INFO, "below a service floor that the safe setting does not keep either"),
    Reason.FLOOR_TRIAL: Meaning(Severity.INFO, "the safe setting is on trial: does it keep the floor?"),
    Reason.LATCHED: Meaning(Severity.SEVERE, "tripped too often: safe setting until an operator resumes"),
}


def names(mask: int) -> list[str]:
    """Labels of a mask's reasons, in order."""
    return [reason.label for reason in reasons_in(mask)]


def reasons_in(mask: int) -> Iterator[Reason]:
    """The reasons of a mask."""
    for reason in Reason:
        if mask & reason.bit:
            yield reason
