"""The command line: `main` runs a command and turns bad input into one line and exit code 2."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as in `typing`, which takes time to import
if TYPE_CHECKING:
    from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """Entry point: exit code 0 when the command did what it says, 2 for bad input, 1 for a failure, 130 for Ctrl-C, 143
    for SIGTERM."""
    _leave_working_folder()
    import signal

    # Until commands can be unwound: nothing has been made, and an interrupted import would show a traceback.
    signal.signal(signal.SIGTERM, _end_at_once)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # and not ignored, as in a shell's background
        signal.signal(signal.SIGINT, _end_at_once)
    from .shared.endings import interrupted, put_away_when_ended

    put_away_when_ended()
    with interrupted():
        from .app import run

        run()


def _leave_working_folder() -> None:
    """Take the working folder out of where modules and programs are looked for, before anything else is imported:
    whoever may write there must not become who calls the command.

    ``python -m`` puts it first; an empty or relative entry of PYTHONPATH or PATH means it as well.
    """
    here = os.path.realpath(os.curdir)
    is_absolute = os.path.isabs  # of `os.path`, since an import could be somebody else's
    sys.path[:] = [entry for entry in sys.path if is_absolute(entry) and os.path.realpath(entry) != here]
    if "PATH" in os.environ:
        os.environ["PATH"] = os.pathsep.join(filter(is_absolute, os.environ["PATH"].split(os.pathsep)))


def _end_at_once(number: int, _: object) -> None:
    if number == 2:  # SIGINT
        os.write(2, b"slicepilot: error: interrupted\n")
    os._exit(128 + number)
