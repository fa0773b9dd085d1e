"""Reports as one self-contained HTML file, readable on a phone and on paper, with figures as inline SVG."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from slicepilot.configs.text import cleaned
from slicepilot.data.files import replace_file

mpl.rcdefaults()  # ignore a matplotlibrc in the working folder
WIDTH_IN = 5.3  # as wide as a phone: a page lays figures out side by side where there is room
INK, MUTED, FAINT = "#1a2129", "#5b6672", "#aab4bd"
COLOURS = ("#0065ad", "#c26a00", "#00805c", "#b0447f", "#4a4fc4", "#8a6d00", "#a3321a")
"""Distinguishable for the colour-blind; dashes, markers and labels repeat the colour's meaning."""
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.5)), (0, (6, 1.5, 1.5, 1.5)), (0, (3, 1)), (0, (8, 2)))
FINE_RANGE, MOST_TICKS = 4.0, 6
STYLE: Any = {
    "svg.fonttype": "none",
    "font.size": 9.5,
    "axes.edgecolor": MUTED,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e7eb",
    "text.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.4,
    "path.simplify_threshold": 0.6,
}


def escape(text: str) -> str:
    """Untrusted text as HTML, without invisible characters and those that change the direction of writing."""
    return html.escape(cleaned(text))


def page(title: str, subtitle: str, sections: Sequence[tuple[str, str, str]], footer: str) -> str:
    """The whole document.

    Args:
        title: plain text, as ``subtitle`` and ``footer`` are.
        sections: anchor, heading and HTML of each.
    """
    template = resources.files("slicepilot.training.reports").joinpath("report_template.html")
    return Template(template.read_text(encoding="utf-8")).substitute(
        title=escape(title),
        meta=escape(subtitle),
        nav="".join(f'<a href="#{escape(anchor)}">{escape(name)}</a>' for anchor, name, _ in sections),
        body="\n".join(
            f'<section id="{escape(anchor)}"><h2>{escape(name)}</h2>\n{content}</section>'
            for anchor, name, content in sections
        ),
        footer=escape(footer),
    )


def table(head: Iterable[str], rows: Iterable[Sequence[str]], text: Iterable[str] = ()) -> str:
    """A table of HTML cells, the first of each row its heading; columns in ``text`` hold text, the others figures.

    On a narrow screen a row becomes a list of its cells, each with the heading of its column.
    """
    names, left = list(head), set(text)
    kinds = [' class="words"' if name in left else "" for name in names]
    top = "".join(f'<th scope="col"{kind}>{escape(name)}</th>' for name, kind in zip(names, kinds, strict=True))
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>'
        + "".join(
            f'<td{kind} data-label="{escape(name)}">{cell}</td>'
            for cell, kind, name in zip(row[1:], kinds[1:], names[1:], strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def definitions(terms: Iterable[tuple[str, str]]) -> str:
    """A list of terms and their meanings, plain text."""
    return "<dl>" + "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in terms) + "</dl>"


def bullets(items: Iterable[str]) -> str:
    """A list of HTML items."""
    return "<ul>" + "".join(f"<li>{item}</li>" for item in items) + "</ul>"


@contextmanager
def figure(
    height_in: float, left_in: float = 0.6, rows: int = 1, bottom_in: float = 0.5, width_in: float = WIDTH_IN
) -> Iterator[tuple[Any, Any]]:
    """A figure of stacked axes (rows,) with fixed margins: automatic layouts draw everything several times."""
    with mpl.rc_context(STYLE):
        drawn = Figure(figsize=(width_in, height_in))
        axes = drawn.subplots(rows, 1, sharex=True, squeeze=False)[:, 0]
        drawn.subplots_adjust(
            left=left_in / width_in, right=0.97, bottom=bottom_in / height_in, top=1 - 0.3 / height_in, hspace=0.2
        )
        yield drawn, axes


def label_width_in(labels: Iterable[str]) -> float:
    """Room for tick labels, estimated from their length."""
    return 0.2 + 0.075 * max(map(len, labels))


def panel(drawn: Figure, label: str, caption: str) -> str:
    """A figure as inline SVG with its caption; the same figure is the same text every time."""
    svg = _saved(drawn, "svg", label).decode()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"|(?<=<g) id="[^"]*"', "", svg)
    svg = re.sub(
        r'<svg [^>]*?viewBox="([^"]*)"[^>]*>',
        rf'<svg viewBox="\1" role="img" aria-label="{escape(label)}">',
        svg,
        count=1,
    )
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"


def svg_files(panels: str) -> Iterator[str]:
    """The pictures of some panels, each as an SVG file: inline they have no namespaces and a transparent ground."""
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    for svg in re.findall(r"<svg .*?</svg>", panels, re.DOTALL):
        yield svg.replace("<svg ", f'<svg {names} style="background: white" ', 1)


def save(drawn: Figure, path: Path) -> None:
    """Write a figure as PNG or SVG, by the path's ending; raises OSError."""
    replace_file(path, _saved(drawn, path.suffix[1:], path.name))


def _saved(drawn: Figure, kind: str, salt: str) -> bytes:
    out = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": salt, "svg.fonttype": "none"}):
        drawn.savefig(out, format=kind, dpi=200, metadata={"Date": None} if kind == "svg" else None)
    return out.getvalue()


def log_axis(axes: Axes, which: str) -> None:
    """A logarithmic axis ``x`` or ``y`` with plain numbers at the decades."""
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}" if abs(x) >= 1 or x == 0 else f"{x:g}"))
    axis.set_minor_locator(NullLocator())


def ratio_axis(axes: Axes, low: float, high: float) -> None:
    """A logarithmic x axis from ``low`` to ``high`` with ticks at 1 and at few other round ratios."""
    axes.set_xscale("log")
    steps: tuple[float, ...] = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)
    if high / low < FINE_RANGE:
        steps = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.4, 1.6, 2, 2.5, 3)
    shown = [step for step in steps if low <= step <= high]
    every = -(-len(shown) // MOST_TICKS)
    first = shown.index(1) % every if 1 in shown else 0
    axes.set_xticks(shown[first::every], [f"{step:g}" for step in shown[first::every]])
    axes.xaxis.set_minor_locator(NullLocator())
