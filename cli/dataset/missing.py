"""A table of missing measurements by setting, for commands on episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slicepilot.cli.shared.output import console, figures_table

LEFT_OUT = (
    "a slice that was not measured in a step is left out of its reward; a step of which too little was measured has no "
    "reward"
)
AT_WORST = (
    "at worst: as if every promise that was not measured had been broken; that the node was overloaded may well be why "
    "it was not"
)


def print_missing(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a row for each setting (`slicepilot.data.episodes.missing.MissingOfSetting`), if anything is missing."""
    if not rows:
        return
    slices = list(dict.fromkeys(name for row in rows for name in row["unmeasured_by_slice"]))
    others = slices[1:]
    table = figures_table(
        "not measured, of the slices that had traffic",
        ("setting", "runs", "all", *slices[:1], *(("others",) if others else ()), "no reward", "reward", "at worst"),
    )
    for row in rows:
        shares = row["unmeasured_by_slice"]
        own = [shares[name] for name in others if name in shares]
        table.add_row(
            str(row["behaviour"]),
            str(row["episodes"]),
            _percent(row["unmeasured"] / max(row["readings"], 1)),
            *(_percent(shares[name]) if name in shares else "" for name in slices[:1]),
            *([_percent(sum(own) / len(own)) if own else ""] if others else []),
            f"{row['unscored_steps']:,}",
            *("" if row[name] is None else f"{row[name]:.2f}" for name in ("reward", "reward_at_worst")),
        )
    console.print(table)
    for text in (LEFT_OUT, AT_WORST):
        console.print(f"- {text}", highlight=False, markup=False)


def _percent(share: float) -> str:
    return "0%" if not share else "<1%" if share < 0.005 else f"{100 * share:.0f}%"
