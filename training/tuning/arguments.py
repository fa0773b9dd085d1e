"""Arguments and errors of this package's commands: argparse, errors on a single line, exit code 2."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from slicepilot.configs import ConfigError


def count(text: str) -> int:
    """A whole number of at least 1, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}; expected 1 or more")
    return number


def run(main: Callable[[], None]) -> None:
    """Call a command and report invalid input on a single line, as ``slicepilot`` does."""
    try:
        main()
    except ConfigError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
