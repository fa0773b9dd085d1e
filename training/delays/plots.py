"""Pictures of delays by group: distribution, violins, and smooth curves over what may explain them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from textwrap import wrap
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, StrMethodFormatter
from scipy.stats import gaussian_kde
from statsmodels.nonparametric.smoothers_lowess import lowess

from slicepilot.data.intervals import Array
from slicepilot.data.tables.tidy import unit_of
from slicepilot.training.reports.pictures import DASHES, Colours, canvas, log_axis, width_in
from slicepilot.training.statistics.comparison import Suite

from .collect import Delays
from .columns import shortened
from .curve_labels import Curve, label_curves

MAX_SERIES = 8  # the baseline and seven others, as many as there are colours
WIDE = 30.0  # ratio of large to small delays from which an axis is logarithmic
EDGE = 0.001  # part of the delays at either end that a picture leaves out
LEVELS = np.linspace(EDGE, 1.0 - EDGE, 999)
DOTS, FITTED = 900, 4000  # rows of all groups that are drawn, and of one group that a curve is fitted to
LONGEST, LINE = 30, 20  # characters of a group's name, and of a line of it
NUMBER = "{x:,.10g}"  # of axes that are not logarithmic
RIGHT_IN = 0.3  # half of a long number stands there
BANDWIDTH = 0.15  # of violins, in standard deviations
SMOOTH, STEP = 0.3, 0.01  # part of the points that each point of a curve looks at; distance of fits, part of the range
ENDS = 0.01  # part of a group's rows at either end that its curve leaves out
ENOUGH = 10  # points of a group that a curve needs


@dataclass(frozen=True)
class Picture:
    """A figure that can be drawn in several sets of colours.

    Attributes:
        name: of its files.
        title: what it is, in a few words.
        caption: what to know when reading it.
        draw: makes the figure; the context is open while it is saved.
    """

    name: str
    title: str
    caption: str
    draw: Callable[[Colours], AbstractContextManager[Figure]]


@dataclass(frozen=True)
class Series:
    """How one group is drawn."""

    name: str
    colour: str
    dash: Any
    width: float

    @property
    def label(self) -> str:
        """Its name where room is scarce."""
        return shortened(self.name, LONGEST)


def pictures(delays: Delays, suite: Suite) -> list[Picture]:
    """All that the data allow: no curves without a number to draw them over."""
    left_out = len(suite.descriptions) - MAX_SERIES
    only = f" Shown are the baseline and the {MAX_SERIES - 1} that differ most from it." if left_out > 0 else ""
    edge = f"The outermost {100 * EDGE:g}% at either end are not drawn.{only}"
    made = [
        Picture("ecdf", "Distribution", f"Part of the delays at or below. {edge}", partial(_ecdf, delays, suite)),
        Picture(
            "violin",
            "Shape",
            f"Kernel density, each of the same height; bar: middle half. {edge}",
            partial(_violin, delays, suite),
        ),
    ]
    for term, column in delays.columns.loads.items():
        if term in delays.rows and np.unique(delays.rows[term][np.isfinite(delays.rows[term])]).size > 2:
            caption = (
                f"LOWESS over {100 * SMOOTH:g}% of a group's rows at a time, robust against outliers, with "
                f"some rows of each group as dots.{only}"
            )
            made.append(Picture("lowess", f"Over {plain(column)}", caption, partial(_lowess, delays, suite, term)))
            break
    return made


def series(suite: Suite, colours: Colours) -> list[Series]:
    """The groups to draw: the baseline, in ink, and those that differ most from it."""
    ranked = sorted(suite.comparisons, key=lambda c: -abs(c.cliffs_delta))[: MAX_SERIES - 1]
    chosen = {c.group for c in ranked}
    others = [d.group for d in suite.descriptions if d.group in chosen]
    drawn = [Series(name, colours.series[i], DASHES[i % len(DASHES)], 1.5) for i, name in enumerate(others)]
    return [Series(suite.baseline, colours.ink, "-", 2.1), *drawn]


def axis_label(column: str) -> str:
    """``delay_p99_us`` as "delay p99, µs"."""
    return ", ".join(filter(None, [plain(column), unit_of(column)]))


def plain(column: str) -> str:
    """``delay_p99_us`` as "delay p99"."""
    name = column.removesuffix(f"_{column.rpartition('_')[2]}") if unit_of(column) else column
    return name.removesuffix("_per").replace("_", " ")


@contextmanager
def _ecdf(delays: Delays, suite: Suite, colours: Colours) -> Iterator[Figure]:
    with canvas(4.3, 0.55, colours=colours, right_in=RIGHT_IN) as (figure, (axes,)):
        curves, shown = [], series(suite, colours)
        drawn = [delays.groups[one.name] for one in shown]
        for one in reversed(shown):
            values = _at(delays.groups[one.name], LEVELS)
            axes.plot(
                values, 100 * LEVELS, color=one.colour, ls=one.dash, lw=2.0 if one.name == suite.baseline else 1.4
            )
            curves.append(Curve(values, 100 * LEVELS, one.label, one.colour))
        _delay_axis(axes, "x", drawn)
        axes.set_ylim(0, 100)
        axes.set_yticks([0, 25, 50, 75, 95])
        axes.set_title("Distribution of delays")
        axes.set_xlabel(axis_label(delays.columns.value))
        axes.set_ylabel("% at or below")
        label_curves(figure, axes, curves[::-1])
        yield figure


@contextmanager
def _violin(delays: Delays, suite: Suite, colours: Colours) -> Iterator[Figure]:
    drawn = series(suite, colours)
    lines = [wrap(one.label, LINE) for one in drawn]
    left_in = width_in([line for label in lines for line in label])
    with canvas(1.0 + 0.52 * len(drawn), left_in, colours=colours, right_in=RIGHT_IN) as (figure, (axes,)):
        log = _delay_axis(axes, "x", [delays.groups[one.name] for one in drawn])
        for row, one in enumerate(drawn):
            values = _at(delays.groups[one.name], LEVELS)
            grid, heights = _density(values, log)
            axes.fill_between(grid, -row - heights, -row + heights, color=one.colour, alpha=0.3, lw=0)
            axes.plot(grid, -row + heights, color=one.colour, lw=0.8)
            axes.plot(grid, -row - heights, color=one.colour, lw=0.8)
            p25, p50, p75, p95, p99 = _at(delays.groups[one.name], np.asarray([0.25, 0.5, 0.75, 0.95, 0.99]))
            axes.plot([p25, p75], [-row, -row], color=one.colour, lw=4, solid_capstyle="butt")
            for value, half in ((p50, 0.3), (p95, 0.2), (p99, 0.2)):
                axes.plot([value, value], [-row - half, -row + half], color=colours.ink, lw=1.4)
        axes.set_yticks(-np.arange(len(drawn)), ["\n".join(label) for label in lines])
        axes.set_ylim(-len(drawn) + 0.45, 0.55)
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
        axes.set_title("Shape of the distributions")
        axes.set_xlabel(f"{axis_label(delays.columns.value)} (marks: median, p95, p99)")
        yield figure


@contextmanager
def _lowess(delays: Delays, suite: Suite, term: str, colours: Colours) -> Iterator[Figure]:
    drawn = series(suite, colours)
    groups = [delays.groups[one.name] for one in drawn]
    widest = f"{max(abs(end) for end in _ends(groups)):,.0f}"
    with canvas(4.3, 0.3 + width_in([widest]), colours=colours) as (figure, (axes,)):
        log = _delay_axis(axes, "y", groups)
        curves, dots = [], DOTS // len(drawn)
        for one in reversed(drawn):
            x, y = _points(delays.rows, one.name, term)
            axes.plot(x[:dots], y[:dots], ".", color=one.colour, ms=2.5, alpha=0.35, mew=0)
            if len(x) >= ENOUGH and np.ptp(x) > 0:
                curve = smooth(x, np.log10(y) if log else y)
                values = 10 ** curve[1] if log else curve[1]
                axes.plot(
                    curve[0], values, color=one.colour, ls=one.dash, lw=2.2 if one.name == suite.baseline else 1.7
                )
                curves.append(Curve(curve[0], values, one.label, one.colour))
        everything = delays.rows[term][np.isfinite(delays.rows[term])]
        low, high = np.quantile(everything, [0.002, 0.998])
        margin = 0.03 * (high - low)
        axes.set_xlim(low - margin, high + margin)
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
        axes.xaxis.set_major_formatter(StrMethodFormatter(NUMBER))
        axes.set_title(f"Delays over {plain(delays.columns.loads[term])}")
        axes.set_xlabel(axis_label(delays.columns.loads[term]))
        axes.set_ylabel(axis_label(delays.columns.value))
        label_curves(figure, axes, curves[::-1])
        yield figure


def smooth(x: Array, y: Array) -> tuple[Array, Array]:
    """LOWESS (W. Cleveland, "Robust locally weighted regression and smoothing scatterplots", JASA 74, 1979): x, y (P,).

    Fitted at points no nearer to each other than `STEP` of the range, straight lines between them; without the ends,
    where a few points would bend it.
    """
    fitted = lowess(y, x, frac=SMOOTH, it=3, delta=STEP * float(np.ptp(x)))
    low, high = np.quantile(x, [ENDS, 1.0 - ENDS])
    inside = (fitted[:, 0] >= low) & (fitted[:, 0] <= high)
    return fitted[inside, 0], fitted[inside, 1]


def _points(rows: Mapping[str, Any], group: str, term: str) -> tuple[Array, Array]:
    """Sampled rows of a group, in random order, as many as a curve is fitted to."""
    own = np.flatnonzero((rows["group"] == group) & np.isfinite(rows[term]))
    own = np.random.default_rng(0).permutation(own)[:FITTED]
    return rows[term][own].astype(np.float64), rows["delay"][own].astype(np.float64)


def _at(ordered: Array, levels: Array) -> Array:
    """The nearest of the ordered values to each quantile."""
    return ordered[np.rint(levels * (len(ordered) - 1)).astype(np.int64)]


def _density(values: Array, log: bool) -> tuple[Array, Array]:
    """Where and how high a violin is, at most 0.42, of values at even quantiles."""
    scaled = np.log10(values) if log else values
    if np.ptp(scaled) == 0:
        return np.repeat(values[:1], 2), np.asarray([0.42, 0.0])
    grid = np.linspace(scaled[0], scaled[-1], 256)
    heights = gaussian_kde(scaled, bw_method=BANDWIDTH)(grid)
    return 10**grid if log else grid, 0.42 * heights / heights.max()


def _delay_axis(axes: Axes, which: str, groups: Sequence[Array]) -> bool:
    """Limits and scale that show all but the outermost delays; whether it is logarithmic."""
    low, high = _ends(groups)
    log = min(float(group[0]) for group in groups) > 0 and high / low > WIDE
    axis, limit = (axes.xaxis, axes.set_xlim) if which == "x" else (axes.yaxis, axes.set_ylim)
    if log:
        (axes.set_xscale if which == "x" else axes.set_yscale)("log")
        log_axis(axis)
        axis.set_major_locator(LogLocator(subs=(1.0,) if high / low > 1000 else (1.0, 2.0, 5.0)))
        limit(low / (high / low) ** 0.02, high * (high / low) ** 0.02)
    else:
        margin = 0.03 * (high - low) or 1.0
        limit(low - margin, high + margin)
        axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
        axis.set_major_formatter(StrMethodFormatter(NUMBER))
    return log


def _ends(groups: Sequence[Array]) -> tuple[float, float]:
    """Between which all but the outermost delays of each group are."""
    ends = np.asarray([_at(group, np.asarray([EDGE, 1.0 - EDGE])) for group in groups])
    return float(ends[:, 0].min()), float(ends[:, 1].max())
