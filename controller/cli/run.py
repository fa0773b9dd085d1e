"""``slicepilot run``: an agent in the loop beside running UPFs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...configs import ConfigError
from .output import console, print_json, progress_bar

if TYPE_CHECKING:
    from ...agents.base import Agent
    from ...env.knobs import Knobs
    from ...env.slices import SliceSet
    from ...env.telemetry import Telemetry
    from ..loop import LoopReport

BACKENDS, MODES = ("testbed",), ("live",)
REFRESH_TICKS = 50


def run(
    backend: Annotated[str, typer.Option(help="What carries the traffic: testbed.")] = "testbed",
    mode: Annotated[str, typer.Option(help="What becomes of decisions: live applies them.")] = "live",
    bundle: Annotated[Path | None, typer.Option(help="Folder of a learned policy.")] = None,
    agent: Annotated[str | None, typer.Option(help="Or an agent by name, for instance no-control or captain.")] = None,
    scenario: Annotated[str, typer.Option(help="The loads: a shipped name or a YAML file.")] = "testbed-contention",
    period_ms: Annotated[float | None, typer.Option(help="Control period, in place of the scenario's.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0.1, help="How long, in place of the scenario's.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the loads' phases and random arrivals.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Let an agent move the knobs of real UPFs, and put them back at the end.

    Uses the testbed that is up, or brings one up for the run.
    Example: [bold]slicepilot run --bundle runs/demo/training/bundle[/bold]
    """
    from ...testbed.backend import open_backend
    from ..loop import LoopConfig, run_loop

    if backend not in BACKENDS:
        raise ConfigError(f"backend: unknown name {backend!r}; accepted: {', '.join(BACKENDS)}")
    if mode not in MODES:
        raise ConfigError(f"mode: unknown name {mode!r}; accepted: {', '.join(MODES)}")
    if period_ms is not None and not 2 <= period_ms <= 30_000:
        raise ConfigError(f"period_ms = {period_ms:g}: accepted: 2 to 30000")
    decider = _agent(bundle, agent, scenario)
    live = open_backend(scenario, None if period_ms is None else period_ms / 1e3)
    try:
        period_s = float(live.context.period_s[0])
        ticks = live.context.num_steps if seconds is None else max(1, round(seconds / period_s))
        totals = _Totals(live.slices)
        with progress_bar() as progress:
            task = progress.add_task(f"{decider.name} on {scenario}", total=ticks)

            def watch(telemetry: Telemetry, wanted: Knobs, receipt: Any) -> None:
                totals.add(telemetry)
                if totals.ticks % REFRESH_TICKS == 0:
                    progress.update(task, completed=totals.ticks)

            report = run_loop(live, decider, LoopConfig(max_ticks=ticks, seed=seed), watch=watch)
    finally:
        live.close()
    if as_json:
        print_json(_document(decider.name, scenario, period_s, totals, report))
    else:
        _print(decider.name, scenario, period_s, totals, report)


def _agent(bundle: Path | None, name: str | None, scenario: str) -> Agent:
    if (bundle is None) == (name is None):
        raise ConfigError("bundle, agent: accepted: exactly one of them")
    if bundle is not None:
        from ...agents.bundle import PolicyBundle
        from ...agents.learned import LearnedAgent

        return LearnedAgent(PolicyBundle.load(bundle), transfer=True)
    from ...agents.registry import make
    from ...env.simulator.scenario import Scenario

    played = Scenario.from_yaml(scenario)
    assert name is not None
    return make(name, played.slice_set(), played.hardware_spec())


class _Totals:
    """Sums over a run: rates, and each tick's p99 delay."""

    def __init__(self, slices: SliceSet) -> None:
        self.slices, self.ticks = slices, 0
        self._rates: list[Any] = []

    def add(self, telemetry: Telemetry) -> None:
        self.ticks += 1
        self._rates.append(telemetry.slices[[0, 1, 3], :, 0].copy())

    def rows(self) -> list[dict[str, Any]]:
        import numpy as np

        offered, carried, delay = np.asarray(self._rates).transpose(1, 0, 2)
        bounds = 1e3 * self.slices.column("sla.delay_bound_ms")[:, 0]
        return [
            {
                "slice": name,
                "offered_mbps": float(offered[:, s].mean()),
                "carried_mbps": float(carried[:, s].mean()),
                "delay_p99_us": float(np.quantile(delay[:, s], 0.99)),
                "late_ticks_pct": float(100 * (delay[:, s] > bounds[s]).mean()),
            }
            for s, name in enumerate(self.slices.names)
        ]


def _document(name: str, scenario: str, period_s: float, totals: _Totals, report: LoopReport) -> dict[str, Any]:
    return {
        "agent": name,
        "scenario": scenario,
        "period_s": period_s,
        "slices": totals.rows(),
        "loop": {
            "ticks": report.ticks,
            "missed_ticks": report.missed_ticks,
            "late_ticks": report.late_ticks,
            "clamped": report.clamped,
            "failed_applies": report.failed_applies,
            "last_error": report.last_error,
            "scheduling": str(report.scheduling),
            **{f"{stage}_us": histogram.summary_us() for stage, histogram in report.stages.items()},
        },
    }


def _print(name: str, scenario: str, period_s: float, totals: _Totals, report: LoopReport) -> None:
    from rich.table import Table

    table = Table(
        title=f"{name} on {scenario}, {totals.ticks} ticks of {1e3 * period_s:g} ms", box=None, padding=(0, 1)
    )
    for column in ("slice", "offered\nMbit/s", "carried\nMbit/s", "p99\nms", "late ticks\n%"):
        table.add_column(column, justify="left" if column == "slice" else "right")
    for row in totals.rows():
        figures = (row["offered_mbps"], row["carried_mbps"], row["delay_p99_us"] / 1e3, row["late_ticks_pct"])
        table.add_row(row["slice"], *(f"{figure:.1f}" for figure in figures))
    console.print(table)
    total = report.stages["total"].summary_us()
    console.print(
        f"loop: p50 {total['p50']:.0f} us, p99 {total['p99']:.0f} us, p99.9 {total['p999']:.0f} us; "
        f"{report.missed_ticks} ticks missed, {report.late_ticks} late; {report.scheduling}",
        highlight=False,
    )
    if report.last_error:
        console.print(f"[yellow]{report.failed_applies} receipts with errors, the last:[/yellow] {report.last_error}")
