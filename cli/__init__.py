"""The command line: `main` runs a command, and reports bad input in a line with exit code 2."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as in `typing`, which takes time to import
if TYPE_CHECKING:
    from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """Entry point; exit codes: 0 success, 1 failure, 2 bad input, 130 Ctrl-C, 143 SIGTERM."""
    _leave_working_folder()
    import signal

    # Until commands can be unwound. Nothing was created yet, and an interrupted import would show a traceback.
    signal.signal(signal.SIGTERM, _end_at_once)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # and not ignored, as in a shell's background
        signal.signal(signal.SIGINT, _end_at_once)
    from .shared.endings import interrupted, unwind_on_signals

    unwind_on_signals()
    with interrupted():
        from .app import run

        run()


def _leave_working_folder() -> None:
    """Remove the working folder from the search paths of modules and programs, before anything else is imported.

    Otherwise a user who may write there could run code as the caller. ``python -m`` puts it first; an empty or relative
    entry of PYTHONPATH or PATH means it, too.
    """
    here = os.path.realpath(os.curdir)
    is_absolute = os.path.isabs  # of `os.path`, since an import could load another user's module
    sys.path[:] = [entry for entry in sys.path if is_absolute(entry) and os.path.realpath(entry) != here]
    if "PATH" in os.environ:
        os.environ["PATH"] = os.pathsep.join(filter(is_absolute, os.environ["PATH"].split(os.pathsep)))


def _end_at_once(number: int, _: object) -> None:
    if number == 2:  # SIGINT
        os.write(2, b"slicepilot: error: interrupted\n")
    os._exit(128 + number)
