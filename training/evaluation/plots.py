"""The figures of an evaluation's report, each as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from slicepilot.env.knobs import KNOB_FIELDS
from slicepilot.training.reports.page import (
    COLOURS,
    DASHES,
    INK,
    figure,
    label_width_in,
    log_axis,
    panel,
    ratio_axis,
)

from .axes import (
    BEST_EFFORT_BETTER,
    BEST_EFFORT_NOT_WORSE,
    BROKEN_BETTER,
    BROKEN_NOT_WORSE,
    CPU_BETTER,
    CPU_NOT_WORSE,
    Axis,
    shown,
)
from .comparison import RIVALS, AgentResult, Rival, ScenarioResult
from .rollouts import SERIES
from .scores import BEST_EFFORT_LOSS, BROKEN_S, CPU_WASTED, ECDF_LEVELS, EDGE_WORK
from .suite import AgainstRival
from .summary import count

TRACE_POINTS = 200
THIRD_IN = 3.6  # width of each of three figures side by side
LEAST_SIDE = 0.45  # of the other side: the better side has room for its name
BETTER_SIDE, THRESHOLD = "#e5f3ea", "#8fb8a0"
MARKERS = {"learned": "*", "clairvoyant": "D", "adaptive": "^", "fixed": "o", "reference": "o"}
# Of each axis: title, what is shown, and from where on an agent is better and not worse.
PANELS: dict[Axis, tuple[str, str, float, float]] = {
    "broken": ("Broken promises", "seconds, over those of {}", BROKEN_BETTER, BROKEN_NOT_WORSE),
    "best_effort": ("Best effort", "points more than under {}", BEST_EFFORT_BETTER, BEST_EFFORT_NOT_WORSE),
    "cpu": ("Wasted CPU", "core-seconds, over those of {}", CPU_BETTER, CPU_NOT_WORSE),
}
EDGE_PANEL = ("Edge application's work", "that under {} over its own")
CAPTIONS: dict[Axis, str] = {
    "broken": "Beside the dots: weighted seconds per run.",
    "best_effort": "Beside the dots: what is carried beyond promises, against no control.",
    "cpu": "Beside the dots: core-seconds that limits hold and no slice uses, or an edge application's work.",
}
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


def axes_over_scenarios(rows: Sequence[AgainstRival]) -> str:
    """An agent beside its rivals on the three axes, a dot for each scenario, in order: better is left everywhere."""
    panels = []
    for axis, (title, unit, _, _) in PANELS.items():
        with figure(3.1, 0.3, width_in=THIRD_IN) as (drawn, (axes,)):
            for row, colour, marker in zip(rows, COLOURS, "o^", strict=False):
                values = np.sort(row.values(axis))[:: -1 if axis == "best_effort" else 1]
                heights = (np.arange(len(values)) + 0.5) / len(values)
                axes.plot(values, heights, marker, color=colour, ms=5.5, mfc=colour if marker == "o" else "none",
                          label=f"against {RIVALS[row.rival].removeprefix('the ')}", zorder=3)  # fmt: skip
            _sides(axes, axis, np.concatenate([row.values(axis) for row in rows]))
            axes.set_ylim(-0.3, 1.12)  # the legend is below the dots, the word above
            axes.set_yticks([])
            axes.set_ylabel(count(len(rows[0].scenarios), "scenario") + ", in order")
            axes.set_title(title)
            axes.set_xlabel(unit.format("the rival"))
            axes.legend(loc="lower right", handletextpad=0.1, borderaxespad=0.1)
            medians = ", ".join(f"{shown(axis, row.median(axis))} against {RIVALS[row.rival]}" for row in rows)
            panels.append(
                panel(drawn, f"{rows[0].agent}: {title.lower()} in every scenario", f"In the median {medians}.")
            )
    return f'<div class="panels thirds">{"".join(panels)}</div>'


def axes_of_agents(result: ScenarioResult) -> str:
    """The featured agents on the three axes, against the rule, or the best fixed setting where the rule did not run."""
    which: Rival = "rule" if result.rival("rule") else "best_fixed"
    rival, styles, names = result.rival(which), _styles(result), list(result.featured)
    if rival is None:
        return ""
    labels, heights = [_short(name) for name in names], np.arange(len(names))[::-1]
    panels = []
    for axis, shown_as in PANELS.items():
        title, unit, *_ = EDGE_PANEL if axis == "cpu" and result.has_edge else shown_as
        values = np.asarray([getattr(result.figures[name].over(result.figures[rival]), axis) for name in names])
        with figure(0.95 + 0.3 * len(names), label_width_in(labels), width_in=THIRD_IN) as (drawn, (axes,)):
            for name, value, height in zip(names, values, heights, strict=True):
                agent, on_the_left = result.agent(name), (value <= np.median(values)) != (axis == "best_effort")
                axes.plot(value, height, MARKERS[agent.role], color=styles[name][0], ms=7, zorder=3)
                axes.annotate(_absolute(result, agent, axis), (value, height), xytext=(7 if on_the_left else -7, 0),
                              textcoords="offset points", fontsize=8, va="center",
                              ha="left" if on_the_left else "right", zorder=2,
                              bbox={"boxstyle": "square,pad=0.1", "fc": "white", "ec": "none"})  # fmt: skip
            _sides(axes, axis, values)
            axes.set_ylim(-0.6, len(names) + 0.1)
            axes.set_yticks(heights, labels)
            axes.grid(axis="y", visible=False)
            axes.set_title(title)
            axes.set_xlabel(unit.format(rival), loc="right", fontsize=8.5)
            panels.append(panel(drawn, f"{result.scenario}: {title.lower()} of every agent", CAPTIONS[axis]))
    return f'<div class="panels thirds">{"".join(panels)}</div>'


def _absolute(result: ScenarioResult, agent: AgentResult, axis: Axis) -> str:
    if axis == "broken":
        return f"{agent.mean(BROKEN_S):.1f} s"
    if axis == "best_effort":
        return f"{round(-agent.mean(BEST_EFFORT_LOSS)):+d}%"
    return f"{agent.mean(EDGE_WORK):,.0f}" if result.has_edge else f"{agent.mean(CPU_WASTED):,.0f}"


def _sides(axes: Axes, axis: Axis, values: np.ndarray[Any, Any]) -> None:
    """The better side, on the left, shaded from where an agent is better; lines there, and where it is worse."""
    _, _, better, not_worse = PANELS[axis]
    inside = [*values, better, not_worse]
    if axis == "best_effort":
        room = 0.15 * (max(inside) - min(inside)) + 1.0
        right = min(inside) - room
        left = max(max(inside) + room, better + LEAST_SIDE * (better - right))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:+.0f}" if x else "0"))
    else:
        room = (max(inside) / min(inside)) ** 0.15 * 1.05
        right = max(inside) * room
        left = min(min(inside) / room, better * (better / right) ** LEAST_SIDE)
        ratio_axis(axes, left, right)
    axes.set_xlim(left, right)
    axes.axvspan(left, better, color=BETTER_SIDE, lw=0, zorder=0)
    for at in (better, not_worse):
        axes.axvline(at, color=THRESHOLD, lw=1, ls=DASHES[1], zorder=1)
    axes.annotate("\N{LEFTWARDS ARROW} better", (better, 1), xycoords=("data", "axes fraction"), xytext=(-4, -4),
                  textcoords="offset points", ha="right", va="top", fontsize=8.5, color="#0b6b3a")  # fmt: skip


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


def over_time(result: ScenarioResult, name: str) -> str:
    """Throughput, delay and moved knobs of every slice under an agent, on the first seed."""
    trace = result.agent(name).trace
    if trace is None:
        return ""
    trace, time_s = _thinned(trace, result.period_s)
    moved = [row for row in KNOB_FIELDS if (trace[SERIES.index(row)] != trace[SERIES.index(row), :1]).any()]
    rows = ["carried_mbps", "delay_p99_us", *moved]
    order = sorted(range(len(result.slice_names)), key=lambda s: s != result.priority_index)
    legend_rows = -(-len(order) // 4)
    with figure(0.9 + 0.19 * legend_rows + 1.2 * len(rows), 0.95, len(rows), 0.55 + 0.19 * legend_rows) as (
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
