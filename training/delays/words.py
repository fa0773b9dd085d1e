"""Figures of an analysis as people read them."""

from __future__ import annotations

from collections.abc import Iterator

from slicepilot.data.intervals import Interval
from slicepilot.training.statistics.comparison import Comparison

from .analysis import Analysis

CERTAIN = 0.05
MEANINGS = (
    ("MAD", "median distance from the median, not scaled."),
    ("95% interval", "bias-corrected and accelerated bootstrap (BCa)."),
    ("p of median, p95", "permutation tests, two-sided: how often groups dealt at random differ as much."),
    ("p of M-W", "Mann-Whitney's U test, two-sided."),
    ("Holm", "the p value before it, corrected for the number of groups compared."),
    ("Cliff's delta", "how much more often a delay of the group is longer than one of the baseline than shorter."),
    (
        "beta",
        "change of that quantile of the delay per standard deviation of a number, or against the reference level.",
    ),
)


def number(value: float) -> str:
    """Four significant digits, thousands whole."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def ends(interval: Interval) -> str:
    """From where to where."""
    return f"{number(interval.low)} to {number(interval.high)}"


def p_value(p: float | None) -> str:
    """Three digits behind the point; nothing where it could not be told."""
    if p is None:
        return ""
    return "<.001" if p < 0.001 else f"{p:.3f}".removeprefix("0") if p < 0.9995 else "1"


def shown_unit(unit: str) -> str:
    """As it is printed."""
    return "µs" if unit == "us" else unit


def sentences(analysis: Analysis) -> Iterator[str]:
    """What was found about each group, in one sentence, the largest difference first."""
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
        several = "differ" if len(alike) > 1 else "differs"
        yield f"{', '.join(alike)}: {several} from {suite.baseline} by a negligible effect (|Cliff's delta| < 0.147)."


def _signed(value: float) -> str:
    return f"+{number(value)}" if value > 0 else number(value)


def _certainty(c: Comparison) -> str:
    p = c.holm["mann_whitney_p"]
    shown = f"p {p_value(p)} after Holm's correction"
    return shown if p < CERTAIN else f"but {shown}: chance could do it"
