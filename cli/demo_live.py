"""The last step of ``slicepilot demo``: a policy in charge of real UPFs, beside no control and fixed weights."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from .shared.output import console, figures_table

SECONDS = 5.0
LEAST_IN_CHARGE = 0.9


class Shown(NamedTuple):
    """What a run is shown by: the slice of highest weight, and the rest."""

    agent: str
    priority_mbps: float
    priority_p99_ms: float
    priority_late_pct: float
    others_mbps: float
    others_late_pct: float
    in_charge: float | None


def on_real_upfs(bundle: Path, picture: Path, scenario: str, seconds: float = SECONDS) -> None:
    """Run a testbed without control, with fixed weights and with the policy, or say why that is impossible.

    Each run is a separate process, because a controller drops its privileges for good. The loads are the same.
    """
    from slicepilot.configs.backends import plugin

    if lacks := plugin("testbed").call("missing"):
        console.print(f"left out: this machine lacks {'; '.join(lacks)}", highlight=False)
        return
    agents = {
        "no control": ["--agent", "no-control"],
        "fixed weights (static-order)": ["--agent", "static-order", "--mode", "live"],
        "the policy": ["--bundle", str(bundle), "--mode", "live", "--force"],
    }
    rows: list[Shown] = []
    document: dict[str, Any] = {}
    for name, arguments in agents.items():
        command = [*arguments, "--scenario", scenario, "--seconds", str(seconds), "--json"]
        ran = subprocess.run(
            [sys.executable, "-P", "-m", "slicepilot.cli", "run", *command], check=False, stdout=subprocess.PIPE
        )
        if ran.returncode:
            console.print("left out: see above", highlight=False)
            return
        document = json.loads(ran.stdout)
        rows.append(_shown(name, document))
    _print(rows, scenario)
    _draw(rows, picture, scenario)
    console.print(f"picture in {picture}", highlight=False)
    _comment(rows[-1], document)


def _shown(name: str, document: dict[str, Any]) -> Shown:
    first, *others = document["slices"]
    return Shown(
        name,
        first["carried_mbps"],
        1e-3 * first["delay_p99_us"],
        first["late_ticks_pct"],
        sum(row["carried_mbps"] for row in others),
        sum(row["late_ticks_pct"] for row in others) / len(others),
        document["in_charge"]["policy"] if document["mode"] == "live" else None,
    )


def _print(rows: list[Shown], scenario: str) -> None:
    headings = ("priority\nMbit/s", "p99\nms", "late\n%", "others\nMbit/s", "others\nlate %", "in\ncharge")
    table = figures_table(f"{scenario} on real UPFs", ("agent", *headings))
    for row in rows:
        table.add_row(
            row.agent,
            *(f"{figure:.1f}" for figure in row[1:6]),
            "-" if row.in_charge is None else f"{row.in_charge:.0%}",
        )
    console.print(table)
    console.print("late: control periods in which the p99 delay exceeded the promised bound.", highlight=False)


def _comment(policy: Shown, document: dict[str, Any]) -> None:
    """Whether the policy acted, and what to do if it did not."""
    loop, period_ms = document["loop"], 1e3 * document["period_s"]
    assert policy.in_charge is not None
    if policy.in_charge >= LEAST_IN_CHARGE:
        console.print(f"The policy was in charge of {policy.in_charge:.0%} of the ticks.", highlight=False)
        return
    why = "the guard overruled it"
    if loop["late_ticks"] > (1 - policy.in_charge) / 2 * loop["ticks"]:
        why = (
            f"the machine is too busy for control periods of {period_ms:g} ms: {loop['late_ticks']} decisions were late"
        )
    from rich.text import Text

    console.print(
        Text.assemble(
            (f"The policy was in charge of {policy.in_charge:.0%} of the ticks only", "yellow"),
            f": {why}. Try `slicepilot run --period-ms {4 * period_ms:g}` on a quiet machine, or `--agent "
            "static-order`.",
        )
    )


def _draw(rows: list[Shown], path: Path, scenario: str) -> None:
    import numpy as np

    from slicepilot.data.files import replace_file
    from slicepilot.training.reports.page import COLOURS, FAINT, figure, label_width_in, page, panel

    panels = {
        "Priority slice's late periods": ("%", [row.priority_late_pct for row in rows]),
        "Others' late periods": ("%, mean of the slices", [row.others_late_pct for row in rows]),
        "Others' throughput": ("Mbit/s", [row.others_mbps for row in rows]),
    }
    names, heights = [row.agent for row in rows], np.arange(len(rows))[::-1]
    drawings = []
    for title, (unit, values) in panels.items():
        with figure(1.6, label_width_in(names)) as (drawn, (axes,)):
            axes.barh(heights, values, height=0.6, color=[COLOURS[0] if row is rows[-1] else FAINT for row in rows])
            for height, value in zip(heights, values, strict=True):
                axes.annotate(f"{value:.1f}", (value, height), xytext=(4, 0), textcoords="offset points", va="center")
            axes.set_yticks(heights, names)
            axes.set_xlim(0, 1.15 * max(*values, 1.0))
            axes.grid(axis="y", visible=False)
            axes.set_title(title)
            axes.set_xlabel(unit)
            better = "more is better" if unit == "Mbit/s" else "less is better"
            drawings.append(panel(drawn, f"{scenario}: {title.lower()} of every agent", f"{title}; {better}."))
    body = f'<div class="panels thirds">{"".join(drawings)}</div>'
    text = page(f"{scenario} on real UPFs", "", [("live", "The policy beside its rivals", body)], "")
    replace_file(path, text.encode())
