"""The command line: looks commands up by name, and reports errors on a single line."""

from __future__ import annotations

import sys
from inspect import cleandoc
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from slicepilot.configs import ConfigError, FailureError, outside
from slicepilot.configs.backends import Command, load_target
from slicepilot.configs.errors import expectation
from slicepilot.configs.text import printable, shortened
from slicepilot.controller.system.own_programs import check_environment

from .registry import commands, groups
from .shared.endings import end_in_c_code
from .shared.streams import prepare_streams

# Typer exports its bad-parameter error but not the usage error above it, which unknown options raise.
UsageError: Any = typer.BadParameter.__bases__[0]

# Packages of a plain installation; others are part of the extra `train`, except these.
EXTRAS = {"kubernetes": "kubernetes", "matplotlib": "evaluate", "scipy": "evaluate"}
BASE_PACKAGES = {
    *("cryptography", "gymnasium", "numba", "numpy", "onnxruntime", "prometheus_client", "pyarrow", "pydantic"),
    *("pyroute2", "rich", "yaml"),
}


LONGEST_ERROR = 4000  # characters


class CommandByName(TyperCommand):
    """A command that is imported when it is called; until then it is a name and a paragraph of help."""

    def __init__(self, name: str, entry: Command) -> None:
        super().__init__(name)
        self.entry = entry

    # Read when it is shown: click would store it.
    help = property(lambda self: self.entry.help, lambda self, text: None)

    def load(self) -> Any:
        """The command itself, with its options."""
        single = typer.Typer(rich_markup_mode="rich", add_completion=False)
        single.command(self.name)(load_target(self.entry.target))
        command = typer.main.get_command(single)
        # Typer would keep the line breaks of the docstring.
        paragraphs = cleandoc(command.help or "").split("\n\n")
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
        return command


class CommandGroup(TyperGroup):
    """A group of such commands; the root group has the other groups, and the commands of none."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, entry in commands().items():
            group, _, own = name.rpartition(" ")
            if group == (self.name if self.name in groups() else ""):
                self.add_command(CommandByName(own, entry), own)
            elif group not in self.commands and self.name not in groups():
                self.add_command(CommandGroup(name=group, help=groups()[group], no_args_is_help=True), group)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Import the called command; raises the usage errors of Typer."""
        name, command, rest = super().resolve_command(ctx, args)
        if isinstance(command, CommandByName):
            check_environment()
            if command.entry.makes:
                outside.will_make(command.entry.target)
            else:
                end_in_c_code()
            command = command.load()
        return name, command, rest


app = typer.Typer(
    name="slicepilot",
    cls=CommandGroup,
    help="Reinforcement-learning control of 5G network slices at the user plane.",
    no_args_is_help=True,
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


def run() -> NoReturn:
    """Run the command line; see `slicepilot.cli.main`."""
    prepare_streams()
    entry = commands().get(next(iter(sys.argv[1:]), ""))
    if entry is not None and entry.urgent:
        from slicepilot.controller.system.realtime import start_ahead

        start_ahead()
    try:
        code = app(prog_name="slicepilot", standalone_mode=False)
    except ConfigError as error:
        _fail(str(error), 2)
    except UsageError as error:
        _fail(_explain(error), 2)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "slicepilot":
            raise
        package = error.name.split(".")[0]
        wanted = "slicepilot" if package in BASE_PACKAGES else f"slicepilot[{EXTRAS.get(package, 'train')}]"
        _fail(f"{error.name} is not installed: pip install '{wanted}'", 1)
    except FailureError as error:
        _fail(str(error), 1)
    except typer.Abort:
        _fail("interrupted", 130)
    sys.exit(code if isinstance(code, int) else 0)


def _explain(error: Any) -> str:
    """A usage error with the value and what is expected, where Typer leaves them out."""
    message: str = error.format_message()
    command: Any = error.ctx.command if error.ctx else None
    if type(error.__cause__).__name__ == "ValidationError":  # pydantic's, recognised without its import
        first = error.__cause__.errors(include_url=False)[0]
        return f"{error.param.opts[0]} = {first['input']}: {expectation(first['msg'])}"
    if getattr(error, "option_name", None) and command:
        options = [name for param in command.params for name in param.opts]
        return f"{message}; expected one of {', '.join([*options, '--help'])}"
    if message and hasattr(command, "commands"):
        lead = message if message.endswith("?") else f"{message.rstrip('.')};"
        return f"{lead} expected one of {', '.join(command.commands)}"
    return message


def _fail(message: str, code: int) -> NoReturn:
    if message:  # a bare group has already printed its help
        # Other users choose names in it, for instance of an interface, which could contain terminal codes.
        text = shortened(printable(" ".join(message.split())), LONGEST_ERROR)
        print(f"slicepilot: error: {text}", file=sys.stderr)
    sys.exit(code)
