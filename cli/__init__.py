"""The command line: `main` runs a command and turns bad input into one line and exit code 2."""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False  # as in `typing`, which takes time to import
if TYPE_CHECKING:
    from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """Entry point: exit code 0 when the command did what it says, 2 for bad input, 1 for a failure, 130 for Ctrl-C, 143
    for SIGTERM."""
    # Until commands can be unwound: nothing has been made, and an interrupted import would show a traceback.
    signal.signal(signal.SIGTERM, _end_at_once)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # and not ignored, as in a shell's background
        signal.signal(signal.SIGINT, _end_at_once)
    from .shared.endings import interrupted, put_away_when_ended

    put_away_when_ended()
    with interrupted():
        from .app import run

        run()


def _end_at_once(number: int, _: object) -> None:
    if number == signal.SIGINT:
        os.write(2, b"slicepilot: error: interrupted\n")
    os._exit(128 + number)
