"""The figures of Andrade and Wickboldt (2025): ramps, boxes of the last five minutes, gains over two experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from slicepilot.training.reports.page import COLOURS, INK, MUTED, figure, panel
from slicepilot.training.studies.study import Findings, Row, Source

RAMPS = ("1", "5", "7", "25")
GROUPS_OF_SETTINGS = {
    "number of slices": range(1, 6),
    "CPU limits": range(6, 9),
    "nice": range(9, 11),
    "bandwidth": range(11, 14),
    "CPU limits and nice": range(14, 17),
    "CPU limits and bandwidth": range(17, 23),
    "all three": range(23, 27),
}
SAMPLE_S = 30.0
WIDE_IN = 8.0


def pictures(rows: Sequence[Row], sources: Mapping[Source, Findings]) -> list[str]:
    """HTML figures of the simulated ramp, and of all sources beside the published figures."""
    result = []
    simulated = sources.get("simulated")
    if simulated is not None and simulated.material.get("series"):
        series = simulated.material["series"]
        agents = [key.partition("/")[0] for key in simulated.extra]
        result += [_ramps(series, [*RAMPS, *dict.fromkeys(agents)], metric) for metric in ("throughput", "latency")]
        result.append(_boxes(series))
    result.append(_gains(rows, sources))
    return result


def _ramps(series: Mapping[str, Any], names: Sequence[str], metric: str) -> str:
    """Slice 1 and the others over the ramp: median and quartiles over slices and repetitions."""
    unit = "Mbit/s" if metric == "throughput" else "ms"
    with figure(4.2, rows=2, width_in=WIDE_IN) as (drawn, axes):
        for axis, group in zip(axes, ("slice1", "others"), strict=True):
            for name, colour in zip(names, (*COLOURS, INK, MUTED), strict=False):
                if (own := series.get(f"{name}/{group}/{metric}")) is None:
                    continue
                low, middle, high = np.asarray(own["quartiles"]).T
                time_s = SAMPLE_S * np.arange(1, len(middle) + 1)
                label = f"experiment {name}" if name.isdigit() else name
                axis.plot(time_s, middle, color=colour, label=label)
                axis.fill_between(time_s, low, high, color=colour, alpha=0.15, linewidth=0)
            axis.set_title(f"{group}, {unit}")
            axis.set_ylim(bottom=0)
        axes[0].legend(ncols=4, loc="lower left")
        axes[-1].set_xlabel("s since the start of the ramp")
        return panel(drawn, f"ramp-{metric}", f"{metric.capitalize()} over the ramp, simulated: median and quartiles.")


def _boxes(series: Mapping[str, Any]) -> str:
    """Throughput of the last five minutes, in the study's groups of settings."""
    numbers = [number for members in GROUPS_OF_SETTINGS.values() for number in members]
    with figure(4.6, rows=2, width_in=WIDE_IN, bottom_in=0.6) as (drawn, axes):
        for axis, group in zip(axes, ("slice1", "others"), strict=True):
            shown = [
                (at, dict(zip(("whislo", "q1", "med", "q3", "whishi"), own["box"], strict=True)) | {"fliers": []})
                for at, number in enumerate(numbers)
                if (own := series.get(f"{number}/{group}/throughput")) is not None
            ]
            axis.bxp([box for _, box in shown], positions=[at for at, _ in shown], widths=0.6, showfliers=False)
            axis.set_title(f"{group}, Mbit/s")
            start = 0
            for members in GROUPS_OF_SETTINGS.values():
                start += len(members)
                axis.axvline(start - 0.5, color=MUTED, linewidth=0.6)
        axes[-1].set_xticks(range(len(numbers)), [str(number) for number in numbers])
        axes[-1].set_xlabel(" | ".join(GROUPS_OF_SETTINGS), fontsize=7)
        return panel(
            drawn, "boxes", "Throughput of the last five minutes, simulated: 5, 25, 50, 75 and 95% of the samples."
        )


def _gains(rows: Sequence[Row], sources: Mapping[Source, Findings]) -> str:
    """Slice 1's mean throughput in per cent of experiments 1 and 5, in print and in each source."""
    printed = {row.key: row.published for row in rows if row.published is not None}
    shown: dict[str, Mapping[str, float]] = {"published": printed}
    shown |= {name: {key: f.value for key, f in findings.values.items()} for name, findings in sources.items()}
    numbers = [number for members in GROUPS_OF_SETTINGS.values() for number in members]
    with figure(4.4, rows=2, width_in=WIDE_IN) as (drawn, axes):
        for axis, against in zip(axes, (1, 5), strict=True):
            for at, (name, values) in enumerate(shown.items()):
                base = values.get(f"{against}/slice1/throughput/mean")
                own = [values.get(f"{number}/slice1/throughput/mean") for number in numbers]
                if base:
                    heights = [np.nan if value is None else 100.0 * value / base for value in own]
                    axis.plot(heights, marker="osD^"[at], linestyle="", markersize=4, color=COLOURS[at], label=name)
            axis.axhline(100.0, color=MUTED, linewidth=0.8)
            axis.set_title(f"slice1's mean throughput, % of experiment {against}")
        axes[0].legend(ncols=4, loc="lower right")
        axes[-1].set_xticks(range(len(numbers)), [str(number) for number in numbers])
        axes[-1].set_xlabel("experiment")
        return panel(drawn, "gains", "Each setting beside the priority slice alone (1) and without control (5).")
