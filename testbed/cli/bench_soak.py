"""``slicepilot bench soak``: a live controller under random loads and random faults, and what grows meanwhile."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from slicepilot.cli.schemas.bench import SoakBench
from slicepilot.cli.shared.output import console, figures_table, print_json, progress_bar
from slicepilot.cli.shared.registry import BUNDLE_HELP, local_bundle
from slicepilot.configs import ConfigError

if TYPE_CHECKING:
    from slicepilot.testbed.bench.soak import Soak

FIGURES = {"resident_kb": "memory, KB", "descriptors": "descriptors", "threads": "threads"}
PROCESSES = ("loop", "publisher", "supervisor")


def soak(
    bundle: Annotated[Path | None, typer.Option(help=BUNDLE_HELP)] = None,
    agent: Annotated[
        str | None, typer.Option(help="Agent by name, instead of a bundle (default: as for `run`).")
    ] = None,
    minutes: Annotated[float, typer.Option(min=0.1, help="Duration.")] = 3.0,
    fault_every_s: Annotated[float, typer.Option(min=1, help="Mean seconds between injected faults.")] = 60.0,
    period_ms: Annotated[float, typer.Option(min=2, help="Control period.")] = 10.0,
    seed: Annotated[int, typer.Option(min=0, help="Random seed for loads and faults.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run a live controller under injected faults, and measure its survival and memory growth.

    Needs root. Starts its own testbed and removes it. Exit code 1: a fault was not survived.

    Example: [bold]slicepilot bench soak --bundle runs/mine/bundle --minutes 60[/bold]
    """
    from slicepilot.testbed.bench.soak import SoakRun
    from slicepilot.testbed.lifecycle.spec import TestbedSpec
    from slicepilot.testbed.lifecycle.testbed import Testbed

    if bundle is not None and agent is not None:
        raise ConfigError("bundle, agent: give at most one of them")
    policy = {"agent": agent, "bundle": str(local_bundle(bundle)) if bundle else None}
    settings = {name: value for name, value in policy.items() if value} | {"period_ms": period_ms, "guard": "default"}
    testbed = Testbed.up(TestbedSpec(name="spso"), owned=True)
    try:
        with tempfile.TemporaryDirectory(prefix="slicepilot-soak-") as folder, progress_bar() as progress:
            task = progress.add_task("", total=max(1, round(60 * minutes / (0.75 * fault_every_s))))
            run = SoakRun(
                testbed,
                Path(folder),
                settings,
                seed,
                lambda what: progress.update(task, advance=1, description=f"then {what}"),
            )
            result = run.run(60 * minutes, fault_every_s)
    finally:
        testbed.down()
    document = _document(result, 60 * minutes)
    if as_json:
        print_json(document, SoakBench)
    else:
        _print(document)
    if document["failures"] or document["crashes"]:
        raise typer.Exit(1)


def _document(result: Soak, seconds: float) -> dict[str, Any]:
    restored_ms = sorted(1e3 * item.restored_s for item in result.events if item.restored_s is not None)
    kills_ms = sorted(
        1e3 * item.restored_s
        for item in result.events
        if item.restored_s is not None and item.fault == "kill_controller"
    )
    return {
        "seconds": seconds,
        "faults": dict(Counter(item.fault for item in result.events)),
        "failures": [
            {"at_s": item.at_s, "fault": item.fault, "failure": item.failure} for item in result.events if item.failure
        ],
        "crashes": result.crashes,
        "ticks": result.ticks,
        "missed_ticks": result.missed_ticks,
        "late_ticks": result.late_ticks,
        "restores": len(restored_ms),
        "restored_after_kill_ms": kills_ms,
        "growth": {process: {figure: result.growth(process, figure) for figure in FIGURES} for process in PROCESSES},
        "samples": len(result.samples),
    }


def _print(document: dict[str, Any]) -> None:
    faults = ", ".join(f"{name} {count}" for name, count in sorted(document["faults"].items()))
    console.print(f"{document['seconds']:.0f} s, {document['ticks']} ticks, faults: {faults}", highlight=False)
    console.print(
        f"{document['missed_ticks']} ticks missed, {document['late_ticks']} late; {len(document['crashes'])} crashes, "
        f"{len(document['failures'])} faults not survived",
        highlight=False,
    )
    kills_ms = document["restored_after_kill_ms"]
    if kills_ms:
        console.print(f"restored after SIGKILL within {max(kills_ms):.1f} ms ({len(kills_ms)} times)", highlight=False)
    table = figures_table("growth after the first 30 s of a process", ("process", *FIGURES.values()))
    for process, row in document["growth"].items():
        table.add_row(process, *(f"{row[name]:+.0f}" for name in FIGURES))
    console.print(table)
    for item in document["failures"]:
        console.print(Text.assemble((f"{item['at_s']:.0f} s, {item['fault']}:", "red"), f" {item['failure']}"))
    for crash in document["crashes"]:
        console.print(Text.assemble(("crash:", "red"), f" {crash}"))
