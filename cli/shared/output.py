"""Output of commands: results and JSON on standard output, progress on standard error."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table

from slicepilot.configs.documents import DocumentError, dumps
from slicepilot.configs.text import cleaned, printable


class PlainConsole(Console):
    """A console for text that others chose: names in files, of processes and interfaces, errors of servers.

    Terminal codes and directions of writing in it are shown as question marks, and square brackets as they are.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(markup=False, **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            plain = segment.control or segment.text == "\n" or segment.text.isprintable()
            yield segment if plain else Segment(cleaned(segment.text), segment.style)


console = PlainConsole()
stderr = PlainConsole(stderr=True)


def say(text: str) -> None:
    """Print a line of a result unchanged and unwrapped."""
    console.print(text, highlight=False, soft_wrap=True)


def note(text: str) -> None:
    """Print a line on standard error unchanged and unwrapped."""
    stderr.print(text, highlight=False, soft_wrap=True)


def print_json(value: Any, shape: Any) -> None:
    """Print strict JSON (no NaN or infinity) that was checked against its shape (`slicepilot.cli.schemas`).

    A document that does not fit is an internal error: a line on standard error names the field, and the exit code is 1.
    """
    try:
        text = dumps(value, shape)
    except DocumentError as error:
        typer.echo(f"slicepilot: internal error: JSON: {printable(str(error))}", err=True)
        raise typer.Exit(1) from error
    print(text)


def announce_compilation() -> None:
    """A line on standard error if the simulator has to be compiled, which otherwise looks like a hang."""
    from slicepilot.env.compiled import is_cached
    from slicepilot.env.simulator.kernels import advance

    if not is_cached(advance):
        stderr.print("compiling the simulator, once: up to a minute")


def progress_bar(shown: bool = True, threaded: bool = True) -> Progress:
    """A bar on standard error for work of more than two seconds; it needs a terminal and disappears at the end.

    A thread draws it; without the thread, ``update(refresh=True)`` does.
    """
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=stderr,
        transient=True,
        auto_refresh=threaded,
        disable=not (shown and stderr.is_terminal),
    )


def progress_lines(shown: bool = True, every_s: float = 15.0) -> Callable[[str, float], None]:
    """Where `progress_bar` has no terminal: called with what is done and its share, it prints a line now and then.

    Lines go to standard error, the first after ``every_s``, so that short work says nothing.
    """
    last_s = time.monotonic()

    def show(what: str, share: float) -> None:
        nonlocal last_s
        if not shown or stderr.is_terminal or time.monotonic() - last_s < every_s:
            return
        last_s = time.monotonic()
        stderr.print(f"{what}, {100 * share:.0f}%", highlight=False, soft_wrap=True)

    return show


def figures_table(title: str, headings: Sequence[str], tight: bool = False) -> Table:
    """A table for 80 columns: names left-aligned and wrapped where they must, figures right-aligned.

    A ``tight`` table has a single space between its columns.
    """
    padding = 0 if tight else 1
    table = Table(
        title=title, box=SIMPLE_HEAD, padding=(0, 0, 0, padding), pad_edge=False, show_edge=not tight,
        title_justify="left",
    )  # fmt: skip
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", no_wrap=number > 0, overflow="fold")
    return table
