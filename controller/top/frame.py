"""The whole screen as lines: head, what is wrong, slices, foot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from rich.text import Text

from slicepilot.configs.text import name_in_cells
from slicepilot.controller.contracts.charge import MOST_SAFE, InCharge
from slicepilot.controller.contracts.latches import NODE_LATCHED, SEE_STATUS
from slicepilot.controller.record.cpu_time import CPU_TIME_NOT_MEASURED
from slicepilot.env.encoding import UPLINK_RANGE_MBPS
from slicepilot.env.knobs import KNOB_FIELDS
from slicepilot.env.promises import RATE_TOLERANCE

from .drawing import Glyphs, Values, duration, linear, logarithmic, percent, resample, scaled, short

HEAD_LINES, FOOT_LINES = 4, 1
MOST_LINES = 3  # of a slice
BUDGET_CELLS = 6
GOOD, NOTE, BAD, QUIET = "green", "yellow", "bold red", "dim"
LEVELS = {"normal": GOOD, "hold": NOTE, "safe": BAD, "latched": "bold reverse red"}
MODES = {"shadow": "bold cyan", "canary": "bold magenta", "live": "bold green"}
Document = dict[str, Any]


@dataclass(frozen=True)
class View:
    """How a document is shown.

    Attributes:
        width, height: of the terminal in cells; a height of None shows everything.
        glyphs: what it can show.
        page: which of the pages, from 0; counted round.
        absent: no controller has the path now.
        stale: what is shown is not of now.
    """

    width: int
    height: int | None
    glyphs: Glyphs
    page: int = 0
    absent: bool = False
    stale: bool = False


def frame(document: Document, view: View) -> list[Text]:
    """Lines, none wider than the view, at most as many as it has."""
    slices = document["slices"]
    wrong = list(_wrong(document, view))
    rows, per_slice, pages = _layout(len(slices), view)
    page = view.page % pages
    spare = 1 if view.height is None else max(1, rows - per_slice * min(len(slices), rows // per_slice) + 1)
    shown = slices if view.height is None else slices[page * (rows // per_slice) :][: rows // per_slice]
    mode = document["mode"]
    body = [line for entry in shown for line in slice_lines(entry, per_slice, view.width, view.glyphs, mode)]
    alerts = _alerts(wrong, len(wrong) if view.height is None else spare)
    lines = [*_head(document, view), *alerts, heading(), *body, _foot(document, view, page, pages)]
    if view.height is not None:
        lines = lines[: view.height]
    for line in lines:
        if view.stale:
            line.stylize("dim")
        line.truncate(view.width, overflow="ellipsis" if view.glyphs.dot == "·" else "crop")
    return lines


def waiting(path: str, view: View) -> list[Text]:
    """What is shown before there has been a controller."""
    line = Text(f"waiting for a controller at {view.glyphs.plain(path)}   (q: quit)", style=NOTE)
    line.truncate(view.width, overflow="crop")
    return [line]


def _layout(slices: int, view: View) -> tuple[int, int, int]:
    """Lines for slices, lines of each slice, and pages: as much of each slice as lets all be seen at once."""
    if view.height is None:
        return slices * MOST_LINES, MOST_LINES, 1
    rows = max(1, view.height - HEAD_LINES - 1 - 1 - FOOT_LINES)  # one line of alerts, one heading
    for lines in range(MOST_LINES, 0, -1):
        if slices * lines <= rows:
            return rows, lines, 1
    return rows, 1, -(-slices // rows)


def _head(document: Document, view: View) -> Iterator[Text]:
    run, notes, node = document["run"], document["notes"], document["node"]
    plain, dot = view.glyphs.plain, f" {view.glyphs.dot} "
    mode = document["mode"]
    title = Text(f"slicepilot {plain(str(run['name'] or ''))}  ", style="bold")
    title.append(mode.upper(), style=MODES[mode])
    if canary := notes.get("canary"):
        title.append(f" on {plain(', '.join(canary))}")
    title.append("  guard ").append(document["level"].upper(), style=LEVELS[document["level"]])
    if document["paused"]:
        title.append("  PAUSED", style=NOTE)
    if notes.get("ordered_safe"):
        title.append("  SAFE BY ORDER", style=NOTE)
    title.append(f"  {plain(str(document['agent'] or ''))}")
    up = f" up {duration(document['uptime_s'])}"
    title.truncate(view.width - len(up), pad=True)
    yield title.append(up, style=QUIET)

    total, ticks = document["loop"]["total"], document["ticks"]
    budget_us, p99_us = scaled(run["budget_s"], 1e6), total["p99_us"]
    share = p99_us / budget_us if p99_us is not None and budget_us else 0.0
    loop = Text(f"loop  {short(scaled(run['period_s'], 1e3))} ms: ", style=QUIET)
    late = ticks["late_last_minute"]
    loop.append(f"late {short(late)}/min", style=BAD if late else "").append(f" missed {short(ticks['missed'])}")
    p50, p99, p999 = (short(None if us is None else round(us)) for us in (total["p50_us"], p99_us, total["p999_us"]))
    loop.append(f" p50 {p50} p99 {p99} p99.9 {p999} of {short(budget_us)} us")
    bar = f" [{view.glyphs.bar(share, BUDGET_CELLS)}]"
    if loop.cell_len + len(bar) <= view.width:
        loop.append(bar, style=GOOD if share < 0.5 else NOTE if share < 1 else BAD)
    yield loop

    parts = [
        f"CPU idle {percent(node['cpu_idle_ratio'])} of {short(run['logical_cpus'])}",
        "uplink -"
        if (run["uplink_mbps"] or 0.0) >= UPLINK_RANGE_MBPS[1]  # the configuration gives none
        else f"uplink {percent(node['uplink_use_ratio'])} of {short(run['uplink_mbps'])} Mbit/s",
    ]
    line = Text("node  ", style=QUIET).append(dot.join(parts))
    supervisor = notes.get("supervisor")
    if supervisor is not None:
        alive = supervisor.get("alive")
        line.append(dot).append("supervisor up" if alive else "supervisor DOWN", style=GOOD if alive else BAD)
    yield line

    charge = document["in_charge"]
    line = Text("in charge  ", style=QUIET)
    if charge is None:
        yield line.append("nothing yet")
        return
    said = dot.join(
        f"{entry.label} {percent(charge[entry.label])}"
        for entry in InCharge
        if charge.get(entry.label) or entry != InCharge.NOBODY
    )
    would = ", had it acted" if mode == "shadow" else ""
    yield line.append(said, style=NOTE if charge["safe"] > MOST_SAFE else "").append(f" of the last minute{would}")


def _wrong(document: Document, view: View) -> Iterator[tuple[str, str]]:
    """Warnings for the operator, the most severe first, with their colour."""
    notes, plain = document["notes"], view.glyphs.plain
    if view.absent:
        yield f"the controller has ended: waiting for a controller ({duration(document['beat_age_s'])})", BAD
    elif view.stale:
        yield f"no sign of life for {duration(document['beat_age_s'])}: what is shown is old", BAD
    if document["level"] == "latched":
        yield NODE_LATCHED, BAD
    trips = notes.get("trips") or ()
    for trip in trips:
        yield plain(f"{trip.get('slice')} {trip.get('text')}"), BAD if trip.get("latched") else NOTE
    if any(trip.get("latched") for trip in trips):
        yield SEE_STATUS, BAD
    charge = document["in_charge"]
    if charge is not None and charge["safe"] > MOST_SAFE:
        yield f"safe setting in charge for {percent(charge['safe'])} of the last minute: not the policy's doing", NOTE
    supervisor = notes.get("supervisor")
    if supervisor is not None and not supervisor.get("alive"):
        yield "no supervisor: the knobs are not restored if the controller dies", BAD
    for reason in document["node"]["reasons"]:
        yield f"{reason['reason']} {reason['ticks']}: {reason['text']}", SEVERITIES[reason["severity"]]
    for entry in notes.get("foreign") or ():
        yield plain(_foreign(entry)), NOTE
    for what in notes.get("unmeasured") or ():
        yield plain(str(what)), NOTE
    if any(entry["valid"] and entry["cpu_use_mcpu"] is None for entry in document["slices"]):
        yield CPU_TIME_NOT_MEASURED, QUIET
    if document["ticks"]["lost"]:
        yield f"{document['ticks']['lost']} ticks were overwritten before they were read here", QUIET
    reload = notes.get("reload")
    if reload is not None and not reload.get("ok"):
        yield plain(f"reload failed: {reload.get('detail')}"), NOTE
    if notes.get("last_error"):
        yield plain(f"last error: {notes['last_error']}"), NOTE


def _foreign(change: Document) -> str:
    """A knob that another program has set, in a line."""
    text = f"{change.get('slice')} {change.get('knob')}: set by another program: {change.get('text')}"
    if change.get("policy") == "respect":
        return f"{text}; slicepilot control resume takes it back"
    return f"{text}; ours was set again"


def _alerts(wrong: list[tuple[str, str]], most: int) -> list[Text]:
    if not wrong:
        return [Text("nothing to report", style=QUIET)]
    shown = wrong if len(wrong) <= most else wrong[: max(1, most)]
    lines = [Text(f"! {text}", style=style) for text, style in shown]
    if len(shown) < len(wrong):
        lines[-1] = Text(f"! +{len(wrong) - len(shown)} more", style=QUIET).append(f"  {shown[-1][0]}", shown[-1][1])
    return lines


def _foot(document: Document, view: View, page: int, pages: int) -> Text:
    if view.height is None:
        return Text("rates Mbit/s, delays ms; sparklines 1 min: rates from 0, delays log to the bound", style=QUIET)
    keys = f"q quit   n/p page {page + 1}/{pages}" if pages > 1 else "q quit"
    return Text(f"{keys}   sparklines 1 min: rates from 0, delays log to the bound", style=QUIET)


SEVERITIES = {"info": QUIET, "warning": NOTE, "severe": BAD}
NAME_CELLS = 11
FASTEST_US = 10.0  # where the log axis of delays begins
COLUMNS = (
    *(("offered", 8), ("carried", 8), ("loss", 6), ("p50 ms", 7), ("p99 ms", 7), ("bound", 6)),
    *(("CPUs", 6), ("nice", 5), ("egress", 7)),
)
SPOKEN = dict(zip(KNOB_FIELDS, ("CPU limit", "nice", "egress"), strict=True))


def heading() -> Text:
    """Above the first lines of slices; rates are in Mbit/s, delays in ms, knobs those that hold."""
    cells = "".join(title.rjust(width) for title, width in COLUMNS)
    return Text(f"{'slice':{NAME_CELLS}}{cells} state", style="bold underline")


def state(entry: Document) -> tuple[str, str]:
    """How a slice's promise fared over the last seconds, in a word and its colour.

    ``LATE``: the p99 delay is over its bound; ``peaks``: that of single ticks was; ``SHORT``: less is carried than
    owed; ``watched``: all is well, and its knobs are not moved in this mode.
    """
    if not entry["valid"]:
        return "unseen", NOTE
    late, short_of = _over(entry, entry["delay_p99_us"]), _short_of(entry)
    if late or short_of:
        return ("BROKEN" if late and short_of else "LATE" if late else "SHORT"), BAD
    if _over(entry, entry["delay_worst_us"]):
        return "peaks", NOTE
    return ("ok", GOOD) if entry["acting"] else ("watched", QUIET)


def slice_lines(entry: Document, lines: int, width: int, glyphs: Glyphs, mode: str) -> list[Text]:
    """The first ``lines`` of: figures, what was wanted and why it did not happen, sparklines."""
    rows = [_figures(entry, glyphs)]
    if lines > 1:
        rows.append(_wishes(entry, glyphs, mode))
    if lines > 2:
        rows.append(_sparklines(entry, width, glyphs))
    return rows


def _over(entry: Document, delay_us: float | None) -> bool:
    """Whether a delay is over the slice's bound."""
    bound_us = entry["delay_bound_us"]
    return delay_us is not None and bound_us is not None and delay_us > bound_us


