"""How our pictures look: one style, safe for the colour-blind, as inline SVG for pages and as files to print.

Every panel is drawn at the size at which it is read on a phone; a page lays panels out side by side where there is
room. What tells things apart is never colour alone: markers, dashes and labels say it too.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, cast

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from slicepilot.data.files import replace_file

WIDTH_IN = 5.3
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.5)), (0, (6, 1.5, 1.5, 1.5)), (0, (3, 1)), (0, (8, 2)))


@dataclass(frozen=True)
class Colours:
    """Of text, of what stands back, of the grid, of what is faint, and of up to seven series."""

    ink: str
    muted: str
    grid: str
    faint: str
    series: tuple[str, ...]


PAGE = Colours("#010101", "#020202", "#030303", "#040404", tuple(f"#0505{n:02x}" for n in range(1, 8)))
"""Stand-ins that an SVG is drawn with; `to_html` swaps each for its CSS variable, which follows the page's theme."""
PAPER = Colours(
    "#1a2129", "#5b6672", "#e3e7eb", "#aab4bd",
    ("#0065ad", "#c26a00", "#00805c", "#b0447f", "#4a4fc4", "#8a6d00", "#a3321a"),
)  # fmt: skip
"""Those of report_template.html in light, for files."""
_VARIABLES = {PAGE.ink: "--ink", PAGE.muted: "--muted", PAGE.grid: "--grid", PAGE.faint: "--faint"} | {
    colour: f"--s{n}" for n, colour in enumerate(PAGE.series, 1)
}
_LONG = re.compile(r"(?<=\d)(\.\d)\d+")


def _style(colours: Colours) -> dict[str, Any]:
    return {
        "svg.fonttype": "none",
        "font.size": 9.5,
        "axes.edgecolor": colours.muted,
        "axes.labelcolor": colours.ink,
        "axes.titlesize": 10,
        "axes.titlecolor": colours.ink,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.unicode_minus": True,
        "grid.color": colours.grid,
        "grid.linewidth": 0.7,
        "xtick.color": colours.muted,
        "ytick.color": colours.muted,
        "xtick.labelcolor": colours.ink,
        "ytick.labelcolor": colours.ink,
        "text.color": colours.ink,
        "legend.frameon": False,
        "legend.labelcolor": colours.ink,
        "lines.linewidth": 1.4,
        "path.simplify_threshold": 0.6,
    }


@contextmanager
def canvas(
    height_in: float,
    left_in: float,
    bottom_in: float = 0.5,
    ratios: Sequence[float] = (1.0,),
    colours: Colours = PAGE,
    right_in: float = 0.12,
) -> Iterator[tuple[Figure, Any]]:
    """A figure of stacked axes with fixed margins: automatic layouts draw everything several times."""
    with mpl.rc_context(cast(Any, _style(colours))):
        figure = Figure(figsize=(WIDTH_IN, height_in))
        axes = figure.subplots(len(ratios), 1, sharex=True, squeeze=False, height_ratios=ratios)[:, 0]
        figure.subplots_adjust(
            left=left_in / WIDTH_IN,
            right=1 - right_in / WIDTH_IN,
            bottom=bottom_in / height_in,
            top=1 - 0.3 / height_in,
            hspace=0.18,
        )
        yield figure, axes


def width_in(labels: Sequence[str]) -> float:
    """Room for tick labels, as estimated from their length."""
    return 0.2 + 0.075 * max(map(len, labels))


def to_html(figure: Figure, label: str) -> str:
    """Inline SVG: no declarations, no metadata, short numbers, the page's fonts and colours."""
    figure.patch.set_alpha(0)
    for axes in figure.axes:
        axes.patch.set_alpha(0)
    out = io.StringIO()
    # Labels differ, so the ids of shared shapes do as well, and the same figure is the same text every time.
    with mpl.rc_context({"svg.hashsalt": label, "svg.fonttype": "none"}):
        figure.savefig(out, format="svg", metadata={"Date": None})
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r"(font: [^;\"]*?px)[^;\"]*", r"\1 var(--sans)", svg)
    svg = re.sub(r' (?:d|x|y|transform)="[^"]*"', lambda found: _LONG.sub(r"\1", found.group()), svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    svg = re.sub(
        r'<svg [^>]*?viewBox="([^"]*)"[^>]*>',
        rf'<svg viewBox="\1" role="img" aria-label="{escape(label)}">',
        svg,
        count=1,
    )
    return re.sub(r"\n\s*", "\n", svg)


def to_file(figure: Figure, path: Path) -> None:
    """A figure drawn in `PAPER`'s colours as PNG or SVG, by the path's ending; raises OSError."""
    out = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": path.name, "svg.fonttype": "none"}):
        figure.savefig(out, format=path.suffix[1:], dpi=200, metadata={"Date": None} if path.suffix == ".svg" else None)
    replace_file(path, out.getvalue())


def _plain(value: float, _: int) -> str:
    return f"{value:,.0f}" if abs(value) >= 1 or value == 0 else f"{value:g}"


def log_axis(axis: Any) -> None:
    """Plain numbers at the decades."""
    axis.set_major_formatter(FuncFormatter(_plain))
    axis.set_minor_locator(NullLocator())
