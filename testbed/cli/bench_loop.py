"""``slicepilot bench loop``: what one control period costs on this machine, idle and with all CPUs saturated."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slicepilot.cli.schemas.bench import LoopBench
from slicepilot.cli.shared.output import console, print_json, progress_bar
from slicepilot.cli.shared.registry import BUNDLE_HELP, local_bundle
from slicepilot.configs import ConfigError

if TYPE_CHECKING:
    from slicepilot.controller.loop.loop import LoopReport
    from slicepilot.controller.service.run_config import RunConfig
    from slicepilot.env.slices import SliceSet

SLICES = "five-video"
BACK_TO_BACK_MS = 1e-3
PARTS = ("idle", "back_to_back", "contended")
REPORTED = ("observe", "infer", "guard", "apply", "total", "record")


def loop(
    bundle: Annotated[Path | None, typer.Option(help=BUNDLE_HELP)] = None,
    agent: Annotated[
        str | None, typer.Option(help="Agent by name, instead of a bundle (default: as for `run`).")
    ] = None,
    node: Annotated[
        str | None,
        typer.Option(help="Node configuration with existing UPFs: a name or a YAML file of `node discover`."),
    ] = None,
    mode: Annotated[
        str, typer.Option(help="Mode on a node: shadow moves no knobs; live moves them with this policy.")
    ] = "shadow",
    slices: Annotated[str | None, typer.Option(help="Slice set, without --node (default: five-video).")] = None,
    num_slices: Annotated[
        int | None, typer.Option(min=2, max=64, help="Number of slices; the slices of the set are repeated.")
    ] = None,
    period_ms: Annotated[float, typer.Option(min=1, max=1000, help="Control period.")] = 5.0,
    seconds: Annotated[float, typer.Option(min=1, max=120, help="Duration of each of the two parts.")] = 15.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure the time of each stage of the loop on real kernel maps, cgroups and shapers.

    Needs root. The controller is complete: guard, records, metrics, journal and supervisor. Recording a tick
    (record) is not part of the total. In the situation "contended" every slice's cgroup and every CPU has a busy
    process; in "back to back" there is no pause between ticks, so caches stay warm.

    With --node the loop runs on live UPFs under their traffic. It starts in shadow, where nothing is written; "back
    to back" is always in shadow. The busy processes use only CPU time that the UPFs leave.

    Example: [bold]slicepilot bench loop --period-ms 2[/bold]
    """
    from slicepilot.controller.service.run_config import RunConfig

    _check(node, mode, slices, num_slices)
    if bundle is not None and agent is not None:
        raise ConfigError("bundle, agent: give at most one of them")
    config = RunConfig(bundle=str(local_bundle(bundle)) if bundle else None, agent=agent)
    try:
        if node is None:
            result = _measure(config, _slices(slices, num_slices), period_ms, seconds)
        else:
            result = _measure_node(config, node, mode, period_ms, seconds)
    except ConfigError:
        raise
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


def _check(node: str | None, mode: str, slices: str | None, num_slices: int | None) -> None:
    if mode not in {"shadow", "live"}:
        raise ConfigError(f"mode = {mode!r}; expected shadow, live")
    if node is None and mode != "shadow":
        raise ConfigError(f"mode = {mode!r}: needs --node")
    if node is not None and (slices is not None or num_slices is not None):
        raise ConfigError("--slices, --num-slices: accepted without --node, whose configuration has slices")


def _slices(name: str | None, repeated: int | None) -> SliceSet:
    from slicepilot.env.slices import SliceSet

    slices = SliceSet.from_yaml(name or SLICES)
    return slices if repeated is None else slices.repeated(repeated)


def _measure(config: RunConfig, slices: SliceSet, period_ms: float, seconds: float) -> dict[str, Any]:
    from slicepilot.testbed.bench.node import BenchNode

    with BenchNode(slices) as made:
        from slicepilot.testbed.bench.run import bench_run, opened

        def run(part: str, rest_ms: float, ticks: int) -> LoopReport:
            if part == "contended":
                made.saturate()
            with opened(made, slices, rest_ms) as node, bench_run(config, node) as item:
                return item.ticks(ticks)

        return _parts(run, len(slices), period_ms, seconds)


def _measure_node(config: RunConfig, name: str, mode: str, period_ms: float, seconds: float) -> dict[str, Any]:
    from slicepilot.configs.backends import plugin
    from slicepilot.controller.loop.node import Node
    from slicepilot.testbed.bench.node import spare_time_used
    from slicepilot.testbed.bench.run import bench_run

    counts = []

    def run(part: str, rest_ms: float, ticks: int) -> LoopReport:
        node: Node = plugin("node").call("open_node", name, 1e-3 * rest_ms, None)
        counts.append(len(node.backend.slices))
        with contextlib.ExitStack() as undo:
            undo.callback(node.backend.close)
            if part == "contended":
                undo.enter_context(spare_time_used())
            acting = mode == "live" and part != "back_to_back"
            return undo.enter_context(bench_run(config, node, "live" if acting else "shadow")).ticks(ticks)

    result = _parts(run, 0, period_ms, seconds)
    return result | {"slices": counts[0]}


def _parts(
    run: Callable[[str, float, int], LoopReport], slices: int, period_ms: float, seconds: float
) -> dict[str, Any]:
    ticks = max(1, round(1e3 * seconds / period_ms))
    reports: dict[str, LoopReport] = {}
    with progress_bar() as progress:
        task = progress.add_task("", total=len(PARTS))
        for part in PARTS:
            progress.update(task, description=part.replace("_", " "))
            reports[part] = run(part, BACK_TO_BACK_MS if part == "back_to_back" else period_ms, ticks)
            progress.advance(task)
    head = {"slices": slices, "period_ms": period_ms, "scheduling": str(reports["idle"].scheduling)}
    return head | {part: _figures(report) for part, report in reports.items()}


def _figures(report: LoopReport) -> dict[str, Any]:
    stages = report.stages.summary_us()
    return {f"{stage}_us": stages[stage] for stage in (*REPORTED, "wakeup")} | {
        "ticks": report.ticks,
        "late_ticks": report.late_ticks,
        "missed_ticks": report.missed_ticks,
    }
