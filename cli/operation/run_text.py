"""What ``slicepilot run`` prints at its end: a table of the slices, the loop's times, and what was in charge."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from slicepilot.cli.shared.output import console, figures_table, say
from slicepilot.configs.text import printable
from slicepilot.controller.contracts.charge import MOST_SAFE, shares_text

LOST, P99 = 2, 3
"""Figures in the table that a slice without traffic does not have."""
LEAST_MEASURED_PCT = 99.0
"""Share of ticks in which a slice was measured, below which a warning is printed."""


def print_run(document: dict[str, Any], budget_ratio: float) -> None:
    """Print the document of a run as a table and lines."""
    loop = document["loop"]
    where = document["scenario"] or "the traffic there is"
    modes = " and ".join(entry["mode"] for entry in document["modes"]) or document["mode"]
    title = f"{document['agent']} in {modes} on {where}, {loop['ticks']} ticks"
    headings = ("slice", "offered\nMbit/s", "carried\nMbit/s", "lost\n%", "p99\nms", "late ticks\n%", "broken\ns")
    table = figures_table(f"{title} of {1e3 * document['period_s']:g} ms", headings)
    for row in document["slices"]:
        delays = row["delay_p99_us"] / 1e3, row["late_ticks_pct"]
        figures = [row["offered_mbps"], row["carried_mbps"], row["lost_pct"], *delays, row["broken_s"]]
        known = [row["measured_pct"] > 0] * len(figures)
        if not row["offered_mbps"]:  # nothing can be lost or late
            known[LOST] = False
        if not row["delay_p99_us"]:  # no packet has left
            known[P99] = False
        cells = (f"{figure:.1f}" if there else "-" for figure, there in zip(figures, known, strict=True))
        table.add_row(row["slice"], *cells)
    if document["slices"]:
        console.print(table)
    for row in document["slices"]:
        if row["measured_pct"] < LEAST_MEASURED_PCT:
            measured = f"{row['slice']} was measured in {row['measured_pct']:.1f}% of the ticks"
            console.print(Text.assemble((measured, "yellow"), ", and its figures are of these"))
    if loop["ticks"]:
        total = loop["total_us"]
        console.print(
            f"loop: p50 {total['p50']:.0f} us, p99 {total['p99']:.0f} us, p99.9 {total['p999']:.0f} us; "
            f"{loop['missed_ticks']} ticks missed, {loop['late_ticks']} late; {loop['scheduling']}",
            highlight=False,
        )
    if loop["interventions"]:
        counts = ", ".join(f"{name} {count}" for name, count in sorted(loop["interventions"].items()))
        console.print(f"guard: {counts}", highlight=False)
    _print_charge(document, budget_ratio)
    for entry in document["not_moved"]:
        text = printable(f"not the policy's: {entry['slice']} {entry['knob']}: {entry['why']}")
        console.print(text, highlight=False, markup=False)
    if document["restored"]:
        console.print(document["restored"], highlight=False)
    if "episodes" in document:
        episodes = document["episodes"]
        console.print(f"{episodes['episodes']} episodes, {episodes['steps']:,} steps:", highlight=False)
        for path in (*episodes["parquet"], *episodes["minari"]):
            say(f"  {path}")
    if loop["last_error"]:
        lead = f"{loop['failed_applies']} receipts with errors, the last:"
        console.print(Text.assemble((lead, "yellow"), f" {loop['last_error']}"))


def _print_charge(document: dict[str, Any], budget_ratio: float) -> None:
    """What was in charge, a line for each mode that was in force."""
    for entry in document["modes"]:
        _print_mode(entry, document["period_s"] if len(document["modes"]) > 1 else None)
    loop = document["loop"]
    if "overrun" in loop["interventions"]:
        console.print(
            f"overrun: {loop['late_ticks']} of {loop['ticks']} decisions took longer than {budget_ratio:.0%} of the "
            f"control period of {1e3 * document['period_s']:g} ms: choose a longer period (--period-ms) or agent",
            highlight=False,
        )


def _print_mode(entry: dict[str, Any], period_s: float | None) -> None:
    """What was in charge in a mode, with its duration where the control period is given."""
    charge, acted = entry["in_charge"], ", had it acted" if entry["mode"] == "shadow" else ""
    what = "in charge" if period_s is None else f"{entry['mode']} {entry['ticks'] * period_s:.3g} s"
    console.print(f"{what}{acted}: {shares_text(charge, entry['guard_rules'])}", highlight=False)
    if charge["safe"] > MOST_SAFE:
        was = "would have been" if acted else "was"
        console.print(
            Text.assemble(
                ("warning:", "yellow"),
                f" the safe setting {was} in charge for {charge['safe']:.0%} of the ticks (more than {MOST_SAFE:.0%}), "
                "so the policy alone does not explain the results",
            )
        )
