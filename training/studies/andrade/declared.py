"""Andrade and Wickboldt (2025): 26 settings of CPU limits, nice and Cilium egress limits on five UPFs of one node."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from slicepilot.data.reference import calibration_rows, published_settings, verification_rows
from slicepilot.env.simulator.study import GROUPS
from slicepilot.training.studies.study import Effort, Finding, Findings, Row, Source, Store

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


class Andrade:
    """Declares the study."""

    name = "andrade"
    title = "Slice isolation with native cloud tools"
    citation = (
        'M. Andrade, J. Wickboldt, "A Study on 5G Network Slice Isolation Based on Native Cloud and Edge Computing '
        'Tools", Journal of Network and Systems Management 33(4):90, 2025'
    )
    question = (
        "Which fixed CPU limits, nice values and Cilium egress limits keep a priority slice's throughput and latency "
        "while four neighbours on the same edge node add users."
    )

    def rows(self) -> Sequence[Row]:
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
                        judged = statistic in ("mean", "median")
                        result.append(
                            Row(
                                key(number, group, metric, statistic),
                                f"experiment {number}, {group}, {metric}, {statistic}",
                                unit,
                                None if math.isnan(value) else value,
                                TOLERANCE[metric] if judged else None,
                                _cause(number, metric, statistic),
                            )
                        )
        return result

    def findings(self) -> Sequence[Finding]:
        """The conclusions of the study."""
        return FINDINGS

    def orders(self) -> Mapping[str, Sequence[str]]:
        """Orders of the settings by the gain of the priority slice and by the cost to the others."""
        settings = published_settings()
        shaped = [setting.experiment for setting in settings if setting.others_egress_mbps == SHAPED_MBPS]
        numbers = [setting.experiment for setting in settings]
        latency = {number: key(number, "others", "latency", "median") for number in numbers}
        return {
            "slice1's mean throughput": [key(number, "slice1", "throughput", "mean") for number in numbers],
            "the others' median latency": list(latency.values()),
            f"the others' median latency without egress limits of {SHAPED_MBPS:g} Mbit/s": [
                latency[number] for number in numbers if number not in shaped
            ],
        }

    def simulate(self, effort: Effort, store: Store) -> Findings:
        """The whole ramp of all settings, and of agents, on the fitted node."""
        return simulate(effort, store)

    def measure(self, effort: Effort, store: Store) -> Findings:
        """The same on the testbed's UPFs, with time and load scaled."""
        return measure(effort, store)

    def release(self, folder: Path, effort: Effort) -> Findings:
        """The tables again, out of the study's own exports."""
        return read_release(folder, effort)

    def pictures(self, sources: Mapping[Source, Findings]) -> Sequence[str]:
        """The study's figures, from each source that has them."""
        return pictures(self.rows(), sources)


def _cause(number: int, metric: str, statistic: str) -> str:
    if metric == "latency" and statistic == "mean":
        return LOSS_CAUSE
    settings = {setting.experiment: setting for setting in published_settings()}
    return NICE_CAUSE if settings[number].s1_nice else ""
