"""The figures of an analysis of delays, as files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from statsmodels.nonparametric.smoothers_lowess import lowess

from slicepilot.data.intervals import Array
from slicepilot.data.tables.tidy import unit_of
from slicepilot.training.reports.page import COLOURS, DASHES, INK, figure, label_width_in, log_axis, save

from .analysis import Analysis
from .columns import shortened

MAX_SERIES = 8  # the baseline and seven others, as many as there are colours
WIDE = 30.0  # ratio of large to small delays from which an axis is logarithmic
EDGE = 0.001  # part of the delays at either end that a figure leaves out
LEVELS = np.linspace(EDGE, 1.0 - EDGE, 999)
FITTED, ENOUGH = 4000, 10  # rows of a group that a curve is fitted to at most, and that it needs
# LOWESS (W. Cleveland, "Robust locally weighted regression and smoothing scatterplots", JASA 74, 1979): share of the
# points around each point; distance of fits as a part of the range, with straight lines between them.
SMOOTH, STEP = 0.3, 0.01
ENDS = 0.01  # part of a group's rows at either end that its curve leaves out, where a few points would bend it
LONGEST = 30  # characters of a group's name


def drawings(analysis: Analysis) -> Iterator[tuple[str, Figure]]:
    """Figures with the names of their files, all that the data allow; each is to be saved before the next is asked for.

    Without a number that varies there is no curve over it.
    """
    delays = analysis.delays
    yield from _ecdf(analysis)
    yield from _violin(analysis)
    for term in delays.columns.loads:
        if term in delays.rows and np.unique(delays.rows[term][np.isfinite(delays.rows[term])]).size > 2:
            yield from _lowess(analysis, term)
            return


def series(analysis: Analysis) -> list[tuple[str, str, Any]]:
    """Name, colour and dash of the groups to draw: the baseline, in ink, and those that differ most from it."""
    suite = analysis.suite
    ranked = sorted(suite.comparisons, key=lambda c: -abs(c.cliffs_delta))[: MAX_SERIES - 1]
    others = [d.group for d in suite.descriptions if d.group in {c.group for c in ranked}]
    return [
        (suite.baseline, INK, "-"),
        *((name, COLOURS[i], DASHES[i % len(DASHES)]) for i, name in enumerate(others)),
    ]


def axis_label(column: str) -> str:
    """``delay_p99_us`` as "delay p99, µs"."""
    return ", ".join(filter(None, [plain(column), unit_of(column)]))


def plain(column: str) -> str:
    """``delay_p99_us`` as "delay p99"."""
    name = column.removesuffix(f"_{column.rpartition('_')[2]}") if unit_of(column) else column
    return name.removesuffix("_per").replace("_", " ")


def _ecdf(analysis: Analysis) -> Iterator[tuple[str, Figure]]:
    delays, shown = analysis.delays, series(analysis)
    with figure(4.3) as (drawn, (axes,)):
        for name, colour, dash in shown:
            axes.plot(_at(delays.groups[name], LEVELS), 100 * LEVELS, color=colour, ls=dash,
                      label=shortened(name, LONGEST))  # fmt: skip
        _delay_axis(axes, "x", [delays.groups[name] for name, _, _ in shown])
        axes.set_ylim(0, 100)
        axes.set_title("Distribution of delays")
        axes.set_xlabel(axis_label(delays.columns.value))
        axes.set_ylabel("% at or below")
        axes.legend()
        yield "ecdf", drawn


def _violin(analysis: Analysis) -> Iterator[tuple[str, Figure]]:
    delays, shown = analysis.delays, series(analysis)
    labels = [shortened(name, LONGEST) for name, _, _ in shown]
    with figure(1.0 + 0.5 * len(shown), label_width_in(labels)) as (drawn, (axes,)):
        log = _delay_axis(axes, "x", [delays.groups[name] for name, _, _ in shown])
        for row, (name, colour, _) in enumerate(shown):
            values = _at(delays.groups[name], LEVELS)
            if np.ptp(values) > 0:  # in the scale of the axis, so that a violin looks the same on either
                counts, edges = np.histogram(np.log10(values) if log else values, bins=60)
                middles, heights = (edges[1:] + edges[:-1]) / 2, 0.42 * counts / counts.max()
                middles = 10**middles if log else middles
                axes.fill_between(middles, -row - heights, -row + heights, color=colour, alpha=0.35, lw=0)
            for value in _at(delays.groups[name], np.asarray([0.5, 0.95, 0.99])):
                axes.plot([value, value], [-row - 0.25, -row + 0.25], color=INK, lw=1.4)
        axes.set_yticks(-np.arange(len(shown)), labels)
        axes.grid(axis="y", visible=False)
        axes.set_title("Shape of the distributions")
        axes.set_xlabel(f"{axis_label(delays.columns.value)} (marks: median, p95, p99)")
        yield "violin", drawn


def _lowess(analysis: Analysis, term: str) -> Iterator[tuple[str, Figure]]:
    delays, shown = analysis.delays, series(analysis)
    rows = delays.rows
    with figure(4.3, 0.8) as (drawn, (axes,)):
        log = _delay_axis(axes, "y", [delays.groups[name] for name, _, _ in shown])
        for name, colour, dash in shown:
            own = np.flatnonzero((rows["group"] == name) & np.isfinite(rows[term]))
            own = np.random.default_rng(0).permutation(own)[:FITTED]
            x, y = rows[term][own].astype(np.float64), rows["delay"][own].astype(np.float64)
            if np.unique(x).size >= ENOUGH:  # fewer leave some neighbourhoods without any distance
                fitted = lowess(np.log10(y) if log else y, x, frac=SMOOTH, it=3, delta=STEP * float(np.ptp(x)))
                low, high = np.quantile(x, [ENDS, 1.0 - ENDS])
                at, values = fitted[(fitted[:, 0] >= low) & (fitted[:, 0] <= high)].T
                axes.plot(at, 10**values if log else values, color=colour, ls=dash, label=shortened(name, LONGEST))
        axes.set_title(f"Delays over {plain(delays.columns.loads[term])}")
        axes.set_xlabel(axis_label(delays.columns.loads[term]))
        axes.set_ylabel(axis_label(delays.columns.value))
        if axes.get_legend_handles_labels()[0]:
            axes.legend()
        yield "lowess", drawn


def _at(ordered: Array, levels: Array) -> Array:
    """The nearest of the ordered values to each quantile."""
    return ordered[np.rint(levels * (len(ordered) - 1)).astype(np.int64)]


def _delay_axis(axes: Axes, which: str, groups: Sequence[Array]) -> bool:
    """Limits and scale that show all but the outermost delays; whether it is logarithmic."""
    ends = np.asarray([_at(group, np.asarray([EDGE, 1.0 - EDGE])) for group in groups])
    low, high = float(ends[:, 0].min()), float(ends[:, 1].max())
    log = min(float(group[0]) for group in groups) > 0 and high / low > WIDE
    limit = axes.set_xlim if which == "x" else axes.set_ylim
    if log:
        log_axis(axes, which)
        limit(low / (high / low) ** 0.02, high * (high / low) ** 0.02)
    else:
        margin = 0.03 * (high - low) or 1.0
        limit(low - margin, high + margin)
    return log


def write_figures(analysis: Analysis, folder: Path) -> list[Path]:
    """Each figure as PNG and SVG; raises OSError."""
    paths = []
    for name, drawn in drawings(analysis):
        for ending in ("png", "svg"):
            paths.append(folder / f"{name}.{ending}")
            save(drawn, paths[-1])
    return paths
