"""The figures of Moreira et al. (2026): distributions, violins and latency over CPU, and the loop closed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from slicepilot.training.reports.page import COLOURS, figure, log_axis, panel
from slicepilot.training.statistics.figures import drawings
from slicepilot.training.studies.study import Findings, Source

from .played import NO_CONTROL
from .samples import CLASSES, Table, analysis_of, table_of

CAPTIONS = {
    "ecdf": "Share of the sensor's packets that were at most so long on their way, by the traffic of its neighbours.",
    "violin": "The same as shapes.",
    "lowess": "Latency over the CPU that the user planes used: LOWESS.",
}


def pictures(sources: Mapping[Source, Findings]) -> Sequence[str]:
    """HTML figures of each source that has latencies."""
    result = []
    for source, findings in sources.items():
        rows = findings.material.get("rows")
        if not rows:
            continue
        analysis = analysis_of(table_of(rows[NO_CONTROL]), "traffic_class", 0)
        for name, drawn in drawings(analysis):
            result.append(panel(drawn, f"{source}-{name}", f"{source.capitalize()}. {CAPTIONS[name]}"))
        if len(rows) > 1:
            result.append(_loop(source, {agent: table_of(own) for agent, own in rows.items()}))
    return result


def _loop(source: str, tables: Mapping[str, Table]) -> str:
    """Median and 5 to 95% of the latencies, without control and with each agent."""
    with figure(0.8 + 0.8 * len(CLASSES)) as (drawn, (axis,)):
        for number, (agent, table) in enumerate(tables.items()):
            at = np.arange(len(CLASSES)) + 0.2 * (number - (len(tables) - 1) / 2)
            own = [table["latency_us"][table["traffic_class"] == name] for name in CLASSES]
            low, middle, high = np.asarray([np.quantile(values, [0.05, 0.5, 0.95]) for values in own]).T
            colour = COLOURS[number % len(COLOURS)]
            axis.errorbar(middle, -at, xerr=[middle - low, high - middle], fmt="o", color=colour, label=agent)
        axis.set_yticks(-np.arange(len(CLASSES)), CLASSES)
        log_axis(axis, "x")
        axis.set_xlabel("latency from N3 to N6, us")
        axis.legend()
        caption = f"{source.capitalize()}: the sensor's packets without control and with it: 5, 50 and 95%."
        return panel(drawn, f"{source}-loop", caption)
