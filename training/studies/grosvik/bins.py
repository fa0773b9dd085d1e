"""A run in bins of 50 ms, separated by what best effort does, and the study's figures computed from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from slicepilot.data.intervals import mean_interval
from slicepilot.training.studies.study import Figure

from .policies import GROUPS, LINK_MBPS

Array = npt.NDArray[np.float64]
PHASES = ("on", "off", "change")
"""Best effort sends all it has; only its constant part; or has just begun or ended to send more."""
SETTLE_BINS = 6
"""Length of the transient after a change."""
STEP_MBPS = 0.02 * LINK_MBPS
UNITS = {
    "offered": "Mbit/s",
    "throughput": "Mbit/s",
    "loss": "%",
    "delay-p50": "ms",
    "delay-p99": "ms",
}


@dataclass(frozen=True)
class Bins:
    """Figures of each group of classes, (2, T), in the order of `GROUPS`.

    Attributes:
        offered, carried, lost: Mbit/s, of all classes of the group together.
        delay_p50, delay_p99: one-way, ms: the median over its classes, and the highest; NaN without packets.
    """

    offered: Array
    carried: Array
    lost: Array
    delay_p50: Array
    delay_p99: Array

    def phases(self) -> dict[str, npt.NDArray[np.bool_]]:
        """Which bins are of which phase, by what best effort offers, (T,)."""
        offered = self.offered[1]
        flips = np.flatnonzero(np.abs(np.diff(offered, prepend=np.nan)) > STEP_MBPS)
        change = np.zeros(offered.shape, np.bool_)
        for flip in (0, *flips):
            change[flip : flip + SETTLE_BINS] = True
        on = offered > 0.5 * (offered.min() + offered.max())
        return {"on": on & ~change, "off": ~on & ~change, "change": change}


def figures_of_bins(bins: Bins) -> dict[str, float]:
    """Figures of a run by ``GROUP/METRIC/PHASE``, and best effort's share of the rate that critical leaves, in %."""
    result = dict[str, float]()
    for phase, mask in bins.phases().items():
        if not mask.any():
            continue
        for kind, group in enumerate(GROUPS):
            offered, carried = bins.offered[kind, mask].mean(), bins.carried[kind, mask].mean()
            values = {
                "offered": offered,
                "throughput": carried,
                "loss": 100.0 * bins.lost[kind, mask].mean() / max(offered, 1e-9),
                "delay-p50": _median(bins.delay_p50[kind, mask]),
                "delay-p99": _median(bins.delay_p99[kind, mask]),
            }
            result |= {f"{group}/{metric}/{phase}": float(value) for metric, value in values.items()}
        left = LINK_MBPS - bins.offered[0, mask].mean()
        share = 100.0 * bins.carried[1, mask].mean() / min(left, bins.offered[1, mask].mean())
        result[f"best-effort/share/{phase}"] = float(share)
    return result


def _median(values: Array) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if known.size else float("nan")


def ks_distance(first: Array, second: Array) -> float:
    """The largest distance between two empirical distribution functions (Kolmogorov, Smirnov); NaN without values."""
    if not (first.size and second.size):
        return float("nan")
    # scipy has no annotations, and what Pyright infers from its sources differs between runs.
    test: Any = stats.ks_2samp(first, second, method="asymp")
    return float(test.statistic)


def over_turns(prefix: str, turns: Sequence[Mapping[str, float]]) -> Iterator[tuple[str, Figure]]:
    """Figures of a cell: means over its turns with 95% intervals."""
    for key in turns[0]:
        values = [turn[key] for turn in turns if np.isfinite(turn.get(key, np.nan))]
        if values:
            mean = float(np.mean(values))
            interval: Any = mean_interval(values) if len(values) > 1 else None
            low, high = (None, None) if interval is None else (interval.low, interval.high)
            yield f"{prefix}/{key}", Figure(mean, low, high)
