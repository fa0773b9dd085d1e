"""``slicepilot run``: an agent in the loop beside running UPFs, in shadow first, then live."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from slicepilot.cli.schemas.operation import RunReport
from slicepilot.cli.shared.agents_option import POLICY_HELP
from slicepilot.cli.shared.output import console, figures_table, print_json, progress_bar, say, stderr
from slicepilot.cli.shared.registry import BUNDLE_HELP, local_bundle
from slicepilot.cli.shared.run_labels import RunName, Tags
from slicepilot.configs import ConfigError

from . import run_episodes, run_policy
from .run_mlflow import MlflowRun

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from slicepilot.controller.loop.loop import LoopReport
    from slicepilot.controller.loop.node import Node
    from slicepilot.controller.service.run_config import RunConfig
    from slicepilot.env.backend import Context
    from slicepilot.env.knobs import Knobs
    from slicepilot.env.slices import SliceSet
    from slicepilot.env.telemetry import Telemetry

FORCE_HELP = "Allow a bundle that was not promoted, or a node's draft with marks to FILL IN, to act."
REFRESH_TICKS = 50
LOST, P99 = 2, 3
"""Figures in the table that a slice without traffic does not have."""
MOST_DELAYS = 100_000
"""Ticks whose delays are kept, the latest."""
LEAST_MEASURED_PCT = 99.0
"""Share of ticks in which a slice was measured, below which a warning is printed."""


def run(
    config: Annotated[
        str, typer.Option("--config", "-c", help="Configuration: a shipped name or a YAML file.")
    ] = "default",
    node: Annotated[
        str | None,
        typer.Option(help="Node configuration with existing UPFs: a name or a YAML file of `node discover`."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the testbed.")] = None,
    instance: Annotated[
        str | None, typer.Option(help="Name of this controller, if the node has several (default: the node's name).")
    ] = None,
    mode: Annotated[
        str | None, typer.Option(help="Mode: shadow only watches, canary acts on some slices, live on all.")
    ] = None,
    canary: Annotated[list[str] | None, typer.Option(help="Slice that mode canary acts on; may be repeated.")] = None,
    bundle: Annotated[Path | None, typer.Option(help=BUNDLE_HELP)] = None,
    agent: Annotated[
        str | None, typer.Option(help="Agent by name, instead of a bundle (default: queue-greedy).")
    ] = None,
    policy: Annotated[str | None, typer.Option(help=f"{POLICY_HELP}, instead of a bundle.")] = None,
    scenario: Annotated[
        str | None, typer.Option(help="Scenario whose loads are sent: a shipped name or a YAML file (default: none).")
    ] = None,
    period_ms: Annotated[float | None, typer.Option(help="Control period (default: the scenario's, or 10).")] = None,
    guard: Annotated[str | None, typer.Option(help="Guard configuration: a shipped name or a YAML file.")] = None,
    listen: Annotated[
        str | None, typer.Option(help="Address and port of metrics and status page, for instance 127.0.0.1:9464.")
    ] = None,
    log: Annotated[str | None, typer.Option(help="Format of the logs on standard error: json, pretty or off.")] = None,
    trust: Annotated[Path | None, typer.Option(help="Public key (PEM) that must have signed the bundle.")] = None,
    force: Annotated[bool, typer.Option("--force", help=FORCE_HELP)] = False,
    seconds: Annotated[
        float | None, typer.Option(min=0.1, help="Duration (default: the scenario's, or unlimited).")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed for phases and arrivals of the loads.")] = 0,
    record: Annotated[Path | None, typer.Option(help="Folder in which the run is recorded as episodes.")] = None,
    mlflow: Annotated[bool, typer.Option("--mlflow", help="Log the run's summary to MLflow.")] = False,
    run_name: RunName = None,
    tag: Tags = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Watch real UPFs with an agent and optionally move their knobs; restore the original settings at the end.

    The default mode is shadow, which changes nothing. Uses the running testbed, or starts one for a scenario.

    Example: [bold]slicepilot run --bundle runs/demo/training/bundle --scenario testbed-contention[/bold]
    """
    from slicepilot.controller.publisher.logs import json_line
    from slicepilot.controller.service.run_config import RunConfig
    from slicepilot.controller.service.serve import serve
    from slicepilot.training.runs.labels import RunLabels

    if node is not None and name is not None:
        raise ConfigError(f"name = {name!r}: accepted without --node, whose configuration has a name")
    bounded = seconds is not None or scenario is not None
    publish = {"listen": listen, "log": log or ("off" if bounded else None)}
    settings = RunConfig.from_yaml(config).override(
        node=node,
        name=name,
        instance=instance,
        mode=mode,
        canary=tuple(canary) if canary else None,
        bundle=str(bundle) if bundle else None,
        agent=agent,
        scenario=scenario,
        period_ms=period_ms,
        guard=guard,
        trust=str(trust) if trust else None,
        publish={key: value for key, value in publish.items() if value is not None},
    )
    if record is not None:
        run_episodes.check(record, settings)
    labels = RunLabels.of(run_name, tag or [])
    if policy is not None:
        settings = run_policy.configured(settings, policy, force)
    elif settings.bundle is not None:
        settings = settings.override(bundle=str(local_bundle(settings.bundle, Path(settings.state_root) / "bundles")))
    logged = MlflowRun(settings, policy or bundle, labels) if mlflow else None
    begun_s = time.monotonic()

    def say(what: str) -> None:
        after_s = time.monotonic() - begun_s
        if settings.publish.log == "json" and not stderr.is_terminal:  # among the lines of the log
            typer.echo(json_line("starting", after_s=round(after_s, 1), what=what), err=True)
        else:
            stderr.print(f"{after_s:5.1f} s  {what}", highlight=False)

    opened, begun_ns = _open(settings), time.time_ns()
    settings = settings.override(name=opened.name)
    try:
        ticks = _ticks(opened, settings, seconds)
        backend = opened.backend
        totals = _Totals(backend.slices, backend.context, backend.delay_counts)
        # No thread draws the bar: it would keep the capabilities that the controller gives up.
        with progress_bar(ticks is not None and settings.publish.log == "off", threaded=False) as progress:
            task = progress.add_task(f"{settings.mode} on {opened.name}", total=ticks)

            def watch(telemetry: Telemetry, allowed: Knobs, receipt: Any) -> None:
                del allowed, receipt
                totals.add(telemetry)
                if totals.ticks % REFRESH_TICKS == 0 or totals.ticks == ticks:
                    progress.update(task, completed=totals.ticks, refresh=True)

            # A run without an end is recorded and published, and need not pay for sums in each tick.
            report = serve(opened, settings, seed, ticks, force, None if ticks is None else watch, say=say)
            if totals.ticks:
                totals.count_delays()
    finally:
        opened.backend.close()
    document = _document(settings, opened, totals, report) | ({} if policy is None else {"agent": policy})
    failure = None
    if record is not None:
        try:
            document["episodes"] = run_episodes.write(record, settings, begun_ns)
        except ConfigError as error:  # the run's figures are reported nevertheless
            failure = error
    if as_json:
        print_json(document, RunReport)
    else:
        _print(document, settings.budget_ratio)
    if logged is not None:
        logged.finish(document)
    if failure is not None:
        raise failure


