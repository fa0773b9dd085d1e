"""``slicepilot explain``: what the controller saw, wanted, was allowed and did at a time, and why."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slicepilot.cli.schemas.explaining import ExplainedTick, ExplainedWindow
from slicepilot.cli.shared.output import print_json, say, stderr
from slicepilot.configs import ConfigError
from slicepilot.controller.service.run_config import RunConfig

if TYPE_CHECKING:
    from slicepilot.controller.record.reader import TickHistory

RUN_ROOT, STATE_ROOT = Path(RunConfig.run_root), Path(RunConfig.state_root)


def explain(
    at: Annotated[
        str,
        typer.Option(
            help="Time: RFC 3339, HH:MM:SS, last, or relative (-5s): to now, or to the last tick if none runs."
        ),
    ] = "last",
    window: Annotated[str | None, typer.Option(help="Summarise a window before that time, for instance 1s.")] = None,
    records: Annotated[Path | None, typer.Option(help="Folder of the records.", show_default=False)] = None,
    name: Annotated[str | None, typer.Option(help="Name of the controller; not needed if it is the only one.")] = None,
    state: Annotated[
        Path, typer.Option(help="Directory with one subdirectory of records per controller.")
    ] = STATE_ROOT,
    run: Annotated[Path, typer.Option(help="Directory with one subdirectory per running controller.")] = RUN_ROOT,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Explain a tick: what was measured, wanted, allowed and applied, why, and how long each stage took.

    Example: slicepilot explain --at -5s
    """
    from slicepilot.controller.record.explain import explain_tick, explain_window
    from slicepilot.controller.record.explain_text import tick_lines, window_lines
    from slicepilot.controller.record.moments import NS, parse_duration, parse_time, rfc3339
    from slicepilot.controller.record.reader import TickHistory

    if records is not None and name is not None:
        raise ConfigError("records, name: give at most one of them")
    lasting_ns = None if window is None else round(NS * parse_duration(window, "window"))
    if records is None:
        name = name or _only_name(state, run)
        history = TickHistory(state / name / "records", run / name / "ticks")
    else:
        history = TickHistory(records)
    first_ns, last_ns = history.span_ns()
    time_ns = parse_time(at, time.time_ns(), last_ns)
    nothing = (
        f"at = {at!r}: nothing recorded at {rfc3339(time_ns)}; recorded: {rfc3339(first_ns)} to {rfc3339(last_ns)}"
    )
    if lasting_ns is None:
        moment = history.at(time_ns)
        _tell_broken(history)
        if moment is None:
            raise ConfigError(nothing)
        explanation = explain_tick(moment)
        if as_json:
            print_json(explanation, ExplainedTick)
        else:
            say("\n".join(tick_lines(explanation)))
        return
    runs = explain_window(list(history.stretches(time_ns - lasting_ns + 1, time_ns)))
    _tell_broken(history)
    if not runs:
        raise ConfigError(nothing)
    if as_json:
        print_json(runs, list[ExplainedWindow])
    else:
        lines: list[str] = []
        for explanation in runs:
            lines += [*([""] if lines else []), *window_lines(explanation)]
        say("\n".join(lines))


def _only_name(state: Path, run: Path) -> str:
    """Name of the only controller that has left records or is running."""
    names = {path.parent.name for root, what in ((state, "records"), (run, "ticks")) for path in root.glob(f"*/{what}")}
    if not names:
        raise ConfigError(f"no controller runs and no records are in {state}; give --name or --records")
    if len(names) > 1:
        raise ConfigError(f"name: not given; expected {', '.join(sorted(names))}")
    return names.pop()


def _tell_broken(history: TickHistory) -> None:
    for name, why in sorted(history.broken.items()):
        stderr.print(f"left out: {name}: {why}", markup=False, highlight=False, soft_wrap=True)
