"""``slicepilot node identify``: a hardware file of a node, for training on a simulator of it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from slicepilot.cli.schemas import machine as schema
from slicepilot.cli.shared.output import announce_compilation, console, print_json, progress_bar, stderr
from slicepilot.cli.shared.streams import STDOUT, require_single, write_out
from slicepilot.configs import ConfigError

if TYPE_CHECKING:
    from slicepilot.node.identify.estimate import Estimate
    from slicepilot.node.identify.segments import Segment
    from slicepilot.node.live.backend import NodeBackend
    from slicepilot.node.live.stepped import GuardedNode

AT_ONCE = 0.99
"""Quantile of the CPUs that a slice uses in a control period: more than `upf_threads` would be an error there."""


def identify(
    file: Annotated[str, typer.Argument(help="Node configuration: a name or a YAML file of `node discover`.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Output file with the hardware parameters (YAML).")],
    mode: Annotated[
        str, typer.Option(help="Mode: shadow moves no knobs; live moves them within their bounds, under the guard.")
    ] = "shadow",
    segments: Annotated[int, typer.Option(min=3, max=1000, help="Number of 4.4 s segments; a third is held out.")] = 15,
    run: Annotated[
        str, typer.Option(help="Run configuration for mode live: a shipped name or a YAML file.")
    ] = "default",
    seed: Annotated[int, typer.Option(min=0, help="Random seed for the knobs.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Estimate hardware parameters from live traffic.

    Needs root. In shadow nothing is changed, and the CPU time per packet is estimated. With --mode live, knobs are
    moved for some seconds at a time to estimate queues as well, which affects the slices. Parameters that only show
    when CPU time is short are fitted where it was short. All others are taken from the hardware file that the node
    configuration names, and reported as assumed.

    Example: [bold]slicepilot node identify node.yaml --out hardware.yaml[/bold]
    """
    from dataclasses import replace

    import yaml

    from slicepilot.controller.system.cores import physical_cores
    from slicepilot.env.simulator.hardware import Hardware
    from slicepilot.node.config.spec import NodeSpec
    from slicepilot.node.identify.estimate import document, estimate_hardware, known_facts
    from slicepilot.node.identify.segments import MEASURE_S, SETTLE_S
    from slicepilot.node.live.stepped import open_live
    from slicepilot.training.calibration.fitting import GENERATIONS

    require_single(out, as_json)
    if not out.parent.is_dir() or out.is_dir():
        raise ConfigError(f"--out = {out}: expected a file in an existing folder")
    spec = NodeSpec.from_yaml(file)
    spec.require_probe("node identify")
    for item in spec.slices:
        if item.service is not None:
            raise ConfigError(
                f"slices.{item.name}.service: the cost of its packets is unknown, because an answer may have many; "
                "expected a node with UPFs alone"
            )
    start = Hardware.from_yaml(spec.hardware)
    if not as_json:
        length_s = SETTLE_S + MEASURE_S
        stderr.print(f"starting on {len(spec.slices)} slices, then watching {segments} segments of {length_s:g} s")
    backend = open_live(file, mode=mode, seconds=SETTLE_S + MEASURE_S, run=run)
    try:
        result = _watch(backend, segments, seed, mode)
        context, slices = backend.context, backend.slices
    finally:
        backend.close()
    cpus, period_s = float(context.logical_cpus[0]), float(context.period_s[0])
    facts = known_facts(cpus, float(physical_cores()), spec.quota_period_ms, spec.uplink_mbps)
    start = replace(start, n3_buffer_packets=spec.n3_buffer_packets)
    if not as_json:
        stderr.print("fitting a simulator of the node, some minutes on a busy machine")
        announce_compilation()
    with progress_bar() as progress:
        task = progress.add_task("fitting", total=GENERATIONS)
        estimate = estimate_hardware(
            result, slices, start, facts, period_s, GENERATIONS, lambda _: progress.advance(task)
        )
    text = yaml.safe_dump(document(estimate, spec.name, spec.hardware, mode), sort_keys=False, width=120)
    write_out(out, text.encode())
    rows = _slices(slices.names, estimate, result)
    if as_json:
        print_json(_document(out, estimate, rows), schema.IdentifiedNode)
    else:
        _print(out, estimate, rows, slices.column("upf_threads")[:, 0])


def _watch(backend: NodeBackend | GuardedNode, segments: int, seed: int, mode: str) -> list[Segment]:
    from slicepilot.agents.heuristics.as_found import AsFound
    from slicepilot.node.identify.segments import draw, watch

    with progress_bar() as progress:
        task = progress.add_task("watching" if mode == "shadow" else "moving knobs", total=segments)

        def advance() -> None:
            progress.advance(task)

        result = watch(backend, backend.source, [AsFound()], advance)
        rest = [AsFound()] * (segments - 1) if mode == "shadow" else draw(result[0], segments - 1, seed)
        return result + watch(backend, backend.source, rest, advance)


def _slices(names: tuple[str, ...], estimate: Estimate, result: list[Segment]) -> list[dict[str, Any]]:
    import numpy as np

    at_once = 1e-3 * np.quantile(np.concatenate([item.use_mcpu for item in result]), AT_ONCE, axis=0)
    return [
        {"slice": name, "cost_us": None if math.isnan(cost) else float(cost), "cpus_at_once": float(cpus)}
        for name, cost, cpus in zip(names, estimate.cost_us, at_once, strict=True)
    ]


def _document(out: Path, estimate: Estimate, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "hardware": str(out),
        "upf_cost_us": estimate.hardware.upf_cost_us,
        "slices": rows,
        "known": list(estimate.known),
        "measured": list(estimate.measured),
        "fitted": list(estimate.fitted),
        "assumed": list(estimate.assumed),
        "unseen": estimate.unseen,
    }


def _print(out: Path, estimate: Estimate, rows: list[dict[str, Any]], declared: Any) -> None:
    shown = stderr if out == STDOUT else console
    for row, most in zip(rows, declared, strict=True):
        cost = "too few packets" if row["cost_us"] is None else f"{row['cost_us']:.1f} us of CPU time a packet"
        used = f"{row['cpus_at_once']:.2f} CPUs at once (upf_threads: {most:g})"
        shown.print(Text.assemble((row["slice"], "bold"), f"  {cost}, at most {used}"), soft_wrap=True)
    values = {name: getattr(estimate.hardware, name) for name in (*estimate.measured, *estimate.fitted)}
    for name, value in values.items():
        shown.print(
            f"  {name:<20}{value:>10.4g}  {estimate.measured.get(name, 'fitted')}", highlight=False, soft_wrap=True
        )
    shown.print(f"assumed: {', '.join(estimate.assumed)}", highlight=False, soft_wrap=True)
    errors = estimate.unseen
    shown.print(
        f"on unseen segments: carried rate off by {errors['throughput_median_pct']:.1f}% (median), p99 delay by a "
        f"factor of {errors['delay_p99_median_factor']:.2f}",
        highlight=False,
        soft_wrap=True,
    )
    shown.print(f"written to {out}; train for it:", highlight=False, soft_wrap=True, markup=False)
    shown.print(
        f"  slicepilot train -c node --from generalist --mixture node --hardware {out}",
        highlight=False,
        soft_wrap=True,
    )
