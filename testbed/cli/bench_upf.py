"""``slicepilot bench upf``: what the reference UPF can do on this machine."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slicepilot.cli.schemas.bench import UpfBench
from slicepilot.cli.shared.output import console, print_json, progress_bar

if TYPE_CHECKING:
    from slicepilot.testbed.bench.upf import ConstantRun

GIGABIT_MBPS = 1000.0
# Offered one after the other; what comes through of the best is the capacity.
LADDER_MBPS = (1000.0, 1500.0, 2000.0, 2500.0, 3000.0, 4000.0)
BELOW = 0.9


def upf(
    seconds: Annotated[float, typer.Option(min=0.5, max=60, help="Duration of each run.")] = 3.0,
    repetitions: Annotated[
        int, typer.Option(min=1, max=100, help="Number of runs of each rate; results are medians.")
    ] = 5,
    buffer_kb: Annotated[
        int, typer.Option(min=5, max=65536, help="Receive buffer of the N3 socket; a testbed uses 208 KB.")
    ] = 4096,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure capacity, CPU use, loss, reordering and PFCP round-trip times of one reference UPF.

    Needs root. Starts its own testbed and removes it. Generator and sink use the first CPU, the UPF the others.

    Example: [bold]slicepilot bench upf --repetitions 10[/bold]
    """
    from slicepilot.testbed.bench.upf import bench_upf

    with bench_upf(1024 * buffer_kb) as bench, progress_bar() as progress:
        task = progress.add_task("PFCP", total=1 + len(LADDER_MBPS) + 2 * repetitions)
        pfcp = bench.modifications()
        progress.advance(task)
        ladder = []
        for mbps in LADDER_MBPS:
            progress.update(task, advance=1, description=f"{mbps:.0f} Mbit/s")
            ladder.append(bench.constant(mbps, seconds))
        capacity_mbps = max(run.carried_mbps for run in ladder)
        runs: dict[str, list[ConstantRun]] = {"gigabit": [], "below_capacity": []}
        for _ in range(repetitions):
            for name, mbps in (("gigabit", GIGABIT_MBPS), ("below_capacity", BELOW * capacity_mbps)):
                progress.update(task, advance=1, description=f"{mbps:.0f} Mbit/s")
                runs[name].append(bench.constant(mbps, seconds))
    result: dict[str, Any] = {"capacity_mbps": capacity_mbps, "pfcp_modification": pfcp, "buffer_kb": buffer_kb}
    result |= {name: _row(mine) for name, mine in runs.items()}
    if as_json:
        print_json(result, UpfBench)
        return
    console.print(f"capacity {capacity_mbps:,.0f} Mbit/s of 1400-byte packets, N3 buffer {buffer_kb} KB")
    for name in runs:
        row = result[name]
        console.print(
            f"  {row['offered_mbps']:7,.0f} Mbit/s: {row['upf_cpus']:.2f} CPUs, lost {row['loss_pct']:.4f}% "
            f"(at most {row['max_loss_pct']:.4f}%), {row['reordered']} reordered, {row['skipped']} never sent"
        )
    console.print(f"PFCP Session Modification: p50 {pfcp['p50_us']:.0f} us, p99 {pfcp['p99_us']:.0f} us")


def _row(runs: list[ConstantRun]) -> dict[str, Any]:
    """Medians over repetitions; the worst loss; all reordered packets."""
    return {
        **{
            name: statistics.median(getattr(run, name) for run in runs)
            for name in ("offered_mbps", "carried_mbps", "upf_cpus", "loss_pct")
        },
        "max_loss_pct": max(run.loss_pct for run in runs),
        "reordered": sum(run.reordered for run in runs),
        "packets": sum(run.sent for run in runs),
        "skipped": sum(run.skipped for run in runs),
    }
