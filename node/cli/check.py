"""``slicepilot node check``: what of a node can be measured and moved."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from slicepilot.cli.schemas import machine as schema
from slicepilot.cli.shared.output import console, print_json, stderr
from slicepilot.env.knobs import KnobName

SPOKEN: dict[KnobName, str] = {"cpu_limit_mcpu": "cpu_limit", "nice": "nice", "egress_mbps": "egress"}


def check(
    file: Annotated[str, typer.Argument(help="Node configuration: a name or a YAML file of `node discover`.")],
    seconds: Annotated[float, typer.Option(min=0.2, max=600, help="Observation time in seconds.")] = 3.0,
    try_knobs: Annotated[
        bool,
        typer.Option("--try", help="Move each knob slightly for some seconds and measure the effect on the slice."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check for each slice of a node whether its packets are measured and which knobs act on them.

    Needs root. Observes the existing traffic and moves nothing. With --try, knobs are moved back and forth one by
    one, with guard and supervisor, and restored at the end. Exit code 1: a slice cannot be measured.

    Example: [bold]slicepilot node check node.yaml[/bold]
    """
    from slicepilot.node.check.report import report
    from slicepilot.node.check.trial import PERIOD_S
    from slicepilot.node.config.spec import NodeSpec
    from slicepilot.node.find.draft import marks_left
    from slicepilot.node.live.backend import NodeBackend

    spec = NodeSpec.from_yaml(file)
    spec.require_probe("node check")
    if marks_left(file):
        stderr.print(Text.assemble(("warning:", "yellow"), f" {file}: promises or S-NSSAIs are still marked FILL IN"))
    count = len(spec.slices)
    if stderr.is_terminal:  # loading the programs takes longer than that
        stderr.print(f"observing {count} slice{'s' * (count != 1)} for {seconds:g} s", highlight=False)
    backend = NodeBackend(spec, PERIOD_S)
    try:
        slices = report(backend, seconds)
        if try_knobs:
            slices = _tried(backend, slices)
    finally:
        backend.close()
    if as_json:
        print_json([_document(each) for each in slices], list[schema.CheckedSlice])
    else:
        _print(slices, seconds)
    if not all(each.load.left for each in slices):
        raise typer.Exit(1)


def _tried(backend: Any, slices: list[Any]) -> list[Any]:
    """Without a progress bar: a thread would draw it, and a controller gives up its capabilities before it has any."""
    from dataclasses import replace

    from slicepilot.node.check.trial import TrialAgent, clocks_s, try_knobs
    from slicepilot.node.live.backend import node_of

    node = node_of(backend)
    agent = TrialAgent(backend.context, clocks_s(node))
    if not agent.steps:
        stderr.print("no knob acts: there is nothing to try", highlight=False)
        return slices
    text = f"trying {len(agent.steps)} knobs, for {agent.least_s:.0f} s, longer where the result is unclear"
    stderr.print(text, highlight=False)
    effects = try_knobs(node, agent)
    return [replace(each, tried=effects[each.name]) for each in slices]


def _document(report: Any) -> dict[str, Any]:
    load, learned = report.load, report.learned
    return {
        "slice": report.name,
        "process": report.process,
        "measured": bool(load.left),
        "traffic": {
            "offered_mbps": load.offered_mbps,
            "carried_mbps": load.carried_mbps,
            "match_ratio": load.match_ratio,
            "delay_p50_us": load.delay_p50_us,
            "delay_p99_us": load.delay_p99_us,
            "cpu_use_mcpu": load.cpu_use_mcpu,
            "cpu_us_per_packet": load.cpu_us_per_packet,
        },
        "learned": None
        if learned is None
        else {"sessions": learned.sessions, "tunnels": learned.tunnels, "qfis": list(learned.flows)},
        "knobs": {SPOKEN[knob]: _answer(report, knob) for knob in report.knobs},
        "notes": list(report.notes),
    }


def _answer(report: Any, knob: KnobName) -> dict[str, Any]:
    answer, effect = report.answer(knob), report.tried.get(knob)
    tried = None
    if effect is not None and effect.carried is not None:
        ends = {
            f"{name}_ratio": {"value": ratio.value, "low": ratio.low, "high": ratio.high}
            for name, ratio in (("carried", effect.carried), ("delay_p99", effect.delay))
        }
        tried = {"moved_to": effect.moved_to} | ends
    return {
        "authority": answer.acts,
        "verdict": answer.verdict,
        "why": answer.why,
        "remedy": answer.remedy,
        "tried": tried,
    }


def _print(slices: list[Any], seconds: float) -> None:
    from rich.padding import Padding
    from rich.text import Text

    from slicepilot.configs.text import printable

    for report in slices:
        colour = "green" if report.load.left else "yellow"
        console.print(Text.assemble((report.name, f"bold {colour}"), f"  {report.process}  {report.load}"))
        if report.load.delay_p99_us is not None:
            delays = f"p50 {report.load.delay_p50_us / 1e3:.3g} ms, p99 {report.load.delay_p99_us / 1e3:.3g} ms"
            way = "from N3 to the last point" if report.load.joined is None else "from request to answer"
            console.print(Padding(Text(f"delay {way}: {delays}"), (0, 0, 0, 4)))
        if report.learned is not None:
            qfis = f", QFI {', '.join(map(str, report.learned.flows))}" if report.learned.flows else ""
            text = f"learned from N4: {report.learned.sessions} sessions, {report.learned.tunnels} tunnels{qfis}"
            console.print(Padding(Text(text), (0, 0, 0, 4)))
        for note in report.notes:
            console.print(Padding(Text(f"note: {printable(note)}"), (0, 0, 0, 4)))
    console.print(_table(slices))
    idle = sum(not report.load.packets for report in slices)
    if idle:
        text = f"{idle} of {len(slices)} slices had no traffic in {seconds:g} s; send some and repeat"
        console.print(text, highlight=False)


def _table(slices: list[Any]) -> Any:
    """All verdicts, a knob of a slice in each row."""
    from rich.table import Table
    from rich.text import Text

    from slicepilot.configs.text import printable

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in ("slice", "knob", "verdict"):
        table.add_column(column, no_wrap=True)
    table.add_column("evidence and reason", ratio=3, overflow="fold")
    table.add_column("what to do", ratio=2, overflow="fold")
    for report in slices:
        for knob in report.knobs:
            answer = report.answer(knob)
            colour = "green" if answer.acts else "yellow"
            reason, remedy = printable(answer.why), printable(answer.remedy or "nothing")
            table.add_row(report.name, SPOKEN[knob], Text(answer.verdict, colour), Text(reason), Text(remedy))
    return table
