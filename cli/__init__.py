"""The command line: `main` runs a command and turns bad input into one line and exit code 2."""

from __future__ import annotations

from typing import NoReturn

from .shared.endings import interrupted, put_away_when_ended

__all__ = ["main"]


def main() -> NoReturn:
    """Entry point: exit code 0 when the command did what it says, 2 for bad input, 1 for a failure, 130 for Ctrl-C, 143
    for SIGTERM."""
    put_away_when_ended()
    with interrupted():
        from .app import run

        run()
