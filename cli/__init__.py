"""The command line: `main` runs a command and turns bad input into one line and exit code 2."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as in `typing`, which takes time to import: signals are answered before that
if TYPE_CHECKING:
    from typing import NoReturn


def _fail_as_interrupted() -> NoReturn:
    print("slicepilot: error: interrupted", file=sys.stderr)
    raise SystemExit(130) from None


try:
    from .shared.endings import end_at_once
except KeyboardInterrupt:
    _fail_as_interrupted()


def main() -> NoReturn:
    """Entry point: as `slicepilot.cli.app.main`, and ends as it does where a signal comes while that is imported."""
    try:
        end_at_once()
        from .app import main as run

        run()
    except KeyboardInterrupt:
        # While commands are registered, or while what is left of one is cleared away.
        _fail_as_interrupted()


__all__ = ["main"]
