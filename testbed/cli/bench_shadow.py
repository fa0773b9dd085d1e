"""``slicepilot bench shadow``: what a controller in shadow costs the node that it watches."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slicepilot.cli.schemas import bench as schema
from slicepilot.cli.shared.output import console, figures_table, print_json, progress_bar
from slicepilot.configs import ConfigError

if TYPE_CHECKING:
    from slicepilot.testbed.bench.shadow import ShadowBench


def shadow(
    bundle: Annotated[
        Path | None, typer.Option(help="Policy bundle (default: the newest under runs/, or the shipped one).")
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Agent by name, instead of a bundle.")] = None,
    scenario: Annotated[
        str, typer.Option(help="Scenario with the loads: a shipped name or a YAML file.")
    ] = "testbed-contention",
    minutes: Annotated[float, typer.Option(min=0.1, help="Time in shadow under load, over all turns.")] = 10.0,
    turns: Annotated[
        int, typer.Option(min=2, help="Number of turns, each with a controller in shadow and without.")
    ] = 20,
    period_ms: Annotated[float, typer.Option(min=2, help="Control period.")] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure the cost of a controller in shadow: writes to knobs, CPU time, throughput and delay of the UPFs.

    Needs root. Starts its own testbed and removes it. Takes twice the given minutes.

    Example: [bold]slicepilot bench shadow --bundle runs/mine/bundle --minutes 2 --turns 4[/bold]
    """
    from slicepilot.env.simulator.scenario import Scenario
    from slicepilot.testbed.bench.bundle import bundle_folder
    from slicepilot.testbed.bench.shadow import bench_shadow
    from slicepilot.testbed.lifecycle.spec import TestbedSpec
    from slicepilot.testbed.lifecycle.testbed import Testbed

    if bundle is not None and agent is not None:
        raise ConfigError("bundle, agent: accepted: one of them")
    policy: dict[str, Any] = {"agent": agent} if agent is not None else {"bundle": str(bundle_folder(bundle))}
    policy |= {"period_ms": period_ms, "guard": "testbed"}
    played = Scenario.from_yaml(scenario)
    testbed = Testbed.up(TestbedSpec(name="spsh", slices=played.slices), owned=True)
    try:
        with tempfile.TemporaryDirectory(prefix="slicepilot-shadow-") as folder, progress_bar() as progress:
            task = progress.add_task("", total=2 * turns + 1)
            result = bench_shadow(
                testbed,
                played,
                Path(folder),
                policy,
                60 * minutes / turns,
                turns,
                lambda what: progress.update(task, advance=1, description=what),
            )
    finally:
        testbed.down()
    document = _document(result)
    if as_json:
        print_json(document, schema.ShadowBench)
    else:
        _print(document)


def _document(result: ShadowBench) -> dict[str, Any]:
    ratios = {
        "priority_carried": _ratios(
            result.carried_packets["shadow"]["priority"], result.carried_packets["none"]["priority"]
        ),
        "others_carried": _ratios(result.carried_packets["shadow"]["others"], result.carried_packets["none"]["others"]),
        "priority_delay_p99": _ratios(result.delay_p99_us["shadow"], result.delay_p99_us["none"]),
    }
    cpu = {name: _spread([100 * share for share in shares]) for name, shares in result.cpu_share.items()}
    total = [100 * (a + b) for a, b in zip(*result.cpu_share.values(), strict=True)]
    return {
        "shadow_s": result.shadow_s,
        "writes": sum(result.writes.values()),
        "live_writes": sum(result.live_writes.values()),
        "cpu_pct": cpu | {"total": _spread(total)},
        "shadow_over_none": ratios,
    }


def _ratios(shadow: list[float], none: list[float]) -> dict[str, float | list[float]]:
    """Turn by turn, played with the same seeds."""
    return _spread([with_it / without for with_it, without in zip(shadow, none, strict=True)])


def _spread(values: list[float]) -> dict[str, float | list[float]]:
    from slicepilot.data.intervals import interval, mean

    found = interval(values, mean)
    return {"mean": found.value, "ci95": [found.low, found.high]}


def _print(document: dict[str, Any]) -> None:
    console.print(
        f"{document['shadow_s']:.0f} s in shadow under load: {document['writes']} writes to knobs "
        f"({document['live_writes']} while a controller took over and gave back, for comparison)",
        highlight=False,
    )
    table = figures_table("beside a controller in shadow over without, turn by turn", ("figure", "mean", "95%"))
    names = {
        "priority_carried": "priority slice's packets",
        "others_carried": "others' packets",
        "priority_delay_p99": "priority slice's p99 delay",
    }
    for key, name in names.items():
        row = document["shadow_over_none"][key]
        table.add_row(name, f"{row['mean']:.3f}", "{:.3f} to {:.3f}".format(*row["ci95"]))
    for key, row in document["cpu_pct"].items():
        table.add_row(f"CPU, % of a core: {key}", f"{row['mean']:.2f}", "{:.2f} to {:.2f}".format(*row["ci95"]))
    console.print(table)
