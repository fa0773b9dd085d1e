"""``slicepilot bench loop``: what one control period costs on this machine, idle and with all CPUs saturated."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...cli.schemas.bench import LoopBench
from ...cli.shared.output import console, print_json, progress_bar

if TYPE_CHECKING:
    from ...agents.learned.bundle import PolicyBundle
    from ...controller.loop.loop import LoopReport
    from ...env.slices import SliceSet
    from ..bench.node import BenchNode

BACK_TO_BACK_MS = 1e-3
PARTS = ("idle", "back_to_back", "contended")
REPORTED = ("observe", "infer", "guard", "apply", "total", "record")


def loop(
    bundle: Annotated[
        Path | None, typer.Option(help="Policy bundle; else the newest under runs/, or the shipped one.")
    ] = None,
    slices: Annotated[str, typer.Option(help="Slice set.")] = "five-video",
    num_slices: Annotated[
        int | None, typer.Option(min=2, max=64, help="So many slices, those of the set again and again.")
    ] = None,
    period_ms: Annotated[float, typer.Option(min=1, max=1000, help="Control period.")] = 5.0,
    seconds: Annotated[float, typer.Option(min=1, max=120, help="How long each of the two parts runs.")] = 15.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Time of observe, infer, guard and apply, on real kernel maps, cgroups and shapers made for the purpose.

    Needs root. The controller is a whole one: guard, records, metrics, journal and supervisor. "Record" is what writing
    a tick down takes after it, and no part of "total". "Contended" has a busy process in every slice's cgroup and one
    more for each CPU. "Back to back" has no rest between ticks: what it takes less than "idle" is the price of caches
    and address translations that have gone cold during a period.

    Example: [bold]slicepilot bench loop --period-ms 2[/bold]
    """
    from ...agents.learned.bundle import PolicyBundle
    from ...env.slices import SliceSet
    from ..bench.bundle import bundle_folder

    slice_set = SliceSet.from_yaml(slices)
    if num_slices is not None:
        slice_set = slice_set.repeated(num_slices)
    policy = PolicyBundle.load(bundle_folder(bundle))
    try:
        result = _measure(policy, slice_set, period_ms, seconds)
    except (RuntimeError, OSError) as error:
        console.file.flush()
        typer.echo(f"bench loop: {error}", err=True)
        raise typer.Exit(1) from error
    if as_json:
        print_json(result, LoopBench)
        return
    console.print(
        f"{result['slices']} slices, period {period_ms:g} ms, {result['scheduling']}, p50 / p99 / p99.9 in us"
    )
    for part in PARTS:
        console.print(f"  {part.replace('_', ' ')} ({result[part]['ticks']} ticks, {result[part]['late_ticks']} late)")
        for stage in REPORTED:
            times = result[part][f"{stage}_us"]
            console.print(f"    {stage:8} {times['p50']:8.1f} {times['p99']:8.1f} {times['p999']:8.1f}")


def _measure(policy: PolicyBundle, slices: SliceSet, period_ms: float, seconds: float) -> dict[str, Any]:
    from ..bench.node import BenchNode

    ticks = max(1, round(1e3 * seconds / period_ms))
    reports: dict[str, LoopReport] = {}
    with BenchNode(slices) as node, progress_bar() as progress:
        task = progress.add_task("", total=len(PARTS))
        for part in PARTS:
            progress.update(task, description=part.replace("_", " "))
            if part == "contended":
                node.saturate()
            rest_ms = BACK_TO_BACK_MS if part == "back_to_back" else period_ms
            reports[part] = _run(policy, slices, node, rest_ms, ticks)
            progress.advance(task)
    head = {"slices": len(slices), "period_ms": period_ms, "scheduling": str(reports["idle"].scheduling)}
    return head | {part: _figures(report) for part, report in reports.items()}


def _run(policy: PolicyBundle, slices: SliceSet, node: BenchNode, period_ms: float, ticks: int) -> LoopReport:
    from ..bench.run import bench_run

    with bench_run(policy, slices, node, period_ms) as run:
        return run.ticks(ticks)


def _figures(report: LoopReport) -> dict[str, Any]:
    stages = {f"{stage}_us": report.stages[stage].summary_us() for stage in REPORTED}
    return stages | {
        "wakeup_us": report.stages["wakeup"].summary_us(),
        "ticks": report.ticks,
        "late_ticks": report.late_ticks,
        "missed_ticks": report.missed_ticks,
    }
