"""The figures of an evaluation's report, each as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from slicepilot.data.intervals import Interval
from slicepilot.env.knobs import KNOB_FIELDS
from slicepilot.training.reports.page import (
    COLOURS,
    DASHES,
    FAINT,
    INK,
    MUTED,
    figure,
    label_width_in,
    log_axis,
    panel,
)

from .comparison import AgentResult, ScenarioResult
from .rollouts import SERIES
from .scores import ECDF_LEVELS
from .summary import short_list

TRACE_POINTS = 200
CLUSTERS = 30  # agents whose losses differ by less than the range over this share a label
MARKERS = {"learned": "*", "clairvoyant": "D", "adaptive": "^", "fixed": "o", "reference": "o"}
ROW_LABELS = {
    "carried_mbps": "carried\nMbit/s",
    "delay_p99_us": "p99 delay\nms",
    "cpu_limit_mcpu": "CPU limit, mCPU\n(top: none)",
    "nice": "nice\n(lower first)",
    "egress_mbps": "egress, Mbit/s\n(top: none)",
}


def _styles(result: ScenarioResult) -> dict[str, tuple[str, Any]]:
    """Colour and dash of each featured agent, the first subject first."""
    return {name: (COLOURS[i % len(COLOURS)], DASHES[i % len(DASHES)]) for i, name in enumerate(result.featured)}


def _short(name: str) -> str:
    return name.replace("experiment-", "exp. ").replace("-scaled", " (scaled)").replace("static-weights-", "weights ")


def pareto(result: ScenarioResult) -> str:
    """The priority slice's loss against the others' loss of every agent, and the front of the fixed settings."""
    styles = _styles(result)
    at = {a.name: (float(a.scores["slice1_loss_pct"].mean()), float(a.scores["others_loss_pct"].mean()))
          for a in result.rivals}  # fmt: skip
    cell = np.maximum(np.ptp(np.asarray(list(at.values())), axis=0), 1.0) / CLUSTERS
    clusters: dict[tuple[int, int], list[AgentResult]] = {}
    for agent in result.rivals:
        x, y = at[agent.name] / cell
        clusters.setdefault((round(x), round(y)), []).append(agent)
    with figure(4.4) as (drawn, (axes,)):
        for agents in clusters.values():
            for agent in agents:
                colour = styles.get(agent.name, (MUTED, "-"))[0] if agent.role != "fixed" else MUTED
                size = 10 if agent.name in result.subjects else 6
                axes.plot(*at[agent.name], MARKERS[agent.role], color=colour, ms=size, zorder=3)
            centre = np.mean([at[a.name] for a in agents], axis=0)
            colour = INK if any(a.name in styles for a in agents) else MUTED
            axes.annotate(_cluster_label(agents), centre, xytext=(8, 0), textcoords="offset points", fontsize=8,
                          va="center", color=colour)  # fmt: skip
        front, least = [], np.inf
        for x, y in sorted(at[a.name] for a in result.rivals if a.role == "fixed"):
            if y < least:
                front.append((x, y))
                least = y
        if front:
            axes.step(*zip(*front, strict=True), where="post", color=MUTED, lw=1, ls=DASHES[1], zorder=1)
        axes.set_title("What each setting costs")
        axes.set_xlabel("priority slice's loss, % (less is better)")
        axes.set_ylabel("others' loss, % (less is better)")
        axes.margins(0.25, 0.1)
        return panel(
            drawn,
            f"{result.scenario}: priority slice's loss against the others' loss for every agent",
            "Means over seeds. Numbers are the experiments of Andrade and Wickboldt (2025). The dashed line joins the "
            "fixed settings that no other fixed one beats.",
        )


def _cluster_label(agents: Sequence[AgentResult]) -> str:
    experiments = [
        a.name.removeprefix("experiment-").removesuffix("-scaled") for a in agents if a.name.startswith("experiment-")
    ]
    named = [_short(a.name) for a in agents if not a.name.startswith("experiment-")]
    lines = [", ".join(experiments[i : i + 5]) for i in range(0, len(experiments), 5)]
    return "\n".join([*named[:3], *([f"and {len(named) - 3} more"] if len(named) > 3 else []), *lines])


def delay_ecdf(result: ScenarioResult) -> str:
    """Distribution of the priority slice's delay by the volume carried, for the featured agents, with its bound."""
    with figure(4.4) as (drawn, (axes,)):
        for name, (colour, dash) in _styles(result).items():
            delays_ms = np.maximum(result.agent(name).ecdf_us * 1e-3, 1e-3)
            axes.plot(delays_ms, 100 * ECDF_LEVELS, color=colour, ls=dash, label=_short(name))
        bound = result.delay_bound_ms[result.priority_index]
        axes.axvline(bound, color=INK, lw=1, label=f"bound, {bound:g} ms")
        log_axis(axes, "x")
        axes.set_title("Priority slice's delay")
        axes.set_xlabel("p99 delay of a control period, ms")
        axes.set_ylabel("% of the volume at or below")
        axes.legend()
        return panel(
            drawn,
            f"{result.scenario}: cumulative distribution of the priority slice's delay",
            "From N3 to N6, all seeds. Further left is faster; right of the bound the promise is broken.",
        )