def _short_of(entry: Document) -> bool:
    offered, carried, committed = entry["offered_mbps"], entry["carried_mbps"], entry["committed_mbps"]
    if offered is None or carried is None or committed is None:
        return False
    return bool(carried < float(RATE_TOLERANCE) * min(offered, committed) - 1e-6)


def _figures(entry: Document, glyphs: Glyphs) -> Text:
    word, colour = state(entry)
    row = Text(f"{glyphs.plain(name_in_cells(entry['name'])):{NAME_CELLS}}", style="bold" if colour == BAD else "")
    known = (lambda value: value) if entry["valid"] else (lambda value: None)
    knobs = entry["knobs"]["applied"]
    cells = (
        (short(known(entry["offered_mbps"])), ""),
        (short(known(entry["carried_mbps"])), BAD if _short_of(entry) else ""),
        (percent(known(entry["loss_ratio"])), NOTE if (known(entry["loss_ratio"]) or 0) >= 0.001 else ""),
        (short(scaled(known(entry["delay_p50_us"]), 1e-3)), ""),
        (short(scaled(known(entry["delay_p99_us"]), 1e-3)), BAD if _over(entry, known(entry["delay_p99_us"])) else ""),
        (short(scaled(entry["delay_bound_us"], 1e-3)), QUIET),
        *(
            (text, QUIET if field in entry["fixed"] else "")
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


def _wishes(entry: Document, glyphs: Glyphs, mode: str) -> Text:
    """What the policy wanted and the guard allowed, and the guard's reasons of the last seconds with their ticks."""
    wanted, allowed = (entry["knobs"][stage] for stage in ("wanted", "allowed"))
    row = Text("  wants ", style=QUIET).append(" ".join(_knobs(wanted)), style="")
    if allowed != wanted:
        row.append("  may ", style=QUIET).append(" ".join(_knobs(allowed)), style=NOTE)
    if entry["fixed"]:
        row.append(f" {glyphs.dot} never moved: {', '.join(SPOKEN[field] for field in entry['fixed'])}", style=QUIET)
    if not entry["acting"]:
        row.append(f" {glyphs.dot} not moved ({'shadow' if mode == 'shadow' else 'not in the canary'})", style=QUIET)
    for reason in entry["reasons"]:
        row.append(f" {glyphs.dot} ", style=QUIET)
        row.append(f"{reason['reason']} {reason['ticks']}", style=SEVERITIES[reason["severity"]])
    return row


def _sparklines(entry: Document, width: int, glyphs: Glyphs) -> Text:
    """Rates share a linear axis from 0; delays share a log axis that ends at the bound, or at a larger delay."""
    history: dict[str, Values] = entry["history"]
    labels = ("  off ", " out ", " p50 ", " p99 ")
    cells = max(1, (width - sum(map(len, labels))) // len(labels))
    rates = [resample(history[name], cells, fmean) for name in ("offered_mbps", "carried_mbps")]
    delays = [resample(history[name], cells, max) for name in ("delay_p50_us", "delay_p99_us")]
    fastest = max((value for row in rates for value in row if value is not None), default=0.0)
    slowest = max((value for row in delays for value in row if value is not None), default=0.0)
    top_us = max(slowest, entry["delay_bound_us"] or 0.0, 2 * FASTEST_US)
    row = Text()
    for label, values in zip(labels, rates, strict=False):
        row.append(label, style=QUIET).append(glyphs.spark(linear(values, fastest)), style="blue")
    for label, values in zip(labels[len(rates) :], delays, strict=True):
        row.append(label, style=QUIET)
        for value, glyph in zip(values, glyphs.spark(logarithmic(values, FASTEST_US, top_us)), strict=True):
            row.append(glyph, style=BAD if _over(entry, value) else "cyan")
    return row
