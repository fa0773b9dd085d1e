"""How long a burst of its neighbours keeps a slice outside its delay bound, and what that time consists of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]

WINDOW_NS = 10_000_000
SILENCE_NS = 200_000_000  # of all neighbours before a burst
STAYS_WINDOWS = 5  # back inside is who stays there for so long
MISSING_SHARE = 0.1  # of a window's packets: lost, or still inside


@dataclass(frozen=True)
class Tick:
    """One control period: when its measurement was complete, when the knobs held, and whether they changed."""

    measured_ns: int
    applied_ns: int
    changed: bool


@dataclass(frozen=True)
class Reaction:
    """What became of one burst; times in ns from the burst's first packet.

    Attributes:
        total_ns: until the first window of a series of `STAYS_WINDOWS` inside the bound; 0 for who never left it, the
            burst's whole length for who did not come back.
        left, back: whether it left the bound, and came back while the burst lasted.
        window_ns: until the first measurement that could show the burst: the wait for the next tick.
        decision_ns: from there until knobs that changed were applied; None if none were before the slice was back.
        drain_ns: from there until the priority slice's packets that were waiting had left.
        rest_ns: what is left of the total: until a new quota holds and the neighbours' own queues are through.
    """

    total_ns: int
    left: bool
    back: bool
    window_ns: int
    decision_ns: int | None = None
    drain_ns: int | None = None
    rest_ns: int | None = None


def burst_starts(packets: npt.NDArray[Any], priority: int) -> Times:
    """Arrivals at N3 of neighbours' packets, ns, that come after `SILENCE_NS` without any.

    Args:
        packets: `slicepilot.controller.telemetry.layout.PACKET_EVENT`, in any order.
        priority: index of the slice that is no neighbour.
    """
    begun_ns = int(packets["n3_ns"].min()) if len(packets) else 0
    arrivals = np.sort(packets["n3_ns"][packets["slice"] != priority].astype(np.int64))
    return arrivals[np.diff(arrivals, prepend=begun_ns) >= SILENCE_NS]


def reaction(
    packets: npt.NDArray[Any], ticks: list[Tick], priority: int, bound_us: float, start_ns: int, length_ns: int
) -> Reaction:
    """What became of the burst that began at ``start_ns``.

    A window holds the packets that arrived at N3 in it. It is outside the bound if their p99 delay is above it, or if
    `MISSING_SHARE` of those that came at the rate before the burst never left.

    Args:
        packets: of the whole run, `slicepilot.controller.telemetry.layout.PACKET_EVENT`.
        ticks: of the whole run, in order.
        priority: index of the slice with the bound.
        bound_us: of its p99 delay.
        start_ns, length_ns: of the burst.
    """
    mine = packets[packets["slice"] == priority]
    n3_ns, exit_ns = (mine[field].astype(np.int64) for field in ("n3_ns", "exit_ns"))
    outside = _outside(n3_ns, exit_ns, bound_us, start_ns, length_ns)
    first = next((tick for tick in ticks if tick.measured_ns >= start_ns), None)
    window_ns = first.measured_ns - start_ns if first else length_ns
    if not outside.any():
        return Reaction(0, left=False, back=True, window_ns=window_ns)
    back_at = _back_at(outside)
    back = back_at is not None
    total_ns = back_at * WINDOW_NS if back_at is not None else length_ns
    end_ns = start_ns + total_ns
    acted = next((tick for tick in ticks if tick.changed and start_ns <= tick.measured_ns < end_ns), None)
    if acted is None:
        return Reaction(total_ns, left=True, back=back, window_ns=window_ns)
    decided_ns = acted.applied_ns - start_ns
    inside = exit_ns[(n3_ns <= acted.applied_ns) & (exit_ns > acted.applied_ns)]
    drained_ns = int(inside.max()) - start_ns if len(inside) else decided_ns
    return Reaction(
        total_ns,
        left=True,
        back=back,
        window_ns=window_ns,
        decision_ns=decided_ns - window_ns,
        drain_ns=drained_ns - decided_ns,
        rest_ns=max(total_ns - drained_ns, 0),
    )


def _outside(n3_ns: Times, exit_ns: Times, bound_us: float, start_ns: int, length_ns: int) -> npt.NDArray[np.bool_]:
    """For each window of the burst whether it is outside the bound."""
    before = np.count_nonzero((n3_ns >= start_ns - SILENCE_NS) & (n3_ns < start_ns))
    expected = before * WINDOW_NS / SILENCE_NS
    window = (n3_ns - start_ns) // WINDOW_NS
    result = []
    for number in range(length_ns // WINDOW_NS):
        delays_us = 1e-3 * (exit_ns - n3_ns)[window == number]
        missing = len(delays_us) < (1 - MISSING_SHARE) * expected - 1
        result.append(missing or (len(delays_us) > 0 and np.quantile(delays_us, 0.99) > bound_us))
    return np.asarray(result, np.bool_)


def _back_at(outside: npt.NDArray[np.bool_]) -> int | None:
    """The first window after leaving from which `STAYS_WINDOWS` in a row are inside."""
    first = int(np.argmax(outside))
    for number in range(first + 1, len(outside) - STAYS_WINDOWS + 1):
        if not outside[number : number + STAYS_WINDOWS].any():
            return number
    return None