def bars(result: ScenarioResult, key: str, title: str, unit: str, caption: str) -> str:
    """One score with its interval for the featured agents and the best of the rest."""
    names = [a.name for a in sorted(short_list(result), key=lambda a: a.scores["sla_violation_s"].mean())]
    summaries, styles = [result.summary(name, key) for name in names], _styles(result)
    shown, at = [_short(name) for name in names], np.arange(len(names))[::-1]
    with figure(0.9 + 0.27 * len(names), label_width_in(shown)) as (drawn, (axes,)):
        values = np.asarray([s.value for s in summaries])
        spread = np.maximum([[s.value - s.low for s in summaries], [s.high - s.value for s in summaries]], 0.0)
        axes.barh(at, values, height=0.62, color=[styles[n][0] if n in styles else FAINT for n in names])
        axes.errorbar(values, at, xerr=spread, fmt="none", ecolor=INK, elinewidth=1, capsize=2.5)
        axes.set_yticks(at, shown)
        axes.set_xlim(left=0)
        axes.grid(axis="y", visible=False)
        axes.set_title(title)
        axes.set_xlabel(unit)
        return panel(drawn, f"{result.scenario}: {title.lower()}", caption)


def over_time(result: ScenarioResult, name: str) -> str:
    """Throughput, delay and moved knobs of every slice under one agent, on the first seed."""
    trace = result.agent(name).trace
    if trace is None:
        return ""
    trace, time_s = _thinned(trace, result.period_s)
    moved = [row for row in KNOB_FIELDS if (trace[SERIES.index(row)] != trace[SERIES.index(row), :1]).any()]
    rows = ["carried_mbps", "delay_p99_us", *moved]
    order = sorted(range(len(result.slice_names)), key=lambda s: s != result.priority_index)
    legend_rows = -(-len(order) // 4)
    with figure(0.9 + 0.19 * legend_rows + 1.15 * len(rows), 0.75, len(rows), 0.55 + 0.19 * legend_rows) as (
        drawn,
        axes,
    ):
        for axis, row in zip(axes, rows, strict=True):
            values = _finite(trace[SERIES.index(row)], row)
            for number, s in enumerate(order):
                axis.plot(
                    time_s, values[:, s], color=COLOURS[number % len(COLOURS)], ls=DASHES[number % len(DASHES)],
                    lw=1.8 if number == 0 else 1.1, drawstyle="steps-post" if row in moved else "default",
                    label=result.slice_names[s] + (" (priority)" if number == 0 else ""), zorder=3 - 0.01 * number,
                )  # fmt: skip
            _label_row(axis, row)
        axes[0].set_title(_short(name) + ("" if moved else " (knobs never move)"))
        drawn.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncols=4, handlelength=2.2)
        axes[-1].set_xlabel("time, s")
        return panel(
            drawn,
            f"{result.scenario}: throughput, delay and knobs over time under {name}",
            f"{name} on the first seed; a knob is shown where it moves.",
        )


def _thinned(trace: np.ndarray[Any, Any], period_s: float) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """At most about `TRACE_POINTS` points: means of equal spans (knobs: the last of each), and their times."""
    stride = max(1, trace.shape[1] // TRACE_POINTS)
    spans = trace[:, : trace.shape[1] // stride * stride]
    spans = spans.reshape(trace.shape[0], -1, stride, trace.shape[2])
    thinned = spans.mean(axis=2)
    thinned[-3:] = spans[-3:, :, -1]
    return thinned, period_s * stride * np.arange(1, thinned.shape[1] + 1)


def _finite(values: np.ndarray[Any, Any], row: str) -> np.ndarray[Any, Any]:
    """Values in the unit shown; a limit of "none" runs along the top."""
    if row == "delay_p99_us":
        return np.maximum(values * 1e-3, 1e-3)
    if row in {"cpu_limit_mcpu", "egress_mbps"}:
        limited = np.isfinite(values) & (values > 0)
        return np.where(limited, values, 1.15 * values[limited].max() if limited.any() else 1.0)
    return values


def _label_row(axes: Axes, row: str) -> None:
    axes.set_ylabel(ROW_LABELS[row], fontsize=8.5)
    if row == "delay_p99_us":
        log_axis(axes, "y")
    elif row == "nice":
        axes.invert_yaxis()
    else:
        axes.set_ylim(bottom=0)


def overall(names: Sequence[str], summaries: Sequence[Interval], subjects: Sequence[str]) -> str:
    """Return over all scenarios as points with intervals, the best at the top."""
    order = sorted(range(len(names)), key=lambda i: summaries[i].value)
    shown = [_short(names[i]) for i in order]
    with figure(0.9 + 0.24 * len(names), label_width_in(shown)) as (drawn, (axes,)):
        for row, i in enumerate(order):
            own, colour = summaries[i], COLOURS[0] if names[i] in subjects else MUTED
            axes.plot([own.low, own.high], [row, row], color=colour, lw=2)
            axes.plot(own.value, row, "*" if names[i] in subjects else "o", color=colour, ms=8)
        axes.set_yticks(np.arange(len(names)), shown)
        axes.grid(axis="y", visible=False)
        axes.set_title("Return over all scenarios")
        axes.set_xlabel("return (more is better)")
        return panel(
            drawn,
            "Return of every agent over all scenarios",
            "Mean reward per control period: interquartile mean over all scenarios and seeds (Agarwal et al., 2021), "
            "with the spread inside scenarios.",
        )
