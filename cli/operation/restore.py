"""``slicepilot restore``: restore the original knobs of controllers that have died."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slicepilot.cli.schemas.operation import Restored
from slicepilot.cli.shared.output import console, print_json, say
from slicepilot.configs import ConfigError

if TYPE_CHECKING:
    from slicepilot.controller.watchdog.restore import RestoreReport

STATE_ROOT = Path("/var/lib/slicepilot")


def restore(
    name: Annotated[str | None, typer.Option(help="Name of the controller (default: all that have died).")] = None,
    state: Annotated[Path, typer.Option(help="Directory with one subdirectory per controller.")] = STATE_ROOT,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Restore the original knobs after a controller and its supervisor have died.

    It is no error if there is nothing to restore, so a service manager can run it after every controller.

    Example: [bold]slicepilot restore --name sp[/bold]
    """
    from slicepilot.controller.system.clocks import check_clocks

    check_clocks()
    reports = {
        instance: report
        for instance in _names(state, name)
        if (report := _restore(state / instance, name is None)) is not None
    }
    if as_json:
        print_json([{"name": instance, **vars(report)} for instance, report in reports.items()], list[Restored])
    else:
        for instance, report in reports.items():
            say(f"{instance}: {report}")
        if not reports:
            console.print("nothing to restore")
    if any(report.failed for report in reports.values()):
        raise typer.Exit(1)


def _names(root: Path, name: str | None) -> list[str]:
    from slicepilot.controller.watchdog.journal import states_with_journal

    if name is not None:
        return [name]
    names = sorted(folder.name for folder in states_with_journal(root))
    if not names and root != STATE_ROOT and not root.is_dir():
        raise ConfigError(f"state = {str(root)!r}; expected a directory with one subdirectory per controller")
    return names


def _restore(folder: Path, skip_living: bool) -> RestoreReport | None:
    """None where there is nothing to restore; raises ConfigError for a controller that runs."""
    from slicepilot.controller.watchdog.journal import Journal, JournalError, journal_path
    from slicepilot.controller.watchdog.lock import Locks
    from slicepilot.controller.watchdog.recovery import restore_left

    with contextlib.suppress(JournalError, OSError):  # restore_left reports what is wrong
        path = journal_path(folder)
        if not path.exists() or (skip_living and Journal.load(path).alive):
            return None
    # A supervisor that is restoring holds the lock. Without the folder there is no supervisor.
    with Locks({f"controller {folder.name}": folder} if folder.is_dir() else {}):
        return restore_left(journal_path(folder))
