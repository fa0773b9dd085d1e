"""The command line: `main` runs a command and turns bad input into one line and exit code 2."""

from __future__ import annotations

import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """Entry point: exit code 0 when the command did what it says, 2 for bad input, 1 for a failure, 130 for Ctrl-C, 143
    for SIGTERM."""
    # Until we can answer Ctrl-C with a line, the kernel does: an interrupted import would show a traceback.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .shared.endings import interrupted, put_away_when_ended

    put_away_when_ended()
    with interrupted():
        from .app import run

        run()
