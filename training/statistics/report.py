"""An analysis of delays as one HTML file to read, and its figures as files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from html import escape
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from statsmodels.nonparametric.smoothers_lowess import lowess

from slicepilot.data.files import replace_file
from slicepilot.data.intervals import Array, Interval
from slicepilot.data.tables.tidy import unit_of
from slicepilot.training.reports.page import (
    COLOURS,
    DASHES,
    INK,
    bullets,
    definitions,
    figure,
    label_width_in,
    log_axis,
    page,
    panel,
    save,
    table,
)

from .analysis import Analysis
from .columns import shortened
from .comparison import P_VALUES, Comparison

MAX_SERIES = 8  # the baseline and seven others, as many as there are colours
WIDE = 30.0  # ratio of large to small delays from which an axis is logarithmic
EDGE = 0.001  # part of the delays at either end that a figure leaves out
LEVELS = np.linspace(EDGE, 1.0 - EDGE, 999)
FITTED, ENOUGH = 4000, 10  # rows of a group that a curve is fitted to at most, and that it needs
SMOOTH, STEP = 0.3, 0.01  # LOWESS: share of the points around each point; distance of fits, part of the range
ENDS = 0.01  # part of a group's rows at either end that its curve leaves out
LONGEST, MOST_SOURCES = 30, 4  # characters of a group's name, and sources that are named
CERTAIN = 0.05
TERMS = (
    ("MAD", "median distance from the median, not scaled."),
    ("95% interval", "bias-corrected and accelerated bootstrap (BCa)."),
    ("p of median, p95", "permutation tests, two-sided: how often groups dealt at random differ as much."),
    ("p of M-W", "Mann-Whitney's U test, two-sided."),
    ("Holm", "the p value before it, corrected for the number of groups compared."),
    ("Cliff's delta", "how much more often a delay of the group is longer than one of the baseline than shorter."),
    ("beta", "change of that quantile of the delay per standard deviation of a number, or from the reference level."),
)


@dataclass(frozen=True)
class Drawing:
    """A figure: name of its files, title, caption, and what draws it; the context is open while it is saved."""

    name: str
    title: str
    caption: str
    draw: Callable[[], AbstractContextManager[Figure]]


def drawings(analysis: Analysis) -> list[Drawing]:
    """All that the data allow: without a number that varies there is no curve over it."""
    delays = analysis.delays
    left_out = len(analysis.suite.descriptions) > MAX_SERIES
    only = f" Shown are the baseline and the {MAX_SERIES - 1} groups that differ most from it." if left_out else ""
    edge = f"The outermost {100 * EDGE:g}% at either end are not drawn.{only}"
    drawn = [
        Drawing("ecdf", "Distribution", f"Share of the delays at or below. {edge}", partial(_ecdf, analysis)),
        Drawing("violin", "Shape", f"Kernel density; marks: median, p95, p99. {edge}", partial(_violin, analysis)),
    ]
    for term, column in delays.columns.loads.items():
        if term in delays.rows and np.unique(delays.rows[term][np.isfinite(delays.rows[term])]).size > 2:
            caption = f"LOWESS over {100 * SMOOTH:g}% of a group's rows at a time, robust against outliers.{only}"
            drawn.append(Drawing("lowess", f"Over {plain(column)}", caption, partial(_lowess, analysis, term)))
            break
    return drawn


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


@contextmanager
def _ecdf(analysis: Analysis) -> Iterator[Figure]:
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
        yield drawn


@contextmanager
def _violin(analysis: Analysis) -> Iterator[Figure]:
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
        yield drawn


@contextmanager
def _lowess(analysis: Analysis, term: str) -> Iterator[Figure]:
    delays, shown = analysis.delays, series(analysis)
    rows = delays.rows
    with figure(4.3, 0.8) as (drawn, (axes,)):
        log = _delay_axis(axes, "y", [delays.groups[name] for name, _, _ in shown])
        for name, colour, dash in shown:
            own = np.flatnonzero((rows["group"] == name) & np.isfinite(rows[term]))
            own = np.random.default_rng(0).permutation(own)[:FITTED]
            x, y = rows[term][own].astype(np.float64), rows["delay"][own].astype(np.float64)
            if len(x) >= ENOUGH and np.ptp(x) > 0:
                at, values = smooth(x, np.log10(y) if log else y)
                axes.plot(at, 10**values if log else values, color=colour, ls=dash, label=shortened(name, LONGEST))
        axes.set_title(f"Delays over {plain(delays.columns.loads[term])}")
        axes.set_xlabel(axis_label(delays.columns.loads[term]))
        axes.set_ylabel(axis_label(delays.columns.value))
        if axes.get_legend_handles_labels()[0]:
            axes.legend()
        yield drawn


def smooth(x: Array, y: Array) -> tuple[Array, Array]:
    """LOWESS (W. Cleveland, "Robust locally weighted regression and smoothing scatterplots", JASA 74, 1979): x, y (P,).

    Fitted at points no nearer to each other than `STEP` of the range, straight lines between them; without the ends,
    where a few points would bend it.
    """
    fitted = lowess(y, x, frac=SMOOTH, it=3, delta=STEP * float(np.ptp(x)))
    low, high = np.quantile(x, [ENDS, 1.0 - ENDS])
    inside = (fitted[:, 0] >= low) & (fitted[:, 0] <= high)
    return fitted[inside, 0], fitted[inside, 1]


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
    for drawing in drawings(analysis):
        with drawing.draw() as drawn:
            for ending in ("png", "svg"):
                paths.append(folder / f"{drawing.name}.{ending}")
                save(drawn, paths[-1])
    return paths


def write_report(analysis: Analysis, path: Path, sources: Sequence[str], command: str) -> None:
    """The whole document; raises OSError.

    Args:
        analysis: its results.
        path: the file.
        sources: names of the tables that the delays come from.
        command: that made it.
    """
    suite, columns = analysis.suite, analysis.delays.columns
    panels = []
    for drawing in drawings(analysis):
        with drawing.draw() as drawn:
            panels.append(panel(drawn, drawing.title, f"{drawing.title}. {drawing.caption}"))
    said = list(sentences(analysis)) or ["There is one group, and nothing to compare it with."]
    verdict = "".join(f"<p>{escape(sentence)}</p>" for sentence in said)
    sections = [
        ("verdict", "Summary", f'<div class="verdict">{verdict}</div>'),
        ("groups", "Distributions", f'{_groups(analysis)}<div class="panels">{"".join(panels)}</div>'),
    ]
    if suite.comparisons:
        sections.append(("tests", f"Against {suite.baseline}", _tests(analysis)))
    if analysis.regression is not None:
        sections.append(("regression", "Covariates of the delays", _regression(analysis)))
    sections.append(("notes", "Notes", bullets(map(escape, analysis.notes))))
    sections.append(("terms", "What the figures mean", definitions(TERMS)))
    sections.append(("reproduce", "How to reproduce", f"<pre>{escape(command)}</pre>"))
    few = ", ".join(sources[:MOST_SOURCES]) + (", ..." if len(sources) > MOST_SOURCES else "")
    document = page(
        f"slicepilot: {columns.value} by {columns.by}",
        f"{analysis.delays.read:,} delays of {len(suite.descriptions)} groups, from {few}",
        sections,
        f"slicepilot {metadata.version('slicepilot')}",
    )
    replace_file(path, document.encode())


def _groups(analysis: Analysis) -> str:
    unit = shown_unit(analysis.suite.unit)
    rows = [
        [escape(d.group), f"{d.n:,}", _with_ends(d.median), number(d.p90), _with_ends(d.p95)]
        + [number(value) for value in (d.p99, d.iqr, d.mad)]
        for d in analysis.suite.descriptions
    ]
    names = ("median", "p90", "p95", "p99", "IQR", "MAD")
    return table((analysis.delays.columns.by, "n", *(f"{name}, {unit}" for name in names)), rows)


def _tests(analysis: Analysis) -> str:
    unit = shown_unit(analysis.suite.unit)
    rows = [
        [escape(c.group), _with_ends(c.median), _with_ends(c.p95), f"{c.cliffs_delta:.3f}<small>{c.magnitude}</small>"]
        + [f"{p_value(getattr(c, name))}<small>{p_value(c.holm[name])}</small>" for name in P_VALUES]
        for c in analysis.suite.comparisons
    ]
    head = ("Group", f"median differs by, {unit}", f"p95 differs by, {unit}", "Cliff's delta")
    note = '<p class="note">Small print: 95% interval, size of the effect, and p after Holm\'s correction.</p>'
    return table((*head, "p, median", "p, p95", "p, Mann-Whitney"), rows) + note


def _regression(analysis: Analysis) -> str:
    assert analysis.regression is not None
    fits, columns = analysis.regression.fits, analysis.delays.columns
    unit = shown_unit(columns.unit)
    rows = []
    for index, first in enumerate(fits[0].coefficients):
        term = first.term
        column = columns.loads.get(term.covariate, term.covariate)
        reference = analysis.regression.references.get(term.covariate)
        label = (
            f"{column}, per {number(term.scale)}" if term.level is None else f"{column} {term.level}, not {reference}"
        )
        cells = []
        for own in (fit.coefficients[index] for fit in fits):
            small = f"p {p_value(own.p)}" if own.p is not None else "tail too thin for p"
            cells.append(f"{number(own.beta)}<small>{small}</small>")
        rows.append([escape(label), *cells])
    head = ("Term", *(f"quantile {fit.quantile:g}, {unit}" for fit in fits))
    return f"<p>{fits[0].n:,} rows.</p>" + table(head, rows)


def _with_ends(interval: Interval) -> str:
    return f"{number(interval.value)}<small>{ends(interval)}</small>"


def number(value: float) -> str:
    """Four significant digits, thousands whole."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def ends(interval: Interval) -> str:
    """Both ends of an interval."""
    return f"{number(interval.low)} to {number(interval.high)}"


