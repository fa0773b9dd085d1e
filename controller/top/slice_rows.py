"""One slice in one, two or three lines."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from slicepilot.env.knobs import KNOB_FIELDS
from slicepilot.env.promises import RATE_TOLERANCE

from .figures import percent, scaled, short
from .glyphs import Glyphs, Values, linear, logarithmic, mean, resample

GOOD, NOTE, BAD, QUIET = "green", "yellow", "bold red", "dim"
SEVERITIES = {"info": QUIET, "warning": NOTE, "severe": BAD}
NAME_CELLS = 12
FASTEST_US = 10.0  # where the log axis of delays begins
COLUMNS = (
    *(("offered", 8), ("carried", 8), ("loss", 6), ("p50 ms", 7), ("p99 ms", 7), ("bound", 6)),
    *(("CPUs", 6), ("nice", 5), ("egress", 7)),
)
SPOKEN = dict(zip(KNOB_FIELDS, ("CPU limit", "nice", "egress"), strict=True))
Document = dict[str, Any]


def heading() -> Text:
    """Above the first lines of slices; rates are in Mbit/s, delays in ms, knobs those that hold."""
    cells = "".join(title.rjust(width) for title, width in COLUMNS)
    return Text(f"{'slice':{NAME_CELLS}}{cells} state", style="bold underline")


def state(one: Document) -> tuple[str, str]:
    """How a slice's promise fared over the last seconds, in a word and its colour.

    ``LATE``: the p99 delay is over its bound; ``peaks``: that of single ticks was; ``SHORT``: less is carried than
    owed.
    """
    if not one["valid"]:
        return "unseen", NOTE
    late, short_of = _over(one, one["delay_p99_us"]), _short_of(one)
    if late or short_of:
        return ("BROKEN" if late and short_of else "LATE" if late else "SHORT"), BAD
    if _over(one, one["delay_worst_us"]):
        return "peaks", NOTE
    return ("ok", GOOD) if one["acting"] else ("left", QUIET)


def lines_of(one: Document, lines: int, width: int, glyphs: Glyphs) -> list[Text]:
    """The first ``lines`` of: figures, what was wanted and why it did not happen, sparklines."""
    rows = [_figures(one, glyphs)]
    if lines > 1:
        rows.append(_wishes(one, glyphs))
    if lines > 2:
        rows.append(_sparklines(one, width, glyphs))
    return rows


def _over(one: Document, delay_us: float | None) -> bool:
    """Whether a delay is over the slice's bound."""
    bound_us = one["delay_bound_us"]
    return delay_us is not None and bound_us is not None and delay_us > bound_us


def _short_of(one: Document) -> bool:
    offered, carried, committed = one["offered_mbps"], one["carried_mbps"], one["committed_mbps"]
    if offered is None or carried is None or committed is None:
        return False
    return bool(carried < float(RATE_TOLERANCE) * min(offered, committed) - 1e-6)


def _figures(one: Document, glyphs: Glyphs) -> Text:
    word, colour = state(one)
    row = Text(f"{glyphs.plain(one['name'])[: NAME_CELLS - 1]:{NAME_CELLS}}", style="bold" if colour == BAD else "")
    known = (lambda value: value) if one["valid"] else (lambda value: None)
    knobs = one["knobs"]["applied"]
    cells = (
        (short(known(one["offered_mbps"])), ""),
        (short(known(one["carried_mbps"])), BAD if _short_of(one) else ""),
        (percent(known(one["loss_ratio"])), NOTE if (known(one["loss_ratio"]) or 0) >= 0.001 else ""),
        (short(scaled(known(one["delay_p50_us"]), 1e-3)), ""),
        (short(scaled(known(one["delay_p99_us"]), 1e-3)), BAD if _over(one, known(one["delay_p99_us"])) else ""),
        (short(scaled(one["delay_bound_us"], 1e-3)), QUIET),
        *(
            (text, QUIET if field in one["fixed"] else "")
            for field, text in zip(KNOB_FIELDS, _knobs(knobs), strict=True)
        ),
    )
    for (text, style), (_, width) in zip(cells, COLUMNS, strict=True):
        row.append(text.rjust(width), style=style)
    return row.append(f" {word}", style=colour)


def _knobs(knobs: Document | None) -> tuple[str, str, str]:
    """CPUs, nice and egress; ``none`` is no limit."""
    if knobs is None:
        return "-", "-", "-"
    limit, nice, egress = knobs["cpu_limit_mcpu"], knobs["nice"], knobs["egress_mbps"]
    return (
        "none" if limit is None else short(limit / 1e3),
        "-" if nice is None else f"{nice:+.0f}" if nice else "0",
        "none" if egress is None else short(egress),
    )


def _wishes(one: Document, glyphs: Glyphs) -> Text:
    """What the policy wanted and the guard allowed, and the guard's reasons of the last seconds with their ticks."""
    wanted, allowed = (one["knobs"][stage] for stage in ("wanted", "allowed"))
    row = Text("  wants ", style=QUIET).append(" ".join(_knobs(wanted)), style="")
    if allowed != wanted:
        row.append("  may ", style=QUIET).append(" ".join(_knobs(allowed)), style=NOTE)
    if one["fixed"]:
        row.append(f" {glyphs.dot} not moved: {', '.join(SPOKEN[field] for field in one['fixed'])}", style=QUIET)
    if not one["acting"]:
        row.append(f" {glyphs.dot} left alone", style=QUIET)
    for reason in one["reasons"]:
        row.append(f" {glyphs.dot} ", style=QUIET)
        row.append(f"{reason['reason']} {reason['ticks']}", style=SEVERITIES[reason["severity"]])
    return row


def _sparklines(one: Document, width: int, glyphs: Glyphs) -> Text:
    """Rates on one linear axis from 0; delays on one log axis to the bound, or beyond it where they are."""
    history: dict[str, Values] = one["history"]
    labels = ("  off ", " out ", " p50 ", " p99 ")
    places = max(1, (width - sum(map(len, labels))) // len(labels))
    rates = [resample(history[name], places, mean) for name in ("offered_mbps", "carried_mbps")]
    delays = [resample(history[name], places, max) for name in ("delay_p50_us", "delay_p99_us")]
    fastest = max((value for row in rates for value in row if value is not None), default=0.0)
    slowest = max((value for row in delays for value in row if value is not None), default=0.0)
    top_us = max(slowest, one["delay_bound_us"] or 0.0, 2 * FASTEST_US)
    row = Text()
    for label, values in zip(labels, rates, strict=False):
        row.append(label, style=QUIET).append(glyphs.spark(linear(values, fastest)), style="blue")
    for label, values in zip(labels[len(rates) :], delays, strict=True):
        row.append(label, style=QUIET)
        for value, glyph in zip(values, glyphs.spark(logarithmic(values, FASTEST_US, top_us)), strict=True):
            row.append(glyph, style=BAD if _over(one, value) else "cyan")
    return row
