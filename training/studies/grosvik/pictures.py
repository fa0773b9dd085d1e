"""Pictures of the study: throughput and delay of both classes over time, and a summary of each policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from slicepilot.data.reference import bottleneck_scenarios
from slicepilot.training.reports.page import COLOURS, DASHES, INK, figure, log_axis, panel
from slicepilot.training.studies.study import Findings, Source

from .criteria import LEAST_SHARE_PCT, WAIT_MS
from .policies import AGENT, BIN_S, GROUPS, LINK_MBPS, POLICIES

WIDE_IN = 8.0
SHOWN = ("none", "priority", "shaping", "bandwidth", AGENT)
NAMES = (*(policy.name for policy in POLICIES), AGENT)
HEAVIEST = bottleneck_scenarios()[-1].scenario
LEAST_MS = 0.01


def pictures(sources: Mapping[Source, Findings]) -> Sequence[str]:
    """HTML figures of all sources that have series."""
    result = []
    for source, findings in sources.items():
        result += [_carried(source, findings.material), _waits(source, findings.material), _summary(source, findings)]
    return result


def _colour(name: str) -> str:
    return (*COLOURS, INK)[NAMES.index(name)]


def _carried(source: str, material: Mapping[str, Any]) -> str:
    """Offered and carried rates of both classes under the heaviest load."""
    with figure(7.0, rows=len(SHOWN), width_in=WIDE_IN) as (drawn, axes):
        for axis, name in zip(axes, SHOWN, strict=True):
            series = material.get(f"{name}/{HEAVIEST}")
            if series is None:
                continue
            for kind, group in enumerate(GROUPS):
                carried, offered = series["carried"][kind], series["offered"][kind]
                time_s = BIN_S * np.arange(len(carried))
                axis.plot(time_s, carried, color=COLOURS[kind], label=f"{group}, carried")
                axis.plot(time_s, offered, color=COLOURS[kind], linestyle=DASHES[2], linewidth=0.8, label="offered")
            axis.set_title(name, fontsize=8)
            axis.set_ylim(0, LINK_MBPS)
        axes[0].legend(ncols=4, loc="lower right", fontsize=7)
        axes[-1].set_xlabel("s")
        caption = f"Mbit/s of both classes under load {HEAVIEST}, {source}, in bins of 50 ms."
        return panel(drawn, f"carried-{source}", caption)


def _waits(source: str, material: Mapping[str, Any]) -> str:
    """The critical class's delay under the heaviest load."""
    with figure(3.4, width_in=WIDE_IN) as (drawn, (axis,)):
        for name in NAMES:
            if series := material.get(f"{name}/{HEAVIEST}"):
                delay_ms = np.maximum(series["delay_p99"][0], LEAST_MS)
                style = DASHES[NAMES.index(name) % len(DASHES)]
                axis.plot(BIN_S * np.arange(len(delay_ms)), delay_ms, color=_colour(name), linestyle=style, label=name)
        log_axis(axis, "y")
        axis.set_xlabel("s")
        axis.legend(ncols=4, loc="upper right", fontsize=7)
        caption = f"99th percentile of the critical class's one-way delay, ms, under load {HEAVIEST}, {source}."
        return panel(drawn, f"waits-{source}", caption)


def _summary(source: str, findings: Findings) -> str:
    """By load: the added delay of the critical class, and best effort's share of the remaining rate."""
    loads = [load.scenario for load in bottleneck_scenarios()]
    with figure(4.6, rows=2, width_in=WIDE_IN) as (drawn, axes):
        for at, name in enumerate(NAMES):
            style: Any = {"color": _colour(name), "linestyle": DASHES[at % len(DASHES)], "marker": "."}
            on, off, share = (
                [_value(findings, f"{name}/{load}/{key}") for load in loads]
                for key in ("critical/delay-p99/on", "critical/delay-p99/off", "best-effort/share/on")
            )
            axes[0].plot(loads, np.maximum(np.subtract(on, off), LEAST_MS), label=name, **style)
            axes[1].plot(loads, share, **style)
        axes[0].axhline(WAIT_MS, color=INK, linewidth=0.8)
        axes[1].axhline(LEAST_SHARE_PCT, color=INK, linewidth=0.8)
        log_axis(axes[0], "y")
        axes[0].set_title("critical: longer delay while best effort sends more, ms", fontsize=9)
        axes[1].set_title("best effort: carried of what is left, %", fontsize=9)
        axes[0].legend(ncols=4, fontsize=7)
        axes[-1].set_xlabel("load")
        return panel(drawn, f"summary-{source}", f"The two criteria (lines) by load and policy, {source}.")


def _value(findings: Findings, key: str) -> float:
    figure_of = findings.values.get(key)
    return float("nan") if figure_of is None else figure_of.value