def _open(settings: RunConfig) -> Node:
    from slicepilot.configs.backends import plugin

    where = settings.node or settings.name
    node: Node = plugin(settings.carrier).call("open_node", where, settings.period_s, settings.scenario)
    return node


def _ticks(node: Node, settings: RunConfig, seconds: float | None) -> int | None:
    if seconds is not None:
        return max(1, round(seconds / node.backend.context.period_s.item()))
    return node.backend.context.num_steps if settings.scenario is not None else None


class _Totals:
    """Sums over a run: rates, broken promises, each tick's p99 delay, and the delays of all packets that left,
    of ticks in which a slice was measured. A long run does not take more and more memory.

    A tick's p99 includes the age of packets that have not left yet, which may be lost. The run's is of packets that
    left, and what was lost is reported beside it.
    """

    def __init__(self, slices: SliceSet, context: Context, delay_counts: Callable[[], Any]) -> None:
        import numpy as np

        from slicepilot.env.promises import PromiseMeter

        self.slices, self.ticks = slices, 0
        self._period_s, self._delay_counts = context.period_s.item(), delay_counts
        self._bounds_us = 1e3 * slices.column("sla.delay_bound_ms")[:, 0]
        self._offered, self._carried = np.zeros((2, len(slices)))
        self._measured, self._late, self._broken, self._by_rate = np.zeros((4, len(slices)), np.int64)
        self._delays: deque[Any] = deque(maxlen=MOST_DELAYS)  # NaN where not measured
        self._meter = PromiseMeter(context)
        self._first_counts: Any = None
        self._counts: Any = None

    def add(self, telemetry: Telemetry) -> None:
        import numpy as np

        if self._first_counts is None:
            self._first_counts = self._delay_counts().copy()
        self.ticks += 1
        valid, delay = telemetry.valid[:, 0], telemetry.delay_p99_us[:, 0]
        broken, late = self._meter.broken(telemetry)[:, 0] & valid, valid & (delay > self._bounds_us)
        self._offered += np.where(valid, telemetry.offered_mbps[:, 0], 0.0)
        self._carried += np.where(valid, telemetry.carried_mbps[:, 0], 0.0)
        self._measured += valid
        self._late += late
        self._broken += broken
        self._by_rate += broken & ~late
        self._delays.append(np.where(valid, delay, np.nan).astype(np.float32))

    def count_delays(self) -> None:
        """Look at the delays of all packets so far; to be called before the backend is closed."""
        self._counts = self._delay_counts().copy()

    def rows(self) -> list[dict[str, Any]]:
        import numpy as np

        ticks = np.maximum(self._measured, 1)
        # Without traffic nothing can be lost.
        share = np.divide(self._carried, self._offered, out=np.ones_like(self._offered), where=self._offered > 0)
        lost_pct = 100 * np.maximum(1 - share, 0.0)
        return [
            {
                "slice": name,
                "offered_mbps": float(self._offered[s] / ticks[s]),
                "carried_mbps": float(self._carried[s] / ticks[s]),
                "lost_pct": float(lost_pct[s]),
                "delay_p99_us": self._delay_p99_us(s),
                "late_ticks_pct": float(100 * self._late[s] / ticks[s]),
                "broken_s": float(self._period_s * self._broken[s]),
                "broken_by_rate_s": float(self._period_s * self._by_rate[s]),
                "measured_pct": float(100 * self._measured[s] / self.ticks),
            }
            for s, name in enumerate(self.slices.names)
        ]

    def _delay_p99_us(self, s: int) -> float:
        import numpy as np

        from slicepilot.controller.telemetry.histogram import quantiles_us

        left = None if self._counts is None else self._counts - self._first_counts
        if left is not None and left.any():
            return float(np.nan_to_num(quantiles_us(left[s], [0.99]))[0])
        delays = np.asarray([row[s] for row in self._delays])  # where packets are not counted, as with Prometheus
        delays = delays[~np.isnan(delays)]
        return float(np.quantile(delays, 0.99)) if len(delays) else 0.0


