"""Command registration and the rules that hold for all commands.

Modules of commands import what they need inside their functions: `slicepilot --help` and the controller stay lean.
"""

from __future__ import annotations

import sys
from typing import NoReturn

import typer

from ...configs import ConfigError

app = typer.Typer(
    name="slicepilot",
    help="Reinforcement-learning control of 5G network slices at the user plane.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def main() -> NoReturn:
    """Entry point: exit code 0 when the command did what it says, 2 for bad input, 1 for a failure."""
    from . import commands

    commands.register(app)
    try:
        app()
    except ConfigError as error:
        print(f"slicepilot: error: {error}", file=sys.stderr)
        sys.exit(2)
    sys.exit(0)
