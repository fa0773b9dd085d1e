"""An analysis of delays as one HTML file to read, and its pictures as files."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib import metadata
from pathlib import Path

from slicepilot.data.files import replace_file
from slicepilot.data.intervals import Interval
from slicepilot.training.reports.html_page import bullets, page, picture, table
from slicepilot.training.reports.pictures import PAGE, PAPER, to_file, to_html
from slicepilot.training.statistics.comparison import P_VALUES

from . import plots
from .analysis import Analysis
from .words import MEANINGS, ends, number, p_value, sentences, shown_unit

FORMATS = ("png", "svg")
MOST_SOURCES = 4  # that are named


def write_pictures(analysis: Analysis, folder: Path) -> list[Path]:
    """Each picture as PNG and SVG; raises OSError."""
    paths = []
    for drawn in plots.pictures(analysis.delays, analysis.suite):
        with drawn.draw(PAPER) as figure:
            for ending in FORMATS:
                paths.append(folder / f"{drawn.name}.{ending}")
                to_file(figure, paths[-1])
    return paths


def write_report(analysis: Analysis, path: Path, sources: Sequence[str], command: str) -> None:
    """The whole document; raises OSError.

    Args:
        analysis: what was found.
        path: the file.
        sources: names of the tables that the delays come from.
        command: that made it.
    """
    suite, columns = analysis.suite, analysis.delays.columns
    drawn = [picture(_inline(one), f"{one.title}. {one.caption}") for one in plots.pictures(analysis.delays, suite)]
    sections = [("verdict", "Verdict", _verdict(analysis))]
    sections.append(("groups", "Distributions", f'{_groups(analysis)}<div class="panels">{"".join(drawn)}</div>'))
    if suite.comparisons:
        sections.append(("tests", f"Against {suite.baseline}", _tests(analysis)))
    if analysis.regression is not None:
        sections.append(("regression", "What moves with the delays", _regression(analysis)))
    sections.append(("notes", "What to know", bullets(map(escape, analysis.notes))))
    sections.append(("terms", "What the figures mean", _terms()))
    sections.append(("reproduce", "How to reproduce", f"<pre>{escape(command)}</pre>"))
    few = ", ".join(sources[:MOST_SOURCES]) + (", ..." if len(sources) > MOST_SOURCES else "")
    meta = f"{analysis.delays.read:,} delays of {len(suite.descriptions)} groups, from {few}"
    document = page(
        f"slicepilot: {columns.value} by {columns.by}", meta, sections, f"slicepilot {metadata.version('slicepilot')}"
    )
    replace_file(path, document.encode())


def _inline(one: plots.Picture) -> str:
    with one.draw(PAGE) as figure:
        return to_html(figure, one.title)


def _verdict(analysis: Analysis) -> str:
    said = list(sentences(analysis)) or ["One group: there is nothing to compare it with."]
    return '<div class="verdict">' + "".join(f"<p>{escape(s)}</p>" for s in said) + "</div>"


def _groups(analysis: Analysis) -> str:
    suite, unit = analysis.suite, shown_unit(analysis.suite.unit)
    rows = [
        f'<tr{" class=own" if d.group == suite.baseline else ""}><th scope="row">{escape(d.group)}</th>'
        f"<td>{d.n:,}</td>{_with_ends(d.median)}{_cells(d.p90)}{_with_ends(d.p95)}{_cells(d.p99, d.iqr, d.mad)}</tr>"
        for d in suite.descriptions
    ]
    head = (analysis.delays.columns.by, "n", *(f"{name}, {unit}" for name in ("median", "p90", "p95", "p99")))
    return table((*head, f"IQR, {unit}", f"MAD, {unit}"), rows)


def _tests(analysis: Analysis) -> str:
    unit = shown_unit(analysis.suite.unit)
    rows = [
        f'<tr><th scope="row">{escape(c.group)}</th>{_with_ends(c.median)}{_with_ends(c.p95)}'
        f"<td>{c.cliffs_delta:.3f}<small>{c.magnitude}</small></td>"
        + "".join(f"<td>{p_value(getattr(c, name))}<small>{p_value(c.holm[name])}</small></td>" for name in P_VALUES)
        + "</tr>"
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
        what = columns.loads.get(term.covariate, term.covariate)
        reference = analysis.regression.references.get(term.covariate)
        label = f"{what}, per {number(term.scale)}" if term.level is None else f"{what} {term.level}, not {reference}"
        cells = []
        for fit in fits:
            own = fit.coefficients[index]
            small = f"p {p_value(own.p)}" if own.p is not None else "tail too thin for p"
            cells.append(f"<td>{number(own.beta)}<small>{small}</small></td>")
        rows.append(f'<tr><th scope="row">{escape(label)}</th>{"".join(cells)}</tr>')
    head = ("Term", *(f"quantile {fit.quantile:g}, {unit}" for fit in fits))
    return f"<p>{fits[0].n:,} rows.</p>" + table(head, rows)


def _terms() -> str:
    return "<dl>" + "".join(f"<dt>{escape(term)}</dt><dd>{escape(text)}</dd>" for term, text in MEANINGS) + "</dl>"


def _cells(*values: float) -> str:
    return "".join(f"<td>{number(value)}</td>" for value in values)


def _with_ends(interval: Interval) -> str:
    return f"<td>{number(interval.value)}<small>{ends(interval)}</small></td>"
