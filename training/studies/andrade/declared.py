"""Andrade and Wickboldt (2025): 26 settings of CPU limits, nice and Cilium egress limits on five UPFs of one node."""

from __future__ import annotations

import math
from functools import partial

from slicepilot.data.reference import calibration_rows, published_settings, verification_rows
from slicepilot.env.simulator.study import GROUPS
from slicepilot.training.studies.study import Row, Study

from .findings import FINDINGS, NICE_CAUSE
from .pictures import pictures
from .release import read_release
from .samples import METRICS, STATISTICS, key
from .simulated import simulate
from .testbed import measure

TOLERANCE = {"throughput": 0.10, "latency": 0.25}
"""Of means and medians; spreads are shown and not judged."""
SHAPED_MBPS = 150.0
"""An egress limit above what the others carry; the study's others wait longer behind it, the simulator's do not."""
LOSS_CAUSE = "A mean over round trips of lost and repeated probes, up to 127 s: few samples decide."


def _rows() -> list[Row]:
    """Mean, median, standard deviation and interquartile range of both groups of all experiments."""
    printed = {(r.experiment, r.metric, r.group): r for r in (*calibration_rows(), *verification_rows())}
    result = []
    for setting in published_settings():
        number = setting.experiment
        for metric, unit in METRICS.items():
            for group in GROUPS if setting.active_slices > 1 else GROUPS[:1]:
                row = printed.get((number, metric, group))
                for statistic in STATISTICS:
                    value = getattr(row, statistic) if row else math.nan
                    cause = NICE_CAUSE if setting.s1_nice else ""
                    result.append(
                        Row(
                            key(number, group, metric, statistic),
                            f"experiment {number}, {group}, {metric}, {statistic}",
                            unit,
                            None if math.isnan(value) else value,
                            TOLERANCE[metric] if statistic in ("mean", "median") else None,
                            LOSS_CAUSE if (metric, statistic) == ("latency", "mean") else cause,
                        )
                    )
    return result


def _orders() -> dict[str, list[str]]:
    """Of the settings, by the gain of the priority slice and by the cost to the others."""
    settings = published_settings()
    free = [setting for setting in settings if setting.others_egress_mbps != SHAPED_MBPS]
    by_latency = "the others' median latency"
    return {
        "slice1's mean throughput": [key(s.experiment, "slice1", "throughput", "mean") for s in settings],
        by_latency: [key(s.experiment, "others", "latency", "median") for s in settings],
        f"{by_latency} without egress limits of {SHAPED_MBPS:g} Mbit/s": [
            key(s.experiment, "others", "latency", "median") for s in free
        ],
    }


ROWS = _rows()
STUDY = Study(
    name="andrade",
    title="Slice isolation with native cloud tools",
    citation='M. Andrade, J. Wickboldt, "A Study on 5G Network Slice Isolation Based on Native Cloud and Edge '
    'Computing Tools", Journal of Network and Systems Management 33(4):90, 2025',
    question="Which fixed CPU limits, nice values and Cilium egress limits keep a priority slice's throughput and "
    "latency while four neighbours on the same edge node add users.",
    rows=ROWS,
    findings=FINDINGS,
    orders=_orders(),
    simulate=simulate,
    measure=measure,
    release=read_release,
    pictures=partial(pictures, ROWS),
)
