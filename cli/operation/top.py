"""``slicepilot top``: a running controller, live in the terminal."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from slicepilot.cli.shared.output import console, print_json, stderr
from slicepilot.controller.contracts.answers import Status
from slicepilot.controller.contracts.running import not_running

RUN_ROOT = Path("/run/slicepilot")
WAIT_S = 0.2
HINT = ", or give --wait"


def top(
    name: Annotated[str | None, typer.Option(help="Name of the controller; not needed if only one runs.")] = None,
    run_root: Annotated[Path, typer.Option(help="Directory with one subdirectory per controller.")] = RUN_ROOT,
    interval: Annotated[float, typer.Option(min=0.1, max=60, help="Seconds between updates.")] = 0.5,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the controller: of --name, else the first that runs.")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Print the status once and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the status once as JSON and exit.")] = False,
) -> None:
    """Show a running controller: slices, delays, rates, knobs, guard and budget. Read-only; q quits.

    Without a terminal, or on a terminal that cannot move its cursor, it prints the status once.

    Example: [bold]slicepilot top --name sp[/bold]
    """
    from slicepilot.controller.system.clocks import check_clocks
    from slicepilot.controller.top.drawing import ASCII, glyphs_for
    from slicepilot.controller.top.frame import View
    from slicepilot.controller.top.screen import HISTORY_S, Follower, lines_of, show

    check_clocks()
    if wait and not _running(run_root, name):
        stderr.print(f"waiting for a controller in {run_root if name is None else run_root / name}", soft_wrap=True)
    path = run_root / (name or _only(run_root, wait)) / "ticks"
    if not (wait or path.exists()):
        raise not_running(name, run_root, _running(run_root), HINT)
    glyphs = ASCII if not console.encoding.startswith("utf") else glyphs_for()
    live = console.is_terminal and not console.is_dumb_terminal and not once and not as_json
    follower = Follower(path, wait=wait)
    try:
        while not live and (follower.status is None or (wait and not follower.ticks)):
            time.sleep(interval)
            follower.look()
        if as_json:
            assert follower.status is not None
            print_json(follower.status.document(HISTORY_S), Status)
        elif live:
            show(follower, console, glyphs, interval)
        else:
            view = View(console.width, None, glyphs, absent=not follower.present, stale=follower.stale)
            for line in lines_of(follower, view):
                console.print(line, no_wrap=True)
    finally:
        follower.close()


def _only(run_root: Path, wait: bool) -> str:
    """Name of the only running controller."""
    while not (names := _running(run_root)) and wait:
        time.sleep(WAIT_S)
    if len(names) == 1:
        return names[0]
    raise not_running(None, run_root, names, HINT)


def _running(run_root: Path, name: str | None = None) -> list[str]:
    """Names of the controllers that run, or of the one that is meant."""
    return sorted(path.parent.name for path in run_root.glob("*/ticks") if name in {None, path.parent.name})
