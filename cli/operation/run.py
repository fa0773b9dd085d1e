"""``slicepilot run``: an agent in the loop beside running UPFs, in shadow first, then live."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slicepilot.cli.schemas.operation import RunReport
from slicepilot.cli.shared.agents_option import POLICY_HELP
from slicepilot.cli.shared.output import print_json, progress_bar, stderr
from slicepilot.cli.shared.registry import BUNDLE_HELP, local_bundle
from slicepilot.cli.shared.run_labels import RunName, Tags
from slicepilot.configs import ConfigError

from . import run_episodes, run_policy
from .run_mlflow import MlflowRun

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slicepilot.controller.loop.loop import LoopReport
    from slicepilot.controller.loop.node import Node
    from slicepilot.controller.service.run_config import RunConfig
    from slicepilot.env.knobs import Knobs
    from slicepilot.env.telemetry import Telemetry

    from .run_totals import RunTotals

FORCE_HELP = "Allow a bundle that was not promoted, or a node's draft with marks to FILL IN, to act."
REFRESH_TICKS = 50


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

    from .run_text import print_run
    from .run_totals import RunTotals

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
            stderr.print(f"{after_s:5.1f} s  {what}", highlight=False, soft_wrap=True)

    opened, begun_ns = _open(settings), time.time_ns()
    settings = settings.override(name=opened.name)
    try:
        ticks = _ticks(opened, settings, seconds)
        backend = opened.backend
        totals = RunTotals(backend.slices, backend.context, backend.delay_counts)
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
        print_run(document, settings.budget_ratio)
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


def _document(settings: RunConfig, node: Node, totals: RunTotals, report: LoopReport) -> dict[str, Any]:
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
