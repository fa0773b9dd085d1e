"""The whole screen as lines: head, what is wrong, slices, foot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from slicepilot.controller.contracts.charge import MOST_SAFE, InCharge
from slicepilot.controller.contracts.latches import NODE_LATCHED, SEE_STATUS

from .figures import duration, percent, scaled, short
from .glyphs import Glyphs
from .slice_rows import BAD, GOOD, NOTE, QUIET, SEVERITIES, heading, lines_of

HEAD_LINES, FOOT_LINES = 4, 1
MOST_LINES = 3  # of a slice
BUDGET_CELLS = 6
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
    body = [line for one in shown for line in lines_of(one, per_slice, view.width, view.glyphs)]
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
    yield _right(title, f" up {duration(document['uptime_s'])}", view.width)

    total, ticks = document["loop"]["total"], document["ticks"]
    budget_us, p99_us = scaled(run["budget_s"], 1e6), total["p99_us"]
    share = p99_us / budget_us if p99_us is not None and budget_us else 0.0
    loop = Text(f"loop  {short(scaled(run['period_s'], 1e3))} ms: ", style=QUIET)
    p50, p99, p999 = (short(None if us is None else round(us)) for us in (total["p50_us"], p99_us, total["p999_us"]))
    loop.append(f"p50 {p50} p99 {p99} p99.9 {p999} of {short(budget_us)} us ")
    loop.append(f"[{view.glyphs.bar(share, BUDGET_CELLS)}]", style=GOOD if share < 0.5 else NOTE if share < 1 else BAD)
    late = ticks["late_last_minute"]
    yield loop.append(f" late {late}/min", style=BAD if late else "").append(f" missed {short(ticks['missed'])}")

    parts = [
        f"CPU idle {percent(node['cpu_idle_ratio'])} of {short(run['logical_cpus'])}",
        f"uplink {percent(node['uplink_use_ratio'])} of {short(run['uplink_mbps'])} Mbit/s",
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
        yield line.append("nobody yet")
        return
    said = dot.join(f"{one.label} {percent(charge[one.label])}" for one in InCharge)
    would = ", had it acted" if mode == "shadow" else ""
    yield line.append(said, style=NOTE if charge["safe"] > MOST_SAFE else "").append(f" of the last minute{would}")


def _right(left: Text, right: str, width: int) -> Text:
    """Text at both ends of a line."""
    left.truncate(width - len(right), pad=True)
    return left.append(right, style=QUIET)


def _wrong(document: Document, view: View) -> Iterator[tuple[str, str]]:
    """What an operator should know, the gravest first, with its colour."""
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
        yield "no supervisor: nobody restores the knobs if the controller dies", BAD
    for reason in document["node"]["reasons"]:
        yield f"{reason['reason']} {reason['ticks']}: {reason['text']}", SEVERITIES[reason["severity"]]
    for one in notes.get("foreign") or ():
        yield plain(f"{one.get('slice')} {one.get('knob')}: set by somebody else ({one.get('policy')})"), NOTE
    for what in notes.get("unmeasured") or ():
        yield plain(str(what)), NOTE
    if document["ticks"]["lost"]:
        yield f"{document['ticks']['lost']} ticks were overwritten before they were read here", QUIET
    reload = notes.get("reload")
    if reload is not None and not reload.get("ok"):
        yield plain(f"reload failed: {reload.get('detail')}"), NOTE
    if notes.get("last_error"):
        yield plain(f"last error: {notes['last_error']}"), NOTE


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
