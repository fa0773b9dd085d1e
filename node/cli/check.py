"""``slicepilot node check``: what of a node can be measured and moved."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any

import typer

from slicepilot.cli.schemas import machine as schema
from slicepilot.cli.shared.output import console, print_json, progress_bar, stderr
from slicepilot.env.knobs import KnobName

SPOKEN: dict[KnobName, str] = {"cpu_limit_mcpu": "cpu_limit", "nice": "nice", "egress_mbps": "egress"}


def check(
    file: Annotated[str, typer.Argument(help="Node configuration: a name or a YAML file of `node discover`.")],
    seconds: Annotated[float, typer.Option(min=0.2, max=600, help="Observation time in seconds.")] = 3.0,
    try_knobs: Annotated[
        bool,
        typer.Option("--try", help="Move each knob slightly for some seconds and measure the effect on the slice."),
    ] = False,
    send: Annotated[
        bool,
        typer.Option(
            "--send", help="Send test packets (1, or 21 after a loss) per slice and direction without traffic."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check for each slice of a node whether its packets are measured and which knobs act on them.

    Needs root. Observes the existing traffic and moves nothing. With --try, knobs are moved back and forth one by
    one, with guard and supervisor, and restored at the end. With --send, test packets are sent through the live
    network to a UE of the slice and a host behind N6 (UDP port 9), in the session that test_session names or that
    the traffic shows. Exit code 1: a slice cannot be measured, or test packets are lost or cannot be sent.

    Example: [bold]slicepilot node check node.yaml[/bold]
    """
    from slicepilot.node.check.report import report
    from slicepilot.node.check.report import send as send_packets
    from slicepilot.node.check.trial import PERIOD_S
    from slicepilot.node.config.spec import NodeSpec
    from slicepilot.node.live.backend import NodeBackend
    from slicepilot.node.send.send import Sending

    spec = NodeSpec.from_yaml(file)
    spec.require_probe("node check")
    backend = NodeBackend(spec, PERIOD_S)
    try:
        with contextlib.ExitStack() as undo:
            sending = undo.enter_context(contextlib.closing(Sending(backend))) if send else None
            progress = undo.enter_context(progress_bar())
            progress.add_task(f"looking on for {seconds:g} s", total=None)
            found = report(backend, seconds)
            if sending is not None:
                found = send_packets(sending, found)
        if try_knobs:
            found = _tried(backend, found)
    finally:
        backend.close()
    if as_json:
        print_json([_document(one) for one in found], list[schema.CheckedSlice])
    else:
        _print(found)
    if not all(one.passes for one in found):
        raise typer.Exit(1)


def _tried(backend: Any, found: list[Any]) -> list[Any]:
    """Without a bar: it would be drawn by a thread, and a controller gives up its capabilities before it has any."""
    from dataclasses import replace

    from slicepilot.node.check.trial import PERIOD_S, TrialAgent, try_knobs
    from slicepilot.node.live.backend import node_of

    agent = TrialAgent(backend.context)
    if not agent.steps:
        stderr.print("no knob acts: there is nothing to try", highlight=False)
        return found
    stderr.print(f"trying {len(agent.steps)} knobs, for {agent.ticks * PERIOD_S:.0f} s", highlight=False)
    effects = try_knobs(node_of(backend), agent)
    return [replace(one, tried=effects[one.name]) for one in found]


def _document(one: Any) -> dict[str, Any]:
    load = one.load
    return {
        "slice": one.name,
        "process": one.process,
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
        if one.learned is None
        else {"sessions": one.learned.sessions, "tunnels": one.learned.tunnels, "qfis": list(one.learned.flows)},
        "knobs": {SPOKEN[knob]: _answer(one, knob) for knob in one.knobs},
        "sent": {
            direction: {"result": sent.result, "sent": sent.sent, "arrived": sent.arrived, "why": sent.why}
            for direction, sent in one.sent.items()
        }
        or None,
        "notes": list(one.notes),
    }


def _answer(one: Any, knob: KnobName) -> dict[str, Any]:
    answer, effect = one.answer(knob), one.tried.get(knob)
    tried = None
    if effect is not None and effect.carried is not None:
        ends = {
            f"{name}_ratio": {"value": ratio.value, "low": ratio.low, "high": ratio.high}
            for name, ratio in (("carried", effect.carried), ("delay_p99", effect.delay))
        }
        tried = {"moved_to": effect.moved_to} | ends
    return {"authority": answer.moves, "why": answer.why, "tried": tried}


def _print(found: list[Any]) -> None:
    from rich.padding import Padding
    from rich.text import Text

    from slicepilot.configs.text import printable

    for one in found:
        colour = "green" if one.passes else "yellow"
        console.print(Text.assemble((one.name, f"bold {colour}"), f"  {one.process}  {one.load}"))
        if one.load.delay_p99_us is not None:
            delays = f"p50 {one.load.delay_p50_us / 1e3:.3g} ms, p99 {one.load.delay_p99_us / 1e3:.3g} ms"
            way = "from N3 to the last point" if one.load.joined is None else "from request to answer"
            console.print(Padding(Text(f"delay {way}: {delays}"), (0, 0, 0, 4)))
        if one.learned is not None:
            qfis = f", QFI {', '.join(map(str, one.learned.flows))}" if one.learned.flows else ""
            told = f"learned from N4: {one.learned.sessions} sessions, {one.learned.tunnels} tunnels{qfis}"
            console.print(Padding(Text(told), (0, 0, 0, 4)))
        for knob in one.knobs:
            answer = one.answer(knob)
            mark, colour = ("acts", "green") if answer.moves else ("does not act", "yellow")
            line = Text.assemble((f"{SPOKEN[knob]} {mark}", colour), f": {printable(answer.why)}")
            console.print(Padding(line, (0, 0, 0, 4)))
        for direction, sent in one.sent.items():
            line = Text.assemble(
                (f"{direction} {sent.result}", "green" if sent.passes else "red"), f": {printable(sent.why)}"
            )
            console.print(Padding(line, (0, 0, 0, 4)))
        for note in one.notes:
            console.print(Padding(Text(f"note: {printable(note)}"), (0, 0, 0, 4)))
