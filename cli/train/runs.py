"""What both kinds of training show and where they put it: a bar on standard error, a folder of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from slicepilot.cli.shared.default_paths import numbered, own
from slicepilot.cli.shared.output import stderr
from slicepilot.cli.shared.streams import refuse_stdout

RUNS = Path("runs")

Config = TypeVar("Config", bound=Any)
Show = Callable[[float, str], None]
"""Called with the share of the budget that is used, 0..1, and figures in words."""


def folder_for(out: Path | None, resume: Path | None, name: str) -> Path:
    """The output folder of a run: as given, else that of the resumed run, else a new folder.

    Raises ConfigError if other users can redirect the new folder.
    """
    if out is not None:
        refuse_stdout(out, "a folder")
        return out
    if resume is not None:
        return resume if resume.is_dir() else resume.parent
    default = numbered(RUNS / name)
    return own(default, default, "out")


def with_budget(config: Config, **budget: float | None) -> Config:
    """The configuration; a budget of either kind on the command line replaces its budgets of both kinds."""
    if all(value is None for value in budget.values()):
        return config
    return replace(config, **dict.fromkeys(budget)).override(**budget)


@contextmanager
def training_bar(name: str) -> Iterator[Show]:
    """A bar on standard error, if that is a terminal."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=stderr, disable=not stderr.is_terminal) as bar:
        task = bar.add_task(name, total=1.0, figures="starting")
        yield lambda fraction, figures: bar.update(task, completed=fraction, figures=figures)