def p_value(p: float | None) -> str:
    """Three digits behind the point; nothing where it is not known."""
    if p is None:
        return ""
    return "<.001" if p < 0.001 else f"{p:.3f}".removeprefix("0") if p < 0.9995 else "1"


def shown_unit(unit: str) -> str:
    """As it is printed."""
    return "µs" if unit == "us" else unit


def sentences(analysis: Analysis) -> Iterator[str]:
    """Each group's difference in one sentence, the largest first."""
    suite = analysis.suite
    ranked = sorted(suite.comparisons, key=lambda c: -abs(c.cliffs_delta))
    unit = f" {shown_unit(suite.unit)}" if suite.unit else ""
    for c in ranked:
        if c.magnitude != "negligible":
            longer = "longer" if c.cliffs_delta > 0 else "shorter"
            by = f"median {_signed(c.median.value)}{unit} and p95 {_signed(c.p95.value)}{unit}"
            effect = f"a {c.magnitude} effect (Cliff's delta {c.cliffs_delta:.2f}, {_certainty(c)})"
            yield f"{c.group}: {longer} delays than {suite.baseline}, {by}: {effect}."
    alike = [c.group for c in ranked if c.magnitude == "negligible"]
    if alike:
        verb = "differ" if len(alike) > 1 else "differs"
        yield f"{', '.join(alike)}: {verb} from {suite.baseline} by a negligible effect (|Cliff's delta| < 0.147)."


def _signed(value: float) -> str:
    return f"+{number(value)}" if value > 0 else number(value)


def _certainty(c: Comparison) -> str:
    p = c.holm["mann_whitney_p"]
    shown = f"p {p_value(p)} after Holm's correction"
    return shown if p < CERTAIN else f"but {shown}: it may be chance"