def _document(settings: RunConfig, node: Node, totals: _Totals, report: LoopReport) -> dict[str, Any]:
    from slicepilot.controller.contracts.charge import shares

    stages = {f"{stage}_us": figures for stage, figures in report.stages.summary_us().items()}
    return {
        "agent": settings.policy,
        "mode": settings.mode,
        "scenario": settings.scenario,
        "period_s": node.backend.context.period_s.item(),
        "slices": totals.rows() if totals.ticks else [],
        "in_charge": shares(report.charges),
        "modes": [
            {
                "mode": mode.label,
                "ticks": charges.charges.total(),
                "in_charge": shares(charges.charges),
                "guard_rules": _shares_of(charges.rules_in_charge, charges.charges.total()),
            }
            for mode, charges in report.modes.items()
        ],
        "restored": report.restored,
        "not_moved": [
            {"slice": name, "knob": knob, "why": why}
            for (name, knob), why in sorted({**node.fixed, **report.not_moved}.items())
            if name in report.acted_on
        ],
        "guard_rules": _shares_of(report.rules_in_charge, report.ticks),
        "loop": report.totals()
        | {"interventions": report.interventions, "last_error": report.last_error, "scheduling": str(report.scheduling)}
        | (stages if report.ticks else {}),
    }


def _shares_of(counts: Mapping[str, int], ticks: int) -> dict[str, float]:
    return {name: count / ticks for name, count in sorted(counts.items())}


def _print(document: dict[str, Any], budget_ratio: float) -> None:
    from slicepilot.configs.text import printable

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
    from slicepilot.controller.contracts.charge import MOST_SAFE, shares_text

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
