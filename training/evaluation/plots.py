"""The panels of an evaluation's report, see `slicepilot.training.reports.pictures`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from slicepilot.data.intervals import Interval
from slicepilot.env.knobs import KNOB_FIELDS
from slicepilot.training.reports.pictures import DASHES, PAGE, canvas, log_axis, to_html, width_in

from .comparison import AgentResult, ScenarioResult
from .rollouts import SERIES
from .scores import ECDF_LEVELS
from .sentences import short_list

TRACE_POINTS = 200
MANY_SLICES = 7
LEGEND_COLUMNS = 4
CLUSTERS = 45

INK, MUTED, FAINT, SERIES_COLOURS = PAGE.ink, PAGE.muted, PAGE.faint, PAGE.series
MARKERS = {"learned": "*", "clairvoyant": "D", "adaptive": "^", "fixed": "o", "reference": "o"}


def _slice_colours(result: ScenarioResult) -> list[str]:
    if len(result.slice_names) > MANY_SLICES:
        return [SERIES_COLOURS[0] if s == result.priority_index else FAINT for s in range(len(result.slice_names))]
    rest = iter(SERIES_COLOURS[1:])
    return [SERIES_COLOURS[0] if s == result.priority_index else next(rest) for s in range(len(result.slice_names))]


def agent_styles(result: ScenarioResult) -> dict[str, tuple[str, Any]]:
    """Colour and dash of each featured agent, the first subject first."""
    return {name: (SERIES_COLOURS[i % 7], DASHES[i % len(DASHES)]) for i, name in enumerate(result.featured)}


def _short(name: str) -> str:
    return name.replace("experiment-", "exp. ").replace("-scaled", " (scaled)").replace("static-weights-", "weights ")


# -- panels ------------------------------------------------------------------------------------------------------


def pareto(result: ScenarioResult) -> str:
    """Priority loss against the others' loss of every agent; the line joins fixed settings that no other one beats.

    References with fewer slices may lie far below the rest: they are drawn at the lower edge with their figure.
    """
    shown = [a for a in result.agents if a.role != "reference" or _active_others(a)]
    at = {a.name: (float(a.scores["slice1_loss_pct"].mean()), float(a.scores["others_loss_pct"].mean())) for a in shown}
    rivals = np.asarray([at[a.name] for a in result.rivals])
    floor = rivals[:, 1].min() - 0.18 * max(np.ptp(rivals[:, 1]), 10.0)
    cell = np.maximum(np.ptp(rivals, axis=0), 1.0) / CLUSTERS
    clusters: dict[tuple[int, int], list[AgentResult]] = {}
    for agent in shown:
        x, y = at[agent.name] / cell
        clusters.setdefault((round(x), round(y)), []).append(agent)
    styles = agent_styles(result)
    with canvas(4.4, 0.6) as (figure, (axes,)):
        marks = []
        for agents in clusters.values():
            for agent in agents:
                colour = styles.get(agent.name, (MUTED, "-"))[0] if agent.role != "fixed" else MUTED
                hollow, own = agent.role == "reference", agent.name in result.subjects
                x, y = at[agent.name]
                axes.plot(
                    x, max(y, floor), MARKERS[agent.role], color=colour, mfc="none" if hollow else colour,
                    ms=10 if own else 6, zorder=4 if own else 3,
                )  # fmt: skip
            x, y = np.mean([at[a.name] for a in agents], axis=0)
            label = _cluster_label(agents) + (f" ({y:.0f}%)" if y < floor else "")
            marks.append(((x, max(y, floor)), label, any(a.name in styles for a in agents)))
        front = _front([at[a.name] for a in result.rivals if a.role == "fixed"])
        if front:
            axes.step(*zip(*front, strict=True), where="post", color=MUTED, lw=1, ls=DASHES[1], zorder=1)
        axes.set_title("What each setting costs whom")
        axes.set_xlabel("priority slice's loss, % (less is better)")
        axes.set_ylabel("others' loss, % (less is better)")
        axes.margins(0.2, 0.1)
        _place_labels(figure, axes, marks)
        return to_html(figure, f"{result.scenario}: priority slice's loss against the others' loss for every agent")


def _place_labels(figure: Figure, axes: Axes, marks: Sequence[tuple[tuple[float, float], str, bool]]) -> None:
    """Put each label beside its point where it covers least of what is there already; sizes are estimates."""
    figure.draw_without_rendering()
    per_point = figure.dpi / 72.0
    frame = axes.get_window_extent()
    centres = [axes.transData.transform(at) / per_point for at, _, _ in marks]
    taken = [(x - 7, y - 7, x + 7, y + 7) for x, y in centres]
    outside = [(-1e4, -1e4, frame.x0 / per_point, 1e4), (frame.x1 / per_point, -1e4, 1e4, 1e4)]
    for (x, y), (at, label, featured) in zip(centres, marks, strict=True):
        lines = label.split("\n")
        width, height = 4.6 * max(map(len, lines)), 10.0 * len(lines)
        places = [
            (dx, dy + up * 12)
            for up in (0, 1, -1, 2, -2, 3, -3)
            for dx, dy in ((8, -height / 2), (-8 - width, -height / 2), (-width / 2, 8), (-width / 2, -8 - height))
        ]

        def covered(
            place: tuple[float, float], x: float = x, y: float = y, w: float = width, h: float = height
        ) -> float:
            left, low = x + place[0], y + place[1]
            area = sum(
                max(0.0, min(left + w, x1) - max(left, x0)) * max(0.0, min(low + h, y1) - max(low, y0))
                for x0, y0, x1, y1 in [*taken, *outside]
            )
            # A label reads as its point's where its nearest edge is close.
            gap = np.hypot(max(place[0], -place[0] - w, 0.0), max(place[1], -place[1] - h, 0.0))
            return area + 6.0 * gap

        dx, dy = min(places, key=covered)
        taken.append((x + dx, y + dy, x + dx + width, y + dy + height))
        axes.annotate(
            label, at, xytext=(dx, dy), textcoords="offset points", fontsize=8, va="bottom", linespacing=1.05,
            color=INK if featured else MUTED,
        )  # fmt: skip


def _active_others(agent: AgentResult) -> bool:
    return bool(agent.scores["others_loss_pct"].mean() < 99.9)


def _cluster_label(agents: Sequence[AgentResult]) -> str:
    numbers = [
        a.name.removeprefix("experiment-").removesuffix("-scaled") for a in agents if a.name.startswith("experiment-")
    ]
    named = [_short(a.name) for a in agents if not a.name.startswith("experiment-")]
    lines = [", ".join(numbers[i : i + 5]) for i in range(0, len(numbers), 5)]
    shown = named[:3] + ([f"and {len(named) - 3} more"] if len(named) > 3 else [])
    return "\n".join([*shown, *lines])


def _front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    best, kept = np.inf, []
    for x, y in sorted(points):
        if y < best:
            kept.append((x, y))
            best = y
    return kept


def delay_ecdf(result: ScenarioResult) -> str:
    """Distribution of the priority slice's delay by the volume carried, for the featured agents, with its bound."""
    with canvas(4.4, 0.55) as (figure, (axes,)):
        for name, (colour, dash) in agent_styles(result).items():
            delays_ms = np.maximum(result.agent(name).ecdf_us * 1e-3, 1e-3)
            axes.plot(delays_ms, 100 * ECDF_LEVELS, color=colour, ls=dash, label=_short(name))
        bound = result.delay_bound_ms[result.priority_index]
        axes.axvline(bound, color=INK, lw=1)
        axes.annotate(
            f"bound {bound:g} ms",
            (bound, 2),
            xytext=(-3, 0),
            textcoords="offset points",
            rotation=90,
            fontsize=8,
            ha="right",
        )
        axes.set_xscale("log")
        log_axis(axes.xaxis)
        axes.set_title("Priority slice's delay")
        axes.set_xlabel("p99 delay of a control period, ms")
        axes.set_ylabel("% of the volume at or below")
        axes.legend(loc="best", fontsize=8)
        return to_html(figure, f"{result.scenario}: cumulative distribution of the priority slice's delay")


