"""What was in charge of a tick: policy, guard, safe setting or nobody. For reports, metrics and promotion."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .modes import Labelled, Level
from .reasons import Reason


class InCharge(Labelled):
    """What decided the knobs of a tick.

    ``POLICY``: the guard let its decision through as it was, or only later (dwell, slew, oscillation) or not where the
    change was too small (hysteresis). ``GUARD``: all knobs were held, or a rule replaced what the policy wanted for at
    least one slice (such as a slice that has its safe setting), or the decision came too late. ``SAFE``: the declared
    safe setting is in force on the whole node, whatever led to it, or on each slice for a reason of its own.
    ``NOBODY``: no knob of any slice that the mode acts on could be moved: none acts, the kernel refuses them all, or
    others have set them.
    """

    POLICY = 0
    GUARD = 1
    SAFE = 2
    NOBODY = 3


MOST_SAFE = 0.1
"""Share of the time from which on the results of a run do not count for its policy."""

# Reasons that only shape a decision, or are not the guard's.
_LEFT_TO_THE_POLICY = (
    *(Reason.HYSTERESIS, Reason.DWELL, Reason.SLEW, Reason.OSCILLATION),
    *(Reason.NOT_ACTING, Reason.FOREIGN_CHANGE, Reason.FLOOR_INFEASIBLE),
)
GUARD_MASK = sum(reason.bit for reason in Reason if reason not in _LEFT_TO_THE_POLICY)
"""Reasons by which the guard is in charge of a tick, if a slice or the node has one of them."""


def charges_of(
    levels: npt.NDArray[Any], late: npt.NDArray[Any], powerless: npt.NDArray[Any], masks: npt.NDArray[np.uint32]
) -> npt.NDArray[np.int64]:
    """`InCharge` of N ticks, given the guard's levels (N,), which were late (N,), in which no knob could be moved (N,),
    and all reason masks (N, S + 1), the node's last."""
    given = np.bitwise_or.reduce(masks, axis=1)
    guard = late.astype(bool) | (levels == Level.HOLD) | (given & np.uint32(GUARD_MASK) != 0)
    each = (masks[:, :-1] & np.uint32(Reason.SAFE_SETTING.bit) != 0).all(axis=1)
    conditions = [powerless.astype(bool), (levels >= Level.SAFE) | each, guard]
    return np.select(conditions, [InCharge.NOBODY, InCharge.SAFE, InCharge.GUARD], InCharge.POLICY)


def shares(ticks: dict[str, int]) -> dict[str, float] | None:
    """Shares, which sum to 1, of ticks by label; None without a tick."""
    total = sum(ticks.values())
    return {charge.label: ticks.get(charge.label, 0) / total for charge in InCharge} if total else None


def shares_text(shares: dict[str, float], rules: dict[str, float] | None = None) -> str:
    """Shares as text, with those of the guard's rules: ``policy 96.2%, guard 3.1% (oscillation 3.1%), safe 0.7%``;
    nobody's only where there are any."""
    most = sorted((rules or {}).items(), key=lambda rule: (-rule[1], rule[0]))
    which = f" ({', '.join(f'{name} {share:.1%}' for name, share in most)})" if most else ""
    labels = {charge.label: which if charge is InCharge.GUARD else "" for charge in InCharge}
    if not shares.get(InCharge.NOBODY.label):
        del labels[InCharge.NOBODY.label]
    return ", ".join(f"{label} {shares[label]:.1%}{rules_text}" for label, rules_text in labels.items())
