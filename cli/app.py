"""Command registration and the rules that hold for all commands.

Modules of commands import what they need inside their functions: `slicepilot --help` and the controller stay lean.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, NoReturn

import typer
from pydantic import ValidationError

from ..configs import ConfigError
from ..controller.system.bpf.errors import ProbeError
from ..controller.system.kernel_file import ActuatorError
from ..controller.system.privileges import PrivilegeError
from ..testbed.lifecycle.processes import ProgramError
from .shared.endings import put_away_when_ended

# Typer exports its bad-parameter error but not the usage error above it, which unknown options raise.
UsageError: Any = typer.BadParameter.__bases__[0]

# Of the extra `live` alone; what else may be missing is of `train`, or of both.
LIVE_PACKAGES = {"cryptography", "prometheus_client", "pyarrow", "pyroute2"}

app = typer.Typer(
    name="slicepilot",
    help="Reinforcement-learning control of 5G network slices at the user plane.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata

        print(f"slicepilot {metadata.version('slicepilot')}")
        raise typer.Exit


@app.callback()
def _before_any_command(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    del version  # its callback has answered


def main() -> NoReturn:
    """Entry point: exit code 0 when the command did what it says, 2 for bad input, 1 for a failure, 130 for Ctrl-C, 143
    for SIGTERM."""
    from . import registry as commands

    put_away_when_ended()
    commands.register(app)
    try:
        code = app(standalone_mode=False)
    except ConfigError as error:
        _fail(str(error), 2)
    except UsageError as error:
        _fail(_explain(error), 2)
    except ModuleNotFoundError as error:
        extra = "live" if error.name in LIVE_PACKAGES else "train"
        _fail(f"{error.name} is not installed: pip install 'slicepilot[{extra}]'", 1)
    except (ActuatorError, PrivilegeError, ProbeError, ProgramError) as error:
        _fail(str(error), 1)
    except (typer.Abort, KeyboardInterrupt):
        _fail("interrupted", 130)
    sys.exit(code if isinstance(code, int) else 0)


def _explain(error: Any) -> str:
    """What a usage error says, with the value and what is accepted where Typer leaves them out."""
    message: str = error.format_message()
    command: Any = error.ctx.command if error.ctx else None
    if isinstance(error.__cause__, ValidationError):
        first = error.__cause__.errors(include_url=False)[0]
        return f"{error.param.opts[0]} = {first['input']}: {first['msg']}"
    if getattr(error, "option_name", None) and command:
        return f"{message}; accepted: {', '.join([opt for param in command.params for opt in param.opts] + ['--help'])}"
    if message and hasattr(command, "commands"):
        lead = message if message.endswith("?") else f"{message.rstrip('.')};"
        return f"{lead} accepted: {', '.join(command.commands)}"
    return message


def _fail(message: str, code: int) -> NoReturn:
    if message:  # a bare group has already printed its help
        print(f"slicepilot: error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)