def bars(result: ScenarioResult, key: str, title: str, unit: str) -> str:
    """One figure of merit with its interval for the featured agents and the best of the rest."""
    names = [a.name for a in sorted(short_list(result), key=lambda a: a.scores["sla_violation_s"].mean())]
    summaries = [result.summary(name, key) for name in names]
    styles = agent_styles(result)
    shown = [_short(name) for name in names]
    with canvas(0.9 + 0.27 * len(names), width_in(shown)) as (figure, (axes,)):
        at = np.arange(len(names))[::-1]
        values = np.asarray([s.value for s in summaries])
        spread = np.asarray([[s.value - s.low for s in summaries], [s.high - s.value for s in summaries]])
        axes.barh(at, values, height=0.62, color=[styles[n][0] if n in styles else FAINT for n in names])
        axes.errorbar(
            values, at, xerr=np.maximum(spread, 0), fmt="none", color=INK, ecolor=INK, elinewidth=1, capsize=2.5
        )
        axes.set_yticks(at, shown)
        right = max(float((values + spread[1]).max()), 1e-9)
        for y, summary in zip(at, summaries, strict=True):
            axes.annotate(
                f"{summary.value:,.0f}" if right >= 20 else f"{summary.value:.2g}", (max(summary.high, 0), y),
                xytext=(4, 0), textcoords="offset points", va="center", fontsize=8,
            )  # fmt: skip
        axes.set_xlim(0, right * 1.14)
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
        axes.set_title(title)
        axes.set_xlabel(unit)
        return to_html(figure, f"{result.scenario}: {title.lower()}")


