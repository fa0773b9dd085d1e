"""How commands speak: JSON on standard output, everything for people on the console, progress on standard error."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

console = Console()
stderr = Console(stderr=True)


def print_json(value: Any) -> None:
    """Strict JSON (no NaN or infinity) on standard output."""
    print(json.dumps(value, indent=2, allow_nan=False))


def progress_bar() -> Progress:
    """A bar for work of more than two seconds: on standard error when that is a terminal, gone when done."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=stderr,
        transient=True,
        disable=not stderr.is_terminal,
    )