def over_time(result: ScenarioResult, name: str) -> str:
    """What one agent's slices carried, how long packets took and which knobs held, on the first seed."""
    trace = result.agent(name).trace
    if trace is None:
        return ""
    trace, time_s = _thinned(trace, result.period_s)
    moved = [row for row in KNOB_FIELDS if not _constant(trace[SERIES.index(row)])]
    rows = ["carried_mbps", "delay_p99_us", *moved]
    colours = _slice_colours(result)
    legend_rows = -(-len(colours) // LEGEND_COLUMNS) if len(colours) <= MANY_SLICES else 1
    bottom_in, ratios = 0.55 + 0.19 * legend_rows, [1.3, 1.3, *[1.0] * len(moved)]
    with canvas(0.3 + bottom_in + 1.0 * sum(ratios), 0.75, bottom_in, ratios) as (figure, axes):
        order = [s for s in range(len(colours)) if s != result.priority_index] + [result.priority_index]
        for axis, row in zip(axes, rows, strict=True):
            values = _finite(trace[SERIES.index(row)], row)
            for s in order:
                first = s == result.priority_index
                axis.plot(
                    time_s, values[:, s], color=colours[s], lw=1.8 if first else 1.1,
                    ls="-" if first else DASHES[s % len(DASHES)] if len(colours) <= MANY_SLICES else "-",
                    drawstyle="steps-post" if row in moved else "default",
                    label=result.slice_names[s] if first or len(colours) <= MANY_SLICES else None,
                )  # fmt: skip
            _label_row(axis, row)
        axes[0].set_title(f"{_short(name)}" + ("" if moved else " (knobs never move)"))
        by_label = dict(zip(*axes[0].get_legend_handles_labels()[::-1], strict=True))
        labels = [name for name in result.slice_names if name in by_label]
        handles = [by_label[name] for name in labels]
        if len(colours) > MANY_SLICES:
            labels = [f"{labels[0]} (priority); the other {len(colours) - 1} in grey"]
        figure.legend(handles, labels, loc="lower center", ncols=LEGEND_COLUMNS, fontsize=8, handlelength=2.2)
        axes[-1].set_xlabel("time, s")
        return to_html(figure, f"{result.scenario}: throughput, delay and knobs over time under {name}")


def _thinned(trace: np.ndarray[Any, Any], period_s: float) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """At most about `TRACE_POINTS` points: means of equal spans (knobs: the last of each), and their times."""
    stride = max(1, trace.shape[1] // TRACE_POINTS)
    spans = trace[:, : trace.shape[1] // stride * stride]
    spans = spans.reshape(trace.shape[0], -1, stride, trace.shape[2])
    thinned = spans.mean(axis=2)
    thinned[-3:] = spans[-3:, :, -1]
    return thinned, period_s * stride * np.arange(1, thinned.shape[1] + 1)


def _constant(values: np.ndarray[Any, Any]) -> bool:
    return bool((values == values[:1]).all())


def _finite(values: np.ndarray[Any, Any], row: str) -> np.ndarray[Any, Any]:
    """Values in the unit shown; a limit of "none" runs along the top."""
    if row == "delay_p99_us":
        return np.maximum(values * 1e-3, 1e-3)
    if row in {"cpu_limit_mcpu", "egress_mbps"}:
        set_to = np.isfinite(values) & (values > 0)
        return np.where(set_to, values, 1.15 * values[set_to].max() if set_to.any() else 1.0)
    return values


def _label_row(axes: Axes, row: str) -> None:
    labels = {
        "carried_mbps": "carried\nMbit/s",
        "delay_p99_us": "p99 delay\nms",
        "cpu_limit_mcpu": "CPU limit, mCPU\n(top: none)",
        "nice": "nice\n(lower first)",
        "egress_mbps": "egress, Mbit/s\n(top: none)",
    }
    axes.set_ylabel(labels[row], fontsize=8.5)
    axes.tick_params(labelsize=8)
    if row == "delay_p99_us":
        axes.set_yscale("log")
        log_axis(axes.yaxis)
    elif row == "nice":
        axes.invert_yaxis()
    else:
        axes.set_ylim(bottom=0)


def overall(names: Sequence[str], summaries: Sequence[Interval], subjects: Sequence[str]) -> str:
    """Return over all scenarios as points with intervals, the best at the top."""
    order = sorted(range(len(names)), key=lambda i: -summaries[i].value)
    shown = [_short(names[i]) for i in order]
    with canvas(0.9 + 0.24 * len(names), width_in(shown)) as (figure, (axes,)):
        for row, i in enumerate(order):
            summary, mine = summaries[i], names[i] in subjects
            colour = SERIES_COLOURS[0] if mine else MUTED
            axes.plot([summary.low, summary.high], [-row, -row], color=colour, lw=3 if mine else 2, alpha=0.75)
            axes.plot(summary.value, -row, "*" if mine else "o", color=colour, ms=11 if mine else 5)
        axes.set_yticks(-np.arange(len(names)), shown)
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
        axes.set_title("Return over all scenarios")
        axes.set_xlabel("return (more is better)")
        return to_html(figure, "Return of every agent over all scenarios")
